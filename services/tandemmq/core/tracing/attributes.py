"""Attribute names of our spans: OpenTelemetry's semantic conventions for messaging, v1.44, with their RocketMQ page.

What the conventions have no name for starts with `tandemmq.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from tandemmq.core.tracing.span_data import AttributeValue

__all__ = ["peer_attributes"]

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_SYSTEM_ROCKETMQ: Final = "rocketmq"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_CLIENT_ID: Final = "messaging.client.id"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
MESSAGING_ROCKETMQ_NAMESPACE: Final = "messaging.rocketmq.namespace"
MESSAGING_ROCKETMQ_MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGING_ROCKETMQ_MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGING_ROCKETMQ_MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGING_ROCKETMQ_MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# Ours. Offsets are physical, in bytes of the CommitLog.
BROKER_GROUP: Final = "tandemmq.broker_group"
BROKER_ID: Final = "tandemmq.broker_id"
ACK_POLICY: Final = "tandemmq.ack.policy"
"""ASYNC, SYNC_REPLICATION, SYNC_FLUSH or both: what the send waited for."""
ACKS_REQUIRED: Final = "tandemmq.ack.required"
ACKS_RECEIVED: Final = "tandemmq.ack.received"
LAG_BYTES: Final = "tandemmq.lag_bytes"
"""How far a slave was behind the end of the put."""
SLAVES_CONNECTED: Final = "tandemmq.slaves_connected"
MESSAGE_IDS: Final = "tandemmq.message_ids"
"""The ids of a batch, which has no `messaging.message.id`."""
SLAVE: Final = "tandemmq.slave"
PHYSICAL_OFFSET: Final = "tandemmq.physical_offset"
QUEUE_OFFSET: Final = "tandemmq.queue_offset"
STORED_BYTES: Final = "tandemmq.stored_bytes"
PUT_STATUS: Final = "tandemmq.put_status"
EPOCH: Final = "tandemmq.epoch"
CHANGE_REASON: Final = "tandemmq.failover.reason"
"""Of a change of master, in words."""
RETAINED_FOR: Final = "tandemmq.trace.retained_for"
"""Why the trace was kept: a `RetainedFor`."""


class RetainedFor(StrEnum):
    """Why a broker kept a trace."""

    # The caller's context says so, or chance did.
    SAMPLED = "sampled"
    # Decided when the answer was known.
    SLOW = "slow"
    FAILED = "failed"


def text_of(retained_for: RetainedFor) -> str:
    """Its value; that of an enum's member takes long to read."""
    if retained_for is _SAMPLED:
        return "sampled"
    return "slow" if retained_for is _SLOW else "failed"


_SAMPLED: Final = RetainedFor.SAMPLED
_SLOW: Final = RetainedFor.SLOW


def message_ids_of(attributes: Mapping[str, AttributeValue]) -> tuple[str, ...]:
    """The messages that a span, an event or a link names: one, those of a batch, or none."""
    named = attributes.get(MESSAGING_MESSAGE_ID) or attributes.get(MESSAGE_IDS) or ()
    return named if isinstance(named, tuple) else (str(named),)


# Who called, as spans tell it.


@lru_cache(maxsize=1_024)
def peer_attributes(peer: str) -> Mapping[str, AttributeValue]:
    """Address and port of `ipv4:10.0.0.7:51234` or `ipv6:[::1]:51234`, whose brackets gRPC writes %5B and %5D.

    Nothing for what is neither. Callers share the mapping.
    """
    address, _, port = peer.partition(":")[2].rpartition(":")
    if not address or not port.isdecimal():
        return {}
    address = address.removeprefix("%5B").removesuffix("%5D").strip("[]")
    return {NETWORK_PEER_ADDRESS: address, NETWORK_PEER_PORT: int(port)}

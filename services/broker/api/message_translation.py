"""Messages between the client API and the store.

Towards the store a message gets the properties a RocketMQ 5.5 proxy and broker would store, in the same order, so that
either broker reads the other's records alike (checked against records of RocketMQ 5.5). Towards a client the broker's
own properties are taken out again.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.internal_properties import PROPERTY_TRACE_CONTEXT, is_internal
from mqcore.message import (
    Host,
    MessageRecord,
    OutgoingMessage,
    decode_properties,
    encode_properties,
    java_map_order,
    offset_message_id,
    tags_code,
)
from mqcore.message.property_names import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CLUSTER,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_REGION,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_ON,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
)
from mqcore.message.sys_flag import COMPRESSED

__all__ = ["born_host", "delivered_message", "outgoing_message"]

# What a broker of RocketMQ writes into each message sent to it (BrokerConfig.regionId, traceOn).
_REGION: Final = "DefaultRegion"
_TRACE_ON: Final = "true"
# The broker's own HashMap, from which 5.5 writes the property string.
_JAVA_MAP_CAPACITY: Final = 128


def outgoing_message(
    message: definition.Message, *, topic: str, queue_id: int, cluster: str, peer_host: Host, now_wall_ms: int
) -> OutgoingMessage:
    """A NORMAL or FIFO message as it is put. InvalidProperty when a value hides a separator of the stored form."""
    system = message.system_properties
    tag = system.tag or None
    keys = tuple(key for key in system.keys if key)
    message_id = system.message_id
    born_timestamp_ms = _milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else now_wall_ms
    properties = dict(message.user_properties)
    if tag is not None:
        properties[PROPERTY_TAGS] = tag
    if keys:
        properties[PROPERTY_KEYS] = " ".join(keys)
    properties[PROPERTY_UNIQUE_KEY] = message_id
    properties[PROPERTY_RECONSUME_TIME] = "0"
    # The topic stands for the producer group, which the client API does not have: what RocketMQ's proxy does.
    properties[PROPERTY_PRODUCER_GROUP] = topic
    if system.message_group:
        properties[PROPERTY_SHARDING_KEY] = system.message_group
    if system.trace_context:
        properties[PROPERTY_TRACE_CONTEXT] = system.trace_context
    properties[PROPERTY_BORN_HOST] = system.born_host or _address_text(peer_host.address)
    properties[PROPERTY_BORN_TIMESTAMP] = str(born_timestamp_ms)
    properties[PROPERTY_REGION] = _REGION
    properties[PROPERTY_TRACE_ON] = _TRACE_ON
    properties[PROPERTY_CLUSTER] = cluster
    return OutgoingMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=encode_properties([(name, properties[name]) for name in _stored_order(tuple(properties))]),
        tags_code=tags_code(tag),
        index_keys=(message_id, *(word for key in keys for word in key.split(" ") if word)),
        tag=tag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=peer_host,
        sys_flag=COMPRESSED if system.body_encoding == definition.GZIP else 0,
    )


def delivered_message(
    record: MessageRecord,
    *,
    topic: definition.Resource,
    receipt_handle: str,
    delivery_attempt: int,
    invisible_ms: int,
) -> definition.Message:
    """A stored record as one delivery. `topic` is the resource the receiver asked for, whose namespace is echoed."""
    properties = decode_properties(record.properties)
    system = definition.SystemProperties(
        keys=properties.get(PROPERTY_KEYS, "").split(),
        message_id=properties.get(PROPERTY_UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset),
        body_digest=definition.Digest(
            type=definition.MD5, checksum=hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
        ),
        # RocketMQ marks a compressed body so whatever the codec; clients that can read it look at the bytes.
        body_encoding=definition.GZIP if record.sys_flag & COMPRESSED else definition.IDENTITY,
        message_type=_message_type(properties),
        born_timestamp=_timestamp(record.born_timestamp_ms),
        born_host=properties.get(PROPERTY_BORN_HOST) or _address_text(record.born_host.address),
        store_timestamp=_timestamp(record.store_timestamp_ms),
        store_host=_host_text(record.store_host),
        receipt_handle=receipt_handle,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=delivery_attempt,
    )
    system.invisible_duration.seconds, remainder_ms = divmod(invisible_ms, 1_000)
    system.invisible_duration.nanos = remainder_ms * 1_000_000
    _set_what_the_sender_set(system, properties)
    return definition.Message(
        topic=topic,
        user_properties={name: value for name, value in properties.items() if not is_internal(name)},
        system_properties=system,
        body=record.body,
    )


def born_host(peer: str) -> Host:
    """The address of a gRPC peer, `ipv4:10.0.0.1:5000` or `ipv6:[::1]:5000`; 0.0.0.0:0 for any other transport."""
    return _born_host(peer)


@lru_cache(maxsize=4_096)
def _born_host(peer: str) -> Host:
    scheme, _, address = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return Host(bytes(4), 0)
    # gRPC percent-encodes the brackets of an IPv6 peer; a zone ("%eth0") has no place in a record.
    literal, _, port = address.replace("%5B", "").replace("%5D", "").replace("[", "").replace("]", "").rpartition(":")
    return Host.parse(literal.partition("%")[0], int(port))


def _set_what_the_sender_set(system: definition.SystemProperties, properties: dict[str, str]) -> None:
    """Fields whose absence differs from an empty value."""
    if tag := properties.get(PROPERTY_TAGS):
        system.tag = tag
    if message_group := properties.get(PROPERTY_SHARDING_KEY):
        system.message_group = message_group
    if trace_context := properties.get(PROPERTY_TRACE_CONTEXT):
        system.trace_context = trace_context
    deliver_ms = properties.get(PROPERTY_TIMER_DELIVER_MS, "")
    if deliver_ms.isdigit():
        system.delivery_timestamp.CopyFrom(_timestamp(int(deliver_ms)))
    origin_topic = properties.get(PROPERTY_DEAD_LETTER_ORIGIN_TOPIC)
    origin_message_id = properties.get(PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID)
    if origin_topic and origin_message_id:
        system.dead_letter_queue.topic = origin_topic
        system.dead_letter_queue.message_id = origin_message_id


def _message_type(properties: dict[str, str]) -> definition.MessageType:
    """RocketMQ's GrpcConverter: the kind is not stored, it shows in what the message carries."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return definition.TRANSACTION
    if (
        PROPERTY_DELAY_LEVEL in properties
        or PROPERTY_TIMER_DELIVER_MS in properties
        or PROPERTY_TIMER_DELAY_S in properties
    ):
        return definition.DELAY
    return definition.FIFO if PROPERTY_SHARDING_KEY in properties else definition.NORMAL


@lru_cache(maxsize=1_024)
def _stored_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Most messages carry the same few names; names of users are unbounded, hence the limit."""
    return tuple(java_map_order(names, capacity=_JAVA_MAP_CAPACITY))


@lru_cache(maxsize=4_096)
def _address_text(address: bytes) -> str:
    return str(ip_address(address))


@lru_cache(maxsize=64)
def _host_text(host: Host) -> str:
    return str(host)


def _milliseconds(timestamp: Timestamp) -> int:
    return timestamp.seconds * 1_000 + timestamp.nanos // 1_000_000


def _timestamp(milliseconds: int) -> Timestamp:
    seconds, remainder_ms = divmod(milliseconds, 1_000)
    return Timestamp(seconds=seconds, nanos=remainder_ms * 1_000_000)

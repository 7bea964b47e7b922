"""Messages on their way from the client API into the store.

A message gets the properties a RocketMQ 5.5 proxy and broker would store, in the same order, so that either broker
reads the other's records alike (checked against records of RocketMQ 5.5). `delivery_encoding` is the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from operator import itemgetter
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.internal_properties import PROPERTY_TRACE_CONTEXT
from mqcore.message import (
    Host,
    InvalidProperty,
    OutgoingMessage,
    java_map_order,
    tags_code,
)
from mqcore.message.property_names import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CLUSTER,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_REGION,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TRACE_ON,
    PROPERTY_UNIQUE_KEY,
)
from mqcore.message.sys_flag import COMPRESSED

__all__ = ["born_host", "outgoing_message"]

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
    keys = [key for key in system.keys if key]
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
    words = keys if len(keys) == 1 and " " not in keys[0] else [word for key in keys for word in key.split(" ") if word]
    return OutgoingMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=_stored_properties(properties),
        tags_code=tags_code(tag),
        index_keys=(message_id, *words),
        tag=tag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=peer_host,
        sys_flag=COMPRESSED if system.body_encoding == definition.GZIP else 0,
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


def _stored_properties(properties: dict[str, str]) -> bytes:
    """`encode_properties` in the order of RocketMQ's map. InvalidProperty as there."""
    values_in_order, form = _stored_form(tuple(properties))
    text = form % values_in_order(properties)
    count = len(properties)
    if text.count("\x01") != count or text.count("\x02") != count:
        raise InvalidProperty("the name or the value of a property contains the byte 0x01 or 0x02")
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=1_024)
def _stored_form(names: tuple[str, ...]) -> tuple[Callable[[dict[str, str]], tuple[str, ...]], str]:
    """How to pick the values of at least two names in stored order, and the text they go into.

    Most messages carry the same few names; names of users are unbounded, hence the limit.
    """
    order = java_map_order(names, capacity=_JAVA_MAP_CAPACITY)
    return itemgetter(*order), "".join(f"{name.replace('%', '%%')}\x01%s\x02" for name in order)


@lru_cache(maxsize=4_096)
def _address_text(address: bytes) -> str:
    return str(ip_address(address))


def _milliseconds(timestamp: Timestamp) -> int:
    return timestamp.seconds * 1_000 + timestamp.nanos // 1_000_000

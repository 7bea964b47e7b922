"""Messages on their way from the client API into the store.

A message gets the properties a RocketMQ 5.5 proxy and broker would store, in the same order, so that either broker
reads the other's records alike (checked against records of RocketMQ 5.5). `delivery_encoding` is the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from operator import itemgetter
from typing import Final, NamedTuple

from apache.rocketmq.v2 import definition_pb2 as definition
from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.internal_properties import PROPERTY_TRACE_CONTEXT
from broker.api.sent_message import SentMessage
from mqcore.message import (
    Host,
    OutgoingMessage,
    encode_property_text,
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

__all__ = ["NoTime", "born_host", "outgoing_message"]

# What a broker of RocketMQ writes into each message sent to it (BrokerConfig.regionId, traceOn).
_REGION: Final = "DefaultRegion"
_TRACE_ON: Final = "true"
# The broker's own HashMap, from which 5.5 writes the property string.
_JAVA_MAP_CAPACITY: Final = 128
# Of protobuf's Timestamp.
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_PUT_ORDER: Final = (
    PROPERTY_TAGS,
    PROPERTY_KEYS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_REGION,
    PROPERTY_TRACE_ON,
    PROPERTY_CLUSTER,
)


class NoTime(ValueError):
    """A timestamp that is none; the text is for its sender."""


def outgoing_message(
    sent: SentMessage, topic: str, queue_id: int, *, cluster: str, peer_host: Host, now_wall_ms: int
) -> OutgoingMessage:
    """A NORMAL or FIFO message as it is put. InvalidProperty when a value hides a separator of the stored form, NoTime
    when it was born outside the years there are."""
    system = sent.system
    tag = sent.tag or None
    keys = sent.keys
    if "" in keys:
        keys = [key for key in keys if key]
    message_id = sent.message_id
    born_timestamp_ms = _milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else now_wall_ms
    user_properties = sent.user_properties
    message_group, trace_context = sent.message_group, sent.trace_context
    form = _property_form(
        tuple(user_properties),
        tag is not None,
        bool(keys),
        bool(message_group),
        bool(trace_context),
        cluster,
    )
    # The topic stands for the producer group, which the client API does not have: what RocketMQ's proxy does.
    values = [message_id, topic, system.born_host or _address_text(peer_host.address), str(born_timestamp_ms)]
    if tag is not None:
        values.append(tag)
    if keys:
        values.append(" ".join(keys))
    if message_group:
        values.append(message_group)
    if trace_context:
        values.append(trace_context)
    if user_properties:
        values += user_properties.values()
    words = keys if len(keys) == 1 and " " not in keys[0] else [word for key in keys for word in key.split(" ") if word]
    return OutgoingMessage(  # by place: names would cost twice as much as the rest
        topic,
        queue_id,
        sent.body,
        form.stored(values),
        tags_code(tag),
        (message_id, *words),
        tag,
        born_timestamp_ms,
        peer_host,
        0,
        COMPRESSED if system.body_encoding == definition.GZIP else 0,
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


class _PropertyForm(NamedTuple):
    """The property string of all messages with the same names, apart from the values that differ."""

    template: str
    # Puts the values into the template's order.
    in_order: Callable[[list[str]], tuple[str, ...]]
    pair_count: int

    def stored(self, values: list[str]) -> bytes:
        """The stored form. InvalidProperty as `encode_properties`, which would make the same bytes."""
        return encode_property_text(self.template % self.in_order(values), self.pair_count)


@lru_cache(maxsize=1_024)
def _property_form(
    user_names: tuple[str, ...],
    has_tag: bool,
    has_keys: bool,
    has_message_group: bool,
    has_trace_context: bool,
    cluster: str,
) -> _PropertyForm:
    """Most messages carry the same few names; names of users are unbounded, hence the limit."""
    # What `outgoing_message` has in its list of values, in that order.
    optional = {
        PROPERTY_TAGS: has_tag,
        PROPERTY_KEYS: has_keys,
        PROPERTY_SHARDING_KEY: has_message_group,
        PROPERTY_TRACE_CONTEXT: has_trace_context,
    }
    given = [
        PROPERTY_UNIQUE_KEY,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_BORN_HOST,
        PROPERTY_BORN_TIMESTAMP,
        *(name for name, is_there in optional.items() if is_there),
        *user_names,
    ]
    fixed = {
        PROPERTY_RECONSUME_TIME: "0",
        PROPERTY_REGION: _REGION,
        PROPERTY_TRACE_ON: _TRACE_ON,
        PROPERTY_CLUSTER: cluster,
    }
    # In the order in which RocketMQ puts them into its map, which decides among names of one bucket.
    names = [name for name in (*user_names, *_PUT_ORDER) if name in fixed or name in given]
    order = java_map_order(names, capacity=_JAVA_MAP_CAPACITY)
    pairs = [f"{_escaped(name)}\x01{_escaped(fixed[name]) if name in fixed else '%s'}\x02" for name in order]
    places = [given.index(name) for name in order if name not in fixed]
    return _PropertyForm("".join(pairs), itemgetter(*places), len(order))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


@lru_cache(maxsize=4_096)
def _address_text(address: bytes) -> str:
    return str(ip_address(address))


def _milliseconds(timestamp: Timestamp) -> int:
    seconds = timestamp.seconds
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        raise NoTime(f"born_timestamp: {seconds} s since 1970 is outside the years 1 to 9999; send a time")
    return seconds * 1_000 + timestamp.nanos // 1_000_000

"""Messages on their way from the client API into the store.

A message gets the properties a RocketMQ 5.5 proxy and broker would store, in the same order, so that either broker
reads the other's records alike (checked against records of RocketMQ 5.5). `delivery_encoding` is the way back.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from mypy_extensions import i64

from tandemmq.broker.client_api.sent_message import NO_PRIORITY, SentMessage
from tandemmq.core.clock import Clock
from tandemmq.core.message import properties
from tandemmq.core.message.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CLUSTER,
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_REGION,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TRACE_ON,
    PROPERTY_UNIQUE_KEY,
    InvalidProperty,
    encode_properties,
    java_map_order,
    tags_code,
)
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.routing.values import peer_host
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition

# Property names that belong to brokers and clients of RocketMQ, not to applications (its MessageConst).

PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"

# Names this broker neither reads nor writes, but that other members of the family do.
_OF_OTHERS: Final = frozenset(
    {
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BUYER_ID",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "MAX_OFFSET",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_TYPE",
        "POP_CK",
        "POP_CK_OFFSET",
        "PUSH_REPLY_TIME",
        "REPLY_TO_CLIENT",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_UNIQKEY",
        "TRANSFER_FLAG",
        "TTL",
    }
)
_OF_THIS_BROKER: Final = frozenset(value for name, value in vars(properties).items() if name.startswith("PROPERTY_"))
_INTERNAL: Final = _OF_OTHERS | _OF_THIS_BROKER | {PROPERTY_TRACE_CONTEXT}


def is_internal(name: str) -> bool:
    """Whether an application may neither set nor see the property."""
    return name in _INTERNAL or name.startswith(properties.TRANSIENT_PROPERTY_PREFIX)


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
    PROPERTY_PRIORITY,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_REGION,
    PROPERTY_TRACE_ON,
    PROPERTY_CLUSTER,
)


_GZIP: Final[int] = definition.GZIP
# Of what is remembered; each forgets everything when it is full.
_PEERS_MAX: Final = 4_096
_TAGS_MAX: Final = 4_096
_TAG_CHARACTERS_MAX: Final = 128
_FORMS_MAX: Final = 1_024
# The last three digits of a time in ms.
_THOUSANDTHS: Final = tuple(f"{number:03}" for number in range(1_000))


class NoTime(ValueError):
    """A timestamp that is none; the text is for its sender."""


class Peer:
    """Where the messages of a connection are born."""

    __slots__ = ("address_text", "host")

    def __init__(self, host: Host) -> None:
        self.host: Final = host
        self.address_text: Final = str(ip_address(host.address))


_peers: Final[dict[str, Peer]] = {}


def peer_of(peer: str) -> Peer:
    """The address of a gRPC peer, `ipv4:10.0.0.1:5000` or `ipv6:[::1]:5000`; 0.0.0.0:0 for any other transport."""
    known = _peers.get(peer)
    if known is None:
        if len(_peers) >= _PEERS_MAX:
            _peers.clear()
        known = _peers[peer] = Peer(_host(peer))
    return known


def _host(peer: str) -> Host:
    host = peer_host(peer)
    # A zone ("%eth0") has no place in a record.
    return Host.parse(host.partition("%")[0], int(peer.rpartition(":")[2])) if host else Host(bytes(4), 0)


class TopicTranslation:
    """Translates the messages of one topic, and remembers what they have in common."""

    __slots__ = ("_cluster", "_forms", "_plain_forms", "_second", "_second_text", "_topic")

    def __init__(self, topic: str, cluster: str) -> None:
        self._topic: Final = topic
        self._cluster: Final = cluster
        # Of messages without user properties, by which of the optional names they have.
        self._plain_forms: Final[list[_PropertyForm | None]] = [None] * _OPTIONAL_COMBINATIONS
        # Most messages carry the same few names; names of users are unbounded, hence the limit.
        self._forms: Final[dict[tuple[int, tuple[str, ...]], _PropertyForm]] = {}
        # The second in which a message was born last, and its digits.
        self._second: i64 = 0
        self._second_text = "0"

    def outgoing(self, sent: SentMessage, queue_id: int, peer: Peer, clock: Clock) -> OutgoingMessage:
        """A NORMAL, FIFO or PRIORITY message that has passed `check_message`, as it is put.

        InvalidProperty when a value hides a separator of the stored form, NoTime when it was born outside the years
        there are.
        """
        if sent.is_born:
            seconds = sent.born_seconds
            if seconds < _FIRST_SECOND or seconds > _LAST_SECOND:
                raise NoTime(f"born_timestamp: {seconds} s since 1970 is outside the years 1 to 9999; send a time")
            born_timestamp_ms = sent.born_ms
        else:
            born_timestamp_ms = clock.wall_ms()
        message_id = sent.message_id
        keys = sent.keys
        key_count = len(keys)
        if key_count == 0:
            keys_text = ""
            index_keys: tuple[str, ...] = (message_id,)
        else:
            keys_text = keys[0] if key_count == 1 else " ".join([key for key in keys if key])
            if not keys_text:
                index_keys = (message_id,)
            elif key_count == 1 and " " not in keys_text:
                index_keys = (message_id, keys_text)
            else:
                index_keys = (message_id, *[word for word in keys_text.split(" ") if word])
        tag = sent.tag or None
        return OutgoingMessage(  # by place: names would cost twice as much as the rest
            self._topic,
            queue_id,
            sent.body,
            self._properties(sent, keys_text, sent.born_host or peer.address_text, born_timestamp_ms),
            0 if tag is None else _tags_code(tag),
            index_keys,
            tag,
            born_timestamp_ms,
            peer.host,
            0,
            COMPRESSED if sent.body_encoding == _GZIP else 0,
        )

    def _properties(self, sent: SentMessage, keys_text: str, born_host: str, born_timestamp_ms: int) -> bytes:
        """The stored form: what `encode_properties` makes of the names and values in their order."""
        message_id, trace_context = sent.message_id, sent.trace_context
        # All other values have been checked with their messages, or with their form.
        if (
            _NAME_END in message_id
            or _PAIR_END in message_id
            or _NAME_END in born_host
            or _PAIR_END in born_host
            or (trace_context and (_NAME_END in trace_context or _PAIR_END in trace_context))
        ):
            raise InvalidProperty("the name or the value of a property contains the byte 0x01 or 0x02")
        # Of fixed width: a product of these would not be a small number to the compiler.
        born_ms: i64 = born_timestamp_ms
        second: i64 = born_ms // 1_000
        if second != self._second:
            self._second = second
            self._second_text = str(second)
        tag, message_group = sent.tag, sent.message_group
        optional = 0
        if tag:
            optional = _HAS_TAG
        if keys_text:
            optional |= _HAS_KEYS
        if message_group:
            optional |= _HAS_MESSAGE_GROUP
        if trace_context:
            optional |= _HAS_TRACE_CONTEXT
        if sent.priority != NO_PRIORITY:
            optional |= _HAS_PRIORITY
        user_properties = sent.user_properties
        form = self._plain_forms[optional] if user_properties is None else None
        if form is None:
            form = self._form(optional, () if user_properties is None else tuple(user_properties))
        parts = form.parts.copy()
        parts[form.message_id_at] = message_id
        parts[form.born_host_at] = born_host
        if second > 0:
            parts[form.born_timestamp_at] = self._second_text
            parts[form.born_timestamp_at + 1] = _THOUSANDTHS[born_ms - second * 1_000]
        else:
            parts[form.born_timestamp_at] = str(born_timestamp_ms)
        if tag:
            parts[form.tag_at] = tag
        if keys_text:
            parts[form.keys_at] = keys_text
        if message_group:
            parts[form.message_group_at] = message_group
        if trace_context:
            parts[form.trace_context_at] = trace_context
        if optional & _HAS_PRIORITY:
            parts[form.priority_at] = str(sent.priority)
        if user_properties is not None:
            for index, value in enumerate(user_properties.values()):
                parts[form.user_at[index]] = value
        return "".join(parts).encode()

    def _form(self, optional: int, user_names: tuple[str, ...]) -> _PropertyForm:
        if not user_names:
            form = self._plain_forms[optional] = _property_form(optional, (), self._topic, self._cluster)
            return form
        key = (optional, user_names)
        known = self._forms.get(key)
        if known is None:
            if len(self._forms) >= _FORMS_MAX:
                self._forms.clear()
            known = self._forms[key] = _property_form(optional, user_names, self._topic, self._cluster)
        return known


# Which of the optional names a message has.
_HAS_TAG: Final = 1
_HAS_KEYS: Final = 2
_HAS_MESSAGE_GROUP: Final = 4
_HAS_TRACE_CONTEXT: Final = 8
_HAS_PRIORITY: Final = 16
_OPTIONAL_COMBINATIONS: Final = 32
_NAME_END: Final = "\x01"
_PAIR_END: Final = "\x02"


class _PropertyForm:
    """The property string of all messages with the same names: its parts, with empty ones where the values go."""

    def __init__(self, parts: list[str], places: dict[str, int], user_names: tuple[str, ...]) -> None:
        self.parts: Final = parts
        self.message_id_at: Final = places[PROPERTY_UNIQUE_KEY]
        self.born_host_at: Final = places[PROPERTY_BORN_HOST]
        self.born_timestamp_at: Final = places[PROPERTY_BORN_TIMESTAMP]
        """Of the seconds; the thousandths are in the part behind it."""
        self.tag_at: Final = places.get(PROPERTY_TAGS, -1)
        self.keys_at: Final = places.get(PROPERTY_KEYS, -1)
        self.message_group_at: Final = places.get(PROPERTY_SHARDING_KEY, -1)
        self.priority_at: Final = places.get(PROPERTY_PRIORITY, -1)
        self.trace_context_at: Final = places.get(PROPERTY_TRACE_CONTEXT, -1)
        self.user_at: Final = [places[name] for name in user_names]


def _property_form(optional: int, user_names: tuple[str, ...], topic: str, cluster: str) -> _PropertyForm:
    fixed = {
        # The topic stands for the producer group, which the client API does not have: what RocketMQ's proxy does.
        PROPERTY_PRODUCER_GROUP: topic,
        PROPERTY_RECONSUME_TIME: "0",
        PROPERTY_REGION: _REGION,
        PROPERTY_TRACE_ON: _TRACE_ON,
        PROPERTY_CLUSTER: cluster,
    }
    absent = {
        name
        for name, bit in (
            (PROPERTY_TAGS, _HAS_TAG),
            (PROPERTY_KEYS, _HAS_KEYS),
            (PROPERTY_SHARDING_KEY, _HAS_MESSAGE_GROUP),
            (PROPERTY_TRACE_CONTEXT, _HAS_TRACE_CONTEXT),
            (PROPERTY_PRIORITY, _HAS_PRIORITY),
        )
        if not optional & bit
    }
    # In the order in which RocketMQ puts them into its map, which decides among names of one bucket.
    names = [*user_names, *[name for name in _PUT_ORDER if name not in absent]]
    encode_properties([(name, fixed.get(name, "")) for name in names])  # raises for a hidden separator
    parts: list[str] = []
    places: dict[str, int] = {}
    text = ""
    for name in java_map_order(names, capacity=_JAVA_MAP_CAPACITY):
        text += name + _NAME_END
        if name in fixed:
            text += fixed[name]
        else:
            places[name] = len(parts) + 1
            parts += [text, "", ""] if name == PROPERTY_BORN_TIMESTAMP else [text, ""]
            text = ""
        text += _PAIR_END
    parts.append(text)
    return _PropertyForm(parts, places, user_names)


_tags_codes: Final[dict[str, int]] = {}


def _tags_code(tag: str) -> int:
    known = _tags_codes.get(tag)
    if known is None:
        known = tags_code(tag)
        if len(tag) <= _TAG_CHARACTERS_MAX:
            if len(_tags_codes) >= _TAGS_MAX:
                _tags_codes.clear()
            _tags_codes[tag] = known
    return known

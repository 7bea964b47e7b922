"""A stored message as the bytes of one element of a ReceiveMessage stream.

Protobuf's own objects would cost 12 us a message, most of it for building what is the same in the next one; joining
pieces that are encoded once costs 4. `tests/contract/test_delivery_encoding.py` holds the bytes against a message
built field by field. Field numbers and wire types come from the generated descriptors.

Messages of a topic carry the same property names in the same order (RocketMQ writes them in the order of a Java map),
so what has to be done with the values is worked out once for each such *shape*. A shape that comes often gets a pattern
that finds the values in one step; what the pattern does not match is read pair by pair.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mypy_extensions import i64

from tandemmq.broker.client_api.message_translation import PROPERTY_TRACE_CONTEXT, is_internal
from tandemmq.core.message.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from tandemmq.core.message.record import Host, offset_message_id
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.tracing.span_data import TRACEPARENT
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

# The few rules of protobuf's wire format that responses of the hot path are put together by.
#
# A field is its tag - number and wire type - and its value; text, bytes and messages are preceded by their length.

_VARINT_TYPES: Final = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM)
_LENGTH_DELIMITED: Final = 2
_UNSIGNED: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones in two's complement of 64 bits."""
    value &= _UNSIGNED
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SHORT_COUNT: Final = 1 << 14
SHORT_VARINTS: Final = tuple(map(varint, range(_SHORT_COUNT)))
"""Those of one or two digits: nearly all lengths."""
_LOW_DIGITS: Final = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_SHORT_COUNT))
"""The first two digits of longer ones."""


def number(value: int) -> bytes:
    """`varint` of one that is not negative, faster."""
    if value < _SHORT_COUNT:
        return SHORT_VARINTS[value]
    if value < 1 << 28:
        return _LOW_DIGITS[value & (_SHORT_COUNT - 1)] + SHORT_VARINTS[value >> 14]
    return varint(value)


def tag_of(message: type[Message], field: str) -> bytes:
    """What stands before a field's value: its number and wire type."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    wire_type = 0 if descriptor.type in _VARINT_TYPES else _LENGTH_DELIMITED
    return varint(descriptor.number << 3 | wire_type)


def length_delimited(tag: bytes, value: bytes) -> bytes:
    """A field of text, bytes or a message."""
    return b"".join((tag, number(len(value)), value))


def encoded_length(value: bytes) -> bytes:
    """The length of text, bytes or a message, as it stands before them."""
    length = len(value)
    return SHORT_VARINTS[length] if length < _SHORT_COUNT else varint(length)


# A property shape is at most 32 KiB of names, most are 150 bytes.
_SHAPES_MAX: Final = 512
# A pattern costs as much to make as a hundred messages to read without it: made for shapes that came so often, and not
# for what has more names than any client writes.
_PATTERN_AFTER: Final = 64
_PATTERN_NAMES_MAX: Final = 32
# Shapes tried one after the other: more than a topic mixes, and cheaper than a close look.
_LIKELY_MAX: Final = 4
# More digits are no time anybody means, and no int64 either.
_TIME_DIGITS_MAX: Final = 15

_System: Final = definition.SystemProperties
_ELEMENT: Final = tag_of(pb.ReceiveMessageResponse, "message")
_END: Final = tag_of(pb.ReceiveMessageResponse, "delivery_timestamp")
_TOPIC: Final = tag_of(definition.Message, "topic")
_USER_PROPERTY: Final = tag_of(definition.Message, "user_properties")
_SYSTEM: Final = tag_of(definition.Message, "system_properties")
_BODY: Final = tag_of(definition.Message, "body")
_KEY: Final = tag_of(_System, "keys")
_MESSAGE_ID: Final = tag_of(_System, "message_id")
_BORN_TIMESTAMP: Final = tag_of(_System, "born_timestamp")
_BORN_HOST: Final = tag_of(_System, "born_host")
_STORE_TIMESTAMP: Final = tag_of(_System, "store_timestamp")
_DELIVERY_TIMESTAMP: Final = tag_of(_System, "delivery_timestamp")
_RECEIPT_HANDLE: Final = tag_of(_System, "receipt_handle")
_QUEUE_OFFSET: Final = tag_of(_System, "queue_offset")
_MESSAGE_TYPE: Final = tag_of(_System, "message_type")
_DEAD_LETTER_QUEUE: Final = tag_of(_System, "dead_letter_queue")
# An entry of a map is a message of its key and its value.
_MAP_NAME: Final = b"\x0a"
_MAP_VALUE: Final = b"\x12"
# An MD5 digest up to its 32 hexadecimal digits, which end it.
_MD5_DIGITS: Final = 32
_MD5_HEAD: Final = _System(
    body_digest=definition.Digest(type=definition.MD5, checksum="0" * _MD5_DIGITS)
).SerializeToString()[:-_MD5_DIGITS]
_MD5_BYTES: Final = len(_MD5_HEAD) + _MD5_DIGITS
_PRIORITY: Final = tag_of(_System, "priority")
_PRIORITY_DIGITS_MAX: Final = 10
_PRIORITY_MAX: Final = (1 << 31) - 1
_TRANSACTION: Final = _MESSAGE_TYPE + varint(definition.TRANSACTION)
# A Timestamp's two fields, the second one by its milliseconds: it is not written when it is zero.
_SECONDS: Final = tag_of(Timestamp, "seconds")
_NANOS_FIELDS: Final = (
    b"",
    *(tag_of(Timestamp, "nanos") + varint(milliseconds * 1_000_000) for milliseconds in range(1, 1_000)),
)
# Times of 1970's first second lack the first field. In the year 3084 numbers would need more care.
_SECOND_MS: Final = 1_000
_PLAIN_TIME_END_MS: Final = 1 << 45

# Properties that are a field of text, as they are.
_TEXT_FIELDS: Final = {
    PROPERTY_TAGS: tag_of(_System, "tag"),
    PROPERTY_UNIQUE_KEY: _MESSAGE_ID,
    PROPERTY_BORN_HOST: _BORN_HOST,
    PROPERTY_SHARDING_KEY: tag_of(_System, "message_group"),
    PROPERTY_TRACE_CONTEXT: tag_of(_System, "trace_context"),
    PROPERTY_LITE_TOPIC: tag_of(_System, "lite_topic"),
}


class DeliveryEncoder:
    """Encodes the messages of one receive. `topic` is the resource the receiver asked for, echoed in each.

    `trace_contexts` is given what each message says of its own trace, by physical offset: the texts of `traceparent`
    and of RocketMQ's trace context, as far as it has them.
    """

    __slots__ = (
        "_attempt",
        "_batch_fields",
        "_born_timestamp",
        "_compressed",
        "_handle_length",
        "_invisible_ms",
        "_message_type",
        "_queue_id",
        "_shape",
        "_store_address",
        "_store_port",
        "_store_timestamp",
        "_topic",
        "_trace_contexts",
    )

    def __init__(
        self,
        *,
        topic: definition.Resource,
        invisible_ms: int,
        trace_contexts: dict[int, list[bytes]] | None = None,
    ) -> None:
        self._topic = length_delimited(_TOPIC, topic.SerializeToString())
        self._invisible_ms = invisible_ms
        self._trace_contexts = trace_contexts
        # Of the last message: the next one is mostly alike.
        self._shape = _NO_SHAPE
        self._batch_fields = b""
        self._queue_id = -1
        self._attempt = 0
        self._compressed = 0
        self._message_type = 0
        self._store_address = b""
        self._store_port = 0
        self._handle_length = 0
        self._born_timestamp = _TimestampField(_BORN_TIMESTAMP)
        self._store_timestamp = _TimestampField(_STORE_TIMESTAMP)

    def encode(self, message: StoredMessage, *, handle: str, attempt: int) -> bytes:
        """The element that delivers `message`. Its body is copied once, into the result."""
        values = self._shape.values_of(message.properties)
        if values is None:
            values = self._read(message.properties)
        shape = self._shape
        body = message.body
        body_bytes = len(body)
        handle_bytes = handle.encode()
        batch_fields = self._fields_of_batch(message, attempt, shape.message_type, len(handle_bytes))
        born_timestamp = self._born_timestamp.encoded(message.born_timestamp_ms)
        store_timestamp = self._store_timestamp.encoded(message.store_timestamp_ms)
        queue_offset = number(message.queue_offset)
        system: list[bytes | memoryview] = [
            batch_fields,
            handle_bytes,
            _MD5_HEAD,
            hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode(),
            born_timestamp,
            store_timestamp,
            _QUEUE_OFFSET,
            queue_offset,
        ]
        length = len(batch_fields) + len(handle_bytes) + _MD5_BYTES + len(born_timestamp) + len(store_timestamp)
        length += len(_QUEUE_OFFSET) + len(queue_offset)
        for tag, place in zip(shape.text_tags, shape.text_places):
            value = values[place]
            length += _add(system, tag, number(len(value)), value)
        if shape.keys >= 0:
            for key in values[shape.keys].split():
                length += _add(system, _KEY, number(len(key)), key)
        if not shape.is_plain:
            for rare_field in _rare_fields(message, shape, values):
                system.append(rare_field)
                length += len(rare_field)
        if shape.trace_contexts and self._trace_contexts is not None:
            self._trace_contexts[message.physical_offset] = [values[place] for place in shape.trace_contexts]
        topic = self._topic
        parts: list[bytes | memoryview] = [_ELEMENT, b"", topic]
        whole_length = len(topic)
        for head, place in zip(shape.user_heads, shape.user_places):
            value = values[place]
            value_length = number(len(value))
            entry_length = number(len(head) + len(value_length) + len(value))
            whole_length += _add(parts, _USER_PROPERTY, entry_length, head) + len(value_length) + len(value)
            parts.append(value_length)
            parts.append(value)
        whole_length += _add(parts, _SYSTEM, number(length), b"") + length
        parts += system
        whole_length += _add(parts, _BODY, number(body_bytes), body)
        parts[1] = number(whole_length)
        return b"".join(parts)

    def _read(self, properties: bytes) -> tuple[bytes, ...]:
        """Finds the shape that the properties have, and the values it uses."""
        for likely in _LIKELY:
            if (values := likely.values_of(properties)) is not None:
                self._shape = likely
                return values
        names, all_values = _names_and_values(properties)
        shape = self._shape = _shape(names)
        if shape.may_have_pattern():
            _LIKELY.insert(0, shape)
            del _LIKELY[_LIKELY_MAX:]
        return shape.choose(all_values)

    def _fields_of_batch(self, message: StoredMessage, attempt: int, message_type: int, handle_length: int) -> bytes:
        """What is the same in a whole batch; kept in `_batch_fields` until a message differs."""
        compressed = message.sys_flag & COMPRESSED
        if (
            message.queue_id != self._queue_id
            or attempt != self._attempt
            or compressed != self._compressed
            or message_type != self._message_type
            or handle_length != self._handle_length
            or message.store_port != self._store_port
            or message.store_address != self._store_address
        ):
            self._queue_id = message.queue_id
            self._attempt = attempt
            self._compressed = compressed
            self._message_type = message_type
            self._handle_length = handle_length
            self._store_port = message.store_port
            self._store_address = message.store_address
            self._batch_fields = _batch_fields(
                message.queue_id,
                attempt,
                compressed,
                message_type,
                self._invisible_ms,
                message.store_address,
                message.store_port,
                handle_length,
            )
        return self._batch_fields


class _TimestampField:
    """One field of type Timestamp in message after message: mostly of the same millisecond, or at least second."""

    __slots__ = ("_field", "_milliseconds", "_second", "_second_field", "_tag")

    def __init__(self, tag: bytes) -> None:
        self._tag: Final = tag
        self._milliseconds = -1
        self._field = b""
        self._second: i64 = -1
        self._second_field = b""

    def encoded(self, milliseconds: int) -> bytes:
        if milliseconds != self._milliseconds:
            self._milliseconds = milliseconds
            if _SECOND_MS <= milliseconds < _PLAIN_TIME_END_MS:
                self._field = self._plain(milliseconds)
            else:
                self._field = _timestamp(self._tag, milliseconds)
        return self._field

    def _plain(self, milliseconds: i64) -> bytes:
        second = milliseconds // 1_000
        if second != self._second:
            self._second = second
            self._second_field = _SECONDS + number(second)
        nanos_field = _NANOS_FIELDS[milliseconds - second * 1_000]
        return self._tag + number(len(self._second_field) + len(nanos_field)) + self._second_field + nanos_field


def _add(parts: list[bytes | memoryview], tag: bytes, length: bytes, value: bytes | memoryview) -> int:
    """Adds three parts; returns their length."""
    parts.append(tag)
    parts.append(length)
    parts.append(value)
    return len(tag) + len(length) + len(value)


def encoded_end(wall_ms: int) -> bytes:
    """The last element of the stream: when it was answered."""
    return _timestamp(_END, wall_ms)


class _Shape:
    """What to do with the values of properties that have certain names in a certain order.

    Places count from 0 among the values that are used; -1: there is none.
    """

    def __init__(self, names: tuple[bytes, ...]) -> None:
        # Of two properties with one name the last one counts.
        places = {name.decode(): place for place, name in enumerate(names)}
        users = [name for name in places if not is_internal(name)]
        texts = [name for name in _TEXT_FIELDS if name in places]
        used = sorted(places[name] for name in places if name in _READ or name in users)
        self._names = names
        self._used: list[int] = used
        # Times it had to be looked up by its names.
        self._count = 0
        self._match: Callable[[bytes], re.Match[bytes] | None] | None = None

        def place_of(name: str) -> int:
            return used.index(places[name]) if name in places else -1

        # Field tag, and place, of what is a field of text.
        self.text_tags: list[bytes] = [_TEXT_FIELDS[name] for name in texts]
        self.text_places: list[int] = [place_of(name) for name in texts]
        self.keys = place_of(PROPERTY_KEYS)
        # An entry of the map up to the length of its value, and place.
        self.user_heads: list[bytes] = [length_delimited(_MAP_NAME, name.encode()) + _MAP_VALUE for name in users]
        self.user_places: list[int] = [place_of(name) for name in users]
        # The kind is not stored, it shows in what the message carries (RocketMQ's GrpcConverter).
        self.message_type: int = definition.NORMAL
        if {PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S} & places.keys():
            self.message_type = definition.DELAY
        elif PROPERTY_SHARDING_KEY in places:
            self.message_type = definition.FIFO
        elif PROPERTY_PRIORITY in places:
            self.message_type = definition.PRIORITY
        elif PROPERTY_LITE_TOPIC in places:
            self.message_type = definition.LITE
        # What names a span, the application's own first.
        self.trace_contexts: list[int] = [
            place_of(name) for name in (TRACEPARENT, PROPERTY_TRACE_CONTEXT) if name in places
        ]
        self.has_message_id = PROPERTY_UNIQUE_KEY in places
        self.has_born_host = PROPERTY_BORN_HOST in places
        self.transaction = place_of(PROPERTY_TRANSACTION_PREPARED)
        self.deliver_ms = place_of(PROPERTY_TIMER_DELIVER_MS)
        self.priority = place_of(PROPERTY_PRIORITY)
        self.dead_letter_topic = place_of(PROPERTY_DEAD_LETTER_ORIGIN_TOPIC)
        self.dead_letter_message_id = place_of(PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID)
        # No message id is missing, no host, and none of the others is there.
        self.is_plain = (
            self.has_message_id
            and self.has_born_host
            and self.transaction < 0
            and self.deliver_ms < 0
            and self.priority < 0
            and (self.dead_letter_topic < 0 or self.dead_letter_message_id < 0)
        )

    def values_of(self, properties: bytes) -> tuple[bytes, ...] | None:
        """The values used, if the properties plainly have this shape; None: look at them more closely."""
        if self._match is None:
            return None
        found = self._match(properties)
        return None if found is None else found.groups()

    def choose(self, values: list[bytes]) -> tuple[bytes, ...]:
        return tuple([values[place] for place in self._used])

    def may_have_pattern(self) -> bool:
        """Counts one more message that had to be looked at closely; whether the next one need not."""
        self._count += 1
        names = self._names
        if self._count == _PATTERN_AFTER and len(names) <= _PATTERN_NAMES_MAX and b"".join(names).isascii():
            self._match = self._pattern().fullmatch
        return self._match is not None

    def _pattern(self) -> re.Pattern[bytes]:
        """Matches nothing that `_names_and_values` would read otherwise: all of it ASCII, nothing empty."""
        used = set(self._used)
        return re.compile(
            b"".join(
                re.escape(name) + (b"\x01([\x03-\x7f]+)\x02" if place in used else b"\x01[\x03-\x7f]+\x02")
                for place, name in enumerate(self._names)
            )
        )


_READ: Final = frozenset(
    (
        *_TEXT_FIELDS,
        PROPERTY_KEYS,
        PROPERTY_PRIORITY,
        TRACEPARENT,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
        PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    )
)
"""Properties whose values go into fields of their own. Those of an application are read as well."""
_NO_SHAPE: Final = _Shape(())
_LIKELY: Final[list[_Shape]] = []
"""Shapes with a pattern, met last, of all topics."""


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(names: tuple[bytes, ...]) -> _Shape:
    return _Shape(names)


def _rare_fields(message: StoredMessage, shape: _Shape, values: tuple[bytes, ...]) -> list[bytes]:
    """Fields of messages that are delayed, part of a transaction, dead letters, or not of this client API."""
    fields = []
    if not shape.has_message_id:
        store_host = Host(message.store_address, message.store_port)
        fields.append(length_delimited(_MESSAGE_ID, offset_message_id(store_host, message.physical_offset).encode()))
    if not shape.has_born_host:
        fields.append(length_delimited(_BORN_HOST, str(ip_address(message.born_address)).encode()))
    if shape.transaction >= 0 and values[shape.transaction] == b"true":
        # The last one of a field counts.
        fields.append(_TRANSACTION)
    if shape.deliver_ms >= 0:
        deliver_ms = values[shape.deliver_ms]
        if deliver_ms.isdigit() and len(deliver_ms) <= _TIME_DIGITS_MAX:
            fields.append(_timestamp(_DELIVERY_TIMESTAMP, int(deliver_ms)))
    if shape.priority >= 0:
        priority = values[shape.priority]
        if priority.isdigit() and len(priority) <= _PRIORITY_DIGITS_MAX and int(priority) <= _PRIORITY_MAX:
            fields.append(_PRIORITY + varint(int(priority)))
    if shape.dead_letter_topic >= 0 and shape.dead_letter_message_id >= 0:
        origin = definition.DeadLetterQueue(
            topic=values[shape.dead_letter_topic].decode(), message_id=values[shape.dead_letter_message_id].decode()
        )
        fields.append(length_delimited(_DEAD_LETTER_QUEUE, origin.SerializeToString()))
    return fields


def _names_and_values(properties: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """The pairs of a property string, in UTF-8. One that is not as brokers write it is read with more care."""
    separators = properties.translate(None, _NO_SEPARATORS)
    if separators == b"\x01\x02" * (len(separators) >> 1) and properties.isascii():
        # Names and values take turns, each with its separator behind it.
        flat = properties.replace(b"\x02", b"\x01").split(b"\x01")
        names, values = tuple(flat[:-1:2]), flat[1::2]
        if all(values) and all(names) and not flat[-1]:
            return names, values
    pairs = decode_properties(properties)
    return tuple(name.encode() for name in pairs), [value.encode() for value in pairs.values()]


_NO_SEPARATORS: Final = bytes(byte for byte in range(256) if byte not in b"\x01\x02")


@lru_cache(maxsize=4_096)
def _timestamp(tag: bytes, milliseconds: int) -> bytes:
    """A Timestamp field, of any time."""
    seconds, remainder_ms = divmod(milliseconds, 1_000)
    return length_delimited(tag, Timestamp(seconds=seconds, nanos=remainder_ms * 1_000_000).SerializeToString())


@lru_cache(maxsize=1_024)
def _batch_fields(
    queue_id: int,
    attempt: int,
    compressed: int,
    message_type: int,
    invisible_ms: int,
    store_address: bytes,
    store_port: int,
    handle_length: int,
) -> bytes:
    """The fields that are the same in a whole batch, and the beginning of the receipt handle."""
    seconds, remainder_ms = divmod(invisible_ms, 1_000)
    fields = _System(
        # RocketMQ marks a compressed body so whatever the codec; clients that can read it look at the bytes.
        body_encoding=definition.GZIP if compressed else definition.IDENTITY,
        message_type=cast("definition.MessageType", message_type),
        store_host=str(Host(store_address, store_port)),
        queue_id=queue_id,
        invisible_duration=Duration(seconds=seconds, nanos=remainder_ms * 1_000_000),
        delivery_attempt=attempt,
    )
    return fields.SerializeToString() + _RECEIPT_HANDLE + number(handle_length)

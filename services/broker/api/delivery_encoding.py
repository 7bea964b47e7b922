"""A stored message as the bytes of one element of a ReceiveMessage stream.

Protobuf's own objects would cost 12 us a message, most of it for building what is the same in the next one; joining
pieces that are encoded once costs 4. `tests/contract/test_delivery_encoding.py` holds the bytes against a message
built field by field. Field numbers and wire types come from the generated descriptors.

Messages of a topic carry the same property names in the same order (RocketMQ writes them in the order of a Java map),
so what has to be done with the values is worked out once for each such *shape*.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.internal_properties import PROPERTY_TRACE_CONTEXT, is_internal
from broker.api.wire_format import SHORT_VARINTS, length_delimited, number, tag_of, varint
from mqcore.message import Host, StoredMessage, decode_properties, offset_message_id
from mqcore.message.property_names import (
    PROPERTY_BORN_HOST,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
)
from mqcore.message.sys_flag import COMPRESSED
from mqcore.tracing.trace_context import TRACEPARENT

__all__ = ["DeliveryEncoder", "encoded_end"]

# A property shape is at most 32 KiB of names, most are 150 bytes.
_SHAPES_MAX: Final = 512
# More digits are no time anybody means, and no int64 either.
_TIME_DIGITS_MAX: Final = 15


_short_varint: Final = SHORT_VARINTS.__getitem__

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
_TRANSACTION: Final = _MESSAGE_TYPE + varint(definition.TRANSACTION)

# Properties that are a field of text, as they are.
_TEXT_FIELDS: Final = {
    PROPERTY_TAGS: tag_of(_System, "tag"),
    PROPERTY_UNIQUE_KEY: _MESSAGE_ID,
    PROPERTY_BORN_HOST: _BORN_HOST,
    PROPERTY_SHARDING_KEY: tag_of(_System, "message_group"),
    PROPERTY_TRACE_CONTEXT: tag_of(_System, "trace_context"),
}


class DeliveryEncoder:
    """Encodes the messages of one receive. `topic` is the resource the receiver asked for, echoed in each.

    `trace_contexts` is given what each message says of its own trace, by physical offset: the texts of `traceparent`
    and of RocketMQ's trace context, as far as it has them.
    """

    __slots__ = ("_invisible_ms", "_topic", "_trace_contexts")

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

    def encode(self, message: StoredMessage, *, handle: str, attempt: int) -> bytes:
        """The element that delivers `message`. Its body is copied once, into the result."""
        (
            queue_id,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp_ms,
            _born_address,
            store_timestamp_ms,
            store_address,
            store_port,
            body,
            properties,
        ) = message
        names, values = _names_and_values(properties)
        shape = _shape(names)
        # Nothing in a property string is longer than itself.
        length = _short_varint if len(properties) < len(SHORT_VARINTS) else varint
        system = [
            _batch_fields(
                queue_id,
                attempt,
                sys_flag & COMPRESSED,
                shape.message_type,
                self._invisible_ms,
                store_address,
                store_port,
                len(handle),
            ),
            handle.encode(),
            _MD5_HEAD,
            hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode(),
            _timestamp(_BORN_TIMESTAMP, born_timestamp_ms),
            _timestamp(_STORE_TIMESTAMP, store_timestamp_ms),
            _QUEUE_OFFSET,
            number(queue_offset),
        ]
        for tag, place in shape.texts:
            value = values[place]
            system += (tag, length(len(value)), value)
        if shape.keys is not None:
            for key in values[shape.keys].split():
                system += (_KEY, length(len(key)), key)
        if not shape.is_plain:
            system += _rare_fields(message, shape, values)
        if shape.trace_contexts and self._trace_contexts is not None:
            self._trace_contexts[physical_offset] = [values[place] for place in shape.trace_contexts]
        system_bytes = b"".join(system)
        parts = [self._topic]
        for name, place in shape.user_properties:
            value = values[place]
            entry = b"".join((name, length(len(value)), value))
            parts += (_USER_PROPERTY, number(len(entry)), entry)
        parts += (_SYSTEM, number(len(system_bytes)), system_bytes, _BODY, number(len(body)))
        head = b"".join(parts)
        return b"".join((_ELEMENT, number(len(head) + len(body)), head, body))


def encoded_end(wall_ms: int) -> bytes:
    """The last element of the stream: when it was answered."""
    return _timestamp(_END, wall_ms)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What to do with the values of properties that have certain names in a certain order. Places count from 0."""

    # Field tag and place.
    texts: tuple[tuple[bytes, int], ...]
    keys: int | None
    # An entry of the map up to the length of its value, and place.
    user_properties: tuple[tuple[bytes, int], ...]
    # The kind is not stored, it shows in what the message carries (RocketMQ's GrpcConverter).
    message_type: definition.MessageType
    # What names a span, the application's own first.
    trace_contexts: tuple[int, ...]
    # No message id is missing, no host, and none of the following is there.
    is_plain: bool
    has_message_id: bool
    has_born_host: bool
    transaction: int | None
    deliver_ms: int | None
    dead_letter: tuple[int, int] | None


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(names: tuple[bytes, ...]) -> _Shape:
    # Of two properties with one name the last one counts.
    places = {name.decode(): place for place, name in enumerate(names)}
    transaction = places.get(PROPERTY_TRANSACTION_PREPARED)
    deliver_ms = places.get(PROPERTY_TIMER_DELIVER_MS)
    origin_topic = places.get(PROPERTY_DEAD_LETTER_ORIGIN_TOPIC)
    origin_message_id = places.get(PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID)
    dead_letter = None if origin_topic is None or origin_message_id is None else (origin_topic, origin_message_id)
    has_message_id, has_born_host = PROPERTY_UNIQUE_KEY in places, PROPERTY_BORN_HOST in places
    if {PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S} & places.keys():
        message_type = definition.DELAY
    else:
        message_type = definition.FIFO if PROPERTY_SHARDING_KEY in places else definition.NORMAL
    return _Shape(
        texts=tuple((tag, places[name]) for name, tag in _TEXT_FIELDS.items() if name in places),
        keys=places.get(PROPERTY_KEYS),
        user_properties=tuple(
            (length_delimited(_MAP_NAME, name.encode()) + _MAP_VALUE, place)
            for name, place in places.items()
            if not is_internal(name)
        ),
        message_type=message_type,
        trace_contexts=tuple(places[name] for name in (TRACEPARENT, PROPERTY_TRACE_CONTEXT) if name in places),
        is_plain=has_message_id and has_born_host and transaction is None and deliver_ms is None and not dead_letter,
        has_message_id=has_message_id,
        has_born_host=has_born_host,
        transaction=transaction,
        deliver_ms=deliver_ms,
        dead_letter=dead_letter,
    )


def _rare_fields(message: StoredMessage, shape: _Shape, values: list[bytes]) -> list[bytes]:
    """Fields of messages that are delayed, part of a transaction, dead letters, or not of this client API."""
    fields = []
    if not shape.has_message_id:
        store_host = Host(message.store_address, message.store_port)
        fields.append(length_delimited(_MESSAGE_ID, offset_message_id(store_host, message.physical_offset).encode()))
    if not shape.has_born_host:
        fields.append(length_delimited(_BORN_HOST, str(ip_address(message.born_address)).encode()))
    if shape.transaction is not None and values[shape.transaction] == b"true":
        # The last one of a field counts.
        fields.append(_TRANSACTION)
    if shape.deliver_ms is not None:
        deliver_ms = values[shape.deliver_ms]
        if deliver_ms.isdigit() and len(deliver_ms) <= _TIME_DIGITS_MAX:
            fields.append(_timestamp(_DELIVERY_TIMESTAMP, int(deliver_ms)))
    if shape.dead_letter is not None:
        topic, message_id = (values[place].decode() for place in shape.dead_letter)
        origin = definition.DeadLetterQueue(topic=topic, message_id=message_id)
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
    """A Timestamp field. Messages of one millisecond are many in a busy topic."""
    seconds, remainder_ms = divmod(milliseconds, 1_000)
    return length_delimited(tag, Timestamp(seconds=seconds, nanos=remainder_ms * 1_000_000).SerializeToString())


@lru_cache(maxsize=1_024)
def _batch_fields(
    queue_id: int,
    attempt: int,
    compressed: int,
    message_type: definition.MessageType,
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
        message_type=message_type,
        store_host=str(Host(store_address, store_port)),
        queue_id=queue_id,
        invisible_duration=Duration(seconds=seconds, nanos=remainder_ms * 1_000_000),
        delivery_attempt=attempt,
    )
    return fields.SerializeToString() + _RECEIPT_HANDLE + number(handle_length)

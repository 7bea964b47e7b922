"""The messages of a SendMessage request, their fields read once.

The usual request is decoded here, byte by byte: of every field that clients set in a send, each at most once and in the
order of their numbers, as every encoder of protobuf writes them. What is not of this form - other fields, fields out of
order, numbers of ten digits, text that is no UTF-8 - is left to protobuf, for which making an object of each field that
is looked at costs three times as much; `tests/unit/broker/client_api/test_sent_message.py` holds both equal.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from mypy_extensions import i64

from tandemmq.broker.client_api.request_fields import has_more_fields
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import RequestTooLong

# What stands before a field's value: number << 3 | wire type.
_REQUEST_MESSAGES: Final = 1 << 3 | 2
_MESSAGE_TOPIC: Final = 1 << 3 | 2
_MESSAGE_USER_PROPERTIES: Final = 2 << 3 | 2
_MESSAGE_SYSTEM_PROPERTIES: Final = 3 << 3 | 2
_MESSAGE_BODY: Final = 4 << 3 | 2
_RESOURCE_NAMESPACE: Final = 1 << 3 | 2
_RESOURCE_NAME: Final = 2 << 3 | 2
_ENTRY_KEY: Final = 1 << 3 | 2
_ENTRY_VALUE: Final = 2 << 3 | 2
_SYSTEM_TAG: Final = 1 << 3 | 2
_SYSTEM_KEYS: Final = 2 << 3 | 2
_SYSTEM_MESSAGE_ID: Final = 3 << 3 | 2
_SYSTEM_BODY_DIGEST: Final = 4 << 3 | 2
_SYSTEM_BODY_ENCODING: Final = 5 << 3
_SYSTEM_MESSAGE_TYPE: Final = 6 << 3
_SYSTEM_BORN_TIMESTAMP: Final = 7 << 3 | 2
_SYSTEM_BORN_HOST: Final = 8 << 3 | 2
_SYSTEM_QUEUE_ID: Final = 13 << 3
_SYSTEM_MESSAGE_GROUP_LOW: Final = 0x8A  # 17 << 3 | 2 takes two digits, as do the following
_SYSTEM_TRACE_CONTEXT_LOW: Final = 0x92
_SYSTEM_HIGH: Final = 0x01
_DIGEST_TYPE: Final = 1 << 3
_DIGEST_CHECKSUM: Final = 2 << 3 | 2
_TIMESTAMP_SECONDS: Final = 1 << 3
_TIMESTAMP_NANOS: Final = 2 << 3

_VARINT_BITS_MAX: Final = 28
"""Of the last digit's place: a number has five digits at most here, all that times and lengths need."""
_INT32_MAX: Final = (1 << 31) - 1


MESSAGES_MAX: Final = 1_024
"""In one request. They are stored in one turn of the event loop, which they hold up for 40 ms."""

_FIELDS_MAX: Final = 160 * MESSAGES_MAX
"""Of all messages of a request, more than may be stored: objects are made of properties and keys before anybody has
looked at them, or at who sent them."""
_OF_ONE_MAX: Final = 1_024
"""Properties, and keys, that are decoded here."""
_COUNTED: Final[dict[int, Any]] = {_REQUEST_MESSAGES: {_MESSAGE_SYSTEM_PROPERTIES: {}}}

NO_PRIORITY: Final = 1 << 31
"""Of a message that has none: above every number that can be sent."""


class SentMessage:
    """The fields of a message that a broker looks at; what is not set is empty, 0 or None."""

    __slots__ = (
        "body",
        "body_encoding",
        "born_host",
        "born_ms",
        "born_seconds",
        "delivery_timestamp",
        "digest_checksum",
        "digest_type",
        "has_digest",
        "is_born",
        "keys",
        "lite_topic",
        "message_group",
        "message_id",
        "message_type",
        "priority",
        "recovery_duration",
        "tag",
        "topic",
        "trace_context",
        "user_properties",
    )

    def __init__(self) -> None:
        self.topic = ""
        self.body = b""
        self.user_properties: dict[str, str] | None = None
        self.tag = ""
        self.keys: list[str] = []
        self.message_id = ""
        self.message_group = ""
        self.lite_topic = ""
        self.message_type = 0
        self.priority = NO_PRIORITY
        self.body_encoding = 0
        self.trace_context = ""
        self.born_host = ""
        self.is_born = False
        self.born_seconds = 0
        self.born_ms = 0
        """The time it was born at, if it `is_born`, and the whole seconds of it as they were sent."""
        self.has_digest = False
        self.digest_type = 0
        self.digest_checksum = ""
        self.delivery_timestamp: Timestamp | None = None
        self.recovery_duration: Duration | None = None

    @staticmethod
    def of(message: definition.Message) -> SentMessage:
        """Of a message that protobuf has decoded."""
        sent = SentMessage()
        system = message.system_properties
        sent.topic = message.topic.name
        sent.body = message.body
        user_properties = message.user_properties
        if user_properties:
            sent.user_properties = dict(user_properties)
        sent.tag = system.tag
        sent.keys = list(system.keys)
        sent.message_id = system.message_id
        sent.message_group = system.message_group
        sent.lite_topic = system.lite_topic
        sent.message_type = system.message_type
        sent.body_encoding = system.body_encoding
        if system.HasField("priority"):
            sent.priority = system.priority
        sent.trace_context = system.trace_context
        sent.born_host = system.born_host
        if system.HasField("born_timestamp"):
            born = system.born_timestamp
            sent.set_birth(born.seconds, born.nanos)
        if system.HasField("body_digest"):
            sent.has_digest = True
            sent.digest_type = system.body_digest.type
            sent.digest_checksum = system.body_digest.checksum
        if system.HasField("delivery_timestamp"):
            sent.delivery_timestamp = system.delivery_timestamp
        if system.HasField("orphaned_transaction_recovery_duration"):
            sent.recovery_duration = system.orphaned_transaction_recovery_duration
        return sent

    def set_birth(self, seconds: int, nanos: int) -> None:
        self.is_born = True
        self.born_seconds = seconds
        self.born_ms = seconds * 1_000 + nanos // 1_000_000


class SendRequest:
    """What a front decodes a SendMessage request with."""

    @staticmethod
    def FromString(data: bytes) -> list[SentMessage]:  # noqa: N802 - protobuf's name
        """The messages of an encoded `SendMessageRequest`; more than MESSAGES_MAX, not all, if it has more. Raises
        protobuf's DecodeError if it is none."""
        messages = decode_messages(data) if _IS_COMPILED else None
        if messages is None:
            if has_more_fields(data, MESSAGES_MAX):
                return [SentMessage()] * (MESSAGES_MAX + 1)
            if len(data) > _FIELDS_MAX and has_more_fields(data, _FIELDS_MAX, _COUNTED):
                raise RequestTooLong(f"the messages have more than {_FIELDS_MAX:,} properties, keys and other fields")
            messages = [SentMessage.of(message) for message in pb.SendMessageRequest.FromString(data).messages]
        return messages


class _Uncommon(Exception):
    """Not of the form that is read here."""


def decode_messages(data: bytes) -> list[SentMessage] | None:
    """The messages of an encoded `SendMessageRequest` of the usual form, the first ones if there are more than
    MESSAGES_MAX; None for any other, valid or not."""
    reader = _Reader(data)
    messages: list[SentMessage] = []
    try:
        if reader.at == reader.size:
            return messages
        while True:
            if reader.digit() != _REQUEST_MESSAGES:
                return None
            messages.append(reader.message())
            if reader.at >= reader.size or len(messages) > MESSAGES_MAX:
                return messages
    except (_Uncommon, UnicodeDecodeError, IndexError):
        return None


_IS_COMPILED: Final = not isinstance(decode_messages, FunctionType)
"""Interpreted, the decoder takes twice as long as protobuf."""


class _Reader:
    """A position in an encoded request. `_Uncommon`, UnicodeDecodeError and IndexError say that it is not usual."""

    __slots__ = ("_data", "at", "size")

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self.at: i64 = 0
        self.size: i64 = len(data)

    def digit(self) -> i64:
        at = self.at
        value: i64 = self._data[at]
        self.at = at + 1
        return value

    def number(self) -> i64:
        """A varint of at most 35 bits."""
        data = self._data
        at = self.at
        value: i64 = data[at]
        at += 1
        if value > 0x7F:
            value &= 0x7F
            bits: i64 = 7
            while True:
                digit: i64 = data[at]
                at += 1
                value |= (digit & 0x7F) << bits
                if digit <= 0x7F:
                    break
                bits += 7
                if bits > _VARINT_BITS_MAX:
                    raise _Uncommon
        self.at = at
        return value

    def end(self, limit: i64) -> i64:
        """Where the text, bytes or message ends whose length is next; not beyond `limit`, the end of what it is in."""
        at = self.at
        length: i64 = self._data[at]
        if length <= 0x7F:
            self.at = at + 1
        else:
            length = self.number()
        end = self.at + length
        if end > limit:
            raise _Uncommon
        return end

    def value(self, limit: i64) -> bytes:
        end = self.end(limit)
        found = self._data[self.at : end]
        self.at = end
        return found

    def text(self, limit: i64) -> str:
        return self.value(limit).decode()

    def int32(self) -> i64:
        """A number that is not negative; all others take ten digits, or are cut to 32 bits by protobuf."""
        value = self.number()
        if value > _INT32_MAX:
            raise _Uncommon
        return value

    def message(self) -> SentMessage:
        """A message, from its length on."""
        sent = SentMessage()
        end = self.end(self.size)
        last: i64 = 0
        while self.at < end:
            tag = self.digit()
            if tag < last or (tag == last and tag != _MESSAGE_USER_PROPERTIES):
                raise _Uncommon
            last = tag
            if tag == _MESSAGE_BODY:
                sent.body = self.value(end)
            elif tag == _MESSAGE_SYSTEM_PROPERTIES:
                self._system_properties(sent, self.end(end))
            elif tag == _MESSAGE_TOPIC:
                sent.topic = self._resource_name(self.end(end))
            elif tag == _MESSAGE_USER_PROPERTIES:
                self._user_property(sent, self.end(end))
            else:
                raise _Uncommon
        if self.at != end:
            raise _Uncommon
        return sent

    def _resource_name(self, end: i64) -> str:
        name = ""
        last: i64 = 0
        while self.at < end:
            tag = self.digit()
            if tag <= last:
                raise _Uncommon
            last = tag
            if tag == _RESOURCE_NAME:
                name = self.text(end)
            elif tag == _RESOURCE_NAMESPACE:
                self.text(end)
            else:
                raise _Uncommon
        if self.at != end:
            raise _Uncommon
        return name

    def _user_property(self, sent: SentMessage, end: i64) -> None:
        if self.digit() != _ENTRY_KEY:
            raise _Uncommon
        key = self.text(end)
        if self.digit() != _ENTRY_VALUE:
            raise _Uncommon
        value = self.text(end)
        if self.at != end:
            raise _Uncommon
        properties = sent.user_properties
        if properties is None:
            sent.user_properties = {key: value}
        elif len(properties) < _OF_ONE_MAX:
            properties[key] = value
        else:
            raise _Uncommon

    def _system_properties(self, sent: SentMessage, end: i64) -> None:
        last: i64 = 0
        while self.at < end:
            tag = self.digit()
            if tag < last or (tag == last and tag != _SYSTEM_KEYS):
                raise _Uncommon
            last = tag
            if tag == _SYSTEM_KEYS:
                sent.keys.append(self.text(end))
                if len(sent.keys) > _OF_ONE_MAX:
                    raise _Uncommon
            elif tag == _SYSTEM_MESSAGE_ID:
                sent.message_id = self.text(end)
            elif tag == _SYSTEM_TAG:
                sent.tag = self.text(end)
            elif tag == _SYSTEM_BODY_ENCODING:
                sent.body_encoding = self.int32()
            elif tag == _SYSTEM_MESSAGE_TYPE:
                sent.message_type = self.int32()
            elif tag == _SYSTEM_BORN_TIMESTAMP:
                self._born_timestamp(sent, self.end(end))
            elif tag == _SYSTEM_BORN_HOST:
                sent.born_host = self.text(end)
            elif tag == _SYSTEM_QUEUE_ID:
                self.int32()
            elif tag == _SYSTEM_BODY_DIGEST:
                self._body_digest(sent, self.end(end))
            elif tag == _SYSTEM_MESSAGE_GROUP_LOW and self.digit() == _SYSTEM_HIGH:
                sent.message_group = self.text(end)
            elif tag == _SYSTEM_TRACE_CONTEXT_LOW and self.digit() == _SYSTEM_HIGH:
                sent.trace_context = self.text(end)
            else:
                raise _Uncommon
        if self.at != end:
            raise _Uncommon

    def _born_timestamp(self, sent: SentMessage, end: i64) -> None:
        seconds: i64 = 0
        nanos: i64 = 0
        last: i64 = 0
        while self.at < end:
            tag = self.digit()
            if tag <= last:
                raise _Uncommon
            last = tag
            if tag == _TIMESTAMP_SECONDS:
                seconds = self.number()
            elif tag == _TIMESTAMP_NANOS:
                nanos = self.int32()
            else:
                raise _Uncommon
        if self.at != end:
            raise _Uncommon
        sent.is_born = True
        sent.born_seconds = seconds
        sent.born_ms = seconds * 1_000 + nanos // 1_000_000

    def _body_digest(self, sent: SentMessage, end: i64) -> None:
        sent.has_digest = True
        last: i64 = 0
        while self.at < end:
            tag = self.digit()
            if tag <= last:
                raise _Uncommon
            last = tag
            if tag == _DIGEST_TYPE:
                sent.digest_type = self.int32()
            elif tag == _DIGEST_CHECKSUM:
                sent.digest_checksum = self.text(end)
            else:
                raise _Uncommon
        if self.at != end:
            raise _Uncommon

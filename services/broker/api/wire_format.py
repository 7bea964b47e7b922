"""The few rules of protobuf's wire format that responses of the hot path are put together by.

A field is its tag - number and wire type - and its value; text, bytes and messages are preceded by their length.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["SHORT_VARINTS", "encoded_length", "length_delimited", "number", "tag_of", "varint"]

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

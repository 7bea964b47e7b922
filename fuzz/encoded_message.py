"""Encoded protobuf messages, made field by field as an input says: most as clients write them, some bent.

Fields, their order and their values are the input's choice, lengths and tags are right of themselves. So an input gets
deep into a decoder at once, and what is bent is one thing in a request that else is right.
"""

from __future__ import annotations

from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fuzz.source import Source

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_VARINT_TYPES: Final = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM)
_USUAL_NUMBERS: Final = (0, 1, 2, 5, 127, 128, 1_700_000_000, (1 << 31) - 1)
# On both sides of what takes another digit, and of what fits 28, 31, 32, 35, 63 and 64 bits.
_LARGE_NUMBERS: Final = (
    *((1 << 28) - 1, 1 << 28, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 35) - 1, 1 << 35),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
_USUAL_TEXTS: Final = (b"", b"a", b"orders", "grün".encode(), b"x" * 127, b"x" * 128, b"y" * 300, b"z" * 16_384)
# No UTF-8: a lone byte, a surrogate, an overlong slash, a character cut in two.
_NO_TEXTS: Final = (b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"gr\xc3")
# Of so many fields, one has each of these things wrong with it.
_BENDS: Final = 250
_ODD_WIRE_TYPE, _LONG_TAG, _LONG_LENGTH, _LENGTH_TOO_LARGE, _LENGTH_TOO_SMALL, _CUT, _ANY_BYTES = range(1, 8)
# How many fields are left out before the next.
_STEPS: Final = (0, 0, 0, 0, 0, 1, 1, 3)


def encoded_message(source: Source, kind: type[Message]) -> bytes:
    """A message of this kind, or what is nearly one."""
    return _encoded(source, cast("Descriptor", kind.DESCRIPTOR))


def _encoded(source: Source, kind: Descriptor) -> bytes:
    fields = sorted(kind.fields, key=lambda field: field.number)
    parts: list[bytes] = []
    place = -1
    if not fields:
        return b""
    for _ in range(source.below(len(fields) + 2)):
        step = source.byte()
        if step == 1:  # any, in whatever order
            place = source.byte() % len(fields)
        elif place < 0 or not (fields[place].is_repeated and step & 0x10):
            place += 1 + (_STEPS[step & 0x07] if len(fields) > 3 else 0)
        if place >= len(fields):
            break
        parts.append(_field(source, fields[place]))
    return b"".join(parts)


def _field(source: Source, field: FieldDescriptor) -> bytes:
    bend = source.below(_BENDS)
    wire_type = _VARINT if field.type in _VARINT_TYPES else _LENGTH_DELIMITED
    if bend == _ODD_WIRE_TYPE:
        wire_type = source.below(8)
    tag = _varint(field.number << 3 | wire_type, is_long=bend == _LONG_TAG)
    if bend == _ANY_BYTES:
        return tag + source.some(source.below(20))
    if field.type in _VARINT_TYPES:
        return tag + _varint(_number(source), is_long=bend == _LONG_LENGTH)
    value = _text(source) if field.message_type is None else _encoded(source, field.message_type)
    length = len(value) + (bend == _LENGTH_TOO_LARGE) - (bend == _LENGTH_TOO_SMALL and bool(value))
    if bend == _CUT:
        value = value[: source.below(len(value) + 1)]
    return tag + _varint(length, is_long=bend == _LONG_LENGTH) + value


def _number(source: Source) -> int:
    choice = source.byte()
    if choice >= 0xF8:
        return _LARGE_NUMBERS[source.below(len(_LARGE_NUMBERS))]
    return _USUAL_NUMBERS[choice & 7] if choice & 0x80 else choice


def _text(source: Source) -> bytes:
    choice = source.byte()
    if choice >= 0xF8:
        return _NO_TEXTS[choice & 3] if choice & 4 else source.some(source.below(40))
    if choice & 0x80:
        return _USUAL_TEXTS[choice & 7]
    return bytes(byte & 0x7F for byte in source.some(choice & 0x1F))


def _varint(value: int, *, is_long: bool) -> bytes:
    """With `is_long` a digit longer than it need be, which decoders have to read all the same."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value | 0x80, 0) if is_long else (*digits, value))

"""How many fields an encoded request has, before anything is made of them.

A field takes two bytes, and a request may have 130 MiB: objects of all its entries would stop the event loop for
minutes and take more memory than there is. So requests are counted first, up to the most that one may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_VARINT: Final = 0
_EIGHT_BYTES: Final = 1
_LENGTH_DELIMITED: Final = 2
_GROUP: Final = (3, 4)
"""Begins and ends one: protobuf passes over them, and over what is between, which counts like what is around."""
_FOUR_BYTES: Final = 5
_VARINT_BYTES_MAX: Final = 10


_NONE_INSIDE: Final[Mapping[int, Any]] = {}


def has_more_fields(data: bytes, limit: int, inside: Mapping[int, Any] = _NONE_INSIDE) -> bool:
    """Whether there are more than `limit` at the top level, of whatever number, and in the messages that `inside` names
    by what stands before them, each with those inside it. False for bytes that are no protobuf message, which its
    decoder refuses."""
    try:
        return _left(data, 0, len(data), limit, inside) < 0
    except IndexError:
        return False


def _left(data: bytes, at: int, end: int, limit: int, inside: Mapping[int, Any]) -> int:
    """What is left of `limit` after the fields up to `end`; negative: there are more. Raises IndexError for what are no
    fields."""
    while at < end:
        limit -= 1
        if limit < 0:
            return limit
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _LENGTH_DELIMITED:
            length, at = _varint(data, at)
            within = inside.get(tag)
            if within is not None:
                limit = _left(data, at, min(at + length, end), limit, within)
                if limit < 0:
                    return limit
            at += length
        elif kind == _EIGHT_BYTES:
            at += 8
        elif kind == _FOUR_BYTES:
            at += 4
        elif kind not in _GROUP:
            raise IndexError(at)
    return limit


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises IndexError if it does not."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        digit = data[at + place]
        value |= (digit & 0x7F) << (7 * place)
        if digit <= 0x7F:
            return value, at + place + 1
    raise IndexError(at)

"""How many fields an encoded request has, before anything is made of them.

A field takes two bytes, and a request may have 130 MiB: objects of all its entries would stop the event loop for
minutes and take more memory than there is. So requests are counted first, up to the most that one may have.
"""

from __future__ import annotations

from typing import Final

_VARINT: Final = 0
_EIGHT_BYTES: Final = 1
_LENGTH_DELIMITED: Final = 2
_FOUR_BYTES: Final = 5
_VARINT_BYTES_MAX: Final = 10


def has_more_fields(data: bytes, limit: int) -> bool:
    """Whether there are more than `limit` at the top level, of whatever number. False for bytes that are no protobuf
    message, which its decoder refuses."""
    at = count = 0
    try:
        while at < len(data):
            count += 1
            if count > limit:
                return True
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _LENGTH_DELIMITED:
                length, at = _varint(data, at)
                at += length
            elif kind == _EIGHT_BYTES:
                at += 8
            elif kind == _FOUR_BYTES:
                at += 4
            else:
                return False
    except IndexError:
        return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises IndexError if it does not."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        digit = data[at + place]
        value |= (digit & 0x7F) << (7 * place)
        if digit <= 0x7F:
            return value, at + place + 1
    raise IndexError(at)

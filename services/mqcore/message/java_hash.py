"""Java's `String.hashCode`: what RocketMQ stores for tags in a ConsumeQueue and for keys in an IndexFile.

h = sum of unit[i] * 31**(n - 1 - i) over the n UTF-16 code units, modulo 2**32, read as a signed i32. Written as one
sum of products because it runs for every key of every message: a loop in Python takes four times as long.
"""

from __future__ import annotations

from operator import mul
from struct import unpack
from typing import Final

__all__ = ["extend_hash", "java_hash"]

_MASK: Final = 0xFFFF_FFFF
_CHUNK_UNITS: Final = 128
"""Longest run of code units that is hashed in one go; longer texts go chunk by chunk."""


_SHIFT: Final[tuple[int, ...]] = tuple(pow(31, length, 1 << 32) for length in range(_CHUNK_UNITS + 1))
"""_SHIFT[n] moves a hash n units to the left."""

_POWERS: Final[tuple[tuple[int, ...], ...]] = tuple(_SHIFT[:length][::-1] for length in range(_CHUNK_UNITS + 1))
"""_POWERS[n] weighs the units of a text of n: 31**(n-1) ... 31**0, modulo 2**32."""


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it: a signed 32-bit integer."""
    return extend_hash(0, text)


def extend_hash(prefix_hash: int, text: str) -> int:
    """The hash of `prefix + text`, given `java_hash(prefix)`; signed 32 bits.

    Topics repeat and keys do not: an index keeps the hash of "topic#" and extends it by each key.
    """
    units = text.encode() if text.isascii() else _utf16_units(text)
    length = len(units)
    if length > _CHUNK_UNITS:
        return _extend_by_chunks(prefix_hash, units)
    value: int = (prefix_hash * _SHIFT[length] + sum(map(mul, units, _POWERS[length]))) & _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _extend_by_chunks(prefix_hash: int, units: bytes | tuple[int, ...]) -> int:
    value = prefix_hash
    for start in range(0, len(units), _CHUNK_UNITS):
        chunk = units[start : start + _CHUNK_UNITS]
        value = (value * _SHIFT[len(chunk)] + sum(map(mul, chunk, _POWERS[len(chunk)]))) & _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _utf16_units(text: str) -> tuple[int, ...]:
    """Java's view of a text: characters beyond the basic plane are two units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(encoded) // 2}H", encoded)

"""Java's `String.hashCode`: what RocketMQ stores for tags in a ConsumeQueue and for keys in an IndexFile.

h = sum of unit[i] * 31**(n - 1 - i) over the n UTF-16 code units, modulo 2**32, read as a signed i32. It runs for every
key of every message, so it is one sum of products without a loop in Python, and in floats: their products cost half
of what those of integers beyond 30 bits do. They are exact, as every sum stays below 2**53.
"""

from __future__ import annotations

from operator import mul
from struct import unpack
from typing import Final

__all__ = ["extend_hash", "java_hash"]

_MASK: Final = 0xFFFF_FFFF
_ASCII_UNITS: Final = 128
"""Longest ASCII text hashed in one go: 128 * 127 * 2**32 < 2**46."""
_CHUNK_UNITS: Final = 32
"""Any other text goes chunk by chunk: 32 * 65535 * 2**32 < 2**53."""

_SHIFT: Final[tuple[int, ...]] = tuple(pow(31, length, 1 << 32) for length in range(_ASCII_UNITS + 1))
"""_SHIFT[n] moves a hash n units to the left."""

_WEIGHTS: Final[tuple[tuple[float, ...], ...]] = tuple(
    tuple(map(float, _SHIFT[:length][::-1])) for length in range(_ASCII_UNITS + 1)
)
"""_WEIGHTS[n] are those of a text of n units: 31**(n-1) ... 31**0, modulo 2**32."""


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it: a signed 32-bit integer."""
    return extend_hash(0, text)


def extend_hash(prefix_hash: int, text: str) -> int:
    """The hash of `prefix + text`, given `java_hash(prefix)`; signed 32 bits.

    Topics repeat and keys do not: an index keeps the hash of "topic#" and extends it by each key.
    """
    length = len(text)
    if length <= _ASCII_UNITS and text.isascii():
        value = prefix_hash * _SHIFT[length] + int(sum(map(mul, _WEIGHTS[length], text.encode())))
    else:
        value = prefix_hash
        units = _utf16_units(text)
        for start in range(0, len(units), _CHUNK_UNITS):
            chunk = units[start : start + _CHUNK_UNITS]
            value = (value * _SHIFT[len(chunk)] + int(sum(map(mul, _WEIGHTS[len(chunk)], chunk)))) & _MASK
    value &= _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _utf16_units(text: str) -> tuple[int, ...]:
    """Java's view of a text: characters beyond the basic plane are two units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(encoded) // 2}H", encoded)

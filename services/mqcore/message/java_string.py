"""Java's `String.hashCode`: what RocketMQ stores for tags in a ConsumeQueue and for keys in an IndexFile.

h = sum of unit[i] * 31**(n - 1 - i) over the n UTF-16 code units, modulo 2**32, read as a signed i32. It runs for every
key of every message, and keys count upwards: unique ids and business keys agree in all but their last digits with those
before them. So the last two characters are looked up, and the hash of what comes before them is remembered.

A text seen for the first time is one sum of products without a loop in Python, and in floats: their products cost half
of what those of integers beyond 30 bits do. They are exact, as every sum stays below 2**53.
"""

from __future__ import annotations

from operator import mul
from string import ascii_letters, digits
from struct import unpack
from typing import Final

__all__ = ["extend_hash", "java_hash"]

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
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

_ENDINGS: Final = {
    first + second: 31 * ord(first) + ord(second)
    for first in digits + ascii_letters
    for second in digits + ascii_letters
}
"""Hashes of the last two characters of nearly every key."""

_HEADS_MAX: Final = 1024
"""Beginnings remembered, some 300 bytes each: those of as many clients that send at the same time."""
_heads: Final[dict[str, tuple[int, int]]] = {}
"""By the text before an ending: its own share in the hash of the whole text, and by how much it moves what is before.
It forgets everything when it is full: keys without order then cost an entry each, and no search for the oldest."""


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it: a signed 32-bit integer."""
    return extend_hash(0, text)


def extend_hash(prefix_hash: int, text: str) -> int:
    """The hash of `prefix + text`, given `java_hash(prefix)`; signed 32 bits.

    Topics repeat and keys do not: an index keeps the hash of "topic#" and extends it by each key.
    """
    ending = _ENDINGS.get(text[-2:])
    head_text = text[:-2]
    head = _heads.get(head_text)
    if head is not None and ending is not None:
        value = (prefix_hash * head[1] + head[0] + ending) & _MASK
    elif len(text) <= _ASCII_UNITS and text.isascii():
        shift = _SHIFT[len(text)]
        own_value = int(sum(map(mul, _WEIGHTS[len(text)], text.encode())))
        if ending is not None:
            if len(_heads) >= _HEADS_MAX:
                _heads.clear()
            _heads[head_text] = (own_value - ending) & _MASK, shift
        value = (prefix_hash * shift + own_value) & _MASK
    else:
        value = _extend_chunk_by_chunk(prefix_hash, text) & _MASK
    return value - (_MASK + 1) if value & _SIGN else value


def _extend_chunk_by_chunk(value: int, text: str) -> int:
    units = _utf16_units(text)
    for start in range(0, len(units), _CHUNK_UNITS):
        chunk = units[start : start + _CHUNK_UNITS]
        value = (value * _SHIFT[len(chunk)] + int(sum(map(mul, _WEIGHTS[len(chunk)], chunk)))) & _MASK
    return value


def _utf16_units(text: str) -> tuple[int, ...]:
    """Java's view of a text: characters beyond the basic plane are two units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(encoded) // 2}H", encoded)

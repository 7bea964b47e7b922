"""The property string of a record: name 0x01 value 0x02, pair after pair, in UTF-8.

RocketMQ writes the last 0x02 from 5.2.0 on and leaves it out before; both are read here, the newer form is written.
The order of pairs means nothing, but a record that is written again keeps the bytes it was read with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqcore.message.errors import InvalidProperty
from mqcore.message.java_string import java_hash
from mqcore.message.property_names import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY

__all__ = [
    "MAX_PROPERTIES_BYTES",
    "decode_properties",
    "encode_properties",
    "index_terms",
    "java_map_order",
]

MAX_PROPERTIES_BYTES: Final = 32767
"""Length is stored as i16. Longer is PROPERTIES_SIZE_EXCEEDED, which the store answers before anything is written."""

_NAME_END: Final = "\x01"
_PAIR_END: Final = "\x02"
_SHORTEST_PAIR: Final = 3


def encode_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The stored form of `pairs`, in their order. Raises InvalidProperty if a separator hides in a name or value.

    A hidden separator would let a sender forge properties of the broker's own, such as REAL_TOPIC.
    """
    parts = [f"{name}\x01{value}\x02" for name, value in pairs]
    text = "".join(parts)
    if text.count(_NAME_END) != len(parts) or text.count(_PAIR_END) != len(parts):
        raise InvalidProperty("the name or the value of a property contains the byte 0x01 or 0x02")
    return text.encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Names and values in stored order; like RocketMQ's reader it drops a pair without name or without value."""
    properties: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split(_PAIR_END):
        if len(pair) < _SHORTEST_PAIR:
            continue
        name, _, value = pair.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def index_terms(properties: dict[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """What a message is found by: its tag, and the keys to index (the unique key, then each word of KEYS)."""
    unique_key = properties.get(PROPERTY_UNIQUE_KEY)
    words = properties.get(PROPERTY_KEYS)
    keys = [unique_key] if unique_key else []
    if words:
        keys += [word for word in words.split(" ") if word]
    return properties.get(PROPERTY_TAGS), tuple(keys)


def java_map_order(names: Iterable[str], *, capacity: int) -> list[str]:
    """`names` in the order in which a Java HashMap of `capacity` buckets (a power of two) walks them.

    RocketMQ 5.x writes properties in this order: 128 buckets where the broker rebuilt the string, 16 for small maps
    encoded as built. Only needed to reproduce its bytes.
    """
    return sorted(names, key=lambda name: _bucket(name, capacity))


def _bucket(name: str, capacity: int) -> int:
    unsigned = java_hash(name) & 0xFFFF_FFFF
    return (unsigned ^ (unsigned >> 16)) & (capacity - 1)

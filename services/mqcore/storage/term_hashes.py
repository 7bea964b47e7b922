"""What an index holds for a message: a hash for each key, and one for its tag. Made for every message stored."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack
from types import FunctionType
from typing import Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from mqcore.message.java_string import extend_hash, java_hash

__all__ = ["HASH_BYTES", "add_term_hashes", "ascii_extended", "hashes_of", "term_hashes", "without_sign"]

HASH_BYTES: Final = 8
"""Of a hash among those that `add_term_hashes` has added."""
_TOPICS_MAX: Final = 16_384
_TAGS_MAX: Final = 1_024
_BITS: Final = 0xFFFF_FFFF


class _TopicTerms:
    """Of one topic: what the hash of "topic#key" starts from, and the hashes of tags, which repeat."""

    __slots__ = ("start", "tags")

    def __init__(self, topic: str) -> None:
        self.start = java_hash(f"{topic}#")
        self.tags: dict[str, int] = {}


_topics: Final[dict[str, _TopicTerms]] = {}
"""The last few. It forgets everything when it is full, as do the tags of a topic."""


def term_hashes(topic: str, keys: Sequence[str], tag: str | None) -> list[int]:
    """The hashes of a message in the order in which it is entered: its keys, then its tag. See `key_hash`."""
    hashes = BytesWriter()
    add_term_hashes(hashes, topic, tuple(keys), tag)
    return hashes_of(hashes)


def hashes_of(added: BytesWriter) -> list[int]:
    """What `add_term_hashes` has added."""
    return list(unpack(f"<{len(added) // HASH_BYTES}q", added.getvalue()))


def add_term_hashes(hashes: BytesWriter, topic: str, keys: tuple[str, ...], tag: str | None) -> int:
    """Adds what `term_hashes` gives to `hashes`, each as `HASH_BYTES`, little-endian; returns how many they are."""
    known = _topics.get(topic)
    if known is None:
        if len(_topics) >= _TOPICS_MAX:
            _topics.clear()
        known = _topics[topic] = _TopicTerms(topic)
    for key in keys:
        write_i64_le(hashes, without_sign(_extended(known.start, key)))
    if not tag:
        return len(keys)
    tagged = known.tags.get(tag)
    if tagged is None:
        if len(known.tags) >= _TAGS_MAX:
            known.tags.clear()
        tagged = known.tags[tag] = without_sign(_extended(known.start, f"T#{tag}"))
    write_i64_le(hashes, tagged)
    return len(keys) + 1


def without_sign(bits: i64) -> i64:
    """What an index holds for a hash of 32 bits: Java's Math.abs, and 0 for the one value that has no counterpart."""
    if bits & 0x8000_0000:
        return (0x1_0000_0000 - bits) & 0x7FFF_FFFF
    return bits


def ascii_extended(start: i64, data: bytes) -> i64:
    """The 32 bits of the hash of a text that goes on with `data`, of whose beginning `start` is the hash."""
    value = start
    for index in range(len(data)):
        value = (value * 31 + data[index]) & 0xFFFF_FFFF
    return value & 0xFFFF_FFFF


def _extended(start: int, text: str) -> int:
    """The 32 bits of `extend_hash`."""
    if _IS_COMPILED:
        try:
            data = text.encode()
        except UnicodeEncodeError:  # Half a surrogate pair, which Java's strings may hold.
            return extend_hash(start, text) & _BITS
        if len(data) == len(text):
            return ascii_extended(start, data)
    return extend_hash(start, text) & _BITS


# Compiled, a loop over the bytes of a text is the fastest there is; for the interpreter it is the slowest.
_IS_COMPILED: Final = not isinstance(_extended, FunctionType)

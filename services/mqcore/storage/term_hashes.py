"""What an index holds for a message: a hash for each key, and one for its tag. Made for every message stored."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Final

from mypy_extensions import i64

from mqcore.message import extend_hash, java_hash

__all__ = ["term_hashes"]

_TOPICS_MAX: Final = 16_384
_TAGS_MAX: Final = 1_024
_UNSIGNED: Final = 0x7FFF_FFFF


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
    known = _topics.get(topic)
    if known is None:
        if len(_topics) >= _TOPICS_MAX:
            _topics.clear()
        known = _topics[topic] = _TopicTerms(topic)
    hashes = [_without_sign(_extended(known.start, key)) for key in keys]
    if tag:
        tagged = known.tags.get(tag)
        if tagged is None:
            if len(known.tags) >= _TAGS_MAX:
                known.tags.clear()
            tagged = known.tags[tag] = _without_sign(_extended(known.start, f"T#{tag}"))
        hashes.append(tagged)
    return hashes


def _extended(start: int, text: str) -> int:
    """`extend_hash`."""
    if not _IS_COMPILED or not text.isascii():
        return extend_hash(start, text)
    data = text.encode()
    length: i64 = len(data)
    value: i64 = start
    index: i64 = 0
    while index < length:
        value = (value * 31 + data[index]) & 0xFFFF_FFFF
        index += 1
    value &= 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _without_sign(signed: int) -> int:
    """Java's Math.abs, and 0 for the one value that has no counterpart."""
    return signed if signed >= 0 else -signed & _UNSIGNED


# Compiled, a loop over the bytes of a text is the fastest there is; for the interpreter it is the slowest.
_IS_COMPILED: Final = not isinstance(_extended, FunctionType)

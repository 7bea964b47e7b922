"""Which messages of a topic a consumer wants, by tag.

Asked twice: first about the tags code in the ConsumeQueue entry, which costs no read of the CommitLog but lets tags
with equal hash pass, then about the tag itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from mqcore.message.property_names import PROPERTY_TAGS
from mqcore.message.tags_code import tags_code

__all__ = ["TagFilter"]

_SEPARATOR: Final = "||"
_FIRST_TAG: Final = f"{PROPERTY_TAGS}\x01".encode()
_LATER_TAG: Final = b"\x02" + _FIRST_TAG
_PAIR_END: Final = b"\x02"
_FIRST_PRINTABLE: Final = " "
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What Java's String.trim takes off."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A set of tags, or all messages."""

    ALL: ClassVar[TagFilter]

    tags: frozenset[bytes] | None
    """UTF-8; None lets everything pass, messages without tag included."""
    codes: frozenset[int] | None
    """Tags codes of `tags`; None lets everything pass."""

    @classmethod
    def parse(cls, expression: str) -> TagFilter | None:
        """Reads `*`, an empty text or `a || b`, as RocketMQ's FilterAPI does; None when it is none of them."""
        text = expression.strip(_TRIMMED)
        if text in ("", "*"):
            return cls.ALL
        tags = [tag for part in text.split(_SEPARATOR) if (tag := part.strip(_TRIMMED))]
        if not tags or any("|" in tag or min(tag) < _FIRST_PRINTABLE for tag in tags):
            return None
        return cls(frozenset(tag.encode("utf-8", "replace") for tag in tags), frozenset(map(tags_code, tags)))

    def matches(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted."""
        return self.tags is None or _tag_of(properties) in self.tags


TagFilter.ALL = TagFilter(None, None)


def _tag_of(properties: bytes) -> bytes:
    """The tag in a property string; empty without one. Does not decode the other properties."""
    if properties.startswith(_FIRST_TAG):
        begin = len(_FIRST_TAG)
    else:
        found = properties.find(_LATER_TAG)
        if found < 0:
            return b""
        begin = found + len(_LATER_TAG)
    end = properties.find(_PAIR_END, begin)
    return properties[begin:] if end < 0 else properties[begin:end]

"""What queries answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mqcore.message.record_decoder import RecordOutline

__all__ = ["Body", "Fingerprint", "FoundOffset", "MessagePage", "QueriedMessage", "QueueState", "RangeDigest"]


@dataclass(frozen=True, slots=True)
class Body:
    """A message's body as far as it was asked for."""

    # Unpacked. Empty when none was asked for, or it cannot be shown.
    data: bytes
    # zlib, gzip, lz4, zstd; empty: it is not compressed.
    compression: str
    # Why it cannot be shown, or not be believed; empty if it can.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class QueriedMessage:
    """A message as it lies in the log."""

    outline: RecordOutline
    properties: Mapping[str, str]
    body: Body


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages found, in the order of the query."""

    messages: Sequence[QueriedMessage]
    # Where the next page begins; empty: this was all.
    next_page_token: bytes
    # Messages looked at.
    scanned_count: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue's extent. Times are wall-clock ms; None in an empty queue, and where the record cannot be read."""

    queue_id: int
    min_offset: int
    max_offset: int
    oldest_store_ms: int | None
    newest_store_ms: int | None


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """First message of a queue from a moment on; the queue's end if there is none."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """SHA-256 of a range of the CommitLog, None if it is not wholly held, and what the log holds. Bytes."""

    sha256: bytes | None
    min_offset: int
    end_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a message is known by, wherever it lies."""

    # Its client's; of a message without one, the id made of its host and offset.
    message_id: str
    topic: str
    # Of the body as stored.
    body_sha256: bytes
    # Where it was met. It may lie elsewhere, too.
    physical_offset: int
    store_ms: int

    def at(self, physical_offset: int) -> Fingerprint:
        """The same, met there."""
        return replace(self, physical_offset=physical_offset)

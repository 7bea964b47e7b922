"""What queries answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, TypeAlias
from zlib import crc32

from tandemmq.core.message.record import RecordOutline


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


# Which messages are wanted.


@dataclass(frozen=True, slots=True)
class QueueCriteria:
    """[start_offset, end_offset) of one queue, in its order. `end_offset` 0: to the end."""

    queue_id: int
    start_offset: int = 0
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class TimeCriteria:
    """Stored in [start_ms, end_ms), from all queues, by store time. None: open on that side."""

    start_ms: int | None = None
    end_ms: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class KeyCriteria:
    """With a key or a client's message id, stored in [start_ms, end_ms), newest first."""

    key: str
    start_ms: int | None = None
    end_ms: int | None = None


Criteria: TypeAlias = QueueCriteria | TimeCriteria | KeyCriteria


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """One query: what of which topic, and how much of it at once."""

    topic: str
    criteria: Criteria
    # From 1.
    limit: int = 50
    # Bytes of each body; 0: none.
    body_bytes: int = 0
    # Only these tags; empty: all.
    tags: frozenset[str] = frozenset()


# Why a query has no answer. The texts are for operators.


class QueryError(Exception):
    """Root of what queries raise on purpose."""


class TopicUnknown(QueryError):
    """This broker neither has the topic nor holds anything of it."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic[:300]!r} does not exist on this broker")


class MessageUnknown(QueryError):
    """No record lies at the place that was asked for: it has expired, was never written, or the disk lost it."""


class PageTokenInvalid(QueryError):
    """The token is none of this broker's, or another query's. The caller begins again without one."""


class IndexIsOff(QueryError):
    """The broker keeps no IndexFile (`messageIndexEnable`): nothing can be found by key."""

    def __init__(self) -> None:
        super().__init__("messageIndexEnable is off on this broker: search by time, or by queue and offset")


class HoldingUnknown(QueryError):
    """Whether this replica holds a message cannot be known."""


class QueriesBusy(QueryError):
    """More wait for an answer already than will have one in time, or this search alone takes too long."""


# Where the next page of a query begins, in a form that callers keep and do not read.
#
# | offset | size | name     | meaning                                                              |
# |--------|------|----------|----------------------------------------------------------------------|
# | 0      | 1    | version  | 1                                                                    |
# | 1      | 4    | query    | CRC-32 of the query: a token goes on with its own query only         |
# | 5      | 8    | position | i64: offset in the queue, or in the CommitLog, as the query needs it |
# | 13     | 4    | checksum | CRC-32 of the above                                                  |
#
# It holds nothing secret and gives access to nothing: whoever forges one reads from another place.

_VERSION: Final = 1
_CONTENT: Final = Struct(">BIq")
_CHECKSUM: Final = Struct(">I")


def token_of(wanted: WantedMessages, position: int) -> bytes:
    """Goes on with `wanted` at `position`."""
    content = _CONTENT.pack(_VERSION, _query_mark(wanted), position)
    return content + _CHECKSUM.pack(crc32(content))


def position_of(wanted: WantedMessages, token: bytes) -> int | None:
    """Where to go on; None for the first page. Raises PageTokenInvalid."""
    if not token:
        return None
    content, checksum = token[: _CONTENT.size], token[_CONTENT.size :]
    if len(checksum) != _CHECKSUM.size or _CHECKSUM.unpack(checksum) != (crc32(content),):
        raise PageTokenInvalid("page_token: none of this broker's; begin again without one")
    version, mark, position = _CONTENT.unpack(content)
    if version != _VERSION:
        raise PageTokenInvalid("page_token: another version's; begin again without one")
    if mark != _query_mark(wanted) or position < 0:
        raise PageTokenInvalid("page_token: it belongs to another query; begin again without one")
    return int(position)


def _query_mark(wanted: WantedMessages) -> int:
    """Same topic, criteria and tags; how much of it at once may change from page to page."""
    return crc32(repr((wanted.topic, wanted.criteria, sorted(wanted.tags))).encode())

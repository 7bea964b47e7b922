"""What delivery reads of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqcore.message import MessageRecord, StoredMessage
from mqcore.storage.consume_queue import QueueEntry

__all__ = ["QueueReader"]


class QueueReader(Protocol):
    """The queues of a broker. Positions are queue offsets; a queue never written has min and max offset 0."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First message still held."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message that may be delivered."""

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        """Up to `count` entries from `start`, without gaps; fewer, but not none, within [min_offset, max_offset)."""

    def messages(self, entries: Sequence[QueueEntry]) -> list[StoredMessage | None]:
        """The message of each entry; None when none belongs to it (filler, expired in the meantime, unreadable)."""

    def record(self, entry: QueueEntry) -> MessageRecord | None:
        """The whole record of an entry; None as in `messages`."""

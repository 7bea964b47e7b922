"""What delivery reads of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqcore.message import MessageRecord
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

    def message(self, entry: QueueEntry) -> MessageRecord | None:
        """The record of an entry; None when no message belongs to it (filler, or expired in the meantime)."""

"""Where a moment lies in the queues: by bisection, and over all queues with little more reading than over one.

Records are stored in the order of the CommitLog and their store times never decrease along it, so a moment is one place
in the log. Each record that is read narrows that place down, and an entry of a queue that lies before or behind it
needs no reading. (In the log of a Java broker times go back by what its clock did; then what is found is near.)
"""

from __future__ import annotations

from typing import Final

from broker.queries.queue_entries import entry_at
from broker.queries.stored_records import StoredRecords
from mqcore.storage.consume_queue import ConsumeQueue

__all__ = ["TimeBoundary"]

_UNREADABLE_MAX: Final = 16
"""Records in a row that are passed over in search of one that can be read."""


class TimeBoundary:
    """One moment. Knows more of its place with each queue that was looked into."""

    def __init__(self, records: StoredRecords, time_ms: int) -> None:
        self._records = records
        self._time_ms = time_ms
        self._before = -1  # Whatever starts here or earlier was stored before the moment,
        self._from: int | None = None  # and whatever starts here or later, then or later.

    async def first_in(self, queue: ConsumeQueue) -> int:
        """Offset of the queue's first message stored at the moment or later; its end if there is none."""
        low, high = int(queue.min_offset), int(queue.max_offset)
        while low < high:
            middle = (low + high) // 2
            if await self._is_before(queue, middle, high):
                low = middle + 1
            else:
                high = middle
        return low

    async def _is_before(self, queue: ConsumeQueue, offset: int, end: int) -> bool:
        """Whether the message at `offset` was stored earlier. One that cannot be read is as old as the next one."""
        for number in range(offset, min(end, offset + _UNREADABLE_MAX)):
            entry = entry_at(queue, number)
            if entry is None:
                return False
            # A filler lies where the message lies that follows it.
            place = entry.physical_offset
            if place <= self._before:
                return True
            if self._from is not None and place >= self._from:
                return False
            store_ms = await self._records.store_ms(place)
            if store_ms is None:
                continue
            if store_ms < self._time_ms:
                self._before = max(self._before, place)
                return True
            self._from = place if self._from is None else min(self._from, place)
            return False
        return True

"""Goes through queues as if they were one, in the order of the CommitLog or against it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from broker.queries.time_boundary import entry_at
from mqcore.storage.consume_queue import ConsumeQueue, QueueEntry

__all__ = ["Place", "QueueWalk"]

_BATCH_ENTRIES: Final = 64
"""Read at once of one queue: a page of a disk holds three times as many."""


class Place(NamedTuple):
    """A message's place."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int


class QueueWalk:
    """Over [start, end) of each queue. Queues may grow and shrink under it; no entry is met twice."""

    def __init__(self, ranges: Sequence[tuple[ConsumeQueue, int, int]], *, backwards: bool = False) -> None:
        """`ranges`: queue, start offset, end offset."""
        cursors = [_Cursor(queue, start, end, backwards=backwards) for queue, start, end in ranges]
        # The number decides between equals: cursors cannot be compared.
        self._heap = [(cursor.key, number, cursor) for number, cursor in enumerate(cursors) if cursor.entry is not None]
        heapify(self._heap)

    def take(self, count: int, *, steps: int, tags_codes: Collection[int] | None) -> tuple[list[Place], Place | None]:
        """The next places, at most `count` and after `steps` entries at most, and the last one that was looked at.

        `tags_codes`: entries with others are passed over. No last one: the walk is over.
        """
        places: list[Place] = []
        last: Place | None = None
        heap = self._heap
        while heap and len(places) < count and steps > 0:
            _, number, cursor = heap[0]
            entry = cursor.entry
            assert entry is not None, "a cursor at its end is still in the heap"
            last = Place(entry.physical_offset, entry.size, cursor.queue.queue_id, cursor.offset)
            if tags_codes is None or entry.tags_code in tags_codes:
                places.append(last)
            steps -= 1
            cursor.advance()
            if cursor.entry is None:
                heappop(heap)
            else:
                heapreplace(heap, (cursor.key, number, cursor))
        return places, last

    @property
    def next_place(self) -> Place | None:
        """Where the walk goes on; None at its end."""
        if not self._heap:
            return None
        cursor = self._heap[0][2]
        entry = cursor.entry
        assert entry is not None, "a cursor at its end is still in the heap"
        return Place(entry.physical_offset, entry.size, cursor.queue.queue_id, cursor.offset)


class _Cursor:
    """In one queue, at an entry that is no filler."""

    __slots__ = ("_batch", "_batch_start", "_end", "_start", "_step", "entry", "key", "offset", "queue")

    def __init__(self, queue: ConsumeQueue, start: int, end: int, *, backwards: bool) -> None:
        self.queue = queue
        self._start = start
        self._end = end
        self._step = -1 if backwards else 1
        self._batch: list[QueueEntry] = []
        self._batch_start = 0
        self.offset = end if backwards else start - 1
        self.entry: QueueEntry | None = None
        self.key = 0
        self.advance()

    def advance(self) -> None:
        """To the next entry; `entry` is None at the end."""
        self.offset += self._step
        if self._step > 0:
            self.offset = max(self.offset, int(self.queue.min_offset))
        self.entry = self._read(self.offset)
        while self.entry is not None and self.entry.is_filler:
            self.offset = self._beyond_fillers(self.offset, self.entry.physical_offset)
            self.entry = self._read(self.offset)
        if self.entry is not None:
            self.key = self.entry.physical_offset * self._step

    def _read(self, offset: int) -> QueueEntry | None:
        if not self._start <= offset < self._end:
            return None
        within = offset - self._batch_start
        if not 0 <= within < len(self._batch):
            first = offset if self._step > 0 else max(self._start, offset - _BATCH_ENTRIES + 1)
            first = max(first, int(self.queue.min_offset))
            self._batch = self.queue.read(first, min(_BATCH_ENTRIES, self._end - first))
            self._batch_start = first
            within = offset - first
        return self._batch[within] if 0 <= within < len(self._batch) else None

    def _beyond_fillers(self, offset: int, physical_offset: int) -> int:
        """Offset of the next entry in the walk's direction that is none of a run of fillers: there may be millions."""
        if self._step > 0:
            return self._bisected(
                offset, self._end, lambda entry: entry.is_filler and entry.physical_offset <= physical_offset
            )
        return self._bisected(self._start, offset, lambda entry: entry.physical_offset < physical_offset) - 1

    def _bisected(self, low: int, high: int, holds: Callable[[QueueEntry], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            entry = entry_at(self.queue, middle)
            if entry is not None and holds(entry):
                low = middle + 1
            else:
                high = middle
        return low

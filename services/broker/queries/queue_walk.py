"""Goes through queues as if they were one, in the order of the CommitLog or against it."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple

from broker.queries.queue_entries import first_without
from mqcore.storage.consume_queue import ConsumeQueue, QueueEntry

__all__ = ["Place", "QueueWalk"]

_BATCH_ENTRIES_FIRST: Final = 4
_BATCH_ENTRIES_MAX: Final = 256
"""Read at once of one queue. Of a thousand queues most give only a few to a page: the first reads are small."""
_STEPS_OF_READ: Final = 100


class Place(NamedTuple):
    """A message's place."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int


class QueueWalk:
    """Over [start, end) of each queue that was entered. Queues may grow and shrink under it; no entry is met twice."""

    def __init__(self, *, backwards: bool = False) -> None:
        self._backwards = backwards
        # The number decides between equals: cursors cannot be compared.
        self._heap: list[tuple[int, int, _Cursor]] = []
        self._entered = 0

    def enter(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Goes through that one as well. Before the first `take`; reads a file of the queue."""
        cursor = _Cursor(queue, start, end, backwards=self._backwards)
        self._entered += 1
        if cursor.entry is not None:
            heappush(self._heap, (cursor.key, self._entered, cursor))

    def take(self, count: int, *, steps: int, tags_codes: Collection[int] | None) -> tuple[list[Place], int]:
        """The next places, at most `count`, and how many steps it took: `steps`, or a few more.

        `tags_codes`: entries with others are passed over, which is a step each (0.2 us), and 100 for each read of a
        queue. A place is a step too, whatever it takes: `count` bounds them.
        """
        places: list[Place] = []
        steps_left = steps
        heap = self._heap
        while heap and len(places) < count and steps_left > 0:
            _, number, cursor = heap[0]
            if tags_codes is None or cursor.tags_code in tags_codes:
                places.append(cursor.place)
                cursor.advance()
                steps_left -= 1
            else:
                # Among those that are passed over no order has to be kept.
                steps_left -= cursor.pass_over(tags_codes)
            if cursor.entry is None:
                heappop(heap)
            else:
                heapreplace(heap, (cursor.key, number, cursor))
        return places, steps - steps_left

    @property
    def next_place(self) -> Place | None:
        """Where the walk goes on: everything before is behind it. None at its end."""
        return self._heap[0][2].place if self._heap else None


class _Cursor:
    """In one queue, at an entry that is no filler."""

    __slots__ = (
        "_batch",
        "_batch_entries",
        "_batch_start",
        "_end",
        "_start",
        "_step",
        "entry",
        "key",
        "offset",
        "queue",
    )

    def __init__(self, queue: ConsumeQueue, start: int, end: int, *, backwards: bool) -> None:
        self.queue = queue
        self._start = start
        self._end = end
        self._step = -1 if backwards else 1
        self._batch: list[QueueEntry] = []
        self._batch_start = 0
        self._batch_entries = _BATCH_ENTRIES_FIRST
        self.offset = end if backwards else start - 1
        self.entry: QueueEntry | None = None
        self.key = 0
        self.advance()

    @property
    def place(self) -> Place:
        """Where it is."""
        assert self.entry is not None, "a cursor at its end is nowhere"
        return Place(self.entry.physical_offset, self.entry.size, self.queue.queue_id, self.offset)

    @property
    def tags_code(self) -> int:
        """Of the entry it is at."""
        assert self.entry is not None, "a cursor at its end has no entry"
        return self.entry.tags_code

    def pass_over(self, tags_codes: Collection[int]) -> int:
        """To the next entry that has one of these, or to the end of what was read at once; the steps it took."""
        batch, step = self._batch, self._step
        start = within = self.offset - self._batch_start
        while 0 <= within < len(batch) and batch[within].tags_code not in tags_codes:
            within += step
        self.offset += within - start - step
        self.advance()
        return abs(within - start) + _STEPS_OF_READ

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
            count = self._batch_entries
            self._batch_entries = min(_BATCH_ENTRIES_MAX, 4 * count)
            first = offset if self._step > 0 else max(self._start, offset - count + 1)
            first = max(first, int(self.queue.min_offset))
            self._batch = self.queue.read(first, min(count, self._end - first))
            self._batch_start = first
            within = offset - first
        return self._batch[within] if 0 <= within < len(self._batch) else None

    def _beyond_fillers(self, offset: int, physical_offset: int) -> int:
        """Offset of the next entry in the walk's direction that is none of a run of fillers: there may be millions."""
        if self._step > 0:
            return first_without(
                self.queue,
                offset,
                self._end,
                lambda entry: entry.is_filler and entry.physical_offset <= physical_offset,
            )
        before = first_without(self.queue, self._start, offset, lambda entry: entry.physical_offset < physical_offset)
        return before - 1

"""Goes through queues as if they were one, in the order of the CommitLog or against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.broker.queries.values import (
    KeyCriteria,
    MessagePage,
    QueriedMessage,
    QueriesBusy,
    QueueCriteria,
    TimeCriteria,
    WantedMessages,
    token_of,
)
from tandemmq.core.clock import Clock
from tandemmq.core.message.properties import PROPERTY_TAGS, decode_properties, index_terms, tags_code
from tandemmq.core.message.record import SCHEDULE_TOPIC, RecordOutline
from tandemmq.core.storage.consume_queue import ConsumeQueue, QueueEntry

if TYPE_CHECKING:
    from tandemmq.broker.queries.stored_records import StoredRecords
    from tandemmq.broker.queue_reader import EntryDamage
    from tandemmq.core.storage.message_store import MessageStore


# Single entries of a ConsumeQueue, and by bisection where they turn.


def entry_at(queue: ConsumeQueue, offset: int) -> QueueEntry | None:
    """One entry; None if the queue has it no more: it may have been cut meanwhile."""
    entries = queue.read(offset, 1)
    return entries[0] if entries else None


def first_without(queue: ConsumeQueue, low: int, high: int, holds: Callable[[QueueEntry], bool]) -> int:
    """The first offset of [low, high) whose entry `holds` is not true of; `high` if there is none.

    `holds` must be true up to some entry and false from there on; of an entry that is gone it counts as false.
    """
    while low < high:
        middle = (low + high) // 2
        entry = entry_at(queue, middle)
        if entry is not None and holds(entry):
            low = middle + 1
        else:
            high = middle
    return low


def first_at_physical(queue: ConsumeQueue, physical_offset: int) -> int:
    """Offset of the queue's first entry that lies at `physical_offset` or behind it; its end if there is none."""
    start, end = int(queue.min_offset), int(queue.max_offset)
    return first_without(queue, start, end, lambda entry: entry.physical_offset < physical_offset)


_BATCH_ENTRIES_FIRST: Final = 4
_BATCH_ENTRIES_MAX: Final = 256
"""Read at once of one queue. Of a thousand queues most give only a few to a page: the first reads are small."""
_STEPS_OF_READ: Final = 100


class Place(NamedTuple):
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
        assert self.entry is not None, "a cursor at its end is nowhere"
        return Place(self.entry.physical_offset, self.entry.size, self.queue.queue_id, self.offset)

    @property
    def tags_code(self) -> int:
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


# Where a moment lies in the queues: by bisection, and over all queues with little more reading than over one.
#
# Records are stored in the order of the CommitLog and their store times never decrease along it, so a moment is one
# place in the log. Each record that is read narrows that place down, and an entry of a queue that lies before or
# behind it needs no reading. (In the log of a Java broker times go back by what its clock did; then what is found is
# near.)

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


# What a message id tells of the time it was made.

# Message ids of version 1: 34 hexadecimal digits, see MessageIdCodec; seconds since 2021 at digit 18.
_ID_DIGITS: Final = 34
_ID_VERSION: Final = "01"
_ID_SECONDS: Final = slice(18, 26)
_ID_EPOCH_S: Final = 1_609_459_200
_CLOCK_SLACK_MS: Final = 3_600_000
"""A client's clock may be wrong by that much before its message is looked for in vain."""


def earliest_store_ms(message_id: str) -> int:
    """Before that, by the id itself, the message was not stored: index files from before need no look."""
    if len(message_id) != _ID_DIGITS or not message_id.startswith(_ID_VERSION):
        return 0
    try:
        seconds = int(message_id[_ID_SECONDS], 16)
    except ValueError:
        return 0
    return max(0, (_ID_EPOCH_S + seconds) * 1_000 - _CLOCK_SLACK_MS)


# A page of messages while it is being filled: what makes it full, and where the next one begins.

SLICE_RECORDS: Final = 24
"""Records read in one turn of the event loop: a millisecond."""
_SCANNED_MAX: Final = 5_000
"""Records looked at for one page."""
_PAGE_BYTES_MAX: Final = 3 << 20
"""Of bodies and properties: an answer stays below the 4 MiB that gRPC's clients take by default."""
_MESSAGE_BYTES: Final = 400
"""What a message takes beside them."""
_TIME_LIMIT_MS: Final = 3_000
"""Then the page ends with what was found: most callers wait for 10 s, and may have had to wait for their turn."""


class FoundPage:
    """Messages are offered in the order of the query; `is_full` then says when to stop."""

    def __init__(self, records: StoredRecords, wanted: WantedMessages, *, clock: Clock) -> None:
        self._records = records
        self._wanted = wanted
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + _TIME_LIMIT_MS
        self._messages: list[QueriedMessage] = []
        self._bytes = 0
        self.scanned_count = 0

    @property
    def room(self) -> int:
        """Messages that are still wanted; 0 when enough was looked at."""
        if self.scanned_count >= _SCANNED_MAX or self._clock.monotonic_ms() >= self._deadline_ms:
            return 0
        return self._wanted.limit - len(self._messages)

    async def offer(self, outline: RecordOutline) -> bool:
        """Takes the message if it has a wanted tag; False: it is wanted and there is no room for it."""
        properties = decode_properties(outline.properties)
        if self._wanted.tags and properties.get(PROPERTY_TAGS, "") not in self._wanted.tags:
            return True
        if len(self._messages) >= self._wanted.limit:
            return False
        body = await self._records.body(outline, max_bytes=self._wanted.body_bytes)
        size = _MESSAGE_BYTES + len(outline.properties) + len(body.data)
        if self._messages and self._bytes + size > _PAGE_BYTES_MAX:
            return False
        self._bytes += size
        self._messages.append(QueriedMessage(outline, properties, body))
        return True

    def ended(self, next_position: int | None) -> MessagePage:
        """As it is now. `next_position` None: there is no next page."""
        token = b"" if next_position is None else token_of(self._wanted, next_position)
        return MessagePage(tuple(self._messages), token, self.scanned_count)


# Looks through queues for messages.

_SLICE_STEPS: Final = 2_000
"""Of a walk past messages with other tags, in one turn of the event loop: a millisecond."""
_STEPS_MAX: Final = 1_000_000
"""For one page."""


class QueueSearch:
    """One page of one query. Stops where its criteria end, and where a page does."""

    def __init__(
        self, records: StoredRecords, walk: QueueWalk, wanted: WantedMessages, *, clock: Clock, damaged: EntryDamage
    ) -> None:
        self._topic = wanted.topic
        self._damaged = damaged
        self._records = records
        self._walk = walk
        self._criteria = wanted.criteria
        self._page = FoundPage(records, wanted, clock=clock)
        # The schedule topic keeps the time there at which a message is due.
        has_codes = bool(wanted.tags) and wanted.topic != SCHEDULE_TOPIC
        self._tags_codes = frozenset(map(tags_code, wanted.tags)) if has_codes else None

    async def page(self) -> MessagePage:
        """Looks until the page is full, the criteria end, or the limits of one page are reached."""
        steps_left = _STEPS_MAX
        while (room := self._page.room) > 0 and steps_left > 0:
            places, steps = self._walk.take(
                min(room, SLICE_RECORDS), steps=min(_SLICE_STEPS, steps_left), tags_codes=self._tags_codes
            )
            steps_left -= steps
            outlines = await self._records.outlines([(place.physical_offset, place.size) for place in places])
            for place, outline in zip(places, outlines, strict=True):
                self._page.scanned_count += 1
                is_its_own = outline is not None and (outline.topic, outline.queue_id, outline.queue_offset) == (
                    self._topic,
                    place.queue_id,
                    place.queue_offset,
                )
                if outline is None or not is_its_own:
                    reason = f"no record of its own at {place.physical_offset}"
                    self._damaged.note(self._topic, place.queue_id, place.queue_offset, reason)
                    continue
                if self._ends_before(outline.store_timestamp_ms):
                    return self._page.ended(None)
                if not await self._page.offer(outline):
                    return self._page.ended(self._position(place))
            following = self._walk.next_place
            if following is None or (not places and await self._is_beyond(following)):
                return self._page.ended(None)
            await asyncio.sleep(0)
        following = self._walk.next_place
        return self._page.ended(None if following is None else self._position(following))

    def _ends_before(self, store_ms: int) -> bool:
        """Whether messages of that time, and all that come after them in the walk, are too old or too new."""
        criteria = self._criteria
        if not isinstance(criteria, TimeCriteria):
            return False
        if criteria.newest_first:
            return criteria.start_ms is not None and store_ms < criteria.start_ms
        return criteria.end_ms is not None and store_ms >= criteria.end_ms

    async def _is_beyond(self, place: Place) -> bool:
        """The same of an entry whose record was not read. Else a rare tag would be looked for until the log ends."""
        if not isinstance(self._criteria, TimeCriteria):
            return False
        store_ms = await self._records.store_ms(place.physical_offset)
        return store_ms is not None and self._ends_before(store_ms)

    def _position(self, place: Place) -> int:
        """Where a page goes on that begins with `place`; backwards, the first place it does not begin with."""
        if isinstance(self._criteria, QueueCriteria):
            return place.queue_offset
        is_backwards = isinstance(self._criteria, TimeCriteria) and self._criteria.newest_first
        return place.physical_offset + 1 if is_backwards else place.physical_offset


# Looks for messages by a key, in the IndexFiles.

_NO_END_MS: Final = (1 << 63) - 1
_KEY_SLICE_STEPS: Final = 512
_SLICE_MS: Final = 2
"""One turn of the event loop: so many entries of a chain, or so long where their pages are cold."""


class KeySearch:
    """One page of one query, newest first."""

    def __init__(
        self,
        records: StoredRecords,
        store: MessageStore,
        wanted: WantedMessages,
        criteria: KeyCriteria,
        *,
        clock: Clock,
    ) -> None:
        self._records = records
        self._store = store
        self._topic = wanted.topic
        self._key = criteria.key
        self._clock = clock
        self._begin_ms = max(criteria.start_ms or 0, earliest_store_ms(criteria.key))
        # A clock that was set back is behind the newest store times, however far.
        self._end_ms = criteria.end_ms if criteria.end_ms is not None else _NO_END_MS
        self._page = FoundPage(records, wanted, clock=clock)
        self._walk = store.index_walk(wanted.topic, criteria.key, begin_ms=self._begin_ms, end_ms=self._end_ms)

    async def page(self, position: int | None) -> MessagePage:
        """Messages that lie before `position` in the CommitLog; None: all."""
        below = position
        while (room := self._page.room) > 0:
            offsets, is_over = self._taken(min(room, SLICE_RECORDS), below)
            for offset in offsets:
                below = offset
                self._page.scanned_count += 1
                outline = await self._records.outline_at(offset)
                if outline is not None and self._is_wanted(outline) and not await self._page.offer(outline):
                    return self._page.ended(offset + 1)
            if is_over:
                return self._page.ended(None)
            await asyncio.sleep(0)
        if below is None:
            raise QueriesBusy(f"key {self._key[:100]!r}: too many messages after that time have it; name a later one")
        return self._page.ended(below)

    def _taken(self, count: int, below: int | None) -> tuple[list[int], bool]:
        """The next records the index names, and whether it names no more. Ever earlier ones: what was entered twice is
        met once."""
        offsets: list[int] = []
        until_ms = self._clock.monotonic_ms() + _SLICE_MS
        for steps, offset in enumerate(self._walk, 1):
            if offset is not None and (below is None or offset < below):
                offsets.append(offset)
                below = offset
            if len(offsets) >= count or steps >= _KEY_SLICE_STEPS or self._clock.monotonic_ms() >= until_ms:
                return offsets, False
        return offsets, True

    def _is_wanted(self, outline: RecordOutline) -> bool:
        """Hashes collide, and the index knows times to the second."""
        if outline.topic != self._topic or not self._begin_ms <= outline.store_timestamp_ms < self._end_ms:
            return False
        _, keys = index_terms(decode_properties(outline.properties))
        return self._key in keys and self._is_in_its_queue(outline)

    def _is_in_its_queue(self, outline: RecordOutline) -> bool:
        """Whether its queue still has it: the index outlives entries that were removed with their queue."""
        queue = self._store.consume_queue(outline.topic, outline.queue_id)
        entry = entry_at(queue, outline.queue_offset) if queue is not None else None
        return entry is not None and entry.physical_offset == outline.physical_offset

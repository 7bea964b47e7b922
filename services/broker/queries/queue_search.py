"""Looks through queues for messages."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.queries.criteria import QueueCriteria, TimeCriteria, WantedMessages
from broker.queries.found_page import SLICE_RECORDS, FoundPage
from broker.queries.queue_walk import Place, QueueWalk
from broker.queries.stored_records import StoredRecords
from broker.queries.values import MessagePage
from broker.queue_reader import EntryDamage
from mqcore.clock import Clock
from mqcore.message.record import SCHEDULE_TOPIC, tags_code

__all__ = ["QueueSearch"]

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

"""Looks for messages by a key, in the IndexFiles."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.queries.criteria import KeyCriteria, WantedMessages
from broker.queries.errors import QueriesBusy
from broker.queries.found_page import SLICE_RECORDS, FoundPage
from broker.queries.id_time import earliest_store_ms
from broker.queries.queue_entries import entry_at
from broker.queries.stored_records import ReadableStore, StoredRecords
from broker.queries.values import MessagePage
from mqcore.clock import Clock
from mqcore.message.properties import decode_properties, index_terms
from mqcore.message.record_decoder import RecordOutline

__all__ = ["KeySearch"]

_SLICE_STEPS: Final = 512
_SLICE_MS: Final = 2
"""One turn of the event loop: so many entries of a chain, or so long where their pages are cold."""
_CLOCK_SLACK_MS: Final = 3_600_000
"""A message may be stored later than this clock says now: its broker's may have been ahead."""


class KeySearch:
    """One page of one query, newest first."""

    def __init__(
        self,
        records: StoredRecords,
        store: ReadableStore,
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
        self._end_ms = criteria.end_ms if criteria.end_ms is not None else clock.wall_ms() + _CLOCK_SLACK_MS
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
            if len(offsets) >= count or steps >= _SLICE_STEPS or self._clock.monotonic_ms() >= until_ms:
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

"""Mends ConsumeQueue entries that were found damaged when somebody needed their messages.

Whoever meets an entry that does not lead to its own record notes it in `DamagedEntries` and waits: no group passes over
it. The log is the truth, so `QueueRepair` makes the entry, and the damaged ones beside it, again from the log, in a
helper process that no long audit holds up. If a record is damaged itself, its bytes are fetched from another replica,
checked, and put back into the log first. Only a place that has no record in the log, or whose record nobody in reach
has, is told and passed over.

One place after the other; each try and the tries together have a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from tandemmq.broker.audit.jobs import HelperBusy, HelperGone, JobFailed, JobFailure
from tandemmq.broker.audit.queue_repair import QueueOrder, QueueRepair, RepairableQueues
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.message.record_decoder import Blank, RecordFound, scan_record
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.flush_jobs import FlushJob

__all__ = ["MendableStore", "QueueMending", "ReplicaRead"]

log = structlog.get_logger(__name__)

_RUN_MAX: Final = 1_000
"""Damaged neighbours that are mended with an entry: some pages."""
_TRY_LIMIT_S: Final = 600.0
_PAUSE_S: Final = 2.0
_TRIES_MAX: Final = 60
"""Two minutes and what the tries take: then the place is given up, or the group would wait for ever."""
_SCAN_BYTES: Final = 256 << 10
"""Of the log in one turn of the event loop."""
_FETCHED_BYTES: Final = (64 << 10, 16 << 20)
"""Fetched of a replica for one record, first and if that is not all of it."""

ReplicaRead = Callable[[LogRange], Awaitable[bytes | None]]
"""Bytes of the log as another replica holds them, perhaps fewer; None: there is no other. OSError: not now."""


class MendableStore(RepairableQueues, Protocol):
    """The part of the store that is mended."""

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""

    @property
    def segment_bytes(self) -> int:
        """Length of a CommitLog file."""

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes of the log within one file."""

    def replace_log(self, offset: int, data: bytes) -> None:
        """Puts bytes in the place of durable ones."""

    def log_sync_job(self, start_offset: int, end_offset: int) -> FlushJob:
        """What makes them durable."""


class _NotNow(Exception):
    """Another replica may have it, and is not in reach."""


class QueueMending:
    """Works off what is noted. Event loop only."""

    def __init__(
        self,
        *,
        damaged: DamagedEntries,
        store: MendableStore,
        repair: QueueRepair,
        read_from_replica: ReplicaRead,
        mended: Callable[[str], None],
        failed: Callable[[DiskError], None],
        pause_s: float = _PAUSE_S,
    ) -> None:
        """`mended` is told the topic of a place that may be read again."""
        self._damaged = damaged
        self._store = store
        self._repair = repair
        self._read_from_replica = read_from_replica
        self._mended = mended
        self._failed = failed
        self._pause_s = pause_s
        self._tries: dict[tuple[str, int, int], int] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._damaged.has_some.wait()
            place = self._damaged.first()
            if place is None:
                self._damaged.has_some.clear()
                continue
            try:
                async with asyncio.timeout(_TRY_LIMIT_S):
                    await self._mend(*place)
            except (
                _NotNow,
                RepairRefused,
                JobFailed,
                HelperGone,
                HelperBusy,
                DiskError,
                OSError,
                TimeoutError,
            ) as error:
                await self._failed_once(place, str(error))
            else:
                self._tries.pop(place, None)

    async def _failed_once(self, place: tuple[str, int, int], reason: str) -> None:
        tries = self._tries[place] = self._tries.get(place, 0) + 1
        if tries == 1:
            topic, queue_id, queue_offset = place
            log.warning(
                "queue_entry_not_mended", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=reason
            )
        if tries >= _TRIES_MAX:
            self._give_up(place, reason)
            return
        self._damaged.put_last(place)
        await asyncio.sleep(self._pause_s)

    def _give_up(self, place: tuple[str, int, int], reason: str) -> None:
        topic, queue_id, queue_offset = place
        self._tries.pop(place, None)
        self._damaged.lost_count += 1
        log.error("message_unreadable", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=reason)
        self._damaged.found_empty(topic, queue_id, queue_offset)
        self._damaged.ended(topic, queue_id, queue_offset, queue_offset + 1)
        self._mended(topic)

    async def _mend(self, topic: str, queue_id: int, queue_offset: int) -> None:
        queue = self._store.consume_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            self._damaged.ended(topic, queue_id, queue_offset, queue_offset + 1)
            return
        end = queue_offset + 1
        while end < min(queue.max_offset, queue_offset + _RUN_MAX) and self._repair.sound_entry(queue, end) is None:
            end += 1
            if end % 64 == 0:
                await asyncio.sleep(0)
        try:
            await self._rewrite(topic, queue_id, queue_offset, end)
        except RepairRefused as error:
            if error.refusal is not Refusal.NOT_FOUND:
                raise
            # One of them has no record: perhaps another than the one that is waited for.
            end = queue_offset + 1
            try:
                await self._rewrite(topic, queue_id, queue_offset, end)
            except RepairRefused as alone:
                if alone.refusal is not Refusal.NOT_FOUND:
                    raise
                self._give_up((topic, queue_id, queue_offset), "the log has no record for it")
                return
        for place in range(queue_offset, min(end, queue.max_offset)):
            if queue.entry(place).is_filler:
                self._damaged.found_empty(topic, queue_id, place)
        self._damaged.ended(topic, queue_id, queue_offset, end)
        self._mended(topic)

    async def _rewrite(self, topic: str, queue_id: int, first: int, end: int) -> None:
        order = QueueOrder(topic, queue_id, first, end, dry_run=False)
        try:
            repaired = await self._repair.run(order)
        except JobFailed as error:
            if error.failure is not JobFailure.UNSOUND:
                raise
            # The log is damaged where the records are.
            queue = self._store.consume_queue(topic, queue_id)
            if queue is None:
                raise
            if not await self._heal(*self._repair.log_range(queue, first, end)):
                self._give_up((topic, queue_id, first), "its record is damaged, and there is no other replica")
                return
            repaired = await self._repair.run(order)
        self._damaged.mended_count += repaired.changed_count
        log.warning(
            "queue_entries_mended", topic=topic, queue_id=queue_id, first=first, end=end, changed=repaired.changed_count
        )

    # The log itself

    async def _heal(self, start: int, end: int) -> bool:
        """Puts back each damaged record of a part of the log; False: there is no other replica to have it from."""
        store = self._store
        offset = start
        scanned = 0
        while offset < end:
            segment_end = offset - offset % store.segment_bytes + store.segment_bytes
            view = store.read_log(offset, segment_end - offset)
            found = scan_record(view, 0, len(view), physical_offset=offset)
            if isinstance(found, Blank) and found.size == segment_end - offset:
                offset = segment_end
                continue
            if not isinstance(found, RecordFound):
                limit = min(segment_end, store.flushed_offset)
                if limit <= offset:
                    raise _NotNow(f"the log is damaged at {offset}, which is not on disk yet")
                for length in _FETCHED_BYTES:
                    data = await self._read_from_replica(LogRange(offset, min(offset + length, limit)))
                    if data is None:
                        return False
                    found = scan_record(data, 0, len(data), physical_offset=offset)
                    if isinstance(found, RecordFound):
                        break
                else:
                    raise _NotNow(f"the log is damaged at {offset}, and another replica gave no record for it")
                await self._put_back(offset, bytes(data[: found.size]))
            offset += found.size
            scanned += found.size
            if scanned >= _SCAN_BYTES:
                scanned = 0
                await asyncio.sleep(0)
        return True

    async def _put_back(self, offset: int, data: bytes) -> None:
        store = self._store
        if offset + len(data) > store.flushed_offset:
            raise _NotNow(f"the log is damaged at {offset}, which is not on disk yet")
        store.replace_log(offset, data)
        job = store.log_sync_job(offset, offset + len(data))
        try:
            await asyncio.to_thread(job.run)
        except DiskError as error:
            self._failed(error)
            raise _NotNow(f"the disk failed: {error}") from error
        store.flush_finished(job)
        log.warning("record_put_back", offset=offset, size=len(data))

"""A store and its flush workers in one process, driven as the broker drives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from simulation.checkers import DELAY_LEVELS_MS
from simulation.process import Process
from simulation.run_settings import RunSettings
from simulation.virtual_time import US_PER_MS, WALL_START_MS
from tandemmq.broker.flush_worker import FlushWorker
from tandemmq.broker.metadata_tables import MetadataTables, MetadataWrite
from tandemmq.core.message.record import Host
from tandemmq.core.storage.disk import Disk, DiskError, RawWrite
from tandemmq.core.storage.flush_jobs import FlushJob, NextSegmentJob
from tandemmq.core.storage.kept_tail import KeptTail
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import FlushDiskType, StoreOptions
from tandemmq.core.storage.recovery import RecoveryReport
from tandemmq.core.storage.retention import BelievedTime, RetentionFloor

STORE_HOST: Final = Host.parse("10.0.0.1", 10_911)
FLUSH_INTERVAL_MS: Final = 500
QUEUE_FLUSH_INTERVAL_MS: Final = 1_000
PREPARE_INTERVAL_MS: Final = 1_000
RETENTION_INTERVAL_MS: Final = 10_000


class _WatchedStore(MessageStore):
    """Knows what a crash may leave behind the end: what is being truncated, and what a thread is writing."""

    cut_from = 0
    written_to = 0

    def truncate(self, end_offset: int, *, reason: str = "") -> KeptTail | None:
        self.cut_from = self.end_offset
        kept = super().truncate(end_offset, reason=reason)
        self.cut_from = self.written_to = 0
        return kept

    def replicated_write(self, start_offset: int, parts: Sequence[memoryview]) -> RawWrite | None:
        write = super().replicated_write(start_offset, parts)
        if write is not None:
            self.written_to = start_offset + write.size
        return write

    def replicated_write_finished(self, write: RawWrite) -> None:
        super().replicated_write_finished(write)
        self.written_to = 0


class RunningStore:
    """Loads and flushes in the background.

    `flushed` is called after every flush of the log; `settled` is told the virtual time in microseconds at which a
    flush began that has put the whole log of that moment on disk.
    """

    def __init__(
        self,
        *,
        process: Process,
        disk: Disk,
        settings: RunSettings,
        flushed: Callable[[], None],
        settled: Callable[[int], None],
        failed: Callable[[DiskError], None],
    ) -> None:
        self.store = _WatchedStore(
            disk,
            process.clock,
            StoreOptions(
                commit_log_file_bytes=settings.commit_log_file_bytes,
                consume_queue_file_bytes=20 * 50,
                index_slot_count=16,
                index_entry_count=100,
                flush_disk_type=settings.flush_disk_type,
                delay_levels_ms=DELAY_LEVELS_MS,
                # No file is deleted for want of room: a run has no history to spare, and a full disk is a fault, not a
                # habit. Files of three days are, though: no run is that long, whatever a clock says.
                disk_max_used_ratio=1.0,
                disk_clean_forcibly_ratio=1.0,
                disk_warning_ratio=1.0,
            ),
            store_host=STORE_HOST,
        )
        self.loaded = False
        self._walked_from = 0
        self._process = process
        self._failed = failed
        self._metadata_writer: FlushWorker[MetadataWrite] | None = None
        self._flushed = flushed
        self._settled = settled
        self._flush_began_us = 0
        sync = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._log_flush = FlushWorker(
            "log-flush",
            take=self._take_log_flush,
            finished=self._log_flush_finished,
            failed=failed,
            interval_ms=None if sync else FLUSH_INTERVAL_MS,
        )
        self._queue_flush = FlushWorker(
            "queue-flush",
            take=self.store.queue_flush_job,
            finished=self.store.flush_finished,
            failed=failed,
            interval_ms=QUEUE_FLUSH_INTERVAL_MS,
        )
        self._preparer = FlushWorker[NextSegmentJob](
            "prepare",
            take=self.store.preparation_job,
            finished=self.store.preparation_finished,
            failed=failed,
            interval_ms=PREPARE_INTERVAL_MS,
        )

    def load(self) -> RecoveryReport:
        report = self.store.load()
        self._walked_from = report.start_offset
        self.loaded = True
        return report

    def start(self, tables: MetadataTables) -> None:
        """Starts the workers, that of `tables` as well."""
        self._metadata_writer = FlushWorker[MetadataWrite](
            "write-metadata",
            take=tables.take_write,
            finished=tables.write_finished,
            failed=self._failed,
            waits_for_room=True,
        )
        tables.attach(self._metadata_writer.kick)
        self._process.loop.spawn(self._metadata_writer.run(), name="write-metadata")
        self._process.loop.spawn(self._log_flush.run(), name="log-flush")
        self._process.loop.spawn(self._queue_flush.run(), name="queue-flush")
        self._process.loop.spawn(self._preparer.run(), name="prepare")
        self._process.loop.spawn(self._retention(), name="retention")
        self._log_flush.kick()

    async def stop_workers(self) -> None:
        """Lets running jobs finish and starts no other."""
        for worker in (self._log_flush, self._queue_flush, self._preparer, self._metadata_writer):
            if worker is not None:
                await worker.close()

    @property
    def next_walk_start(self) -> int:
        """Where the next start begins to walk over the log."""
        return max(self.store.saved_offset, self._walked_from)

    @property
    def longest_end(self) -> int:
        """Where recovery may find the end at the most, were there a crash now."""
        return max(self.store.end_offset, self.store.cut_from, self.store.written_to)

    @asynccontextmanager
    async def jobs_paused(self) -> AsyncIterator[None]:
        """No job is out that would vouch for, or add to, what is being cut or moved."""
        async with self._queue_flush.paused(), self._preparer.paused():
            yield

    def kick_flush(self) -> None:
        """Asks for a flush of the log."""
        self._log_flush.kick()

    async def _retention(self) -> None:
        """See `tandemmq.broker.retention.Retention`; it also lets a store that met a full disk see that there is room
        again."""
        while True:
            await asyncio.sleep(RETENTION_INTERVAL_MS / 1000)
            clock = self._process.clock
            time = BelievedTime(
                boot_id="",
                saved=None,
                newest_ms=0,
                # What a broker believes of a wrong clock is not played here.
                wall_ms=WALL_START_MS + clock.timeline.now_us // US_PER_MS,
                monotonic_ms=clock.monotonic_ms(),
                jump_max_ms=self.store.clock_jump_max_ms,
            )
            job = self.store.expire(self.store.expiry_wish(time), RetentionFloor())
            assert job is None, "nothing expires in a simulation"

    def _take_log_flush(self) -> FlushJob | None:
        self._flush_began_us = self._process.machine.timeline.now_us
        job = self.store.log_flush_job()
        if job is None and self.store.flushed_offset == self.store.end_offset:
            self._settled(self._flush_began_us)
        return job

    def _log_flush_finished(self, job: FlushJob) -> None:
        self.store.flush_finished(job)
        self._settled(self._flush_began_us)
        self._flushed()

"""What makes ConsumeQueues durable and then says so in the checkpoint: when that is due, and in which jobs.

One pass over all queues that have something to write is a round of several jobs. Each writes the new entries of some
queues to the page cache where it is made, on the event loop, and syncs them in its `run`, in a thread, which gives the
loop a pause; the last one syncs CommitLog and full IndexFiles as well and saves the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mqcore.clock import Clock
from mqcore.storage.checkpoint import StoreCheckpoint
from mqcore.storage.commit_log import CommitLog
from mqcore.storage.consume_queue_table import ConsumeQueueTable
from mqcore.storage.disk import Disk
from mqcore.storage.errors import DiskError
from mqcore.storage.flush_jobs import QueueFlushJob, QueueFlushRound
from mqcore.storage.index_table import IndexTable
from mqcore.storage.options import StoreOptions

__all__ = ["QueueFlush"]

_PROMPT_QUEUES: Final = 100
"""So many queues are flushed whenever there is something to flush."""
_WAIT_MS_PER_QUEUE: Final = 10
"""For each queue beyond them a flush waits so much longer: a file is written for more than one entry."""


class QueueFlush:
    """One store's rounds and its checkpoint. At most one job is out. Everything runs on the store's thread."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: StoreOptions,
        *,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexTable | None,
        on_failure: Callable[[DiskError], None],
    ) -> None:
        """`on_failure` is told of a DiskError in a job's `run`, in its thread."""
        self._disk: Final = disk
        self._clock: Final = clock
        self._options: Final = options
        self._log: Final = log
        self._queues: Final = queues
        self._index: Final = index
        self._on_failure: Final = on_failure
        self._round: QueueFlushRound | None = None
        self._round_began_ms = 0
        self.is_out = False
        """Whether a job was made that is not finished."""
        self.saved_offset = -1
        """Every record that starts below has its entries in files; -1 before the first round, and after a cut."""
        self.checkpoint = StoreCheckpoint()
        """As last written."""

    @property
    def is_due(self) -> bool:
        """Whether a job that finished has left a round unfinished: the next one is to be made at once."""
        return self._round is not None and not self.is_out

    def is_too_soon(self, dispatched_offset: int) -> bool:
        """Whether the next round waits: the more queues have something to write, the longer, for more of it."""
        if self._round is not None:
            return False
        options = self._options
        wait_ms = (self._queues.dirty_count - _PROMPT_QUEUES) * _WAIT_MS_PER_QUEUE
        waiting_bytes = dispatched_offset - max(self.saved_offset, self._log.min_offset)
        if wait_ms <= 0 or waiting_bytes >= options.queue_flush_wait_max_bytes:
            return False
        has_many_new = self._queues.new_count > _PROMPT_QUEUES
        wait_max_ms = options.new_queue_flush_wait_max_ms if has_many_new else options.queue_flush_wait_max_ms
        return self._clock.monotonic_ms() - self._round_began_ms < min(wait_ms, wait_max_ms)

    def next_job(self, now: QueueFlushRound, *, cost_max: int) -> QueueFlushJob | None:
        """The next job of the round, or the first one of a new round, which vouches for `now`. None: there is nothing
        to write, or a job is out. DiskError, DiskFull: no job, and the call may be repeated.

        It writes as many queues as `cost_max` allows: see ConsumeQueueTable.write_out_some.
        """
        if self.is_out:
            return None
        if self._round is None:
            if self.saved_offset == now.dispatched_offset:
                return None
            self._queues.begin_round()
            self._round_began_ms = self._clock.monotonic_ms()
            self._round = now
        if self._index is not None:
            self._index.enter_waiting()
        if self._queues.write_out_some(cost_max=cost_max):
            job = self._last_job(self._round)
        else:
            job = self._partial_job()
        self.is_out = True
        return job

    def sync_job(self) -> QueueFlushJob:
        """What makes entries durable that were written into files beside any round."""
        assert not self.is_out, "one job at a time"
        self.is_out = True
        return self._partial_job()

    def finished(self, job: QueueFlushJob) -> None:
        """The job's `run` returned."""
        self.is_out = False
        if job.no_room:
            self._round = None
        elif job.checkpoint is not None:
            assert self._round is not None, "the round was given up under its last job"
            self.checkpoint = job.checkpoint
            self.saved_offset = self._round.dispatched_offset
            self._round = None

    def save(self, checkpoint: StoreCheckpoint) -> None:
        """Writes a checkpoint, durably. Blocks."""
        self.checkpoint = checkpoint
        self.checkpoint.save(self._disk)

    def give_up_round(self) -> None:
        """What an unfinished round would vouch for may be cut off. The next one takes over its queues."""
        self._round = None
        self.saved_offset = -1

    def lower_checkpoint(self, end_offset: int) -> None:
        """Makes the checkpoint vouch for nothing at or beyond `end_offset`, before anything there is cut. Blocks."""
        self.give_up_round()
        # A full IndexFile that entries are taken back from is not what was synced any more.
        lowered = replace(self.checkpoint, index_message_timestamp_ms=0)
        if lowered.logics_physical_offset >= end_offset:
            # A file's start is a record's start, and everything below what was vouched for stays vouched for.
            file_start = self._log.files.file_start(end_offset - 1)
            if file_start > 0 and file_start >= self._log.min_offset:
                lowered = replace(lowered, logics_physical_offset=file_start)
            else:
                lowered = lowered.vouching_for_nothing()
        elif lowered.logics_physical_offset == 0:
            lowered = lowered.vouching_for_nothing()
        self.save(lowered)

    def _partial_job(self) -> QueueFlushJob:
        return QueueFlushJob(
            segments=(),
            end_offset=self._log.flushed_offset,
            cuts=self._log.cuts,
            on_failure=self._on_failure,
            disk=self._disk,
            queue_sync=self._queues.take_sync(),
            index_files=(),
            checkpoint=None,
        )

    def _last_job(self, flush_round: QueueFlushRound) -> QueueFlushJob:
        index_files = self._index.take_full_files() if self._index is not None else []
        segments, end_offset = self._log.unflushed()
        checkpoint = replace(
            self.checkpoint,
            physic_message_timestamp_ms=flush_round.last_store_timestamp_ms,
            logics_message_timestamp_ms=flush_round.last_store_timestamp_ms,
            index_message_timestamp_ms=(
                index_files[-1].end_timestamp_ms if index_files else self.checkpoint.index_message_timestamp_ms
            ),
            logics_physical_offset=flush_round.last_record_offset,
        )
        return QueueFlushJob(
            segments=segments,
            end_offset=end_offset,
            cuts=self._log.cuts,
            on_failure=self._on_failure,
            disk=self._disk,
            queue_sync=self._queues.take_sync(),
            index_files=index_files,
            checkpoint=checkpoint,
        )

"""Blocking work of the store, cut so that it can run in a thread: made on the event loop, run there, finished here.

A job is a snapshot. It names what to sync and what may be said once that is durable, and it touches nothing that the
event loop changes. A DiskError from `run` ends the store's writing life: see MessageStore.

The `checkpoint` file says how far the derived files are durable. Jobs that sync ConsumeQueues write it last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from tandemmq.core.clock import Clock
from tandemmq.core.storage.disk import Disk, DiskError, DiskFull, MappedSegment
from tandemmq.core.storage.options import StoreOptions

if TYPE_CHECKING:
    from tandemmq.core.storage.commit_log import CommitLog
    from tandemmq.core.storage.consume_queue import ConsumeQueueSync
    from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable, QueueEnds
    from tandemmq.core.storage.index_file import IndexFile
    from tandemmq.core.storage.index_table import IndexTable


# The `checkpoint` file (RocketMQ's StoreCheckpoint, 5.5). Big-endian; 4096 bytes, because Java maps exactly one page
# and would extend a shorter file.
#
# | offset | size | name                 | meaning                                                              |
# |--------|------|----------------------|----------------------------------------------------------------------|
# | 0      | 8    | physicMsgTimestamp   | store timestamp, ms, up to which the CommitLog is durable            |
# | 8      | 8    | logicsMsgTimestamp   | the same for the ConsumeQueues                                       |
# | 16     | 8    | indexMsgTimestamp    | the same for full IndexFiles                                         |
# | 24     | 8    | masterFlushedOffset  | what a slave knows of its master                                     |
# | 32     | 8    | confirmPhyOffset     | end of what every in-sync replica has                                |
# | 40     | 8    | logicsPhysicalOffset | first byte of the last record whose ConsumeQueue entry is durable; 0 |
# |        |      |                      | if unknown                                                           |
# | 48     | 4048 |                      | zero                                                                 |

_FIELDS: Final = Struct(">qqqqqq")
_FILE_BYTES: Final = 4096
CHECKPOINT_FILE: Final = "checkpoint"
_MARGIN_MS: Final = 3000
"""How much earlier RocketMQ starts to recover than its checkpoint says."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """What is known to be durable. A value: a new one replaces the file as a whole, so that it cannot be torn."""

    physic_message_timestamp_ms: int = 0
    logics_message_timestamp_ms: int = 0
    index_message_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0
    """Every entry whose record starts at or below it is durable in its ConsumeQueue. Must be lowered before the log
    is written again below it: entries of new records there would be trusted without being durable."""

    @classmethod
    def load(cls, disk: Disk) -> StoreCheckpoint:
        """Reads it; all zeros if there is none, or if its first fields are missing."""
        data = disk.read_file(CHECKPOINT_FILE)
        return cls.decode(data) if data and len(data) >= _FIELDS.size else cls()

    @classmethod
    def decode(cls, data: bytes) -> StoreCheckpoint:
        """Reads the bytes of the file. Only the first 48 count."""
        return cls(*_FIELDS.unpack_from(data))

    def encode(self) -> bytes:
        """The 4096 bytes of the file."""
        fields = _FIELDS.pack(
            self.physic_message_timestamp_ms,
            self.logics_message_timestamp_ms,
            self.index_message_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            self.logics_physical_offset,
        )
        return fields.ljust(_FILE_BYTES, b"\x00")

    def save(self, disk: Disk) -> None:
        """Replaces the file, durably. Blocks."""
        disk.write_file(CHECKPOINT_FILE, self.encode())

    def vouching_for_nothing(self) -> StoreCheckpoint:
        """Without anchors: the next unclean start reads the whole log. The timestamps go too, or RocketMQ's rule would
        pick a late file by them and never see that the log was cut before it."""
        return StoreCheckpoint(
            master_flushed_offset=self.master_flushed_offset, confirm_physical_offset=self.confirm_physical_offset
        )

    @property
    def min_timestamp_ms(self) -> int:
        """RocketMQ's anchor for a recovery: every record stored before it is durable and dispatched."""
        return max(0, min(self.physic_message_timestamp_ms, self.logics_message_timestamp_ms) - _MARGIN_MS)


OnFailure = Callable[[DiskError], None]


@dataclass(slots=True, kw_only=True)
class LogFlushJob:
    """Makes the CommitLog durable up to `end_offset`."""

    segments: Sequence[MappedSegment]
    end_offset: int
    cuts: int
    """CommitLog.cuts when the job was made."""
    on_failure: OnFailure

    def run(self) -> None:
        """Blocks in fdatasync. DiskError: nobody knows what is durable; the store refuses puts from then on."""
        try:
            self._sync()
        except DiskError as error:
            self.on_failure(error)
            raise

    def _sync(self) -> None:
        for segment in self.segments:
            segment.sync()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFlushRound:
    """One pass over all ConsumeQueues that had something to write when it began; it takes as many jobs as needed.

    The checkpoint its last job writes vouches for this moment, and not for what was appended since: of that some
    queues may be durable and others not.
    """

    dispatched_offset: int
    last_record_offset: int
    last_store_timestamp_ms: int
    ends: QueueEnds | None = None
    """What is to be written down of the queues."""
    losses: int = 0
    """ConsumeQueueTable.losses at that moment."""


@dataclass(slots=True, kw_only=True)
class QueueFlushJob(LogFlushJob):
    """Makes some ConsumeQueues durable; the last job of a round also CommitLog and full IndexFiles, and then says so.

    In this order: a checkpoint that vouches for entries whose records are not durable would hide their loss.
    """

    disk: Disk
    queue_sync: ConsumeQueueSync | None
    index_files: Sequence[IndexFile]
    checkpoint: StoreCheckpoint | None
    """None: the round is not finished."""
    ends: QueueEnds | None = None
    """What is written down after the checkpoint, which vouches for it."""
    ends_are_current: Callable[[], bool] = lambda: True
    """Not if queues or log became shorter while the job ran: what goes is not to be missed."""
    no_room: bool = False
    """The checkpoint could not be written: everything else is durable, and the next round says so."""

    def _sync(self) -> None:
        # Not super(): a dataclass with slots is a new class, which the cell of a bare super() does not know.
        LogFlushJob._sync(self)
        if self.queue_sync is not None:
            self.queue_sync.run()
        for file in self.index_files:
            file.sync()
        if self.checkpoint is not None:
            try:
                self.checkpoint.save(self.disk)
                if self.ends is not None and self.ends_are_current():
                    self.ends.save(self.disk)
            except DiskFull:
                # The old one is there as it was. It vouches for less: nothing is at stake but the next recovery's time.
                self.no_room = True


FlushJob = LogFlushJob
"""What MessageStore.flush_finished takes."""


@dataclass(slots=True)
class NextSegmentJob:
    """Makes the next file of CommitLog or index before it is needed: reserving a gigabyte takes a while."""

    make: Callable[[], MappedSegment]
    taken: Callable[[MappedSegment], None]
    """Takes the file over, on the event loop."""
    segment: MappedSegment | None = field(default=None, init=False)
    """The file, or None: there was no room for it. The put that needs it will find out and answer so."""

    def run(self) -> None:
        """Blocks; never raises DiskError, since nothing that was stored is at stake."""
        try:
            self.segment = self.make()
        except DiskError:
            self.segment = None


# Rounds that make ConsumeQueues durable. A round is one pass over all queues that have something to write, in several
# jobs. Each job writes the new entries of some queues to the page cache on the event loop, and syncs them in its `run`,
# in a thread, which gives the loop a pause. The last one syncs CommitLog and full IndexFiles and saves the checkpoint.

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
        self._lowered_to = -1
        """What the checkpoint was lowered to for a cut: a record before the last one."""

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
            is_saved = self.saved_offset == now.dispatched_offset
            if is_saved and self._queues.ends_are_there:
                return None
            now_ms = self._clock.monotonic_ms()
            ends = None
            # Behind a cut ends would say more than the checkpoint vouches for, until there is another record.
            if now.last_record_offset != self._lowered_to:
                if self._index is not None:
                    self._index.enter_waiting()  # Ends tell where it begins.
                ends = self._queues.ends_at(now.last_record_offset, now_ms=now_ms)
            if is_saved and ends is None:
                return None
            self._round_began_ms = now_ms
            self._round = replace(now, ends=ends, losses=self._queues.losses)
            self._queues.begin_round()
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
            if job.ends is not None:
                self._queues.ends_saved(losses=self._round.losses)
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
        self._queues.forget_ends()
        # A full IndexFile that entries are taken back from is not what was synced any more.
        lowered = replace(self.checkpoint, index_message_timestamp_ms=0)
        if lowered.logics_physical_offset >= end_offset:
            # A file's start is a record's start, and everything below what was vouched for stays vouched for.
            file_start = self._log.files.file_start(end_offset - 1)
            is_kept = file_start > 0 and file_start >= self._log.min_offset
            lowered = replace(lowered, logics_physical_offset=file_start if is_kept else 0)
        # What comes instead may have been stored earlier than what is cut, by another machine's clock.
        stored_ms = self._log.stored_ms(lowered.logics_physical_offset) if lowered.logics_physical_offset else None
        if stored_ms is None:
            lowered = lowered.vouching_for_nothing()
        else:
            lowered = replace(lowered, physic_message_timestamp_ms=stored_ms, logics_message_timestamp_ms=stored_ms)
        self._lowered_to = lowered.logics_physical_offset
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
            ends=flush_round.ends,
            ends_are_current=lambda: flush_round.losses == self._queues.losses,
        )

"""Blocking work of the store, cut so that it can run in a thread: made on the event loop, run there, finished here.

A job is a snapshot: it names what to sync and what may be said once that is durable. It touches nothing that the event
loop changes. A DiskError from `run` ends the store's writing life: see MessageStore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mqcore.storage.checkpoint import StoreCheckpoint
from mqcore.storage.consume_queue_files import ConsumeQueueSync
from mqcore.storage.disk import Disk, MappedSegment
from mqcore.storage.errors import DiskError, DiskFull
from mqcore.storage.index_file import IndexFile

__all__ = [
    "FlushJob",
    "LogFlushJob",
    "NextSegmentJob",
    "QueueFlushJob",
    "QueueFlushRound",
]

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

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
from mqcore.storage.errors import DiskError
from mqcore.storage.index_file import IndexFile

__all__ = ["FlushJob", "LogFlushJob", "NextSegmentJob", "QueueFlushJob"]

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


@dataclass(slots=True, kw_only=True)
class QueueFlushJob(LogFlushJob):
    """Makes CommitLog, ConsumeQueues and full IndexFiles durable and then says so in the checkpoint.

    In this order: a checkpoint that vouches for entries whose records are not durable would hide their loss.
    """

    disk: Disk
    queue_sync: ConsumeQueueSync | None
    index_files: Sequence[IndexFile]
    checkpoint: StoreCheckpoint

    def _sync(self) -> None:
        # Not super(): a dataclass with slots is a new class, which the cell of a bare super() does not know.
        LogFlushJob._sync(self)
        if self.queue_sync is not None:
            self.queue_sync.run()
        for file in self.index_files:
            file.sync()
        self.checkpoint.save(self.disk)


FlushJob = LogFlushJob
"""What MessageStore.flush_finished takes."""


@dataclass(slots=True)
class NextSegmentJob:
    """Makes the next CommitLog file before it is needed: reserving a gigabyte takes a while."""

    start_offset: int
    make: Callable[[], MappedSegment]
    segment: MappedSegment | None = field(default=None, init=False)
    """The file, or None: there was no room for it. The put that needs it will find out and answer so."""

    def run(self) -> None:
        """Blocks; never raises DiskError, since nothing that was stored is at stake."""
        try:
            self.segment = self.make()
        except DiskError:
            self.segment = None

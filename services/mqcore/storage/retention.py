"""Which CommitLog files may go, and when puts must stop (RocketMQ's CleanCommitLogService).

| disk used | expired files                    | younger files                     | puts    |
|-----------|----------------------------------|-----------------------------------|---------|
| ≤ 75 %    | go in the hours of `deleteWhen`  | stay                              | allowed |
| > 75 %    | go at any hour                   | stay                              | allowed |
| > 85 %    | go                               | the oldest go, as many as needed  | allowed |
| > 90 %    | go                               | the oldest go, as many as needed  | refused |

The file being written never goes. Unlike RocketMQ, which then deletes ten files whatever their number does for the
disk, files that are not expired go only until use would be back at 85 %.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from mqcore.storage.commit_log import COMMIT_LOG_FOLDER, CommitLog
from mqcore.storage.consume_queue import ConsumeQueue
from mqcore.storage.consume_queue_table import ConsumeQueueTable
from mqcore.storage.disk import Disk, DiskUsage, MappedSegment
from mqcore.storage.index_table import IndexTable
from mqcore.storage.mapped_file_queue import file_name
from mqcore.storage.options import StoreOptions

__all__ = ["Retention", "RetentionJob", "expendable_files"]

_FILES_PER_RUN_MAX: Final = 10
"""`deleteFileBatchMax`: removing a gigabyte file keeps the disk busy for a while."""
_HOUR_MS: Final = 3_600_000


class RetentionJob:
    """Removes files the store has given up already; oldest first, so that a crash leaves no gap."""

    def __init__(self, disk: Disk, segments: Sequence[MappedSegment]) -> None:
        """`segments` are the last references to the files: unmapping a gigabyte takes a while as well."""
        self._disk: Final = disk
        self._segments: Final = deque(segments)
        self.paths: Final = [segment.path for segment in segments]

    def run(self) -> None:
        """Blocks; may run in a thread."""
        while self._segments:
            path = self._segments.popleft().path
            self._disk.remove(path)


class Retention:
    """Gives up the store's oldest files, and trims the queues afterwards, a few at a time or when one is asked for."""

    def __init__(
        self, disk: Disk, log: CommitLog, queues: ConsumeQueueTable, index: IndexTable | None, options: StoreOptions
    ) -> None:
        self._disk: Final = disk
        self._log: Final = log
        self._queues: Final = queues
        self._index: Final = index
        self.options = options
        """May change."""
        self._untrimmed: dict[tuple[str, int], ConsumeQueue] = {}

    def expire(self, *, dispatched_offset: int, now_wall_ms: int) -> RetentionJob | None:
        """Drops the CommitLog files that may go; the job removes them. None: nothing may."""
        log = self._log
        first = log.min_offset
        expendable_end = min(log.flushed_offset, dispatched_offset, log.end_offset - 1)
        count = max(0, expendable_end - first) // log.file_bytes
        if not count:
            return None
        modified_ms = {entry.name: entry.modified_ms for entry in self._disk.list_folder(COMMIT_LOG_FOLDER)}
        count = expendable_files(
            [modified_ms[file_name(first + number * log.file_bytes)] for number in range(count)],
            file_bytes=log.file_bytes,
            usage=self._disk.usage(),
            options=self.options,
            now_wall_ms=now_wall_ms,
        )
        if not count:
            return None
        given_up = log.forget_first(count)
        self._untrimmed = {(queue.topic, queue.queue_id): queue for queue in self._queues}
        if self._index is not None:
            given_up += self._index.forget_expired_files(log.min_offset)
        return RetentionJob(self._disk, given_up)

    def trim_queues(self, *, max_queues: int) -> bool:
        """Trims queues that wait for it, but no other after one whose file went; True if more are waiting."""
        while self._untrimmed and max_queues:
            removed = self._trim(self._untrimmed.popitem()[1])
            # Each removal waits for the disk, some milliseconds, on the event loop: one a turn.
            max_queues = max_queues - 1 if not removed else 0
        return bool(self._untrimmed)

    def trim_queue(self, topic: str, queue_id: int) -> None:
        """Trims one queue at once, if it waits for it."""
        if self._untrimmed:
            queue = self._untrimmed.pop((topic, queue_id), None)
            if queue is not None:
                self._trim(queue)

    def _trim(self, queue: ConsumeQueue) -> int:
        """Returns how many files went."""
        queue.correct_min_offset(self._log.min_offset)
        return queue.remove_expired_files(self._log.min_offset)


def expendable_files(
    modified_ms: Sequence[int], *, file_bytes: int, usage: DiskUsage, options: StoreOptions, now_wall_ms: int
) -> int:
    """How many of the oldest files go now. `modified_ms`: last change of each file that may go at all, oldest first."""
    expired = 0
    if usage.used_ratio > options.disk_max_used_ratio or _is_delete_hour(options, now_wall_ms):
        latest_ms = now_wall_ms - options.file_reserved_hours * _HOUR_MS
        while expired < len(modified_ms) and modified_ms[expired] <= latest_ms:
            expired += 1
    surplus_bytes = usage.used_bytes - int(options.disk_clean_forcibly_ratio * usage.total_bytes)
    needed = -(-surplus_bytes // file_bytes) if usage.used_ratio > options.disk_clean_forcibly_ratio else 0
    return min(max(expired, needed), len(modified_ms), _FILES_PER_RUN_MAX)


def _is_delete_hour(options: StoreOptions, now_wall_ms: int) -> bool:
    return now_wall_ms // _HOUR_MS % 24 in options.delete_when_hours

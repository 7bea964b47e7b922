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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mqcore.storage.disk import Disk, DiskUsage
from mqcore.storage.options import StoreOptions

__all__ = ["RetentionJob", "expendable_files"]

_FILES_PER_RUN_MAX: Final = 10
"""`deleteFileBatchMax`: removing a gigabyte file keeps the disk busy for a while."""
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionJob:
    """Removes files the store has given up already; oldest first, so that a crash leaves no gap."""

    disk: Disk
    paths: list[str]

    def run(self) -> None:
        """Blocks; may run in a thread."""
        for path in self.paths:
            self.disk.remove(path)


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

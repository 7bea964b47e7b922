"""The store: CommitLog, ConsumeQueues, IndexFiles, StoreCheckpoint, and how they are recovered after a crash."""

from __future__ import annotations

from mqcore.storage.disk import AppendFile, BlockFile, Disk, DiskLock, DiskUsage, FolderEntry, MappedSegment
from mqcore.storage.errors import (
    DiskError,
    DiskFull,
    LogGap,
    RecordCorrupt,
    SegmentSizeMismatch,
    StorageError,
    StoreLocked,
)
from mqcore.storage.options import FlushDiskType, StoreOptions
from mqcore.storage.put_status import PutStatus

__all__ = [
    "AppendFile",
    "BlockFile",
    "Disk",
    "DiskError",
    "DiskFull",
    "DiskLock",
    "DiskUsage",
    "FlushDiskType",
    "FolderEntry",
    "LogGap",
    "MappedSegment",
    "PutStatus",
    "RecordCorrupt",
    "SegmentSizeMismatch",
    "StorageError",
    "StoreLocked",
    "StoreOptions",
]

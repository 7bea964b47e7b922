"""The store: CommitLog, ConsumeQueues, IndexFiles, StoreCheckpoint, and how they are recovered after a crash."""

from __future__ import annotations

from mqcore.storage.append_result import AppendResult
from mqcore.storage.believed_time import BelievedTime, SavedTime
from mqcore.storage.checkpoint import StoreCheckpoint
from mqcore.storage.consume_queue import ConsumeQueue, QueueEntry
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
from mqcore.storage.flush_jobs import FlushJob, NextSegmentJob
from mqcore.storage.kept_tail import KeptTail
from mqcore.storage.message_store import MessageStore
from mqcore.storage.options import FlushDiskType, StoreOptions
from mqcore.storage.pages_ahead import PagesAheadJob
from mqcore.storage.put_status import PutStatus
from mqcore.storage.raw_write import RawWrite
from mqcore.storage.record_boundaries import record_boundaries, record_boundary_before
from mqcore.storage.recovery import RecoveryReport
from mqcore.storage.retention import ExpiryWish, Hold, RetentionFloor, RetentionJob

__all__ = [
    "AppendFile",
    "AppendResult",
    "BelievedTime",
    "BlockFile",
    "ConsumeQueue",
    "Disk",
    "DiskError",
    "DiskFull",
    "DiskLock",
    "DiskUsage",
    "ExpiryWish",
    "FlushDiskType",
    "FlushJob",
    "FolderEntry",
    "Hold",
    "KeptTail",
    "LogGap",
    "MappedSegment",
    "MessageStore",
    "NextSegmentJob",
    "PagesAheadJob",
    "PutStatus",
    "QueueEntry",
    "RawWrite",
    "RecordCorrupt",
    "RecoveryReport",
    "RetentionFloor",
    "RetentionJob",
    "SavedTime",
    "SegmentSizeMismatch",
    "StorageError",
    "StoreCheckpoint",
    "StoreLocked",
    "StoreOptions",
    "record_boundaries",
    "record_boundary_before",
]

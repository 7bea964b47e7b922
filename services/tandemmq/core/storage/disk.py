"""The disk as an argument: what the store asks of a file system, and what it may rely on after a crash.

Paths are relative to the store's root and "/"-separated. The real disk is `tandemmq.broker.posix_disk.PosixDisk`. The
tests have an in-memory twin that can tear a write, forget what was not synced and fill up.
`tests/contract/test_disk.py` holds both to what is written here.

Two kinds of crash are told apart everywhere:

- the *process* is killed: every store, write and rename made before is still there (the kernel has them);
- the *machine* loses power: what was synced is there. Of everything else any part may be there or not, a page or
  even a sector at a time and in any order; a file that was never synced may be gone, or there with length 0.

All calls block. Every failure is a DiskError; DiskFull, its child, promises that nothing was reserved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

LOST_AND_FOUND: Final = "lost+found"
"""What some file systems have at their root; nobody but root may list it."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    name: str
    size: int
    """Length in bytes; 0 for a folder."""
    is_folder: bool
    modified_ms: int
    """Wall-clock time of the last change; 0 for a folder."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the file system is that holds the store."""

    used_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        """0.0 is empty, 1.0 is full."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


class MappedSegment(Protocol):
    """A file of fixed length in memory. What is stored there survives the process at once, the machine after `sync`."""

    @property
    def path(self) -> str:
        """Where it is, relative to the root."""

    @property
    def size(self) -> int:
        """Length in bytes; never changes."""

    @property
    def view(self) -> memoryview:
        """The whole file, writable. Not to be used after `close`; slices exported before stay readable."""

    def new_tail_view(self) -> memoryview:
        """`view` for readers close behind its writer: what they come to is in memory, and nothing is read around it.

        DiskError: no memory to map it.
        """

    def write_parts(self, start: int, parts: Sequence[bytes | memoryview]) -> None:
        """Writes `parts` one behind the other from `start` on; what they replace in `view` is seen there at once.

        DiskError: a part of them may have been stored.
        """

    def fetch_pages(self, start: int, end: int) -> None:
        """Brings what is not yet in memory of [start, end), so that a store there waits for nothing.

        Blocks, beside stores by other threads. Help and no more: the pages may go again, and nothing is said of errors.
        """

    def used_bytes_from(self, start: int) -> int:
        """The distance from `start` to the end of what is not zero, 0 if nothing is. Quick as `zero_from`."""

    def zero_from(self, start: int) -> int:
        """Stores zeros from `start` to the end where something else stands; durable after the next `sync`.

        Returns the distance from `start` to the end of what was not zero, 0 if nothing was. Quick where nothing was
        ever written: recovery asks this of the whole rest of the last CommitLog file.
        """

    def store_again(self, start: int, end: int) -> None:
        """Stores the bytes of [start, end) as they are, so that the next `sync` writes them in any case.

        What a failed sync did not write counts as written from then on, for this process and for those after it.
        """

    def sync(self) -> None:
        """Blocks until every store made before the call is durable. May run in a thread beside stores into `view`.

        Raises DiskError, and then the state of the file is unknown.
        """

    def close(self) -> None:
        """Lets go of the file. Slices of `view` still held elsewhere keep the memory alive until they are dropped."""


class BlockFile(Protocol):
    """A file of fixed length read and written by position: ConsumeQueue files."""

    @property
    def path(self) -> str:
        """Where it is, relative to the root."""

    @property
    def size(self) -> int:
        """Length in bytes; never changes."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; what was never written is zero. The range lies within the file."""

    def write(self, offset: int, data: bytes) -> None:
        """Writes all of `data` at `offset`, within the file. DiskFull: part of it may have been written."""

    def used_bytes_from(self, start: int) -> int:
        """The distance from `start` to the end of what is not zero, as MappedSegment.used_bytes_from."""

    def zero_from(self, start: int) -> int:
        """Writes zeros from `start` to the end where something else stands, as MappedSegment.zero_from does."""

    def sync(self) -> None:
        """Blocks until every write made before the call, and the file's existence, is durable."""

    def close(self) -> None:
        """Lets go of the file; twice is fine."""


class AppendFile(Protocol):
    """A file that only grows: journals."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def append(self, data: bytes) -> None:
        """Writes all of `data` at the end. After a DiskError the tail may hold a part of it."""

    def sync(self) -> None:
        """Blocks until every append made before the call, and the file's existence, is durable."""

    def close(self) -> None:
        """Lets go of the file; twice is fine."""


class DiskLock(Protocol):
    """Proof that no other process works on the store."""

    def release(self) -> None:
        """Gives it up; the file stays."""


class Disk(Protocol):
    """The file system below one store."""

    def list_folder(self, path: str) -> list[FolderEntry]:
        """Entries sorted by name; empty when there is no such folder. Half-made files are not shown."""

    def map_segment(self, path: str, size: int, *, create: bool) -> MappedSegment:
        """Maps a file of exactly `size` bytes; SegmentSizeMismatch when the file there has another length.

        With `create` a missing file is made: all zeros, its space reserved so that no later store can fail for want
        of it, missing folders made, file and name durable. After a crash it is there whole or not at all. DiskFull
        when there is no room. Two threads that create the same file both get it; it is made once.
        Without `create` a missing file is a DiskError.
        """

    def open_block_file(self, path: str, size: int, *, create: bool) -> BlockFile:
        """Opens a file of exactly `size` bytes; SegmentSizeMismatch when the file there has another length.

        With `create` a missing file is made, sparse and zero; it exists durably after its first `sync`.
        Without `create` a missing file is a DiskError.
        """

    def write_block(self, path: str, offset: int, data: bytes) -> None:
        """Writes into a block file that is there, as its `write` would, without a handle to keep. A missing file is a
        DiskError; its length is not looked at."""

    def open_append_file(self, path: str) -> AppendFile:
        """Opens a file at its end; a missing one is made, and exists durably after its first `sync`."""

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None when it is missing."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces the whole file, durably: after a crash it holds the old bytes or the new ones, never a mixture."""

    def remove(self, path: str) -> None:
        """Removes a file, durably; a missing one is fine."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder and everything in it, durably; a missing one is fine. A crash may leave a part of it."""

    def rename(self, old: str, new: str) -> None:
        """Moves a file, durably and at once; replaces `new`. Missing folders of `new` are made."""

    def sync_all(self) -> bool:
        """Blocks until every write made before the call, and every file's existence, is durable, for less than a
        `sync` of each of many files costs; other programs' writes may be among them. False: this file system does not
        offer that, sync each file. DiskError: something was not written, and nobody knows what.
        """

    def usage(self) -> DiskUsage:
        """How full the file system is."""

    def boot_id(self) -> str:
        """Names this run of the machine. While it stays the same, everything a killed process wrote is still there."""

    def lock(self, path: str) -> DiskLock:
        """Locks byte 0 of the file as Java's FileChannel.lock does; its content is `lock`. Else StoreLocked."""


# What can go wrong below the store. One root; the docstrings say who is at fault and what the caller does.


class StorageError(Exception):
    """Root of everything this package raises on purpose."""


class DiskError(StorageError):
    """The file system refused or failed.

    After a failed write or sync the state of the affected pages is unknown and a retry could turn lost bytes into an
    OK: whoever owns the store stops (fail-stop) and lets recovery find out what is there.
    """


MOVE_ASIDE: Final = "move it to a place outside of storePathRootDir, do not delete it"
"""The remedy for what stands in the place of a file, or of a folder: nobody knows what it is."""


class DiskFull(DiskError):
    """No space left for what was asked. Nothing was reserved; the caller may try again once space was freed."""


class RecordCorrupt(StorageError):
    """The bytes at `offset` are no valid record: torn write or bad disk. Recovery truncates here; a read refuses."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"no valid record at physical offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class StoreLocked(StorageError):
    """Another process, ours or a Java broker, holds the store's lock. The operator stops it or names another folder."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another broker; stop it or use another storePathRootDir")
        self.path = path


_SET_BACK: Final = "set it back to what the store was created with"


class SegmentSizeMismatch(StorageError):
    """A file has another length than the configured one. We refuse to start: every position is computed from it.

    If all files have that length, the setting was changed since the store was made; if not, this one is damaged.
    """

    def __init__(self, path: str, *, found_bytes: int, expected_bytes: int, remedy: str = _SET_BACK) -> None:
        super().__init__(
            f"{path} is {found_bytes} bytes long but the configured file size is {expected_bytes}; {remedy}"
        )
        self.path = path
        self.found_bytes = found_bytes
        self.expected_bytes = expected_bytes


class LogGap(StorageError):
    """Files of one log do not follow each other: one was removed or renamed by hand. The operator restores it."""

    def __init__(self, folder: str, *, expected_offset: int, found_offset: int, remedy: str = "") -> None:
        super().__init__(
            f"{folder}: the file starting at {expected_offset} is missing, the next one starts at {found_offset}; "
            f"{remedy or FROM_A_REPLICA}"
        )
        self.folder = folder
        self.expected_offset = expected_offset
        self.found_offset = found_offset


FROM_A_REPLICA: Final = (
    "copy it from another replica of the group while that is stopped, or set the whole data folder aside and start "
    "with an empty one, which takes everything from the others"
)
"""The remedy for a file of the CommitLog that is lost here. Both leave what there is."""


# Bytes of a master's log on their way to the end of a slave's: the one write that a thread does for the event loop.


@dataclass(frozen=True, slots=True)
class RawWrite:
    """Made and finished on the event loop, see CommitLog.raw_write; the bytes are views and must stay until then."""

    segment: MappedSegment
    start: int
    """Where they go in the file."""
    parts: Sequence[memoryview]
    size: int

    def run(self) -> None:
        """Blocks, in any thread. DiskError: some of the bytes may be stored."""
        self.segment.write_parts(self.start, self.parts)


_FOLDERS: Final = ("", "config", "commitlog", "index")
"""Where files are that a broker writes by name, some of them for the first time long after its start."""
_NAME_OF_FILE: Final = re.compile(
    r"\d{17}|\d{20}|abort|boot|checkpoint|consumequeue-ends|epochFileCheckpoint|lock|logEnd"
    r"|.+\.(bak|damaged|before-removal|journal|json|snapshot|state)"
)


def refuse_folders(disk: Disk) -> None:
    """Before anything is read: DiskError where a folder has the name of a file. Found later it would end a broker that
    serves, or be passed over. Blocks."""
    for folder in _FOLDERS:
        for entry in disk.list_folder(folder):
            if entry.is_folder and _NAME_OF_FILE.fullmatch(entry.name):
                path = f"{folder}/{entry.name}" if folder else entry.name
                raise DiskError(f"{path}: there is a folder where a file belongs; {MOVE_ASIDE}")

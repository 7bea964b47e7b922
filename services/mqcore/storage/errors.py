"""What can go wrong below the store. One root; the docstrings say who is at fault and what the caller does."""

from __future__ import annotations

from mqcore.offsets import PhysicalOffset

__all__ = [
    "DiskError",
    "DiskFull",
    "LogGap",
    "RecordCorrupt",
    "SegmentSizeMismatch",
    "StorageError",
    "StoreLocked",
]


class StorageError(Exception):
    """Root of everything this package raises on purpose."""


class DiskError(StorageError):
    """The file system refused or failed.

    After a failed write or sync the state of the affected pages is unknown and a retry could turn lost bytes into an
    OK: whoever owns the store stops (fail-stop) and lets recovery find out what is there.
    """


class DiskFull(DiskError):
    """No space left for what was asked. Nothing was reserved; the caller may try again once space was freed."""


class RecordCorrupt(StorageError):
    """The bytes at `offset` are no valid record: torn write or bad disk. Recovery truncates here; a read refuses."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"no valid record at physical offset {offset}: {reason}")
        self.offset = PhysicalOffset(offset)
        self.reason = reason


class StoreLocked(StorageError):
    """Another process, ours or a Java broker, holds the store's lock. The operator stops it or names another folder."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another broker; stop it or use another storePathRootDir")
        self.path = path


class SegmentSizeMismatch(StorageError):
    """A file's length is not the configured one: settings changed since the store was made. We refuse to start.

    Every position is computed from the file size, so going on would read and write wrong bytes.
    """

    def __init__(self, path: str, *, found_bytes: int, expected_bytes: int) -> None:
        super().__init__(
            f"{path} is {found_bytes} bytes long but the configured file size is {expected_bytes}; "
            f"set it back to what the store was created with"
        )
        self.path = path
        self.found_bytes = found_bytes
        self.expected_bytes = expected_bytes


class LogGap(StorageError):
    """Files of one log do not follow each other: one was removed or renamed by hand. The operator restores it."""

    def __init__(self, folder: str, *, expected_offset: int, found_offset: int) -> None:
        super().__init__(
            f"{folder}: the file starting at {expected_offset} is missing, the next one starts at {found_offset}"
        )
        self.folder = folder
        self.expected_offset = expected_offset
        self.found_offset = found_offset

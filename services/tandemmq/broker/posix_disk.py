"""The real disk: `tandemmq.core.storage.disk.Disk` over a POSIX file system.

Choices that decide whether an acknowledged message survives:

- Mapped files are synced with fdatasync on their descriptor. It writes back pages dirtied through the map as msync
  does, and unlike mmap.flush() it lets other threads run while it waits.
- A mapped file's space is reserved when it is made. A store into a hole of a full file system would kill the process
  with SIGBUS; so running out of space is a DiskFull at creation and nothing later.
- A file that must appear whole is made under a temporary name, synced, and renamed. Every step that makes a name
  durable syncs the folders up to the root, because a folder above may itself be new and not yet synced.
- Which folders need no sync is known to the disk and not to a handle: a thread syncs ConsumeQueue files through handles
  of its own. A folder counts as synced only after a sync in this process, because what a killed one made may still
  wait in the page cache. So a job that syncs many new files syncs each folder once.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import re
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tandemmq.core.storage.disk import (
    MOVE_ASIDE,
    AppendFile,
    BlockFile,
    Disk,
    DiskError,
    DiskFull,
    DiskLock,
    DiskUsage,
    FolderEntry,
    MappedSegment,
    SegmentSizeMismatch,
    StoreLocked,
)

# One call that makes everything in a file system durable: syncfs(2), where it can be relied on.
#
# Of hundreds of small files it costs a hundredth of a sync of each. Relied on it is where it tells of what could not
# be written, which Linux does from 5.8 on, and not for every kind of file system: an overlay does not hear of the
# errors below it. It also writes what other programs have waiting there, and fails for an error of theirs.

_KINDS: Final = frozenset({"ext4", "xfs"})
_TELLS_ERRORS_SINCE: Final = (5, 8)
_MOUNTS_FILE: Final = Path("/proc/self/mountinfo")


class WholeSync:
    """The file system that holds a folder. An error since this was made is told by the next `run`."""

    def __init__(self, root: str) -> None:
        self._libc: Final = ctypes.CDLL(None, use_errno=True)
        # Opened once and kept: errors are counted from here on.
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def of(cls, root: str) -> WholeSync | None:
        """None: not to be relied on there."""
        if platform.system() != "Linux" or _linux_version() < _TELLS_ERRORS_SINCE or _kind_of(root) not in _KINDS:
            return None
        return cls(root)

    def run(self) -> None:
        """Blocks, and lets other threads run. OSError: something was not written, and nobody knows what."""
        if self._libc.syncfs(self._fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def __del__(self) -> None:
        os.close(self._fd)


def _linux_version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def _kind_of(root: str) -> str | None:
    """By the device: 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext4 /dev/root rw"""
    device = os.stat(root).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS_FILE.read_text().splitlines()
    except OSError:
        return None
    for mount in mounts:
        if mount.split()[2] == number:
            return mount.partition(" - ")[2].split()[0]
    return None


_UNFINISHED_SUFFIX: Final = ".unfinished"
"""Ends the name of a file that is still being made; a crash may leave one, list_folder does not show it."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRONG_PLACES: Final = {
    errno.EISDIR: "there is a folder where a file belongs",
    errno.ENOTDIR: "there is a file where a folder belongs",
}
_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_LOCK_CONTENT: Final = b"lock"
_ZEROS: Final = bytes(1 << 20)
_FETCH_BYTES: Final = 256 << 10
"""Linux brings no more at a time than a device's largest request (`max_sectors_kb`, mostly 1,280) or its readahead, and
on most servers takes no CPU from a thread within a system call: this one is over before the event loop misses it."""
_PARTS_MAX: Final = 1024
"""Of one system call: IOV_MAX."""


class PosixDisk(Disk):
    """Files below `root`, which is made when missing. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        # Text, not Path: a start with 80,000 ConsumeQueues joins some 300,000 paths, and Path takes 10 µs for each.
        self._root = str(root)
        self._locked_paths: set[str] = set()
        # One file is made at a time: the CommitLog may need its next file while a thread is preparing that very file.
        # Whoever comes second waits for the disk, but no longer than making the file itself would have taken.
        self._making = threading.Lock()
        # Folders none of whose names changed since their last sync by `sync_name`; the lock is held for moments only.
        self._synced_folders: set[str] = set()
        self._name_changes = 0
        self._names = threading.Lock()
        with _disk_errors(str(root)):
            root.mkdir(parents=True, exist_ok=True)
            self._whole_sync = WholeSync.of(self._root)

    def list_folder(self, path: str) -> list[FolderEntry]:
        with _disk_errors(path):
            try:
                with os.scandir(self.full_path(path)) as found:
                    finished = [entry for entry in found if not entry.name.endswith(_UNFINISHED_SUFFIX)]
            except FileNotFoundError:
                return []
            entries = [entry for found_one in finished if (entry := _folder_entry(found_one)) is not None]
            return sorted(entries, key=lambda entry: entry.name)

    def map_segment(self, path: str, size: int, *, create: bool) -> MappedSegment:
        full_path = self.full_path(path)
        with _disk_errors(path, needed_in=(self._root, size)):
            if create:
                with self._making:
                    if _length_or_zero(full_path) == 0:
                        self._make_whole(path, size)
            return _PosixMappedSegment(full_path, path, size)

    def open_block_file(self, path: str, size: int, *, create: bool) -> BlockFile:
        with _disk_errors(path):
            try:
                return _PosixBlockFile(self, path, size, create=create)
            except FileNotFoundError:
                if not create:
                    raise
            self._make_folders(path)
            return _PosixBlockFile(self, path, size, create=create)

    def write_block(self, path: str, offset: int, data: bytes) -> None:
        # One file of ten thousands: three system calls, and nothing of ours around them that is not needed.
        try:
            fd = os.open(self.full_path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                _write_all_at(fd, data, offset)
            finally:
                os.close(fd)
        except OSError as error:
            raise _disk_error(path, error) from error

    def open_append_file(self, path: str) -> AppendFile:
        with _disk_errors(path):
            self._make_folders(path)
            return _PosixAppendFile(self, path)

    def read_file(self, path: str) -> bytes | None:
        with _disk_errors(path):
            try:
                with open(self.full_path(path), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def write_file(self, path: str, data: bytes) -> None:
        with _disk_errors(path, needed_in=(self._root, len(data))):
            self._make_folders(path)
            with self._unfinished(path) as fd:
                _write_all(fd, data)

    def remove(self, path: str) -> None:
        with _disk_errors(path):
            with suppress(FileNotFoundError):
                os.unlink(self.full_path(path))
            self._sync_removal(path)

    def remove_folder(self, path: str) -> None:
        with _disk_errors(path):
            try:
                shutil.rmtree(self.full_path(path))
            except FileNotFoundError:
                return
            self._sync_removal(path)

    def rename(self, old: str, new: str) -> None:
        with _disk_errors(old):
            self._make_folders(new)
            os.rename(self.full_path(old), self.full_path(new))
            self._sync_folders_of(new)
            self._sync_folders_of(old)

    def sync_all(self) -> bool:
        if self._whole_sync is None:
            return False
        with _disk_errors(self._root):
            self._whole_sync.run()
        return True

    def usage(self) -> DiskUsage:
        with _disk_errors(self._root):
            stat = os.statvfs(self._root)
        used_blocks = stat.f_blocks - stat.f_bfree
        # Blocks kept for the superuser are neither used nor ours: as java.io.File.getUsableSpace counts.
        return DiskUsage(
            used_bytes=used_blocks * stat.f_frsize, total_bytes=(used_blocks + stat.f_bavail) * stat.f_frsize
        )

    def boot_id(self) -> str:
        try:
            return _BOOT_ID_FILE.read_text().strip()
        except OSError:
            # Unknown counts as changed: recovery is then as careful as after a power loss.
            return f"unknown-{uuid.uuid4()}"

    def lock(self, path: str) -> DiskLock:
        if path in self._locked_paths:
            # A record lock does not exclude its own process, and closing a second descriptor would even drop it.
            raise StoreLocked(path)
        with _disk_errors(path):
            self._make_folders(path)
            fd = os.open(self.full_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                os.close(fd)
                if error.errno in {errno.EACCES, errno.EAGAIN}:
                    raise StoreLocked(path) from error
                raise
            os.ftruncate(fd, len(_LOCK_CONTENT))
            os.pwrite(fd, _LOCK_CONTENT, 0)
        self._locked_paths.add(path)
        return _PosixDiskLock(fd, path, self._locked_paths)

    def sync_name(self, path: str) -> None:
        """Makes the existence of `path` durable: syncs the folders above it up to the root, but for those that are."""
        with _disk_errors(path):
            while path:
                path = path.rpartition("/")[0]
                if path not in self._synced_folders:
                    self._sync_names_in(path)

    def name_made(self, path: str) -> None:
        """A file was made: its name is not durable before the next `sync_name`."""
        with self._names:
            self._forget_synced(path)

    def _forget_synced(self, path: str) -> None:
        self._name_changes += 1
        self._synced_folders.discard(path)
        self._synced_folders.discard(path.rpartition("/")[0])

    def _sync_names_in(self, folder: str) -> None:
        changes = self._name_changes
        try:
            _sync_folder(self.full_path(folder))
        except FileNotFoundError:
            return
        with self._names:
            if self._name_changes == changes:  # Else a name may have been made too late for this sync.
                self._synced_folders.add(folder)

    def full_path(self, path: str) -> str:
        """Where `path` is for the operating system."""
        return f"{self._root}/{path}"

    def _make_folders(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        try:
            # Locked, so that another thread that finds the folder there does not take it for synced.
            with self._names:
                os.mkdir(self.full_path(folder))
                self._forget_synced(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            if not folder:
                raise
            self._make_folders(folder)
            self._make_folders(path)

    def _sync_removal(self, path: str) -> None:
        """Makes the absence of `path` durable. Folders above its own need not be: without them it is absent, too."""
        with suppress(FileNotFoundError):
            _sync_folder(self.full_path(path.rpartition("/")[0]))

    def _sync_folders_of(self, path: str) -> None:
        while path:
            path = path.rpartition("/")[0]
            with suppress(FileNotFoundError):
                _sync_folder(self.full_path(path))

    def _make_whole(self, path: str, size: int) -> None:
        """Makes a file of `size` zeros with all its space reserved; it appears whole or not at all."""
        self._make_folders(path)
        with self._unfinished(path) as fd:
            _reserve(fd, size)

    @contextmanager
    def _unfinished(self, path: str) -> Iterator[int]:
        """Descriptor of an empty file that takes the name `path`, synced, when the block ends without an error."""
        full_path = self.full_path(path)
        unfinished = full_path + _UNFINISHED_SUFFIX
        try:
            fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                yield fd
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)  # It may hold the space whose lack made us fail.
            raise
        os.rename(unfinished, full_path)
        self._sync_folders_of(path)


class _Descriptor:
    """A file descriptor that is closed when its last user lets go of it.

    A sync in another thread may outlive the `close` of its file. Were the number closed under it, the kernel could give
    it to another file meanwhile, and the sync would report success for the wrong one.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _OpenFile:
    """A file that is open until `close`; its name is made durable with its bytes."""

    _disk: PosixDisk
    _path: str
    _size: int
    _descriptor: _Descriptor | None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def sync(self) -> None:
        with _disk_errors(self._path):
            os.fdatasync(self._open.number)
        self._disk.sync_name(self._path)

    def close(self) -> None:
        self._descriptor = None

    @property
    def _open(self) -> _Descriptor:
        assert self._descriptor is not None, f"{self._path} is closed"
        return self._descriptor


class _PosixMappedSegment(_OpenFile, MappedSegment):
    def __init__(self, full_path: str, path: str, size: int) -> None:
        self._path = path
        self._size = size
        descriptor = _Descriptor(os.open(full_path, os.O_RDWR | os.O_CLOEXEC))
        _check_length(descriptor.number, path, size)
        self._descriptor = descriptor
        self._view: memoryview | None = memoryview(mmap.mmap(descriptor.number, size))

    @property
    def view(self) -> memoryview:
        assert self._view is not None, f"{self._path} is closed"
        return self._view

    def new_tail_view(self) -> memoryview:
        # Ahead of a reader that follows the writer the kernel reads as far as the device's readahead says: it takes and
        # clears megabytes of pages that nobody has written yet, and the reader waits for it.
        with _disk_errors(self._path):
            tail = mmap.mmap(self._open.number, self._size, prot=mmap.PROT_READ)
            tail.madvise(mmap.MADV_RANDOM)
        return memoryview(tail)

    def write_parts(self, start: int, parts: Sequence[bytes | memoryview]) -> None:
        # Through the descriptor: a write takes its pages in one go, where the map faults for each of them.
        size = sum(map(len, parts))
        assert 0 <= start <= start + size <= self._size, f"{self._path}: {start} is outside"
        number = self._open.number
        try:
            if len(parts) == 1:
                written = os.pwrite(number, parts[0], start)
            else:
                written = os.pwritev(number, parts[:_PARTS_MAX], start)
            if written != size:
                _write_all_at(number, b"".join(parts)[written:], start + written)
        except OSError as error:
            raise _disk_error(self._path, error) from error

    def fetch_pages(self, start: int, end: int) -> None:
        descriptor = self._descriptor
        if descriptor is None:  # Closed since somebody thought of it.
            return
        # Not madvise, which Python calls without letting other threads run.
        with suppress(OSError):
            for piece in range(start, end, _FETCH_BYTES):
                os.posix_fadvise(descriptor.number, piece, min(_FETCH_BYTES, end - piece), os.POSIX_FADV_WILLNEED)

    def store_again(self, start: int, end: int) -> None:
        for chunk_start in range(start, end, len(_ZEROS)):
            chunk = self.view[chunk_start : min(chunk_start + len(_ZEROS), end)]
            chunk[:] = bytes(chunk)

    def used_bytes_from(self, start: int) -> int:
        with _disk_errors(self._path):
            return _used_bytes(self._open.number, start, self._size)

    def zero_from(self, start: int) -> int:
        # Through the descriptor: the map shows what is written there at once.
        with _disk_errors(self._path):
            return _zero(self._open.number, start, self._size)

    def sync(self) -> None:
        with _disk_errors(self._path):
            os.fdatasync(self._open.number)

    def close(self) -> None:
        # Not mmap.close(): it refuses while slices are out (a transfer to a slave). The last slice unmaps.
        self._view = None
        self._descriptor = None


class _PosixBlockFile(_OpenFile, BlockFile):
    def __init__(self, disk: PosixDisk, path: str, size: int, *, create: bool) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = _Descriptor(os.open(disk.full_path(path), flags, 0o644))
        found_bytes = os.fstat(descriptor.number).st_size
        if create and found_bytes == 0:
            # Missing, or a crash came between its making and its lengthening.
            os.ftruncate(descriptor.number, size)
            disk.name_made(path)
        elif found_bytes != size:
            raise SegmentSizeMismatch(path, found_bytes=found_bytes, expected_bytes=size)
        self._descriptor = descriptor

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self._size, f"{self._path}: {offset}+{length} is outside"
        try:
            data = os.pread(self._open.number, length, offset)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        if len(data) != length:
            raise DiskError(f"{self._path}: {len(data)} of {length} bytes read at {offset}")
        return data

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset <= offset + len(data) <= self._size, f"{self._path}: {offset}+{len(data)} is outside"
        with _disk_errors(self._path):
            _write_all_at(self._open.number, data, offset)

    def used_bytes_from(self, start: int) -> int:
        with _disk_errors(self._path):
            return _used_bytes(self._open.number, start, self._size)

    def zero_from(self, start: int) -> int:
        with _disk_errors(self._path):
            return _zero(self._open.number, start, self._size)


class _PosixAppendFile(_OpenFile, AppendFile):
    def __init__(self, disk: PosixDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = _Descriptor(os.open(disk.full_path(path), flags, 0o644))
        self._size = os.fstat(descriptor.number).st_size
        if self._size == 0:
            disk.name_made(path)
        self._descriptor = descriptor

    def append(self, data: bytes) -> None:
        with _disk_errors(self._path):
            _write_all(self._open.number, data)
        self._size += len(data)


class _PosixDiskLock(DiskLock):
    def __init__(self, fd: int, path: str, locked_paths: set[str]) -> None:
        self._fd: int | None = fd
        self._path = path
        self._locked_paths = locked_paths

    def release(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        self._locked_paths.discard(self._path)


class _disk_errors:  # noqa: N801
    """Turns what the operating system reports into the store's errors.

    A class, not a generator: it surrounds every call, and costs a third so.
    """

    __slots__ = ("_needed_in", "_path")

    def __init__(self, path: str, *, needed_in: tuple[str, int] | None = None) -> None:
        """`needed_in`: the store's root, and how many bytes are to be reserved there."""
        self._path = path
        self._needed_in = needed_in

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise _disk_error(self._path, error, self._needed_in) from error


def _disk_error(path: str, error: OSError, needed_in: tuple[str, int] | None = None) -> DiskError:
    if (place := _WRONG_PLACES.get(error.errno or 0)) is not None:
        return DiskError(f"{path}: {place}; {MOVE_ASIDE}")
    if error.errno not in _NO_SPACE:
        return DiskError(f"{path}: {error.strerror or error}")
    room = ""
    if needed_in is not None:
        root, needed_bytes = needed_in
        with suppress(OSError):
            stat = os.statvfs(root)
            room = f", {needed_bytes:,} bytes are needed and {stat.f_bavail * stat.f_frsize:,} are free in {root}"
    return DiskFull(f"disk full: {path}: {error.strerror or error}{room}")


def _folder_entry(entry: os.DirEntry[str]) -> FolderEntry | None:
    if entry.is_dir():  # Known without a stat.
        return FolderEntry(name=entry.name, size=0, is_folder=True, modified_ms=0)
    try:
        stat = entry.stat()
    except FileNotFoundError:  # Expired since the folder was read.
        return None
    return FolderEntry(name=entry.name, size=stat.st_size, is_folder=False, modified_ms=stat.st_mtime_ns // 1_000_000)


def _length_or_zero(full_path: str) -> int:
    try:
        return os.stat(full_path).st_size
    except FileNotFoundError:
        return 0


def _check_length(fd: int, path: str, size: int) -> None:
    found = os.fstat(fd).st_size
    if found != size:
        raise SegmentSizeMismatch(path, found_bytes=found, expected_bytes=size)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _zero(fd: int, start: int, end: int) -> int:
    """Zeroes what is not zero in [start, end); the distance from `start` to the end of it, 0 if there was nothing."""
    cleared_end = start
    # All ranges first: reading a range makes the kernel read ahead, and what it caches then counts as written.
    for data_start, data_end in list(_written_ranges(fd, start, end)):
        for chunk_start in range(data_start, data_end, len(_ZEROS)):
            chunk = os.pread(fd, min(len(_ZEROS), data_end - chunk_start), chunk_start)
            if chunk != _ZEROS[: len(chunk)]:  # Clean pages stay clean.
                used_bytes = len(chunk.rstrip(b"\0"))
                _write_all_at(fd, _ZEROS[:used_bytes], chunk_start)
                cleared_end = chunk_start + used_bytes
    return cleared_end - start


def _used_bytes(fd: int, start: int, end: int) -> int:
    """The distance from `start` to the end of what is not zero in [start, end)."""
    for data_start, data_end in reversed(list(_written_ranges(fd, start, end))):
        while data_start < data_end:
            chunk_start = max(data_start, data_end - len(_ZEROS))
            used_bytes = len(os.pread(fd, data_end - chunk_start, chunk_start).rstrip(b"\0"))
            if used_bytes:
                return chunk_start + used_bytes - start
            data_end = chunk_start
    return 0


def _written_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of [start, end) that may hold something; reserved space that was never written is left out.

    Reading that space instead would cost seconds for a gigabyte: a page fault and a zeroed page at a time.
    """
    while start < end:
        try:
            data_start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Nothing was written behind `start`.
                return
            raise
        data_end = min(os.lseek(fd, data_start, os.SEEK_HOLE), end)
        if data_start < data_end:
            yield data_start, data_end
        start = max(data_end, data_start)


def _reserve(fd: int, size: int) -> None:
    """Lengthens an empty file to `size` zeros that have their place on the disk."""
    fallocate = getattr(os, "posix_fallocate", None)  # Not on macOS.
    if fallocate is not None:
        try:
            fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
        else:
            return
    # Lengthening alone would leave holes; writing is slow but keeps the promise.
    for start in range(0, size, len(_ZEROS)):
        _write_all_at(fd, _ZEROS[: size - start], start)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _write_all_at(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written

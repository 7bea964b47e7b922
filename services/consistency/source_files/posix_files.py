"""A store in a folder: a volume, a snapshot, the data folder of a stopped broker.

Two ways to read a CommitLog file without harm to a broker that runs beside the job on the same machine:

- *direct*: O_DIRECT, from the disk into the job's memory. The page cache neither grows nor shrinks, and what is read is
  what the disk holds, not what the kernel remembers of it: the only way to see bit rot below a warm cache.
- *cached*: through the page cache, without read-ahead; pages that were not there before are given back with
  POSIX_FADV_DONTNEED, the others stay.

The first is tried, the second is what remains where a file system has no O_DIRECT (tmpfs, overlays, some FUSE).
Small files (metadata, queues) always take the second way.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from consistency.source_files.buffer_pool import BufferPool
from consistency.source_files.source_spec import ReadMode
from mqcore.audit.replica_store import ReplicaUnreadable, StoreEntry
from mqservice.page_cache import drop_absent_pages, resident_pages

__all__ = ["PosixFiles"]

_ALIGNMENT: Final = 4_096
"""Of offset, length and memory: at least the logical block of every disk in use."""
_DIRECT_BYTES_MIN: Final = 256 << 10
"""Smaller reads are not worth their own trip to the disk."""
_PIECE_BYTES: Final = 1 << 20
"""Read at once in the second way."""
_OPEN_FILES_MAX: Final = 32
_GONE: Final = (errno.ENOENT, errno.ENOTDIR)
_NO_DIRECT: Final = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class PosixFiles:
    """`ReplicaFiles` below one folder. For one thread."""

    def __init__(self, root: str, *, read_mode: ReadMode = ReadMode.DIRECT) -> None:
        self._root = root
        self._is_direct = read_mode is ReadMode.DIRECT
        self._pool = BufferPool()
        self._direct_fds: dict[str, int] = {}
        self._cached_fds: dict[str, int] = {}

    def close(self) -> None:
        """Closes all files. Views that were given out stay good."""
        for descriptors in (self._direct_fds, self._cached_fds):
            while descriptors:
                os.close(descriptors.popitem()[1])

    def list_folder(self, path: str) -> list[StoreEntry]:
        """See ReplicaFiles. What is neither a file nor a folder, links included, is left out."""
        try:
            with os.scandir(os.path.join(self._root, path)) as entries:
                found = [_entry(entry) for entry in entries]
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise ReplicaUnreadable(f"{self._root}/{path}: {error.strerror}") from error
        return sorted(entry for entry in found if entry is not None)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles. The bytes do not change as long as the view, or a part of it, is kept."""
        try:
            if self._is_direct and length >= _DIRECT_BYTES_MIN:
                return self._read_direct(path, offset, length)
            return self._read_cached(path, offset, length)
        except OSError as error:
            if error.errno in _GONE:
                return b""
            raise ReplicaUnreadable(f"{self._root}/{path} at {offset}: {error.strerror}") from error

    def _read_direct(self, path: str, offset: int, length: int) -> bytes | memoryview:
        try:
            fd = self._descriptor(path, self._direct_fds, os.O_DIRECT)
            start = offset - offset % _ALIGNMENT
            end = offset + length
            aligned = -(-(end - start) // _ALIGNMENT) * _ALIGNMENT
            buffer = self._pool.take(aligned)
            done = _read_fully(fd, buffer[:aligned], start, block_bytes=_ALIGNMENT)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
            self._is_direct = False
            return self._read_cached(path, offset, length)
        return buffer[offset - start : max(offset - start, min(done, end - start))]

    def _read_cached(self, path: str, offset: int, length: int) -> bytes | memoryview:
        fd = self._descriptor(path, self._cached_fds, 0)
        buffer = self._pool.take(length)[:length]
        done = 0
        while done < length:
            piece = buffer[done : done + _PIECE_BYTES]
            count = self._read_piece(fd, piece, offset + done)
            done += count
            if count < len(piece):
                break
        return buffer[:done]

    def _read_piece(self, fd: int, piece: memoryview, offset: int) -> int:
        """Fills `piece` as far as the file goes; the page cache is as before."""
        states = resident_pages(fd, offset, len(piece))
        try:
            return _read_fully(fd, piece, offset, block_bytes=1)
        finally:
            drop_absent_pages(fd, offset, states)

    def _descriptor(self, path: str, descriptors: dict[str, int], flags: int) -> int:
        fd = descriptors.get(path)
        if fd is None:
            while len(descriptors) >= _OPEN_FILES_MAX:
                os.close(descriptors.pop(next(iter(descriptors))))
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags)
            descriptors[path] = fd
            if not flags:
                # No read-ahead: it would fill the cache with what nobody asked for.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd


def _entry(entry: os.DirEntry[str]) -> StoreEntry | None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        return StoreEntry(entry.name, -1)
    return StoreEntry(entry.name, status.st_size) if stat.S_ISREG(status.st_mode) else None


def _read_fully(fd: int, buffer: memoryview, offset: int, *, block_bytes: int) -> int:
    """Reads until the buffer is full or the file ends."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        done += count
        # A direct read that ends within a block has met the end of the file; to go on from there would be an error.
        if not count or count % block_bytes:
            break
    return done

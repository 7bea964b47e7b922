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
import mmap
import os
import stat
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from pyarrow import fs

from tandemmq.core.audit.replica_store import ReplicaUnreadable, StoreEntry, is_broker_id, shown_name
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.service.page_cache import drop_absent_pages, resident_pages

# Where one replica is read, in a form that travels to an executor.

BROKER_SCHEME: Final = "broker://"
_FILE_SCHEME: Final = "file://"


class SourceKind(StrEnum):
    """What answers for a replica's bytes."""

    FOLDER = "folder"
    URI = "uri"
    BROKER = "broker"


class ReadMode(StrEnum):
    """How files of a folder are read."""

    DIRECT = "direct"
    """Past the page cache: what the disk holds."""
    CACHED = "cached"
    """Through the page cache, which is left as it was found."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One replica's place."""

    group: str
    broker_id: int
    kind: SourceKind
    location: str
    """Absolute folder, URI, or host:port of the metadata plane."""
    read_mode: ReadMode = ReadMode.DIRECT
    rate_limit: int = 0
    """Bytes a second; 0: none. A broker limits itself."""
    is_master: bool = None  # type: ignore[assignment]  # a bool from here on
    """As its NameServers say. None: nobody says, goes by its id."""

    def __post_init__(self) -> None:
        if self.is_master is None:
            object.__setattr__(self, "is_master", self.broker_id == MASTER_ID)

    @property
    def is_broker(self) -> bool:
        return self.kind is SourceKind.BROKER

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**(values | {"kind": SourceKind(values["kind"]), "read_mode": ReadMode(values["read_mode"])}))


def parse_source(text: str) -> SourceSpec:
    """`group/brokerId=place`. Raises ValueError that says what is missing."""
    name, equals, place = (part.strip() for part in text.partition("="))
    group, slash, broker_id = name.rpartition("/")
    if not (equals and slash and group and place and is_broker_id(broker_id)):
        raise ValueError(f"'{text}' is no source; write group/brokerId=place, for example broker-a/0=/data/broker-a")
    kind, location = _kind_of(place)
    return SourceSpec(group=group, broker_id=int(broker_id), kind=kind, location=location)


def _kind_of(place: str) -> tuple[SourceKind, str]:
    if place.startswith(BROKER_SCHEME):
        return SourceKind.BROKER, place.removeprefix(BROKER_SCHEME)
    if place.startswith(_FILE_SCHEME):
        return SourceKind.FOLDER, place.removeprefix(_FILE_SCHEME)
    if "://" in place:
        return SourceKind.URI, place
    return SourceKind.FOLDER, place


# A store in whatever pyarrow.fs reaches: S3, Google Cloud Storage, Azure, HDFS.

_OPEN_FILES_MAX: Final = 16


class ArrowFiles:
    """`ReplicaFiles` below one URI. For one thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise ReplicaUnreadable(f"{uri}: {error}") from error
        self._files: dict[str, Any] = {}

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def list_folder(self, path: str) -> list[StoreEntry]:
        selector = fs.FileSelector(f"{self._root}/{path}".rstrip("/"), allow_not_found=True)
        try:
            found = self._file_system.get_file_info(selector)
        except OSError as error:
            raise ReplicaUnreadable(f"{self._uri}/{path}: {error}") from error
        is_folder = fs.FileType.Directory
        return sorted(StoreEntry(info.base_name, -1 if info.type == is_folder else int(info.size)) for info in found)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        try:
            file = self._open(path)
            length = min(length, file.size() - offset)
            if length <= 0:
                return b""
            file.seek(offset)
            return memoryview(file.read_buffer(length))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ReplicaUnreadable(f"{self._uri}/{path} at {offset}: {error}") from error

    def _open(self, path: str) -> Any:
        file = self._files.get(path)
        if file is None:
            while len(self._files) >= _OPEN_FILES_MAX:
                self._files.pop(next(iter(self._files))).close()
            file = self._files[path] = self._file_system.open_input_file(f"{self._root}/{path}")
        return file


# Page-aligned memory that is used again as soon as nobody looks at it any more.

_BUFFERS_MAX: Final = 4


class BufferPool:
    """Lends anonymous maps. Reading into the same few megabytes again and again keeps them in the CPU's cache, and the
    kernel has no fresh pages to clear: both cost more than a good hash function does.
    """

    def __init__(self) -> None:
        self._buffers: list[mmap.mmap] = []

    def take(self, length: int) -> memoryview:
        """At least `length` bytes, aligned to a page, the caller's for as long as it keeps the view or a part of it."""
        for index in range(len(self._buffers)):
            if len(self._buffers[index]) >= length and _references(self._buffers, index) == _REFERENCES_UNUSED:
                # The most recently used one stays in front.
                self._buffers.insert(0, self._buffers.pop(index))
                return memoryview(self._buffers[0])
        self._buffers.insert(0, _new_buffer(max(length, mmap.PAGESIZE)))
        del self._buffers[_BUFFERS_MAX:]
        return memoryview(self._buffers[0])


def _new_buffer(length: int) -> mmap.mmap:
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _references(buffers: list[mmap.mmap], index: int) -> int:
    return sys.getrefcount(buffers[index])


# Every memoryview of a buffer, and every slice of one, adds to this number through what they share.
_REFERENCES_UNUSED: Final = _references([_new_buffer(mmap.PAGESIZE)], 0)
_ALIGNMENT: Final = 4_096
"""Of offset, length and memory: at least the logical block of every disk in use."""
_DIRECT_BYTES_MIN: Final = 256 << 10
"""Smaller reads are not worth their own trip to the disk."""
_PIECE_BYTES: Final = 1 << 20
"""Read at once in the second way."""
_DESCRIPTORS_MAX: Final = 32
_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""Nothing is there, or a folder, a link, a socket."""
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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
        """See ReplicaFiles. What is neither a file nor a folder, links included, is shown as a folder: no file."""
        try:
            with os.scandir(os.path.join(self._root, path)) as entries:
                found = [_entry(entry) for entry in entries]
        except OSError as error:
            if error.errno in _NO_FILE:
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
            if error.errno in _NO_FILE:
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
            while len(descriptors) >= _DESCRIPTORS_MAX:
                os.close(descriptors.pop(next(iter(descriptors))))
            # Whoever opens a pipe waits for its other end.
            fd = os.open(os.path.join(self._root, path), _FILE_FLAGS | flags)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise IsADirectoryError(errno.EISDIR, "is no file", path)
            descriptors[path] = fd
            if not flags:
                # No read-ahead: it would fill the cache with what nobody asked for.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd


def _entry(entry: os.DirEntry[str]) -> StoreEntry | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # Gone since the folder was read: its neighbours are there all the same.
        return None
    return StoreEntry(shown_name(entry.name), status.st_size if stat.S_ISREG(status.st_mode) else -1)


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

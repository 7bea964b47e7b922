"""Which files of a store may be read from outside, and how they are opened: below the root, no links, nothing else."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tandemmq.core.audit.replica_store import ReplicaUnreadable, StoreEntry, shown_name
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogRange
from tandemmq.core.storage.commit_log import COMMIT_LOG_FOLDER
from tandemmq.service.page_cache import drop_absent_pages, resident_pages

# How fast the store may be read by those who audit it, so that the broker's clients do not notice.

_LATE_S_MAX: Final = 0.1
"""A sleep ends late on a busy machine; so much is made up for, and no longer pause."""


class ReadPace:
    """At most `bytes_per_second`, no more at once than one read. No clock: the caller tells the time."""

    def __init__(self, bytes_per_second: int) -> None:
        assert bytes_per_second > 0, "who may read nothing is refused before"
        self._bytes_per_second = bytes_per_second
        self._free_s = 0.0

    def change(self, bytes_per_second: int) -> None:
        """Another pace, from the next read on. May come from another thread."""
        assert bytes_per_second > 0, "who may read nothing is refused before"
        self._bytes_per_second = bytes_per_second

    def wait_s(self, byte_count: int, *, now_s: float) -> float:
        """How long to wait before the next read, after one of `byte_count` bytes. `now_s` is monotonic.

        A pause between two reads earns nothing: what was not read then is not made up for later in a burst.
        """
        self._free_s = max(self._free_s, now_s - _LATE_S_MAX) + byte_count / self._bytes_per_second
        return max(0.0, self._free_s - now_s)


# Reads files without leaving a trace in the page cache: what a broker's consumers need stays, what nobody needs goes.
#
# The kernel is asked before which pages it holds; those that came by the read alone are dropped again. A block of
# which it holds none goes past the cache (O_DIRECT), for a third of the CPU. Others do not: the kernel would first
# write out what the broker has just stored into its maps, and wait for it.

BLOCK_BYTES: Final = 1 << 20
"""Read at once: large enough for a disk's full speed, small enough not to hold up the broker's own writes."""
_PAGE: Final = mmap.PAGESIZE


def prepare_descriptor(descriptor: int) -> None:
    """To be called once for a file that `read_into` is to read: without it the kernel reads ahead what stays behind."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from `offset` of the file; returns how many bytes, fewer only at the file's end. OSError."""
    done = 0
    while done < len(buffer):
        piece = buffer[done : done + BLOCK_BYTES]
        with _neutral(descriptor, offset + done, len(piece)):
            count = os.preadv(descriptor, [piece], offset + done)
        if not count:
            break
        done += count
    return done


def open_direct(descriptor: int) -> int | None:
    """Another descriptor of the same file, for `read_pieces`; None where the file system cannot do it."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def read_pieces(
    descriptor: int, direct: int | None, block: memoryview, offset: int, length: int, *, piece_bytes: int
) -> Iterator[memoryview]:
    """The bytes [offset, offset + length) in order, each piece in `block` until the next one. OSError.

    `block` has BLOCK_BYTES and begins with a page. For bytes that are looked at once: what comes from the page cache
    comes in pieces of `piece_bytes`, which fit the processor's cache and save a third of the time.
    """
    end = offset + length
    while offset < end:
        block_end = min(end, offset - offset % BLOCK_BYTES + BLOCK_BYTES)
        if direct is not None and not offset % _PAGE and not block_end % _PAGE:
            count = _read_direct(descriptor, direct, block[: block_end - offset], offset)
            if count:
                yield block[:count]
                offset += count
                continue
        with _neutral(descriptor, offset, block_end - offset):
            while offset < block_end:
                count = os.preadv(descriptor, [block[: min(piece_bytes, block_end - offset)]], offset)
                if not count:
                    return
                yield block[:count]
                offset += count


def _read_direct(descriptor: int, direct: int, buffer: memoryview, offset: int) -> int:
    """Bytes read past the page cache; 0 if it holds some of these, or if that does not work here."""
    if any(resident_pages(descriptor, offset, len(buffer))):
        return 0
    try:
        return os.preadv(direct, [buffer], offset)
    except OSError as error:
        if error.errno == errno.EINVAL:  # The device has larger blocks than a page.
            return 0
        raise


@contextmanager
def _neutral(descriptor: int, offset: int, length: int) -> Iterator[None]:
    """Drops what the block brings into the page cache."""
    was_resident = resident_pages(descriptor, offset, length)
    try:
        yield
    finally:
        drop_absent_pages(descriptor, offset, was_resident)


_FILES: Final = frozenset({"checkpoint", "abort"})
_UNLISTED: Final = frozenset({REPLICA_FILE, EPOCH_FILE})
"""Say which disk it is and who wrote its log, to those who ask for it."""
_DEPTHS: Final = {COMMIT_LOG_FOLDER: 2, "consumequeue": 4, "consumequeue_ext": 4, "index": 2, "config": 2}
"""Parts of a file's path, by the first of them: consumequeue/TOPIC/QUEUE/FILE."""
_UNFINISHED_SUFFIX: Final = ".unfinished"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a pipe would wait for a writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class PathRefused(Exception):
    """The path is none that may be read: the caller's mistake, or worse."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"path {path!r}: {reason}")


class OpenFile:
    """A descriptor that is closed when its last user lets go of it: a read in a thread may outlive its caller."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number: Final = number

    @classmethod
    def of_path(cls, path: str) -> OpenFile:
        """For reading; `path` is one of the operating system. OSError."""
        return cls(os.open(path, _FILE_FLAGS))

    def __del__(self) -> None:
        os.close(self.number)


def commit_log_start(path: str) -> int | None:
    """Offset in the CommitLog at which the file `path` starts; None if it is no CommitLog file."""
    folder, _, name = path.partition("/")
    return int(name) if folder == COMMIT_LOG_FOLDER and name.isascii() and name.isdigit() else None


class StoreFiles:
    """The readable files below `root`. Calls block; safe on several threads."""

    def __init__(self, root: str) -> None:
        self._root = root

    def list_folder(self, path: str) -> list[StoreEntry]:
        """Files and folders by name, without links and half-made files; [] if there is no such folder.

        Raises PathRefused, or OSError when the disk refuses.
        """
        parts = _parts(path)
        if parts and len(parts) >= _DEPTHS.get(parts[0], 0):
            raise PathRefused(path, "no folder that may be read")
        with self._folder(path, parts) as folder:
            if folder is None:
                return []
            with os.scandir(folder) as found:
                listed = [entry for entry in found if _is_listed(entry, at_root=not parts)]
                entries = []
                for entry in listed:
                    with suppress(FileNotFoundError):  # It expired meanwhile.
                        is_folder = entry.is_dir(follow_symlinks=False)
                        size = -1 if is_folder else entry.stat(follow_symlinks=False).st_size
                        entries.append(StoreEntry(shown_name(entry.name), size))
                return sorted(entries)

    def open(self, path: str) -> OpenFile | None:
        """The file, to be read with `read_into`; None if there is no such file.

        Raises PathRefused, or OSError when the disk refuses.
        """
        parts = _parts(path)
        if path not in _FILES | _UNLISTED and (not parts or len(parts) != _DEPTHS.get(parts[0])):
            raise PathRefused(path, "no file that may be read")
        with self._folder(path, parts[:-1]) as folder:
            if folder is None:
                return None
            try:
                file = OpenFile(os.open(parts[-1], _FILE_FLAGS, dir_fd=folder))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _refused(path, error) from error
        if not stat.S_ISREG(os.fstat(file.number).st_mode):
            raise PathRefused(path, "no file")
        prepare_descriptor(file.number)
        return file

    @contextmanager
    def _folder(self, path: str, parts: tuple[str, ...]) -> Iterator[int | None]:
        """A descriptor of the folder, step by step, so that no part of the way is a link."""
        descriptor = os.open(self._root, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                try:
                    below = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
                except FileNotFoundError:
                    os.close(descriptor)
                    descriptor = -1
                    break
                except OSError as error:
                    raise _refused(path, error) from error
                os.close(descriptor)
                descriptor = below
            yield descriptor if descriptor >= 0 else None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _parts(path: str) -> tuple[str, ...]:
    if not path:
        return ()
    parts = tuple(path.split("/"))
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise PathRefused(path, "write it as FOLDER/NAME below the store's root")
    if parts[0] not in _DEPTHS and path not in _FILES | _UNLISTED:
        raise PathRefused(path, f"only {', '.join(sorted({*_DEPTHS, *_FILES}))} may be read")
    return parts


def _is_listed(entry: os.DirEntry[str], *, at_root: bool) -> bool:
    if entry.is_symlink() or entry.name.endswith(_UNFINISHED_SUFFIX):
        return False
    return not at_root or entry.name in _DEPTHS or entry.name in _FILES


def _refused(path: str, error: OSError) -> Exception:
    """A link on the way shows as one of two errors; everything else is the disk's."""
    is_link = isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP
    return PathRefused(path, "a link, or no folder") if is_link else error


# Why a job in the helper process ends without a result.


class JobCancelled(Exception):
    """Nobody waits for the result any more."""


class FileGone(Exception):
    """A CommitLog file that was there when the job was given has expired. The caller asks for what is left."""


class LogUnsound(Exception):
    """The log is damaged between the records that are looked for: it has to be repaired first."""


# The files of this store for checks that read much of it: at a bounded rate, and until they are told to stop.

_OPEN_FILES_MAX: Final = 64
_REUSED_BYTES_MIN: Final = 64 << 10
"""From here on a read goes into one buffer that the next such read uses again; below, bytes are made."""

_PIECE_BYTES: Final = 128 << 10
"""Of what is looked at once: fits the second-level cache of any processor."""


class PacedFiles:
    """`ReplicaFiles` below `root`. `pause(byte_count)` is called after each read and blocks as long as the next one has
    to wait; it raises JobCancelled. One thread only, one job long: files stay open."""

    def __init__(self, root: str, *, pause: Callable[[int], None]) -> None:
        self._files = StoreFiles(root)
        self._pause = pause
        self._open: OrderedDict[str, OpenFile] = OrderedDict()
        self._buffer = bytearray()
        # Begins with a page, as reads past the page cache have to.
        self._block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        self._direct: tuple[OpenFile, OpenFile | None] | None = None

    def list_folder(self, path: str) -> list[StoreEntry]:
        try:
            return self._files.list_folder(path)
        except (OSError, PathRefused) as error:
            raise ReplicaUnreadable(f"{path}: {error}") from error

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles. A long read is good until the next one; FileGone for a CommitLog file that has expired."""
        try:
            file = self._file(path)
            if file is None:
                self._check_expired(path)
                return b""
            view = self._room(length)
            count = read_into(file.number, view, offset)
        except (OSError, PathRefused) as error:
            raise ReplicaUnreadable(f"{path}: {error}") from error
        self._pause(count)
        return view[:count] if length >= _REUSED_BYTES_MIN else bytes(view[:count])

    def feed(self, path: str, offset: int, length: int, take: Callable[[memoryview], object]) -> int:
        """Gives `take` the bytes [offset, offset + length) in pieces; returns how many there were. As `read`, else."""
        file = self._file(path)
        if file is None:
            self._check_expired(path)
            return 0
        done = 0
        try:
            direct = self._direct_number(file)
            for piece in read_pieces(file.number, direct, self._block, offset, length, piece_bytes=_PIECE_BYTES):
                take(piece)
                done += len(piece)
        except OSError as error:
            raise ReplicaUnreadable(f"{path}: {error}") from error
        self._pause(done)
        return done

    def _check_expired(self, path: str) -> None:
        """FileGone if a CommitLog file is not there any more, and none before it: retention removes the oldest ones.
        One between others is lost."""
        start = commit_log_start(path)
        if start is not None:
            starts = (
                commit_log_start(f"{COMMIT_LOG_FOLDER}/{entry.name}") for entry in self.list_folder(COMMIT_LOG_FOLDER)
            )
            if not any(other is not None and other < start for other in starts):
                raise FileGone(path)

    def _direct_number(self, file: OpenFile) -> int | None:
        """For reads past the page cache: of one file at a time, for a log is read file by file."""
        if self._direct is None or self._direct[0] is not file:
            number = open_direct(file.number)
            self._direct = file, None if number is None else OpenFile(number)
        direct = self._direct[1]
        return None if direct is None else direct.number

    def _room(self, length: int) -> memoryview:
        if length < _REUSED_BYTES_MIN:
            return memoryview(bytearray(length))
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        return memoryview(self._buffer)[:length]

    def _file(self, path: str) -> OpenFile | None:
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        file = self._files.open(path)
        if file is not None:
            self._open[path] = file
            if len(self._open) > _OPEN_FILES_MAX:
                self._open.popitem(last=False)
        return file


# What a repair writes: files that are whole or not there.

INDEX_PREFIX: Final = "index/"
"""What the path of an IndexFile begins with."""


def new_file(path: str) -> OpenFile:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return OpenFile(os.open(path, flags, 0o600))


def write_all(file: OpenFile, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file.number, view) :]


def finish_file(file: OpenFile, unfinished: str, path: str) -> None:
    """Gives a file its name when all of it is on disk."""
    os.fsync(file.number)
    os.rename(unfinished, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class FileRepaired:
    """What came of the repair of a table or an IndexFile."""

    changed: bool
    kept_path: str = ""
    """Below the store; empty: nothing was overwritten that was not kept before."""


def keep_file(path: str, data: bytes) -> None:
    """Writes a file that has its name only when all of it is on disk. OSError: there is none."""
    unfinished = f"{path}{_UNFINISHED_SUFFIX}"
    try:
        file = new_file(unfinished)
        write_all(file, data)
        finish_file(file, unfinished, path)
    except OSError:
        # Half of it would keep the room that a full disk lacks.
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def kept_range(folder: str, log_range: LogRange, digest: bytes) -> str:
    """Where bytes of the CommitLog are kept, by their XXH3-128."""
    return f"{folder}/{log_range.start_offset:020d}-{log_range.end_offset:020d}-{digest.hex()}"


def remove_unfinished(folder: str) -> None:
    """What a crash has left half written of what was to be kept. While nothing is kept."""
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name.endswith(_UNFINISHED_SUFFIX):
            os.unlink(f"{folder}/{name}")


def keep_next(folder: str, prefix: str, data: bytes) -> str:
    """Keeps what a repair overwrites as `PREFIX-NUMBER` behind all that are there, and gives the name. OSError: nothing
    is kept."""
    os.makedirs(folder, exist_ok=True)
    numbers = [int(name.removeprefix(prefix)) for name in kept_names(folder, prefix)]
    name = f"{prefix}{1 + max(numbers, default=-1):04d}"
    keep_file(f"{folder}/{name}", data)
    return name


def kept_names(folder: str, prefix: str) -> list[str]:
    """What `keep_next` has kept, oldest first."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    kept = (name for name in names if name.startswith(prefix) and name.removeprefix(prefix).isdecimal())
    return sorted(kept, key=lambda name: int(name.removeprefix(prefix)))

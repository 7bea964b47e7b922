"""Which files of a store may be read from outside, and how they are opened: below the root, no links, nothing else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from broker.audit.cache_neutral_read import prepare_descriptor
from mqcore.audit.replica_store import StoreEntry
from mqcore.storage.commit_log import COMMIT_LOG_FOLDER

__all__ = ["OpenFile", "PathRefused", "StoreFiles", "commit_log_start"]

_FILES: Final = frozenset({"checkpoint", "abort"})
_DEPTHS: Final = {COMMIT_LOG_FOLDER: 2, "consumequeue": 4, "index": 2, "config": 2}
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
                        entries.append(StoreEntry(entry.name, size))
                return sorted(entries)

    def open(self, path: str) -> OpenFile | None:
        """The file, to be read with `read_into`; None if there is no such file.

        Raises PathRefused, or OSError when the disk refuses.
        """
        parts = _parts(path)
        if path not in _FILES and (not parts or len(parts) != _DEPTHS.get(parts[0])):
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
    if parts[0] not in _DEPTHS and path not in _FILES:
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

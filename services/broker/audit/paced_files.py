"""The files of this store for checks that read much of it: at a bounded rate, and until they are told to stop."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.audit.cache_neutral_read import BLOCK_BYTES, open_direct, read_into, read_pieces
from broker.audit.errors import FileGone
from broker.audit.store_files import OpenFile, PathRefused, StoreFiles, commit_log_start
from mqcore.audit.replica_store import ReplicaUnreadable, StoreEntry

__all__ = ["PacedFiles"]

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
        """See ReplicaFiles."""
        try:
            return self._files.list_folder(path)
        except (OSError, PathRefused) as error:
            raise ReplicaUnreadable(f"{path}: {error}") from error

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles. A long read is good until the next one; FileGone for a CommitLog file that is not there."""
        try:
            file = self._file(path)
            if file is None:
                if commit_log_start(path) is not None:
                    raise FileGone(path)
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
            raise FileGone(path)
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

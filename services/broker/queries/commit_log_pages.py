"""Brings parts of the CommitLog into the page cache before the event loop touches them.

The log is mapped. Touching a page of it that the cache does not hold stops the whole process until the disk has
answered: the interpreter's lock is held meanwhile, in whichever thread. A read of the file lets go of that lock. So
what is cold is read once by a thread, and then found warm in the map; what is warm costs one question to the kernel.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from broker.audit.store_files import OpenFile
from mqcore.storage.commit_log import file_name
from mqservice.page_cache import resident_pages

__all__ = ["CommitLogPages", "LogRange", "Pages"]

LogRange: TypeAlias = tuple[int, int]
"""Bytes [start, end) of the CommitLog."""

_OPEN_FILES_MAX: Final = 8
_GAP_BYTES: Final = 32 << 10
"""Ranges so near to each other are one: reading what lies between takes no longer than a second read."""
_READS_AT_ONCE: Final = 2
"""The threads are shared with others, and so is the disk."""
_PIECE_BYTES: Final = 1 << 20


class Pages(Protocol):
    """Makes memory of what is on disk."""

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        """Returns when touching these bytes waits for no disk, as far as that can be had."""


class CommitLogPages:
    """`Pages` over the files of `folder`, each of `file_bytes`. Event loop only."""

    def __init__(self, folder: Path, *, file_bytes: int) -> None:
        self._folder: Final = str(folder)
        self._file_bytes: Final = file_bytes
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        """See `Pages`. What cannot be read is left: whoever touches it finds out why."""
        absent = [piece for piece in self._pieces(ranges) if not self._is_resident(*piece)]
        if absent:
            async with self._reads:
                await asyncio.to_thread(_read_all, absent)

    def _pieces(self, ranges: Sequence[LogRange]) -> list[tuple[OpenFile, int, int]]:
        """The ranges joined where they are near, cut where a file ends: file, offset within it, length."""
        joined: list[list[int]] = []
        for start, end in sorted(ranges):
            if joined and start <= joined[-1][1] + _GAP_BYTES:
                joined[-1][1] = max(joined[-1][1], end)
            elif start < end:
                joined.append([start, end])
        pieces = []
        for start, end in joined:
            while start < end:
                within = start % self._file_bytes
                length = min(end - start, self._file_bytes - within)
                file = self._file(start - within)
                if file is not None:
                    pieces.append((file, within, length))
                start += length
        return pieces

    def _file(self, start_offset: int) -> OpenFile | None:
        file = self._open.get(start_offset)
        if file is not None:
            self._open.move_to_end(start_offset)
            return file
        try:
            file = OpenFile.of_path(f"{self._folder}/{file_name(start_offset)}")
        except OSError:
            return None  # It expired, or was never there.
        self._open[start_offset] = file
        if len(self._open) > _OPEN_FILES_MAX:
            self._open.popitem(last=False)
        return file

    @staticmethod
    def _is_resident(file: OpenFile, offset: int, length: int) -> bool:
        return all(resident_pages(file.number, offset, length))


def _read_all(pieces: Sequence[tuple[OpenFile, int, int]]) -> None:
    """Reads and forgets. In a thread: the reads let go of the interpreter's lock."""
    buffer = memoryview(bytearray(min(_PIECE_BYTES, max(length for _, _, length in pieces))))
    for file, offset, length in pieces:
        done = 0
        while done < length:
            try:
                count = os.preadv(file.number, [buffer[: length - done]], offset + done)
            except OSError:
                break
            if not count:
                break
            done += count

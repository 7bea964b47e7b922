"""Asks the kernel which pages of a file it holds, so that a reader can take away what it alone brought.

It asks by mincore on a map that cannot be read. RWF_NOWAIT would tell the same, but since Linux 5.10 it starts to read
ahead what it does not find.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PAGE: Final = mmap.PAGESIZE
_PROT_NONE: Final = 0
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_LOWEST_BIT: Final = bytes(number & 1 for number in range(256))
"""The other bits of what mincore says are reserved."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def resident_pages(fd: int, offset: int, length: int) -> bytes:
    """A byte for each page that [offset, offset + length) touches: 1 if the page cache holds it, else 0.

    Who may not write a file is told 1 for all of it: then nothing is taken away.
    """
    start = offset - offset % _PAGE
    size = offset + length - start
    states = ctypes.create_string_buffer(-(-size // _PAGE))
    address = _libc.mmap(None, size, _PROT_NONE, mmap.MAP_SHARED, fd, start)
    if address == _MAP_FAILED:
        return b"\1" * len(states)
    try:
        if _libc.mincore(address, size, states) != 0:
            return b"\1" * len(states)
    finally:
        _libc.munmap(address, size)
    return states.raw.translate(_LOWEST_BIT)


def drop_absent_pages(fd: int, offset: int, states: bytes) -> None:
    """Takes the pages from the cache that were not there when `resident_pages` told `states` from `offset` on.

    Dirty pages stay: they are none of the reader's.
    """
    first = offset // _PAGE
    for start, end in _runs_of_absent(states):
        os.posix_fadvise(fd, (first + start) * _PAGE, (end - start) * _PAGE, os.POSIX_FADV_DONTNEED)


def _runs_of_absent(states: bytes) -> Iterator[tuple[int, int]]:
    start = states.find(0)
    while start >= 0:
        end = states.find(1, start)
        yield start, end if end >= 0 else len(states)
        start = states.find(0, end) if end >= 0 else -1


# How much memory this process holds.

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident set in bytes; mapped files count while their pages are in memory. 0 where /proc is missing."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0

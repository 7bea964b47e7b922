"""Reads files without leaving a trace in the page cache: what a broker's consumers need stays, what nobody needs goes.

The kernel is asked before which pages it holds; those that came by the read alone are dropped again. Not O_DIRECT: that
would have the kernel write out first what the broker has just stored into its maps, and wait for it. Not RWF_NOWAIT to
find out: since Linux 5.10 it starts to read ahead what it does not find.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["prepare_descriptor", "read_into", "read_pieces", "resident_pages"]

_BLOCK_BYTES: Final = 1 << 20
"""Read at once: large enough for a disk's full speed, small enough not to hold up the broker's own writes."""
_PAGE: Final = mmap.PAGESIZE
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_PROT_NONE: Final = 0

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def prepare_descriptor(descriptor: int) -> None:
    """To be called once for a file that `read_into` is to read: without it the kernel reads ahead what stays behind."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from `offset` of the file; returns how many bytes, fewer only at the file's end. OSError."""
    done = 0
    while done < len(buffer):
        piece = buffer[done : done + _BLOCK_BYTES]
        with _neutral(descriptor, offset + done, len(piece)):
            count = os.preadv(descriptor, [piece], offset + done)
        if not count:
            break
        done += count
    return done


def read_pieces(descriptor: int, buffer: memoryview, offset: int, length: int) -> Iterator[memoryview]:
    """The bytes [offset, offset + length) in order, each piece in `buffer` until the next one. OSError.

    For bytes that are looked at once: a buffer that fits the processor's cache saves a third of the time.
    """
    end = offset + length
    while offset < end:
        block_end = min(end, offset - offset % _BLOCK_BYTES + _BLOCK_BYTES)
        with _neutral(descriptor, offset, block_end - offset):
            while offset < block_end:
                count = os.preadv(descriptor, [buffer[: block_end - offset]], offset)
                if not count:
                    return
                yield buffer[:count]
                offset += count


@contextmanager
def _neutral(descriptor: int, offset: int, length: int) -> Iterator[None]:
    """Drops what the block brings into the page cache."""
    was_resident = resident_pages(descriptor, offset, length)
    try:
        yield
    finally:
        for start, end in _runs_of_absent(was_resident):
            page = offset // _PAGE + start
            os.posix_fadvise(descriptor, page * _PAGE, (end - start) * _PAGE, os.POSIX_FADV_DONTNEED)


def resident_pages(descriptor: int, offset: int, length: int) -> bytes:
    """One byte for each page that has a byte of [offset, offset + length): 1 if the page cache holds it, else 0.

    Where the kernel does not tell all count as held: nothing is dropped then.
    """
    start = offset - offset % _PAGE
    size = offset + length - start
    states = ctypes.create_string_buffer(-(-size // _PAGE))
    address = _libc.mmap(None, size, _PROT_NONE, mmap.MAP_SHARED, descriptor, start)
    if address == _MAP_FAILED:
        return b"\1" * len(states)
    try:
        if _libc.mincore(address, size, states) != 0:
            return b"\1" * len(states)
    finally:
        _libc.munmap(address, size)
    return states.raw.translate(_LOWEST_BIT)


_LOWEST_BIT: Final = bytes(number & 1 for number in range(256))
"""The other bits of what mincore says are reserved."""


def _runs_of_absent(states: bytes) -> Iterator[tuple[int, int]]:
    """[start, end) of each run of zeros."""
    start = states.find(0)
    while start >= 0:
        end = states.find(1, start)
        yield start, end if end >= 0 else len(states)
        start = states.find(0, end) if end >= 0 else -1

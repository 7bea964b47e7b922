"""Reads files without leaving a trace in the page cache: what a broker's consumers need stays, what nobody needs goes.

The kernel is asked before which pages it holds; those that came by the read alone are dropped again. Not O_DIRECT: that
would have the kernel write out first what the broker has just stored into its maps, and wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqservice.page_cache import drop_absent_pages, resident_pages

__all__ = ["prepare_descriptor", "read_into", "read_pieces"]

_BLOCK_BYTES: Final = 1 << 20
"""Read at once: large enough for a disk's full speed, small enough not to hold up the broker's own writes."""


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
        drop_absent_pages(descriptor, offset, was_resident)

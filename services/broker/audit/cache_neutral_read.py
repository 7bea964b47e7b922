"""Reads files without leaving a trace in the page cache: what a broker's consumers need stays, what nobody needs goes.

The kernel is asked before which pages it holds; those that came by the read alone are dropped again. A block of which
it holds none goes past the cache (O_DIRECT), for a third of the CPU. Others do not: the kernel would first write out
what the broker has just stored into its maps, and wait for it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqservice.page_cache import drop_absent_pages, resident_pages

__all__ = ["BLOCK_BYTES", "open_direct", "prepare_descriptor", "read_into", "read_pieces"]

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

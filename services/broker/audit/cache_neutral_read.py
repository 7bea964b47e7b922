"""Reads files without leaving a trace in the page cache: what a broker's consumers need stays, what nobody needs goes.

Bytes that are cached already are taken from there. The others are read, used once and dropped again. Not O_DIRECT: that
would have the kernel write out first what the broker has just stored into its maps, and wait for it.
"""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["prepare_descriptor", "read_into"]

_COLD_READ_BYTES: Final = 1 << 20
"""Read from the disk at once: large enough for its full speed, small enough not to hold up the broker's own writes."""
_NO_WAIT_UNKNOWN: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


def prepare_descriptor(descriptor: int) -> None:
    """To be called once for a file that `read_into` is to read: without it the kernel reads ahead what stays behind."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from `offset` of the file; returns how many bytes, fewer only at the file's end. OSError."""
    done = 0
    while done < len(buffer):
        count = _cached(descriptor, buffer[done:], offset + done) or _cold(
            descriptor, buffer[done : done + _COLD_READ_BYTES], offset + done
        )
        if not count:
            break
        done += count
    return done


def _cached(descriptor: int, buffer: memoryview, offset: int) -> int:
    """What the page cache has, from `offset` to the first byte it has not."""
    try:
        return os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        # A file system that cannot tell, such as one in memory: the plain read below does.
        if error.errno in _NO_WAIT_UNKNOWN:
            return 0
        raise


def _cold(descriptor: int, buffer: memoryview, offset: int) -> int:
    count = os.preadv(descriptor, [buffer], offset)
    os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)
    return count

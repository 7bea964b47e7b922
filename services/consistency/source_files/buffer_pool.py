"""Page-aligned memory that is used again as soon as nobody looks at it any more."""

from __future__ import annotations

import mmap
import sys
from typing import Final

__all__ = ["BufferPool"]

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

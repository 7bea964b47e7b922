"""A CommitLog of bytes in memory: what a master serves from, or a slave appends to."""

from __future__ import annotations


class MemoryLog:
    """Holds [min_offset, end_offset). Its bytes depend on their position, so that a misplaced one shows."""

    def __init__(self, *, min_offset: int = 0, end_offset: int = 0, segment_bytes: int = 1 << 30) -> None:
        self.min_offset = min_offset
        self.end_offset = end_offset
        self.segment_bytes = segment_bytes

    def grow(self, length: int) -> tuple[int, int]:
        """Appends; returns the range it takes."""
        start_offset = self.end_offset
        self.end_offset += length
        return start_offset, self.end_offset

    def read(self, start_offset: int, length: int) -> bytes:
        assert self.min_offset <= start_offset
        assert start_offset + length <= self.end_offset
        return bytes(offset * 31 % 251 for offset in range(start_offset, start_offset + length))

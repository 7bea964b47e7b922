"""Which pages of a mapped file are brought before its writer comes to them (docs/adr/0022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mqcore.storage.disk import MappedSegment

__all__ = ["AHEAD_BYTES_MIN", "PageRange", "PagesAhead", "PagesAheadJob"]

AHEAD_BYTES_MIN: Final = 32 << 20
"""What 160 MB a second take from one call to the next: nobody knows yet how fast a log grows that begins to."""
_AHEAD_BYTES_MAX: Final = 64 << 20
_STEP_BYTES: Final = 1 << 20
"""For less nobody is woken."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Bytes of a file."""

    segment: MappedSegment
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PagesAheadJob:
    """Brings pages, in a thread."""

    ranges: Sequence[PageRange]

    def run(self) -> None:
        """Blocks; never raises DiskError."""
        for pages in self.ranges:
            pages.segment.fetch_pages(pages.start, pages.end)


class PagesAhead:
    """Follows one writer that fills files from front to back."""

    def __init__(self) -> None:
        self._segment: MappedSegment | None = None
        # Of that file: where the writer was when it was last asked for, and where the pages that were brought end.
        self._position = 0
        self._end = 0

    def ahead_of(self, segment: MappedSegment, position: int) -> PageRange | None:
        """What is to be brought for a writer that is at `position`, and counts as brought now; None: nothing.

        As far ahead as it gets in four such times between one call and the next.
        """
        if segment is not self._segment or position < self._position:
            self._segment, self._position, self._end = segment, position, position
        ahead = 4 * (position - self._position)
        self._position = position
        start = max(self._end, position)
        end = min(position + min(max(ahead, AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX), segment.size)
        if start == end or (end - start < _STEP_BYTES and end < segment.size):
            return None
        self._end = end
        return PageRange(segment, start, end)

"""Which pages of a mapped file are brought before its writer comes to them (docs/adr/0022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqcore.storage.disk import MappedSegment

__all__ = ["PagesAhead", "PagesAheadJob"]

_AHEAD_BYTES: Final = 16 << 20
_LEFT_BYTES_MIN: Final = _AHEAD_BYTES // 2
"""While more than that is left of what was brought, nobody is woken. An index needs a second and more for it."""


@dataclass(frozen=True, slots=True)
class PagesAheadJob:
    """Brings the pages of [start, end) of a file, in a thread."""

    segment: MappedSegment
    start: int
    end: int

    def run(self) -> None:
        """Blocks; never raises DiskError."""
        self.segment.fetch_pages(self.start, self.end)


class PagesAhead:
    """Follows one writer that fills files from front to back."""

    def __init__(self) -> None:
        self._segment: MappedSegment | None = None
        # Where the pages end that were brought of that file.
        self._end = 0

    def ahead_of(self, segment: MappedSegment, position: int) -> PagesAheadJob | None:
        """What is to be brought for a writer that is at `position`, and counts as brought now; None: nothing."""
        if segment is not self._segment:
            self._segment, self._end = segment, 0
        start = max(self._end, position)
        end = min(position + _AHEAD_BYTES, segment.size)
        if start >= end or start - position > _LEFT_BYTES_MIN:
            return None
        self._end = end
        return PagesAheadJob(segment, start, end)

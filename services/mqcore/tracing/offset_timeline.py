"""When something had come how far in the CommitLog: a bounded memory of (offset, time), searched by either.

What a send waits for (a flush, a slave's report) is told by offsets, and offsets only grow. So the moment at which a
put's wait ended needs no note of its own: it is the first entry at or above the put's end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

__all__ = ["OffsetMark", "OffsetTimeline"]

# At 4,000 entries a second, which is a slave's reports at one send at a time, the last 4 s: longer than a send waits.
_ENTRIES_MAX: Final = 16_384


class OffsetMark(NamedTuple):
    """All below `offset` was reached at `at_ns` on the monotonic clock."""

    offset: int
    at_ns: int


class OffsetTimeline:
    """The newest entries of one thing that follows the log: between `entries_max` and twice as many, 16 bytes each."""

    __slots__ = ("_entries_max", "_forgotten_below", "_offsets", "_times_ns")

    def __init__(self, *, entries_max: int = _ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._offsets = array("q")
        self._times_ns = array("q")
        # Entries up to this offset may have been dropped.
        self._forgotten_below = -1

    def note(self, offset: int, at_ns: int) -> None:
        """All below `offset` is reached. The same again adds nothing; a lower one begins anew, as the log did."""
        offsets = self._offsets
        if offsets and offset <= offsets[-1]:
            if offset == offsets[-1]:
                return
            del offsets[:], self._times_ns[:]
            self._forgotten_below = offset
        offsets.append(offset)
        self._times_ns.append(at_ns)
        if len(offsets) >= 2 * self._entries_max:
            self._forgotten_below = offsets[self._entries_max - 1]
            del offsets[: self._entries_max], self._times_ns[: self._entries_max]

    def begin_at(self, offset: int) -> None:
        """Entries will go on from `offset`; unless they ended there, what was reached before is not known."""
        if self.newest_offset != offset:
            del self._offsets[:], self._times_ns[:]
            self._forgotten_below = offset

    @property
    def newest_offset(self) -> int:
        """How far it is; -1 before the first entry."""
        return self._offsets[-1] if self._offsets else -1

    def first_at_or_above(self, offset: int) -> OffsetMark | None:
        """When everything below `offset` had been reached; None if it was not yet, or too long ago to be known."""
        reached_offset, at_ns = self.entry_at_or_above(offset)
        return None if reached_offset < 0 else OffsetMark(reached_offset, at_ns)

    def entry_at_or_above(self, offset: int) -> tuple[int, int]:
        """The same as a bare pair, which costs no object when compiled; (-1, -1) for None."""
        index = bisect_left(self._offsets, offset)
        if index == len(self._offsets) or offset <= self._forgotten_below:
            return -1, -1
        return self._offsets[index], self._times_ns[index]

    def offset_until(self, at_ns: int) -> int:
        """How far it was at that time; -1 if that is not known."""
        index = bisect_right(self._times_ns, at_ns) - 1
        return -1 if index < 0 else self._offsets[index]

"""Finds where two replicas' logs part, by comparing digests of ranges: few questions, little data.

Both logs began as one, so they share a prefix and differ, byte for byte, from some offset on. The search looks at 4 MiB
blocks from the tail backwards in windows that grow fourfold (a divergence is near the end nearly always), then at
64 KiB blocks of the first block that differs, then at the record boundaries inside that one. A log of 1 TiB takes about
ten questions when it differs near its end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from mqcore.replication.log_extent import LogExtent, LogRange

__all__ = ["RANGES_MAX", "RANGE_BYTES_MAX", "CommonPrefixSearch", "tail_range"]

# Limits of one question, those of ReplicaService.GetRangeDigests.
RANGES_MAX: Final = 1_024
RANGE_BYTES_MAX: Final = 256 << 20

BLOCK_BYTES: Final = 4 << 20
FINE_BLOCK_BYTES: Final = 64 << 10
_WINDOW_BLOCKS_MAX: Final = RANGE_BYTES_MAX // BLOCK_BYTES


class _Phase(Enum):
    BLOCKS = auto()
    FINE_BLOCKS = auto()
    RECORDS = auto()
    DONE = auto()


class CommonPrefixSearch:
    """Asks for digests of ranges of both logs until the end of the common prefix is known.

    `boundaries(start, end)` lists our record boundaries in [start, end], ascending; `boundary_before(offset)` gives the
    last one at or below `offset`. Use: while `next_ranges()` is not empty, get both sides' digests and `answer`.
    `result` is then a record boundary of ours, or None when nothing is common and the slave has to start over.
    """

    def __init__(
        self,
        *,
        ours: LogExtent,
        theirs: LogExtent,
        boundaries: Callable[[int, int], list[int]],
        boundary_before: Callable[[int], int],
    ) -> None:
        self._low = max(ours.min_offset, theirs.min_offset)
        self._high = min(ours.end_offset, theirs.end_offset)
        self._boundaries = boundaries
        self._boundary_before = boundary_before
        self._phase = _Phase.BLOCKS
        self._window_end = self._high
        self._window_blocks = 1
        self._ends: list[int] = []
        self._ranges: list[LogRange] = []
        self.result: int | None = None
        if self._low >= self._high:
            self._phase = _Phase.DONE
        else:
            self._ask_window()

    def next_ranges(self) -> list[LogRange]:
        """Ranges whose digests are wanted from both sides; empty when the search is over."""
        return self._ranges if self._phase is not _Phase.DONE else []

    def answer(self, *, ours: list[bytes], theirs: list[bytes]) -> None:
        """Digests of the ranges last asked for, in their order."""
        assert len(ours) == len(theirs) == len(self._ranges), "one digest per range and side"
        equal = [mine == yours for mine, yours in zip(ours, theirs, strict=True)]
        if self._phase is _Phase.RECORDS:
            self._judge_records(equal)
        else:
            self._judge_blocks(equal)

    def _judge_blocks(self, equal: list[bool]) -> None:
        first_different = equal.index(False) if False in equal else None
        if first_different == 0 and self._phase is _Phase.BLOCKS and self._ranges[0].start_offset > self._low:
            self._window_end = self._ranges[0].start_offset
            self._window_blocks = min(4 * self._window_blocks, _WINDOW_BLOCKS_MAX)
            self._ask_window()
            return
        if first_different is None:
            # All of the window is common: the logs part at its end, or nowhere in the range both hold.
            self._finish(self._ranges[-1].end_offset)
            return
        block = self._ranges[first_different]
        if self._phase is _Phase.BLOCKS:
            self._phase = _Phase.FINE_BLOCKS
            self._ranges = _blocks(block.start_offset, block.end_offset, FINE_BLOCK_BYTES)
            return
        self._phase = _Phase.RECORDS
        self._base = block.start_offset
        self._ends = [end for end in self._boundaries(block.start_offset, block.end_offset) if end > block.start_offset]
        self._ask_records()

    def _judge_records(self, equal: list[bool]) -> None:
        last_equal = max((index for index, same in enumerate(equal) if same), default=None)
        if last_equal == len(equal) - 1 and self._ends:
            self._base = self._ranges[-1].end_offset
            self._ask_records()
            return
        self._finish(self._base if last_equal is None else self._ranges[last_equal].end_offset)

    def _ask_window(self) -> None:
        start = max(self._low, self._window_end - self._window_blocks * BLOCK_BYTES)
        self._ranges = _blocks(start, self._window_end, BLOCK_BYTES)

    def _ask_records(self) -> None:
        ends, self._ends = self._ends[:RANGES_MAX], self._ends[RANGES_MAX:]
        if not ends:
            self._finish(self._base)
            return
        self._ranges = [LogRange(self._base, end) for end in ends]

    def _finish(self, offset: int) -> None:
        self._phase = _Phase.DONE
        boundary = self._boundary_before(offset)
        self.result = boundary if boundary > self._low else None


def tail_range(extent: LogExtent, *, length: int = BLOCK_BYTES) -> LogRange:
    """The last `length` bytes of a log: what a slave states to prove that its log is its master's."""
    return LogRange(max(extent.min_offset, extent.end_offset - length), extent.end_offset)


def _blocks(start: int, end: int, size: int) -> list[LogRange]:
    return [LogRange(offset, min(offset + size, end)) for offset in range(start, end, size)]

"""Finds where two replicas' logs part, by comparing digests of ranges: few questions, little data.

Theory of operation. Both logs began as one, so they share a prefix and part at some record. The search looks at blocks
of 4 MiB from the common tail backwards, in windows that grow fourfold (logs nearly always part close to the end), until
a window begins with enough equal bytes; then at 64 KiB blocks of the first block that differs; then at the records of
ours in the first of those that differs. Logs that part in their last 35 MiB take three questions; a TiB back, about
four thousand of 256 MiB each.

What is enough. Equal bytes prove that everything before them is equal, too, when the header of a record is among them:
it holds the store timestamp, the queue offset and its own position. A block alone may hold none. The rest of a
CommitLog file is filler, and a message that was sent again after a failover may have the same body at the same place in
a log of other history. How long a range has to be no setting tells: larger records may have been taken before it was
lowered. So it is looked whether there is a header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from tandemmq.core.replication.frames import RemoteProtocolError
from tandemmq.core.replication.log_history import LogExtent, LogRange

# Limits of one question, those of ReplicaService.GetRangeDigests.
RANGES_MAX: Final = 1_024
RANGE_BYTES_MAX: Final = 256 << 20

TAIL_BYTES: Final = 9 << 20
"""At least so much has to be equal: with the default maxMessageSize of 4 MiB twice the largest record."""

BLOCK_BYTES: Final = 4 << 20
FINE_BLOCK_BYTES: Final = 64 << 10
_WINDOW_GROWTH: Final = 4
_WINDOW_BLOCKS_MAX: Final = RANGE_BYTES_MAX // BLOCK_BYTES


class _Phase(Enum):
    BLOCKS = auto()
    FINE_BLOCKS = auto()
    RECORDS = auto()
    DONE = auto()


class CommonPrefixSearch:
    """Asks for digests of ranges of both logs until the end of the common prefix is known.

    `boundaries(start, end)` lists our record boundaries in [start, end], ascending; `boundary_before(offset)` gives the
    last one at or below `offset`; `holds_header(start, end)` tells whether a record's is in there. All read our log.
    Use: while `next_ranges()` is not empty, get both sides' digests and `answer`. `result` is then a record boundary of
    ours, or None when nothing is common and the slave has to start over from the master's min offset.

    Cost: at most 1,024 ranges and 256 MiB a question.
    """

    def __init__(
        self,
        *,
        ours: LogExtent,
        theirs: LogExtent,
        boundaries: Callable[[int, int], list[int]],
        boundary_before: Callable[[int], int],
        holds_header: Callable[[int, int], bool],
    ) -> None:
        self._low = max(ours.min_offset, theirs.min_offset)
        self._high = min(ours.end_offset, theirs.end_offset)
        self._boundaries = boundaries
        self._boundary_before = boundary_before
        self._holds_header = holds_header
        self._phase = _Phase.BLOCKS
        self._window_blocks = _WINDOW_GROWTH * -(-TAIL_BYTES // BLOCK_BYTES)
        self._first_different: LogRange | None = None
        self._ranges: list[LogRange] = []
        self.result: int | None = None
        if self._low >= self._high:
            self._phase = _Phase.DONE
        else:
            self._ask_window(self._high)

    def next_ranges(self) -> list[LogRange]:
        """Ranges whose digests are wanted from both sides; empty when the search is over."""
        return self._ranges if self._phase is not _Phase.DONE else []

    def answer(self, *, ours: Sequence[bytes], theirs: Sequence[bytes]) -> None:
        """Digests of the ranges last asked for, in their order. RemoteProtocolError: the peer gave another number."""
        assert len(ours) == len(self._ranges), "one digest of ours per range"
        if len(theirs) != len(self._ranges):
            raise RemoteProtocolError("bad_digests", f"{len(theirs)} digests for {len(self._ranges)} ranges")
        different = next((item for item, a, b in zip(self._ranges, ours, theirs, strict=True) if a != b), None)
        match self._phase:
            case _Phase.BLOCKS:
                self._judge_window(different)
            case _Phase.FINE_BLOCKS:
                self._ask_records(different)
            case _Phase.RECORDS:
                self._finish(self._ranges[-1].end_offset if different is None else different.start_offset)
            case _Phase.DONE:
                raise AssertionError("the search is over")

    def _judge_window(self, different: LogRange | None) -> None:
        window_start, window_end = self._ranges[0].start_offset, self._ranges[-1].end_offset
        equal_end = window_end if different is None else different.start_offset
        is_enough = equal_end - window_start >= TAIL_BYTES and self._holds_header(window_start, equal_end)
        if different is not None:
            self._first_different = different
        if not is_enough and window_start > self._low:
            self._window_blocks = min(_WINDOW_GROWTH * self._window_blocks, _WINDOW_BLOCKS_MAX)
            self._ask_window(window_start)
        elif self._first_different is None:
            self._finish(self._high)
        else:
            self._phase = _Phase.FINE_BLOCKS
            self._ranges = _blocks(*self._first_different, FINE_BLOCK_BYTES)

    def _ask_window(self, window_end: int) -> None:
        start_offset = max(self._low, window_end - self._window_blocks * BLOCK_BYTES)
        self._ranges = _blocks(start_offset, window_end, BLOCK_BYTES)

    def _ask_records(self, block: LogRange | None) -> None:
        """The block starts anywhere; its first range ends with the record that begins before it or with it."""
        if block is None:
            # The larger block differed: the peer's log changed meanwhile. Only what lies before is known to be equal.
            self._finish(self._ranges[0].start_offset)
            return
        ends = [end for end in self._boundaries(*block) if end > block.start_offset][:RANGES_MAX]
        if not ends:
            self._finish(block.start_offset)
            return
        self._phase = _Phase.RECORDS
        starts = [block.start_offset, *ends[:-1]]
        self._ranges = [LogRange(start, end) for start, end in zip(starts, ends, strict=True)]

    def _finish(self, common_end_offset: int) -> None:
        self._phase = _Phase.DONE
        boundary = self._boundary_before(common_end_offset)
        self.result = boundary if boundary > self._low else None


def tail_range(extent: LogExtent, *, holds_header: Callable[[int, int], bool], floor_offset: int = 0) -> LogRange:
    """The end of a log: what a slave states to prove that its log is its master's.

    As long as it has to be for a record's header to be in it, and no longer than a peer compares at once. Nothing below
    `floor_offset`, the master's min offset, is included, since the master cannot compare it.
    """
    lowest, length = max(extent.min_offset, floor_offset), TAIL_BYTES
    while True:
        tail = LogRange(max(lowest, extent.end_offset - length), extent.end_offset)
        if tail.start_offset == lowest or length == RANGE_BYTES_MAX or holds_header(*tail):
            return tail
        length = min(2 * length, RANGE_BYTES_MAX)


def _blocks(start_offset: int, end_offset: int, size: int) -> list[LogRange]:
    return [LogRange(offset, min(offset + size, end_offset)) for offset in range(start_offset, end_offset, size)]

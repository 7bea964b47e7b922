"""CommonPrefixSearch over logs of any size: digests are answered from what the logs are known to differ in."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.common_prefix import (
    RANGE_BYTES_MAX,
    RANGES_MAX,
    TAIL_BYTES,
    CommonPrefixSearch,
    tail_range,
)
from tandemmq.core.replication.frames import RemoteProtocolError
from tandemmq.core.replication.log_history import LogExtent, LogRange

MIB = 1 << 20
HEADER_BYTES = 91
GIB = 1 << 30


@dataclass
class TwoLogs:
    """Ours and theirs, equal below `parts_at` and different behind, but for `lookalikes` (equal by chance).

    `boundaries` are the ends of our records, the first of them the log's start.
    """

    ours: LogExtent
    theirs: LogExtent
    boundaries: list[int]
    parts_at: int
    lookalikes: list[LogRange] = field(default_factory=list)
    questions: int = 0

    def search(self) -> int | None:
        search = CommonPrefixSearch(
            ours=self.ours,
            theirs=self.theirs,
            boundaries=lambda start, end: [at for at in self.boundaries if start <= at <= end],
            boundary_before=lambda offset: self.boundaries[bisect_right(self.boundaries, offset) - 1],
            holds_header=lambda start, end: any(start <= at <= end - HEADER_BYTES for at in self.boundaries[:-1]),
        )
        while ranges := search.next_ranges():
            self.questions += 1
            assert self.questions <= 10_000
            assert len(ranges) <= RANGES_MAX
            assert sum(item.end_offset - item.start_offset for item in ranges) <= RANGE_BYTES_MAX
            for item in ranges:
                for extent in (self.ours, self.theirs):
                    assert extent.min_offset <= item.start_offset < item.end_offset <= extent.end_offset
            search.answer(
                ours=[b"ours" for _ in ranges],
                theirs=[b"ours" if self._equal(item) else b"theirs" for item in ranges],
            )
        return search.result

    def _equal(self, item: LogRange) -> bool:
        covered = any(
            like.start_offset <= max(item.start_offset, self.parts_at) and item.end_offset <= like.end_offset
            for like in self.lookalikes
        )
        return item.end_offset <= self.parts_at or covered


def records(extent: LogExtent, *, size: int) -> list[int]:
    return [*range(extent.min_offset, extent.end_offset, size), extent.end_offset]


def two_logs(parts_at: int, *, ours_end: int, theirs_end: int, size: int = 1_000, low: int = 0) -> TwoLogs:
    ours = LogExtent(low, ours_end)
    return TwoLogs(ours, LogExtent(low, theirs_end), records(ours, size=size), parts_at)


def test_slave_ahead_of_its_master_keeps_all_the_master_has() -> None:
    logs = two_logs(parts_at=7 * MIB, ours_end=7 * MIB + 5_000, theirs_end=7 * MIB)

    assert logs.search() == 7 * MIB // 1_000 * 1_000
    assert logs.questions == 1


def test_result_is_the_start_of_the_first_record_that_differs() -> None:
    logs = two_logs(parts_at=9_999_500, ours_end=12_000_000, theirs_end=12_000_000)

    assert logs.search() == 9_999_000


def test_logs_that_part_close_to_the_end_take_three_questions() -> None:
    logs = two_logs(parts_at=70 * MIB, ours_end=100 * MIB, theirs_end=101 * MIB)

    assert logs.search() == 70 * MIB // 1_000 * 1_000
    assert logs.questions == 3


def test_divergence_at_the_edge_of_a_window_is_narrowed_to_the_record() -> None:
    end = 100 * MIB
    window_start = end - 48 * MIB
    logs = two_logs(parts_at=window_start + 3_500, ours_end=end, theirs_end=end)

    assert logs.search() == (window_start + 3_500) // 1_000 * 1_000


def test_log_of_a_tebibyte_that_differs_far_back() -> None:
    end, parts_at = 1 << 40, 1 << 39
    ours = LogExtent(0, end)
    near = list(range(parts_at - 200_000, parts_at + 8 * MIB, 1_000))
    logs = TwoLogs(ours, LogExtent(0, end), near, parts_at)

    assert logs.search() == max(at for at in near if at <= parts_at)
    assert logs.questions < (end - parts_at) // RANGE_BYTES_MAX + 8


def test_nothing_in_common_is_none() -> None:
    assert two_logs(parts_at=10, ours_end=50_000, theirs_end=50_000).search() is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LogExtent(0, 1_000), LogExtent(2_000, 3_000)),
        (LogExtent(0, 1_000), LogExtent(1_000, 3_000)),
        (LogExtent(0, 1_000), LogExtent(0, 0)),
        (LogExtent(5_000, 9_000), LogExtent(0, 4_000)),
    ],
    ids=["behind its start", "up to its start", "empty master", "master behind our start"],
)
def test_logs_that_do_not_overlap_have_nothing_in_common(ours: LogExtent, theirs: LogExtent) -> None:
    logs = TwoLogs(ours, theirs, records(ours, size=100), parts_at=0)

    assert logs.search() is None
    assert logs.questions == 0


def test_only_what_both_hold_is_compared() -> None:
    ours, theirs = LogExtent(0, 40 * MIB), LogExtent(20 * MIB, 60 * MIB)
    logs = TwoLogs(ours, theirs, records(ours, size=MIB), parts_at=30 * MIB)

    assert logs.search() == 30 * MIB


def test_record_larger_than_a_block() -> None:
    ours = LogExtent(0, 12 * MIB)
    logs = TwoLogs(ours, ours, [0, 3 * MIB, 10 * MIB, 12 * MIB], parts_at=9 * MIB)

    assert logs.search() == 3 * MIB


def test_equal_filler_behind_a_difference_proves_nothing() -> None:
    # The last file of both ends with 4 MiB of filler, and the record before it, 4 MiB, has the same body in both.
    end = GIB
    logs = two_logs(parts_at=end - 50 * MIB, ours_end=end, theirs_end=end, size=MIB)
    logs.lookalikes = [LogRange(end - 8 * MIB, end)]

    assert logs.search() == end - 50 * MIB


def test_equal_body_in_the_middle_proves_nothing() -> None:
    end = 100 * MIB
    logs = two_logs(parts_at=end - 70 * MIB, ours_end=end, theirs_end=end, size=MIB)
    logs.lookalikes = [LogRange(end - 48 * MIB, end - 40 * MIB)]

    assert logs.search() == end - 70 * MIB


def test_peer_that_answers_another_number_of_digests_is_refused() -> None:
    search = CommonPrefixSearch(
        ours=LogExtent(0, 100),
        theirs=LogExtent(0, 100),
        boundaries=lambda start, end: [],
        boundary_before=lambda offset: offset,
        holds_header=lambda start, end: True,
    )

    with pytest.raises(RemoteProtocolError):
        search.answer(ours=[b"digest"], theirs=[])


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_finds_the_longest_common_prefix(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 1 << 32)))
    low = data.draw(st.integers(0, 3)) * GIB
    length = data.draw(st.integers(1, 80 * MIB))
    largest = data.draw(st.sampled_from([1_000, 100_000, 4 * MIB]))
    ends = [low]
    while ends[-1] < low + length:
        ends.append(ends[-1] + random.randint(largest // 10, largest))
    parts_at = random.randint(low, ends[-1])
    ours = LogExtent(low, ends[-1])
    theirs = LogExtent(low, random.randint(parts_at, ends[-1] + MIB))

    logs = TwoLogs(ours, theirs, ends, parts_at)

    expected = max(end for end in ends if end <= parts_at)
    assert logs.search() == (expected if expected > low else None)


def test_equal_body_of_a_record_as_large_as_was_taken_before_proves_nothing() -> None:
    """maxMessageSize may have been lowered since."""
    end = 300 * MIB
    ours = LogExtent(0, end)
    logs = TwoLogs(ours, ours, [*range(0, 100 * MIB + 1, MIB), end - 40 * MIB, end], parts_at=60 * MIB)
    logs.lookalikes = [LogRange(end - 40 * MIB + HEADER_BYTES, end)]

    assert logs.search() == 60 * MIB


@pytest.mark.parametrize(
    ("header_at", "length"),
    [(GIB - 1_000, TAIL_BYTES), (GIB - 10 * MIB, 2 * TAIL_BYTES), (GIB - 129 * MIB, 144 * MIB), (0, RANGE_BYTES_MAX)],
)
def test_tail_is_long_enough_to_hold_a_records_header_and_no_longer_than_a_peer_compares(
    header_at: int, length: int
) -> None:
    tail = tail_range(LogExtent(0, GIB), holds_header=lambda start, _end: start <= header_at)
    assert tail == LogRange(GIB - length, GIB)


def test_tail_holds_nothing_the_log_or_its_master_does_not() -> None:
    def never(_start: int, _end: int) -> bool:
        return False

    assert tail_range(LogExtent(GIB - MIB, GIB), holds_header=never) == LogRange(GIB - MIB, GIB)
    floor = GIB - 1_000
    assert tail_range(LogExtent(0, GIB), holds_header=never, floor_offset=floor) == LogRange(floor, GIB)


def test_ranges_of_a_question_are_adjacent() -> None:
    search = CommonPrefixSearch(
        ours=LogExtent(0, 30 * MIB),
        theirs=LogExtent(0, 30 * MIB),
        boundaries=lambda start, end: [],
        boundary_before=lambda offset: offset,
        holds_header=lambda start, end: True,
    )

    ranges = search.next_ranges()

    assert all(before.end_offset == after.start_offset for before, after in pairwise(ranges))
    assert ranges[-1].end_offset == 30 * MIB

"""What a run reads: the new, the doubtful, and a share of the old; all of it in a deep run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.consistency.planning import (
    GroupMemory,
    RangePlan,
    ScrubOptions,
    chunks,
    differing_to_remember,
    in_waves,
    merged,
    plan_ranges,
    total_bytes,
)
from tandemmq.core.audit.equality import SeenReplica
from tandemmq.core.audit.run_summary import Tier
from tandemmq.core.replication.log_history import LogRange

_EXTENT = 1 << 20
_DAY_S = 86_400.0
_WEEKLY = ScrubOptions(window_s=7 * _DAY_S, budget_bytes=1 << 40)
_MEMORY = GroupMemory(algorithm="xxh3_128", extent_bytes=_EXTENT)


def _plan(
    end: int,
    watermark: int = 0,
    *,
    start: int = 0,
    memory: GroupMemory = _MEMORY,
    tier: Tier = Tier.QUICK,
    scrub: ScrubOptions = _WEEKLY,
    now_s: float = 100 * _DAY_S,
) -> RangePlan:
    return plan_ranges(tier, LogRange(start, end), memory, watermark, scrub=scrub, now_s=now_s)


def test_first_run_reads_everything_once() -> None:
    plan = _plan(5 * _EXTENT + 17)

    assert plan.ranges == (LogRange(0, 5 * _EXTENT + 17),)
    assert plan.again == ()


def test_a_clock_that_was_ahead_ends_no_reading_of_old_bytes() -> None:
    """Nothing would be read again before it is that late."""
    memory = replace(_MEMORY, scrubbed_at_s=500 * _DAY_S)
    plan = _plan(100 * _EXTENT, 100 * _EXTENT, memory=memory)
    assert (plan.again, plan.scrubbed_at_s) == ((), 100 * _DAY_S)
    plan = _plan(100 * _EXTENT, 100 * _EXTENT, memory=replace(memory, scrubbed_at_s=100 * _DAY_S), now_s=101 * _DAY_S)
    assert total_bytes(plan.again)


def test_run_over_an_unchanged_log_reads_nothing() -> None:
    assert _plan(5 * _EXTENT + 17, 5 * _EXTENT + 17).ranges == ()


def test_new_bytes_are_read_from_the_extent_that_was_cut_short() -> None:
    assert _plan(9 * _EXTENT, 5 * _EXTENT + 17).new == (LogRange(5 * _EXTENT, 9 * _EXTENT),)


def test_what_retention_removed_is_not_read() -> None:
    plan = _plan(9 * _EXTENT, 2 * _EXTENT, start=4 * _EXTENT)

    assert plan.ranges == (LogRange(4 * _EXTENT, 9 * _EXTENT),)


def test_deep_run_reads_all_of_it() -> None:
    plan = _plan(9 * _EXTENT, 9 * _EXTENT, tier=Tier.DEEP)

    assert plan.new == ()
    assert plan.again == (LogRange(0, 9 * _EXTENT),)


def test_what_differed_is_read_again_however_old_it_is() -> None:
    memory = replace(_MEMORY, differing=(LogRange(3 * _EXTENT + 5, 3 * _EXTENT + 9),))

    assert _plan(9 * _EXTENT, 9 * _EXTENT, memory=memory).again == (LogRange(3 * _EXTENT, 4 * _EXTENT),)


def test_scrub_takes_the_share_of_the_time_that_passed() -> None:
    memory = replace(_MEMORY, scrubbed_at_s=99 * _DAY_S, scrub_cursor=7 * _EXTENT)

    plan = _plan(70 * _EXTENT, 70 * _EXTENT, memory=memory)

    assert plan.again == (LogRange(7 * _EXTENT, 17 * _EXTENT),)
    assert plan.scrub_cursor == 17 * _EXTENT
    assert plan.scrubbed_at_s == 100 * _DAY_S


def test_scrub_goes_on_at_the_beginning() -> None:
    memory = replace(_MEMORY, scrubbed_at_s=99 * _DAY_S, scrub_cursor=65 * _EXTENT)

    plan = _plan(70 * _EXTENT, 70 * _EXTENT, memory=memory)

    assert plan.again == (LogRange(0, 5 * _EXTENT), LogRange(65 * _EXTENT, 70 * _EXTENT))
    assert plan.scrub_cursor == 5 * _EXTENT


def test_scrub_keeps_to_its_budget() -> None:
    memory = replace(_MEMORY, scrubbed_at_s=99 * _DAY_S)

    plan = _plan(70 * _EXTENT, 70 * _EXTENT, memory=memory, scrub=replace(_WEEKLY, budget_bytes=3 * _EXTENT))

    assert total_bytes(plan.again) == 3 * _EXTENT


def test_time_too_short_for_an_extent_is_saved_up() -> None:
    memory = replace(_MEMORY, scrubbed_at_s=100 * _DAY_S - 60)

    plan = _plan(70 * _EXTENT, 70 * _EXTENT, memory=memory)

    assert plan.again == ()
    assert plan.scrubbed_at_s == 100 * _DAY_S - 60


@given(
    end=st.integers(1, 60 * _EXTENT),
    hours=st.lists(st.integers(1, 60), min_size=1, max_size=60),
)
def test_everything_old_is_read_again_within_twice_the_window(end: int, hours: list[int]) -> None:
    memory, now_s = replace(_MEMORY, scrubbed_at_s=0.0), 0.0
    read: list[LogRange] = []
    for pause in hours:
        now_s += 3_600.0 * pause
        plan = _plan(end, end, memory=memory, now_s=now_s)
        assert total_bytes(plan.again) <= end
        read += plan.again
        memory = replace(memory, scrub_cursor=plan.scrub_cursor, scrubbed_at_s=plan.scrubbed_at_s)
    if now_s >= 2 * _WEEKLY.window_s:
        assert merged(read) == (LogRange(0, end),)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 50))))
def test_merged_ranges_hold_the_same_bytes_once(pairs: list[tuple[int, int]]) -> None:
    ranges = [LogRange(start, start + length) for start, length in pairs]

    found = merged(ranges)

    assert {byte for part in found for byte in range(*part)} == {byte for part in ranges for byte in range(*part)}
    assert all(before.end_offset < after.start_offset for before, after in pairwise(found))


def test_chunks_end_at_absolute_multiples() -> None:
    assert chunks([LogRange(5, 25), LogRange(30, 31)], 10) == [
        LogRange(5, 10),
        LogRange(10, 20),
        LogRange(20, 25),
        LogRange(30, 31),
    ]


def test_waves_hold_every_piece_once() -> None:
    pieces = chunks([LogRange(0, 95)], 10)

    assert [piece for wave in in_waves(pieces, 4) for piece in wave] == pieces


def test_many_differences_are_remembered_in_few_ranges() -> None:
    ranges = [LogRange(number * 16 * _EXTENT, number * 16 * _EXTENT + 1) for number in range(5_000)]

    kept = differing_to_remember(ranges)

    assert len(kept) <= 1_000
    assert merged([*kept, *ranges]) == kept


def test_watermark_of_a_group_is_that_of_the_replica_verified_least() -> None:
    memory = replace(_MEMORY, replica_watermarks={0: 900, 1: 500})

    assert memory.watermark([0, 1]) == 500
    assert memory.watermark([0]) == 900
    assert memory.watermark([0, 1, 2]) == 0


@pytest.mark.parametrize("ends_first", ["quick", "deep"])
def test_of_runs_that_overlap_the_one_that_began_later_saw_the_replicas_last(ends_first: str) -> None:
    """A deep run takes hours: what hourly runs saw meanwhile of a log is not forgotten when it ends."""
    start = replace(_MEMORY, run_id="1", seen={0: SeenReplica(0, 50)})
    deep = replace(start, run_id="2", seen={0: SeenReplica(0, 100, 100), 1: SeenReplica(0, 90)})
    quick = replace(start, run_id="3", seen={0: SeenReplica(0, 200, 150)})
    one, other = (deep, quick) if ends_first == "quick" else (quick, deep)
    joined = one.joined(start, other)
    assert joined.seen == {0: SeenReplica(0, 200, 150), 1: SeenReplica(0, 90)}


@pytest.mark.parametrize("ends_first", ["quick", "deep"])
@pytest.mark.parametrize("began_first", ["quick", "deep"])
def test_what_a_deep_run_saw_of_kept_bytes_is_not_forgotten_for_a_quick_one_beside_it(
    began_first: str, ends_first: str
) -> None:
    """Forgotten, they would be seen for the first time by each deep run, and never be other than before."""
    run_ids = {"quick": "2", "deep": "3"} if began_first == "quick" else {"quick": "3", "deep": "2"}
    before = SeenReplica(0, 50, kept={"kept-tails/gone.log": "1"})
    start = replace(_MEMORY, run_id="1", deep_run_id="1", seen={0: before})
    quick = replace(start, run_id=run_ids["quick"], seen={0: replace(before, end_offset=200)})
    seen = SeenReplica(0, 100, kept={"kept-tails/new.log": "2"})
    deep = replace(start, run_id=run_ids["deep"], deep_run_id=run_ids["deep"], seen={0: seen})
    one, other = (deep, quick) if ends_first == "quick" else (quick, deep)
    assert one.joined(start, other).seen[0].kept == {"kept-tails/new.log": "2"}


def test_memory_survives_its_file() -> None:
    memory = replace(
        _MEMORY,
        replica_watermarks={0: 900, 1: 500},
        differing=(LogRange(1, 2),),
        extent_files=(("20261121T220000Z-1f3a.parquet", 0, 900),),
        scrubbed_at_s=12.5,
    )

    assert GroupMemory.from_json(memory.to_json()) == memory

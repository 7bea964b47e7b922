"""When a slave's log is dispatched, by what is waiting and how fast it came."""

from __future__ import annotations

from typing import Final

from tandemmq.core.replication.sessions import DispatchPace

KIB: Final = 1 << 10
MS: Final = 1_000_000


def test_batch_of_half_a_read_waits_for_nothing() -> None:
    for walk_bytes_max in (0, 192 * KIB):
        pace = DispatchPace(walk_bytes_max=walk_bytes_max)
        pace.dispatched(0)
        assert pace.is_due(2_048 * KIB, 0)
        assert not pace.is_due(2_048 * KIB - 1, 0)


def test_moderate_growth_is_dispatched_a_little_at_a_time() -> None:
    pace = DispatchPace(walk_bytes_max=192 * KIB)
    pace.dispatched(100 * MS)
    assert not pace.is_due(32 * KIB - 1, 105 * MS), "for so little nothing is done"
    assert pace.is_due(32 * KIB, 101 * MS)
    assert pace.is_due(128 * KIB, 102 * MS)
    assert pace.is_due(192 * KIB, 103 * MS)


def test_fast_growth_gathers() -> None:
    pace = DispatchPace(walk_bytes_max=192 * KIB)
    pace.dispatched(100 * MS)
    assert not pace.is_due(128 * KIB, 101 * MS)
    assert not pace.is_due(192 * KIB, 102 * MS)
    assert not pace.is_due(192 * KIB + 1, 200 * MS), "no more than is walked"


def test_where_nothing_is_walked_all_gathers() -> None:
    pace = DispatchPace(walk_bytes_max=0)
    assert not pace.is_due(128 * KIB, 1_000 * MS)

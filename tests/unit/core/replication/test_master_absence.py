"""When a slave serves reads, by what it sees of its group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.replication.master_absence import STAGGER_MS, MasterAbsence, ReadsStep, Sight

GRACE_MS = 3_000


def after(sights: list[Sight], *, rank: int = 0) -> MasterAbsence:
    """One look a second."""
    reads = MasterAbsence(GRACE_MS)
    for second, sight in enumerate(sights):
        reads.look(sight, rank=rank, now_ms=second * 1_000)
    return reads


def test_it_serves_when_nobody_did_for_long_enough() -> None:
    assert not after([Sight.MASTER] + 3 * [Sight.NOBODY]).serves
    assert after([Sight.MASTER] + 4 * [Sight.NOBODY]).serves


def test_one_that_others_go_before_waits_longer() -> None:
    assert not after(4 * [Sight.NOBODY], rank=1).serves
    assert after(5 * [Sight.NOBODY], rank=1).serves
    assert STAGGER_MS == 1_000


def test_a_moment_of_a_master_begins_the_wait_anew() -> None:
    assert not after(3 * [Sight.NOBODY] + [Sight.MASTER] + 3 * [Sight.NOBODY]).serves


def test_a_master_that_waits_for_hours_does_not_keep_a_slave_from_serving() -> None:
    assert after(4 * [Sight.STARTING]).serves


@pytest.mark.parametrize("sight", [Sight.MASTER, Sight.READER])
def test_it_gives_way(sight: Sight) -> None:
    reads = after(4 * [Sight.NOBODY])
    assert reads.look(sight, rank=0, now_ms=9_000) is ReadsStep.END
    assert reads.look(sight, rank=0, now_ms=9_001) is ReadsStep.STAY


def test_no_name_server_begins_nothing_and_ends_nothing() -> None:
    assert not after(9 * [Sight.UNKNOWN]).serves
    assert not after(2 * [Sight.NOBODY] + 9 * [Sight.UNKNOWN]).serves
    assert after(4 * [Sight.NOBODY] + 9 * [Sight.UNKNOWN]).serves


def test_after_its_promise_it_gives_nothing_while_the_master_starts() -> None:
    reads = after(4 * [Sight.NOBODY])
    assert reads.promised() is ReadsStep.END
    for second in range(10, 100):
        assert reads.look(Sight.STARTING, rank=0, now_ms=second * 1_000) is ReadsStep.STAY
    assert not reads.serves


def test_a_master_that_dies_after_the_promise_does_not_silence_it_for_ever() -> None:
    reads = after(4 * [Sight.NOBODY])
    reads.promised()
    steps = [reads.look(Sight.NOBODY, rank=0, now_ms=10_000 + second * 1_000) for second in range(4)]
    assert steps == 3 * [ReadsStep.STAY] + [ReadsStep.BEGIN]


@given(st.lists(st.one_of(st.sampled_from(Sight), st.none()), max_size=40))
def test_steps_and_state_agree(sights: list[Sight | None]) -> None:
    reads, serves = MasterAbsence(GRACE_MS), False
    for second, sight in enumerate(sights):
        step = reads.promised() if sight is None else reads.look(sight, rank=0, now_ms=second * 1_000)
        serves = step is ReadsStep.BEGIN or (serves and step is not ReadsStep.END)
        assert reads.serves is serves
        assert not (serves and sight in (Sight.MASTER, Sight.READER, None))

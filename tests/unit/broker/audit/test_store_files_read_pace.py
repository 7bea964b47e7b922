from __future__ import annotations

import pytest

from tandemmq.broker.audit.store_files import ReadPace

START_S = 50.0


def total_s(pace: ReadPace, *, reads: int, late_s: float = 0.0) -> float:
    """How long so many reads of 100 bytes take, if each sleep ends so late."""
    now_s = START_S
    for _ in range(reads):
        now_s += pace.wait_s(100, now_s=now_s) + late_s
    return now_s - START_S


def test_reads_take_their_time_and_no_more() -> None:
    assert total_s(ReadPace(1_000), reads=100) == pytest.approx(10, abs=0.11)


def test_sleeps_that_end_late_are_made_up_for() -> None:
    assert total_s(ReadPace(1_000), reads=100, late_s=0.02) == pytest.approx(10, abs=0.11)


def test_time_spent_reading_counts() -> None:
    pace = ReadPace(1_000)
    pace.wait_s(1_000, now_s=START_S)
    assert pace.wait_s(100, now_s=START_S + 0.95) == pytest.approx(0.05)


def test_a_pause_earns_no_burst() -> None:
    pace = ReadPace(1_000)
    pace.wait_s(100, now_s=START_S)
    assert pace.wait_s(300, now_s=1_000.0) == pytest.approx(0.2)

from __future__ import annotations

import pytest

from broker.audit.read_pace import ReadPace


def test_reads_take_their_time_and_no_more() -> None:
    pace = ReadPace(1_000)
    now_s, read = 50.0, 0
    for _ in range(20):
        read += 100
        now_s += pace.wait_s(100, now_s=now_s)
    assert now_s - 50.0 == pytest.approx(read / 1_000)


def test_time_spent_reading_counts() -> None:
    pace = ReadPace(1_000)
    assert pace.wait_s(100, now_s=10.0) == pytest.approx(0.1)
    assert pace.wait_s(100, now_s=10.15) == pytest.approx(0.1)


def test_a_pause_earns_no_burst() -> None:
    pace = ReadPace(1_000)
    pace.wait_s(100, now_s=10.0)
    assert pace.wait_s(100, now_s=1_000.0) == pytest.approx(0.1)

"""Quantiles from counted latencies."""

from __future__ import annotations

import pytest

from tandemmq.admin.cluster_state import LatencyCounts
from tandemmq.admin.history import between, quantile_s

_BOUNDS = (0.001, 0.01, 0.1)


def test_quantile_lies_within_its_bucket() -> None:
    latency = LatencyCounts(_BOUNDS, (0, 10, 0, 0))
    assert quantile_s(latency, 0.5) == pytest.approx(0.0055)
    assert quantile_s(latency, 1.0) == pytest.approx(0.01)


def test_first_bucket_begins_at_zero() -> None:
    assert quantile_s(LatencyCounts(_BOUNDS, (4, 0, 0, 0)), 0.5) == pytest.approx(0.0005)


def test_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile_s(LatencyCounts(_BOUNDS, (1, 0, 0, 99)), 0.99) == pytest.approx(0.1)


def test_nothing_observed_is_not_known() -> None:
    assert quantile_s(LatencyCounts(_BOUNDS, (0, 0, 0, 0)), 0.5) is None
    assert quantile_s(LatencyCounts(), 0.5) is None


def test_difference_of_two_readings() -> None:
    earlier, later = LatencyCounts(_BOUNDS, (1, 2, 3, 0), 0.2), LatencyCounts(_BOUNDS, (1, 5, 3, 1), 0.7)
    change = between(earlier, later)
    assert change is not None
    assert change.counts == (0, 3, 0, 1)
    assert change.sum_s == pytest.approx(0.5)


def test_readings_of_two_processes_have_no_difference() -> None:
    assert between(LatencyCounts(_BOUNDS, (9, 0, 0, 0)), LatencyCounts(_BOUNDS, (1, 0, 0, 0))) is None
    assert between(LatencyCounts(), LatencyCounts(_BOUNDS, (1, 0, 0, 0))) is None
    assert between(LatencyCounts(_BOUNDS, (1, 0, 0, 0)), LatencyCounts()) is None

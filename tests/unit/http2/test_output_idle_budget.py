"""How many frames that bring nothing a peer may send."""

from __future__ import annotations

import pytest

from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits
from tandemmq.http2.output import IdleBudget

LIMITS = Limits(idle_burst=10, idle_per_s=2, idle_per_answer=3)


def frames_until_failure(budget: IdleBudget, now: float, *, at_most: int = 100) -> int:
    """So many pass."""
    for count in range(at_most):
        try:
            budget.charge("too_many_pings", now)
        except ConnectionFailure:
            return count
    return at_most


def test_a_burst_passes_and_the_next_frame_ends_the_connection_by_its_name() -> None:
    budget = IdleBudget(LIMITS, 5.0)
    for _ in range(10):
        budget.charge("too_many_pings", 5.0)
    with pytest.raises(ConnectionFailure, match="too many resets") as raised:
        budget.charge("too_many_resets", 5.0)
    assert (raised.value.code, raised.value.counter) == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_resets")


@pytest.mark.parametrize(("seconds", "answers", "more"), [(1.0, 0, 2), (2.6, 0, 5), (0.0, 2, 6), (1.0, 2, 8)])
def test_time_and_answers_earn_frames(seconds: float, answers: int, more: int) -> None:
    budget = IdleBudget(LIMITS, 5.0)
    budget.answers += answers
    assert frames_until_failure(budget, 5.0 + seconds) == 10 + more


def test_no_more_than_a_burst_is_ever_saved_up() -> None:
    budget = IdleBudget(LIMITS, 5.0)
    for _ in range(10):
        budget.charge("too_many_pings", 5.0)
    budget.answers = 1_000
    assert frames_until_failure(budget, 10_000.0) == 1 + 10


def test_a_frame_may_cost_as_much_as_many() -> None:
    budget = IdleBudget(LIMITS, 0.0)
    budget.charge("too_many_settings", 0.0, 10)
    with pytest.raises(ConnectionFailure):
        budget.charge("too_many_settings", 0.0, 1)

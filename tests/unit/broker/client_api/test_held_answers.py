"""When refusals are told: after their pause, before a caller gives up, and few in a turn of the loop."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.manual_time import ManualTime, OffsetClock
from tandemmq.broker.client_api import held_answers
from tandemmq.broker.client_api.held_answers import MARGIN_MS, TOLD_AT_ONCE, HeldAnswers


class Told:
    """What was told, and when."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.held = HeldAnswers(clock=self.time, timers=self.time)
        self.at_ms: dict[int, int] = {}
        self._count = 0

    def hold(self, pause_ms: int, *, deadline_ms: int | None = None) -> int:
        """The number of one more."""
        number = self._count
        self._count += 1

        def tell() -> None:
            assert number not in self.at_ms
            self.at_ms[number] = self.time.monotonic_ms()

        self.held.hold(pause_ms, tell, deadline_ms=deadline_ms)
        return number


def test_thousands_whose_pauses_end_together_are_not_told_in_one_turn() -> None:
    told = Told()
    for _ in range(2_000):
        told.hold(1_000)
    told.time.advance(999)
    assert not told.at_ms
    told.time.advance(1_000)
    assert list(told.at_ms) == list(range(2_000))
    assert max(Counter(told.at_ms.values()).values()) == TOLD_AT_ONCE
    assert told.at_ms[1_999] == 1_000 + 2_000 // TOLD_AT_ONCE - 1


@pytest.mark.parametrize(("late_ms", "at_once"), [(0, 1), (1, 2), (3, 4), (500, 4)])
def test_where_the_loop_is_late_more_are_told_but_not_all(late_ms: int, at_once: int) -> None:
    """Quotas of many messages a second are not to be less because a timer is."""
    told = Told()
    for _ in range(1_000):
        told.hold(10)
    clock = OffsetClock(told.time)
    clock.push(late_ms)
    told.held._clock = clock
    told.time.advance(10)
    assert len(told.at_ms) == at_once * TOLD_AT_ONCE


def test_a_caller_who_gives_up_earlier_is_told_before() -> None:
    told = Told()
    told.time.advance(50)
    soon, late, too_late = (told.hold(1_000, deadline_ms=at_ms) for at_ms in (550, 9_000, 60))
    told.time.advance(2_000)
    assert [told.at_ms[number] for number in (soon, late, too_late)] == [550 - MARGIN_MS, 1_050, 51]


def test_one_that_cannot_be_told_keeps_nobody_else() -> None:
    told = Told()

    def fail() -> None:
        raise ZeroDivisionError

    told.held.hold(10, fail)
    number = told.hold(10)
    with pytest.raises(ZeroDivisionError):
        told.time.advance(10)
    told.time.advance(1)
    assert told.at_ms[number] == 11
    assert len(told.held) == 0


def test_however_many_wait_it_is_the_first_that_is_told_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it the last, whoever asks again at once would never wait."""
    monkeypatch.setattr(held_answers, "_HELD_MAX", 100)
    told = Told()
    for number in range(1_000):
        told.hold(1_000)
        assert len(told.at_ms) == max(0, number - 99)
    assert list(told.at_ms) == list(range(900))
    told.time.advance(1_010)
    assert list(told.at_ms) == list(range(1_000))


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 300), st.none() | st.integers(0, 400)), min_size=1, max_size=150
    )
)
def test_each_is_told_once_and_as_late_as_those_before_it_take(steps: list[tuple[int, int, int | None]]) -> None:
    told = Told()
    due_ms: list[int] = []
    for passed_ms, pause_ms, left_ms in steps:
        told.time.advance(passed_ms)
        now_ms = told.time.monotonic_ms()
        told.hold(pause_ms, deadline_ms=None if left_ms is None else now_ms + left_ms)
        pauses = [pause_ms] if left_ms is None else [pause_ms, left_ms - MARGIN_MS]
        due_ms.append(now_ms + max(0, min(pauses)))
    told.time.advance(1_000)
    assert len(told.at_ms) == len(steps)
    assert max(Counter(told.at_ms.values()).values()) <= TOLD_AT_ONCE
    late_ms = 1 + len(steps) // TOLD_AT_ONCE
    assert all(due <= told.at_ms[number] <= due + late_ms for number, due in enumerate(due_ms))

"""Failed sign-ins slow their own address down."""

from __future__ import annotations

import itertools

from tandemmq.core.access.sign_ins import FAILURES_MAX, FREE_FAILURES, WINDOW_MS, SignInLimit


def test_the_first_failures_are_answered_at_once_and_later_ones_ever_later() -> None:
    limit = SignInLimit()
    delays = [limit.failed("10.0.0.1", now_ms=number) for number in range(20)]
    assert delays[:FREE_FAILURES] == [0] * FREE_FAILURES
    assert all(before <= after for before, after in itertools.pairwise(delays))
    assert 1_000 <= delays[-1] < 3_000, "clients wait 3 s"


def test_another_address_is_not_slowed_down() -> None:
    limit = SignInLimit()
    for number in range(FAILURES_MAX + 1):
        limit.failed("10.0.0.1", now_ms=number)
    assert limit.is_blocked("10.0.0.1", "ann", now_ms=500)
    assert not limit.is_blocked("10.0.0.2", "ann", now_ms=500)
    assert limit.failed("10.0.0.2", now_ms=500) == 0


def test_a_user_that_signed_in_from_the_address_is_still_heard() -> None:
    limit = SignInLimit()
    limit.succeeded("10.0.0.1", "ann", now_ms=0)
    for number in range(FAILURES_MAX):
        limit.failed("10.0.0.1", now_ms=number)
    assert not limit.is_blocked("10.0.0.1", "ann", now_ms=500)
    assert limit.is_blocked("10.0.0.1", "bob", now_ms=500)


def test_a_minute_later_all_is_forgiven() -> None:
    limit = SignInLimit()
    for number in range(FAILURES_MAX):
        limit.failed("10.0.0.1", now_ms=number)
    assert not limit.is_blocked("10.0.0.1", "bob", now_ms=WINDOW_MS + 1)
    assert limit.failed("10.0.0.1", now_ms=WINDOW_MS + 1) == 0


def test_very_many_addresses_take_bounded_memory() -> None:
    limit = SignInLimit()
    for number in range(20_000):
        limit.failed(str(number), now_ms=number)
        limit.succeeded(str(number), "ann", now_ms=number)
    assert len(limit._failures) <= 10_000
    assert len(limit._known) <= 10_000

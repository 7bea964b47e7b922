"""New groups by name: how many a second, and how many in all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.metadata.subscription_group_table import CreationLimit


def made(limit: CreationLimit, client_id: str, times: int, *, now_ms: int) -> int:
    return sum(limit.refusal(client_id, count=0, now_ms=now_ms) is None for _ in range(times))


def test_one_client_takes_neither_the_whole_second_nor_a_later_one() -> None:
    limit = CreationLimit(per_second=50, per_client_per_second=10, count_max=1_000)
    assert made(limit, "a", 100, now_ms=0) == 10
    assert made(limit, "b", 5, now_ms=0) == 5
    assert made(limit, "a", 100, now_ms=500) == 5
    assert made(limit, "a", 100, now_ms=60_000) == 10
    refusal = limit.refusal("a", count=0, now_ms=60_000)
    assert refusal is not None
    assert "newGroupsPerClientPerSecond=10" in refusal


def test_many_clients_together_have_a_limit_too() -> None:
    limit = CreationLimit(per_second=50, per_client_per_second=10, count_max=1_000)
    assert sum(made(limit, f"c{number}", 3, now_ms=0) for number in range(5_000)) == 50
    refusal = limit.refusal("new", count=0, now_ms=0)
    assert refusal is not None
    assert "newGroupsPerSecond=50" in refusal


def test_there_are_never_more_than_the_most() -> None:
    limit = CreationLimit(per_second=50, per_client_per_second=10, count_max=3)
    assert limit.refusal("a", count=2, now_ms=0) is None
    refusal = limit.refusal("a", count=3, now_ms=0)
    assert refusal is not None
    assert "subscriptionGroupsMax is 3" in refusal


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=300))
def test_in_no_second_more_than_two_seconds_worth(asks: list[tuple[int, int]]) -> None:
    limit = CreationLimit(per_second=20, per_client_per_second=7, count_max=10_000)
    now_ms, at = 0, []
    for client, pause_ms in asks:
        now_ms += pause_ms
        if limit.refusal(str(client), count=0, now_ms=now_ms) is None:
            at.append((now_ms, client))
    for start_ms, _ in at:
        within = [client for ms, client in at if start_ms <= ms < start_ms + 1_000]
        assert len(within) <= 40
        assert all(within.count(client) <= 14 for client in range(4))

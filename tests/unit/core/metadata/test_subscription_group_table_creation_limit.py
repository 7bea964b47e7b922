"""New groups by name: how many a second, and how many in all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.metadata.subscription_group_table import CreationLimit


def limit_of(*, per_second: int = 50, per_client: int = 10, count_max: int = 1_000) -> CreationLimit:
    return CreationLimit(
        per_second=per_second, per_client_per_second=per_client, count_max=count_max, is_there=lambda _: True
    )


def made(limit: CreationLimit, client_id: str, times: int, *, now_ms: int, whose: str = "us") -> int:
    names = (f"{client_id}-{now_ms}-{number}" for number in range(times))
    return sum(limit.refusal(name, client_id, whose, count=0, now_ms=now_ms) is None for name in names)


def test_one_client_takes_neither_the_whole_second_nor_a_later_one() -> None:
    limit = limit_of()
    assert made(limit, "a", 100, now_ms=0) == 10
    assert made(limit, "b", 5, now_ms=0) == 5
    assert made(limit, "a", 100, now_ms=500) == 5
    assert made(limit, "a", 100, now_ms=60_000) == 10
    refusal = limit.refusal("new", "a", "us", count=0, now_ms=60_000)
    assert refusal is not None
    assert "newGroupsPerClientPerSecond=10" in refusal


def test_many_clients_together_have_a_limit_too() -> None:
    limit = limit_of()
    assert sum(made(limit, f"c{number}", 3, now_ms=0) for number in range(5_000)) == 50
    refusal = limit.refusal("new", "new", "us", count=0, now_ms=0)
    assert refusal is not None
    assert "newGroupsPerSecond=50" in refusal


def test_there_are_never_more_than_the_most() -> None:
    limit = limit_of(count_max=3)
    assert limit.refusal("new", "a", "us", count=2, now_ms=0) is None
    refusal = limit.refusal("new", "a", "us", count=3, now_ms=0)
    assert refusal is not None
    assert "subscriptionGroupsMax is 3" in refusal


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=300))
def test_in_no_second_more_than_two_seconds_worth(asks: list[tuple[int, int]]) -> None:
    limit = limit_of(per_second=20, per_client=7, count_max=10_000)
    now_ms = 0
    at: list[tuple[int, int]] = []
    for client, pause_ms in asks:
        now_ms += pause_ms
        if limit.refusal(str(len(at)), str(client), "us", count=0, now_ms=now_ms) is None:
            at.append((now_ms, client))
    for start_ms, _ in at:
        within = [client for ms, client in at if start_ms <= ms < start_ms + 1_000]
        assert len(within) <= 40
        assert all(within.count(client) <= 14 for client in range(4))


def test_who_invents_clients_leaves_others_their_share_of_a_second() -> None:
    limit = limit_of()
    for now_ms in range(0, 3_000, 100):
        for number in range(20):
            made(limit, f"m{now_ms}{number}", 2, now_ms=now_ms, whose="mallory")
        assert made(limit, "a", 1, now_ms=now_ms, whose="ann") == 1
        assert made(limit, "b", 1, now_ms=now_ms, whose="bob") == 1
    assert made(limit, "m", 5, now_ms=3_000, whose="mallory") <= 5


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.sampled_from([0, 0, 10, 400])), max_size=60))
def test_shares_beside_are_no_more_than_as_many_again(asks: list[tuple[int, int, int]]) -> None:
    limit = limit_of(per_second=20, per_client=20)
    now_ms = 0
    at: list[int] = []
    for user, times, pause_ms in asks:
        now_ms += pause_ms
        at += [now_ms] * made(limit, f"{user}-{len(at)}", times, now_ms=now_ms, whose=str(user))
        assert len(limit._makers) <= 10
    for start_ms in at:
        assert sum(start_ms <= ms < start_ms + 1_000 for ms in at) <= 80


def test_one_maker_leaves_a_part_of_all_that_there_may_be_to_others() -> None:
    there: set[str] = set()
    limit = CreationLimit(
        per_second=1_000, per_client_per_second=1_000, count_max=100, is_there=lambda name: name in there
    )

    def makes(whose: str, times: int, now_ms: int) -> int:
        count = len(there)
        for number in range(times):
            name = f"{whose}-{now_ms}-{number}"
            if limit.refusal(name, whose, whose, count=len(there), now_ms=now_ms) is None:
                there.add(name)
        return len(there) - count

    assert makes("mallory", 200, 0) == 75
    refusal = limit.refusal("x", "m2", "mallory", count=75, now_ms=0)
    assert refusal is not None
    assert "mallory made 75 of 75" in refusal
    assert makes("ann", 10, 0) == 10
    assert makes("mallory", 10, 10_000) == 0
    # What is deleted makes room, for whoever had it as well.
    for name in [name for name in there if name.startswith("mallory")][:40]:
        there.discard(name)
    assert makes("mallory", 200, 20_000) == 33
    assert len(there) == 78


def test_what_is_remembered_of_makers_is_bounded_by_what_there_is() -> None:
    limit = CreationLimit(per_second=1_000, per_client_per_second=1_000, count_max=50, is_there=lambda _: False)
    for number in range(5_000):
        assert limit.refusal(f"g{number}", "c", f"user-{number}", count=0, now_ms=number * 10) is None
        assert sum(map(len, limit._made_by.values())) <= 51

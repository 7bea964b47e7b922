"""When a member that hears nothing of its master sends its clients to others, and when it takes them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.failover.turned_away import TurnedAway

LEASE_MS = 6_000
HEARS, DEAF = (
    SimpleNamespace(is_master=False, hears_master=True, serves_reads=False),
    SimpleNamespace(is_master=False, hears_master=False, serves_reads=False),
)
READS = SimpleNamespace(is_master=False, hears_master=False, serves_reads=True)
STARTS = SimpleNamespace(is_master=True, hears_master=False, serves_reads=False)


class _Member:
    def __init__(self) -> None:
        self.is_stopping = False
        self.told: list[bool] = []
        self.now_ms = 0
        self.version = 0
        self.away = TurnedAway(cast("Any", self), lease_ms=LEASE_MS, now_ms=lambda: self.now_ms)

    def turn_clients_away(self, *, is_on: bool) -> None:
        self.told.append(is_on)

    def look(self, role: SimpleNamespace, ms: int, *, renews: bool = True, authority_away: bool = False) -> bool:
        """After `ms` more."""
        self.now_ms += ms
        self.version += renews
        self.away.look_as_member(
            cast("Any", role), version=str(self.version), is_authority_away=authority_away, is_lease_over=not renews
        )
        return self.away.is_on


def test_a_silence_from_before_it_was_master_says_nothing_of_the_next_master() -> None:
    """Who has handed over hears nothing for a moment: its clients are forwarded meanwhile, and stay."""
    member = _Member()
    assert not member.look(DEAF, 0)
    assert not member.look(DEAF, 1_000)
    for _ in range(3):
        member.now_ms += 10_000
        member.away.look_as_master()
    assert not member.look(DEAF, 10)
    assert not member.look(DEAF, 1_900)
    assert not member.look(HEARS, 50)
    assert not member.look(DEAF, 1_950), "and it heard of its master since"
    assert member.told == []
    assert member.look(DEAF, 2_000)
    assert member.told == [True]


@pytest.mark.parametrize("role", [HEARS, READS, STARTS])
def test_they_are_taken_again_at_once_when_there_is_something_for_them(role: SimpleNamespace) -> None:
    member = _Member()
    member.look(DEAF, 0)
    assert member.look(DEAF, 2_000)
    assert not member.look(role, 1)
    assert not member.look(DEAF, 1), "a new silence"
    assert member.told == [True, False]


def test_what_is_silent_with_its_lease_over_is_the_master_and_not_we() -> None:
    member = _Member()
    member.look(DEAF, 0)
    assert not any(member.look(DEAF, 1_000, renews=False) for _ in range(20))


def test_without_authority_and_master_it_waits_for_a_whole_lease() -> None:
    member = _Member()
    member.look(DEAF, 0, renews=False, authority_away=True)
    assert not member.look(DEAF, LEASE_MS - 1, renews=False, authority_away=True)
    assert member.look(DEAF, 1, renews=False, authority_away=True)


def test_a_master_whose_lease_is_over_keeps_them_away_while_it_is_master() -> None:
    member = _Member()
    member.away.turn_away("its lease is over")
    member.away.look_as_master()
    assert member.away.is_on
    member.away.turn_away("again")
    member.away.take_again()
    member.away.take_again()
    assert member.told == [True, False]


def test_a_broker_that_stops_turns_nobody_away_and_takes_who_was() -> None:
    member = _Member()
    member.is_stopping = True
    member.away.turn_away("its lease is over")
    assert not member.away.is_on
    member.is_stopping = False
    member.away.turn_away("its lease is over")
    member.is_stopping = True
    member.away.take_again()
    assert member.told == [True, False]

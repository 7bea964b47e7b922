"""When a connection wants to be called next."""

from __future__ import annotations

from math import inf

import pytest

from tandemmq.http2.errors import Limits
from tandemmq.http2.stream import Timers

LIMITS = Limits(
    preface_timeout_s=10.0,
    keepalive_s=30.0,
    keepalive_timeout_s=5.0,
    frame_timeout_s=60.0,
    message_timeout_s=120.0,
    write_stall_s=40.0,
)


def timers(**since: float) -> Timers:
    """Of a connection whose handshake is done; it spoke last at 100."""
    made = Timers(LIMITS, 100.0)
    made.preface_ends_at = inf
    for name, value in since.items():
        setattr(made, name, value)
    return made


def test_a_new_connection_waits_for_its_preface() -> None:
    assert Timers(LIMITS, 100.0).next(inf, is_paused=False) == 110.0


@pytest.mark.parametrize(
    ("since", "due"),
    [
        ({}, 130.0),
        ({"pinged_at": 130.0}, 135.0),
        ({"unfinished_since": 60.0}, 120.0),
        ({"calls_end_at": 101.0}, 101.0),
        ({"stalled_at": 80.0}, 120.0),
        ({"drain_ends_at": 103.0}, 103.0),
    ],
)
def test_the_first_of_what_is_waited_for_is_due_next(since: dict[str, float], due: float) -> None:
    assert timers(**since).next(inf, is_paused=False) == due
    every = timers(**since)
    every.calls_end_at = min(every.calls_end_at, 100.5)
    assert every.next(inf, is_paused=False) == 100.5


def test_an_unfinished_message_is_due_like_anything_else() -> None:
    assert timers().next(5.0, is_paused=False) == 125.0


def test_while_nothing_is_read_only_what_we_do_can_be_late() -> None:
    late = timers(pinged_at=1.0, unfinished_since=1.0, preface_ends_at=1.0)
    assert late.next(1.0, is_paused=True) == inf
    assert timers(stalled_at=90.0, calls_end_at=200.0, drain_ends_at=300.0).next(1.0, is_paused=True) == 130.0


def test_who_was_heard_is_alive() -> None:
    pinged = timers(pinged_at=130.0)
    pinged.heard(131.0)
    assert pinged.now == 131.0
    assert pinged.next(inf, is_paused=False) == 161.0

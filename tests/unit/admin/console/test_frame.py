"""The frame of pages, and what a change leaves for the page after it."""

from __future__ import annotations

from typing import Any

from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, with_broker
from tandemmq.admin.audit_log import Actor, Role
from tandemmq.admin.console.frame import UNFRAMED, Flash, Flashes, Frame, frame_of

_FLASH = Flash("ok", "Done.", ("broker-a:0: created",))


def test_flash_is_told_while_it_is_new() -> None:
    flashes = Flashes()
    code = flashes.put(_FLASH, now_ms=1_000)
    assert flashes.get(code, now_ms=60_000) is _FLASH
    # A page that renews itself asks again.
    assert flashes.get(code, now_ms=120_000) is _FLASH
    assert flashes.get(code, now_ms=122_000) is None
    assert flashes.get("guessed", now_ms=1_000) is None


def test_flashes_are_bounded_and_codes_are_not_guessed() -> None:
    flashes = Flashes()
    codes = [flashes.put(_FLASH, now_ms=0) for _ in range(600)]
    assert len(set(codes)) == 600
    assert all(len(code) >= 20 for code in codes)
    assert [flashes.get(codes[number], now_ms=0) for number in (0, 99, 100, 599)] == [None, None, _FLASH, _FLASH]


async def _frame(actor: Actor | None = None, **changes: Any) -> Frame:
    cluster, _, clock = cached(with_broker(healthy_cluster(), master(**changes)))
    reading = await cluster.read_once()
    return frame_of(
        reading,
        active="topics",
        actor=actor,
        flash=None,
        now_ms=clock.monotonic_ms() + 500,
        now_wall_ms=clock.wall_ms(),
    )


async def test_frame_tells_how_the_cluster_is() -> None:
    frame = await _frame()
    assert (frame.cluster, frame.tone, frame.verdict, frame.read_age_ms) == ("DefaultCluster", "ok", "healthy", 500)
    assert (await _frame(slaves=())).verdict == "1 problem"
    assert (await _frame(slaves=(), write_refusal="full")).verdict == "2 problems"
    assert (UNFRAMED.tone, UNFRAMED.read_age_ms) == ("waiting", None)


async def test_only_operators_may_change() -> None:
    assert (await _frame(Actor("local", Role.OPERATOR))).may_change
    assert not (await _frame(Actor("local", Role.VIEWER))).may_change
    assert not (await _frame()).may_change

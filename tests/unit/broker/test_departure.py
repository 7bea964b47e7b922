from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from support.manual_time import ManualTime
from tandemmq.broker.departure import Departure, Drained
from tandemmq.core.replication.master_replica import SlaveView

# Time passes in these.
STEP_MS = 10
IN_SYNC = SlaveView(link=1, peer="10.0.0.2:5", broker_id=1, acked_offset=90, lag_bytes=10, in_sync=True, verified=True)


class _Role:
    """The broker's, as the test has set it by now."""

    def __init__(self, broker: LeavingBroker) -> None:
        self.drain_grace_ms, self.waiting_count = broker.grace_ms, broker.waiting_count
        self._slaves = broker.slaves

    def slaves(self) -> list[SlaveView]:
        return self._slaves


@dataclass
class LeavingBroker:
    """A broker that is told to leave; `at` says what happens when so many ms have passed."""

    time: ManualTime = field(default_factory=ManualTime)
    slaves: list[SlaveView] = field(default_factory=list)
    waiting_count: int = 0
    end_offset: int = 100
    grace_ms: int = 3_000
    events: list[tuple[int, str]] = field(default_factory=list)
    at: dict[int, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.departure = Departure(
            clock=self.time,
            role=lambda: cast("Any", _Role(self)),
            default_limit_ms=20_000,
            leave=self._leave,
            refuse=lambda: self._note("refused"),
            end_offset=lambda: self.end_offset,
            sleep=self._sleep,
        )

    def _note(self, event: str) -> None:
        self.events.append((self.time.monotonic_ms(), event))

    async def _leave(self) -> None:
        self._note("left")

    async def _sleep(self, seconds: float) -> None:
        """Time passes in steps of 10 ms, by whoever drains; the departure itself waits until it has passed."""
        until_ms = self.time.monotonic_ms() + round(seconds * 1_000)
        if seconds < 0.05:
            self.time.advance(round(seconds * 1_000))
            for moment in [moment for moment in self.at if moment <= self.time.monotonic_ms()]:
                self.at.pop(moment)()
        while self.time.monotonic_ms() < until_ms:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def acknowledge(self, offset: int) -> None:
        self.slaves = [replace(slave, acked_offset=offset) for slave in self.slaves]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Callable[[int], Awaitable[Drained]]]:
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(self.departure.run())
            yield self.departure.drain
            run.cancel()


async def test_master_leaves_then_serves_for_its_grace_then_refuses() -> None:
    broker = LeavingBroker()
    async with broker.running() as drain:
        drained = await drain(20_000)
    (left_ms, left), (refused_ms, refused) = broker.events
    assert (left, refused) == ("left", "refused")
    assert left_ms <= STEP_MS
    assert 3_000 <= refused_ms <= 3_000 + STEP_MS
    assert drained.slaves_hold_everything
    assert 3_000 <= drained.waited_ms <= 3_050


async def test_drain_waits_for_the_slave_in_sync_and_for_sends_that_wait() -> None:
    broker = LeavingBroker(slaves=[IN_SYNC], waiting_count=2)
    broker.at[5_000] = lambda: broker.acknowledge(100)
    broker.at[6_000] = lambda: setattr(broker, "waiting_count", 0)
    async with broker.running() as drain:
        drained = await drain(20_000)
    assert drained.slaves_hold_everything
    assert 6_000 <= drained.waited_ms <= 6_050
    assert drained.end_offset == 100


async def test_limit_ends_the_wait_and_is_told() -> None:
    broker = LeavingBroker(slaves=[IN_SYNC])
    async with broker.running() as drain:
        drained = await drain(4_000)
    assert not drained.slaves_hold_everything
    assert 4_000 <= drained.waited_ms <= 4_050
    # Half of the limit is left for the slaves.
    refused_ms, event = broker.events[-1]
    assert event == "refused"
    assert 2_000 <= refused_ms <= 2_000 + STEP_MS


async def test_slave_that_never_was_in_sync_is_not_waited_for() -> None:
    broker = LeavingBroker(slaves=[replace(IN_SYNC, in_sync=False, acked_offset=1)])
    async with broker.running() as drain:
        drained = await drain(20_000)
    assert drained.slaves_hold_everything
    assert drained.waited_ms < 3_100


async def test_slave_that_went_away_is_not_waited_for_but_counts() -> None:
    broker = LeavingBroker(slaves=[IN_SYNC])
    broker.at[1_000] = broker.slaves.clear
    async with broker.running() as drain:
        drained = await drain(20_000)
    assert not drained.slaves_hold_everything
    assert drained.waited_ms < 3_100


async def test_slave_that_held_everything_and_went_away_counts_as_holding_it() -> None:
    broker = LeavingBroker(slaves=[replace(IN_SYNC, acked_offset=100)])
    broker.at[1_000] = broker.slaves.clear
    async with broker.running() as drain:
        assert (await drain(20_000)).slaves_hold_everything


async def test_second_call_joins_the_first() -> None:
    broker = LeavingBroker()
    async with broker.running() as drain:
        first, second = await asyncio.gather(drain(20_000), drain(10_000))
        third = await drain(0)
    assert first.slaves_hold_everything
    assert second.slaves_hold_everything
    assert third.waited_ms == 0
    assert [event for _, event in broker.events] == ["left", "refused"]


async def test_slave_leaves_at_once() -> None:
    broker = LeavingBroker(grace_ms=0)
    async with broker.running() as drain:
        drained = await drain(20_000)
    assert drained.waited_ms <= 50
    assert [event for _, event in broker.events] == ["left", "refused"]

"""Turns of an event loop that take too long are counted, with their length."""

from __future__ import annotations

import asyncio
import time

from tandemmq.service.loop_meter import LoopMeter


def test_long_turn_is_a_stall() -> None:
    meter = LoopMeter()

    async def stall() -> None:
        await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251  # what must not happen on a loop
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=meter.new_loop) as runner:
        runner.run(stall())

    assert meter.stall_count >= 1
    assert meter.longest_stall_s >= 0.05
    assert meter.stalled_s >= meter.longest_stall_s

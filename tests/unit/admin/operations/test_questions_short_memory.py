"""An answer that is shared for a while."""

from __future__ import annotations

import asyncio

import pytest

from support.manual_time import ManualTime
from tandemmq.admin.operations.questions import ShortMemory


class Source:
    """Numbers its answers; each waits until it may go on."""

    def __init__(self) -> None:
        self.count = 0
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None
        self.may_answer.set()

    async def ask(self) -> int:
        self.count += 1
        number = self.count
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return number


async def test_an_answer_is_shared_until_it_is_old() -> None:
    source, clock = Source(), ManualTime()
    memory = ShortMemory(source.ask, max_age_ms=2_000, clock=clock)
    assert await asyncio.gather(*(memory.get() for _ in range(9))) == [1] * 9
    clock.advance(2_000)
    assert await memory.get() == 1
    clock.advance(1)
    assert await memory.get() == 2


async def test_a_change_while_it_is_asked_is_not_hidden() -> None:
    source = Source()
    memory = ShortMemory(source.ask, max_age_ms=2_000, clock=ManualTime())
    source.may_answer.clear()
    asking = asyncio.create_task(memory.get())
    await asyncio.sleep(0)
    memory.forget()
    source.may_answer.set()
    assert await asking == 1
    assert await memory.get() == 2
    memory.forget()
    assert await memory.get() == 3


async def test_a_failure_is_not_remembered_and_one_who_goes_away_leaves_the_turn_to_the_next() -> None:
    source = Source()
    memory = ShortMemory(source.ask, max_age_ms=2_000, clock=ManualTime())
    source.failure = RuntimeError("down")
    with pytest.raises(RuntimeError, match="down"):
        await memory.get()
    source.failure = None
    source.may_answer.clear()
    first, second = asyncio.create_task(memory.get()), asyncio.create_task(memory.get())
    await asyncio.sleep(0)
    first.cancel()
    source.may_answer.set()
    assert await second == 3

"""Tails end by count, by time, when nobody listens, and leave nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.manual_time import ManualTime
from support.operations_samples import messages
from tandemmq.admin.operations.message_search import BoundedTail
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessageSummary


class _Tail:
    """A tail in the test's hands."""

    def __init__(self, count: int = 0) -> None:
        self.is_open = True
        self._arrived: asyncio.Queue[MessageSummary] = asyncio.Queue()
        for message in messages()[:count]:
            self._arrived.put_nowait(message)

    async def messages(self) -> AsyncIterator[MessageSummary]:
        try:
            while True:
                yield await self._arrived.get()
        finally:
            self.is_open = False


async def _somebody() -> bool:
    return False


async def _nobody() -> bool:
    return True


async def test_it_ends_after_so_many_messages() -> None:
    tail = _Tail(count=3)
    bounded = BoundedTail(tail.messages(), limit=2, limit_ms=1_000, is_gone=_somebody, clock=ManualTime())
    await bounded.open()
    assert len([message async for message in bounded]) == 2
    await bounded.close()
    await bounded.close()
    assert not tail.is_open


async def test_it_ends_after_so_long_and_when_nobody_listens() -> None:
    time = ManualTime()
    for limit_ms, is_gone in ((0, _somebody), (1_000, _nobody)):
        tail = _Tail(count=1)
        bounded = BoundedTail(tail.messages(), limit=9, limit_ms=limit_ms, is_gone=is_gone, clock=time)
        await bounded.open()
        assert len([message async for message in bounded]) == 1, "what came in is given all the same"
        await bounded.close()
        assert not tail.is_open


async def test_a_wrong_question_fails_before_it_begins() -> None:
    async def refuse() -> AsyncIterator[MessageSummary]:
        raise OperationFailed(FailureKind.NOT_FOUND, "there is no such topic")
        yield  # never: this makes it a generator

    bounded = BoundedTail(refuse(), limit=9, limit_ms=1_000, is_gone=_somebody, clock=ManualTime())
    with pytest.raises(OperationFailed, match="no such topic"):
        await bounded.open()

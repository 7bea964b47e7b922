"""A live tail that ends: after so long, after so many messages, or when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from admin.operations.values import MessageSummary
from mqcore.clock import Clock

__all__ = ["BoundedTail"]

# How soon a listener that went is noticed while nothing comes in.
_LOOK_S: Final = 1.0
# A question that is wrong is refused at once; one that is right waits for messages.
_OPENING_S: Final = 0.5


class BoundedTail:
    """Iterates once over what a tail gives: at most `limit` messages, for at most `limit_ms`."""

    def __init__(
        self,
        tail: AsyncIterator[MessageSummary],
        *,
        limit: int,
        limit_ms: int,
        is_gone: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._tail = tail
        self._limit = limit
        self._ends_at_ms = clock.monotonic_ms() + limit_ms
        self._is_gone = is_gone
        self._clock = clock
        self._next: asyncio.Future[MessageSummary] | None = None

    async def open(self) -> None:
        """Begins. Raises what the tail raises at once: OperationFailed for a wrong question."""
        self._next = asyncio.ensure_future(anext(self._tail))
        try:
            done, _ = await asyncio.wait({self._next}, timeout=_OPENING_S)
            failure = self._next.exception() if done else None
            if failure is not None and not isinstance(failure, StopAsyncIteration):
                raise failure
        except BaseException:
            await self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[MessageSummary]:
        """The messages. May raise what the tail raises."""
        count = 0
        while count < self._limit:
            message = await self._next_message()
            if message is None:
                return
            count += 1
            yield message

    async def _next_message(self) -> MessageSummary | None:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._tail))
        while not self._next.done():
            left_s = (self._ends_at_ms - self._clock.monotonic_ms()) / 1_000
            if left_s <= 0 or await self._is_gone():
                return None
            await asyncio.wait({self._next}, timeout=min(_LOOK_S, left_s))
        found, self._next = self._next, None
        try:
            return found.result()
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        """Ends the tail. Whoever made this calls it in the end."""
        if self._next is not None:
            ended, self._next = self._next, None
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                # Somebody has to have looked; what it was is of no interest any more.
                ended.exception()
        close = getattr(self._tail, "aclose", None)
        if close is not None:
            await close()

"""An answer shared by all who ask within a short time, so that a hundred open pages cost what one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mqcore.clock import Clock

__all__ = ["ShortMemory"]

ValueT = TypeVar("ValueT")


class ShortMemory(Generic[ValueT]):
    """Remembers one value for `max_age_ms`. Those who ask at the same time wait for one question. Event loop only."""

    def __init__(self, ask: Callable[[], Awaitable[ValueT]], *, max_age_ms: int, clock: Clock) -> None:
        self._ask = ask
        self._max_age_ms = max_age_ms
        self._clock = clock
        self._turn = asyncio.Lock()
        self._kept: tuple[ValueT, int] | None = None
        self._forgotten_count = 0

    async def get(self) -> ValueT:
        """The value, at most `max_age_ms` old; raises what the question raises, which is not remembered."""
        if (value := self._fresh()) is not None:
            return value
        async with self._turn:
            if (value := self._fresh()) is not None:
                return value
            forgotten_count = self._forgotten_count
            value = await self._ask()
            # A change made meanwhile is perhaps not in it.
            if forgotten_count == self._forgotten_count:
                self._kept = (value, self._clock.monotonic_ms())
            return value

    def forget(self) -> None:
        """Something was changed: the next one asks anew."""
        self._kept = None
        self._forgotten_count += 1

    def _fresh(self) -> ValueT | None:
        if self._kept is None or self._clock.monotonic_ms() - self._kept[1] > self._max_age_ms:
            return None
        return self._kept[0]

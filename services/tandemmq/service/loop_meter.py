"""How long an event loop lets everything wait: the time between two of its waits for input, exactly, for 0.1 us a turn.

A broker does all its work on one loop, so a turn of 50 ms is 50 ms in which no send is answered and no slave is fed.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from time import monotonic
from typing import Final

import structlog

from tandemmq.core.clock import Clock
from tandemmq.service.loop_turns import LoopTurns, TurnSelector

__all__ = ["LoopMeter", "SystemClock", "TurnLimit"]

log = structlog.get_logger(__name__)

_STALL_S: Final = 0.020
# A broker in trouble must not fill its log with it.
_LOG_PAUSE_S: Final = 10.0
_LOG_STALL_S: Final = 0.100


class LoopMeter:
    """Stalls of one loop: turns longer than 20 ms. Give `new_loop` to `asyncio.Runner`.

    `turns` are that loop's: what is left for the end of one is part of it.
    """

    def __init__(self) -> None:
        self.turns: Final = LoopTurns()
        self.stall_count = 0
        # Sum and longest of all stalls, in s.
        self.stalled_s = 0.0
        self.longest_stall_s = 0.0
        self._log_from = 0.0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that is metered."""
        selector = _MeteredSelector(self)
        loop = asyncio.SelectorEventLoop(selector)
        selector.serve(loop)
        return loop

    def stalled(self, duration_s: float, now: float) -> None:
        """A turn took longer than 20 ms."""
        self.stall_count += 1
        self.stalled_s += duration_s
        self.longest_stall_s = max(self.longest_stall_s, duration_s)
        if duration_s >= _LOG_STALL_S and now >= self._log_from:
            self._log_from = now + _LOG_PAUSE_S
            log.warning("event_loop_stalled", duration_ms=round(duration_s * 1_000), stall_count=self.stall_count)


class _MeteredSelector(TurnSelector):
    """What lies between two of its waits is a turn of the loop."""

    def __init__(self, meter: LoopMeter) -> None:
        super().__init__(meter.turns)
        self._meter = meter
        self._woken_at = monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now = monotonic()
        if now - self._woken_at > _STALL_S:
            self._meter.stalled(now - self._woken_at, now)
        ready = super().select(timeout)
        self._woken_at = monotonic()
        return ready


# The clock of a running process.


class SystemClock:
    """Satisfies `tandemmq.core.clock.Clock` with the operating system's clocks. The only module that reads them."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never goes back. For durations and deadlines."""
        return time.monotonic_ns() // 1_000_000

    # The same clock in nanoseconds; an event loop's `time`, too, is this clock. As it is: read four times a message.
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z; may jump. For what is stored or shown."""
        return time.time_ns() // 1_000_000

    # The same clock in nanoseconds, also as it is: twice a message.
    wall_ns = staticmethod(time.time_ns)


# Work that is long when there are many topics, done on the event loop without holding it.


_TURN_NS: Final = 1_000_000


_PAUSE_S: Final = 0.001


class TurnLimit:
    """Asked after each piece of work whether it is time to let others have their turn.

    As long as it worked it pauses: a send that comes meanwhile waits for a millisecond at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn_ends_ns = clock.monotonic_ns() + _TURN_NS

    @property
    def is_reached(self) -> bool:
        """Whether to call `pause` now. Cheaper than an await for each piece."""
        return self._clock.monotonic_ns() >= self._turn_ends_ns

    async def pause(self) -> None:
        """Lets the loop go on with what has come."""
        await asyncio.sleep(_PAUSE_S)
        self._turn_ends_ns = self._clock.monotonic_ns() + _TURN_NS

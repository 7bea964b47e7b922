"""The event loop of a process: what is done at the end of each turn, how long a turn lets everything wait, and when
long work has to give others their turn.

The wait is the time between two waits for input, exactly, for 0.1 us a turn.

A broker does all its work on one loop, so a turn of 50 ms is 50 ms in which no send is answered and no slave is fed.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from tandemmq.core.clock import Clock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

# What is done once for everything that a turn of the event loop brought, at the end of that very turn.
#
#     select -> the reader of each socket that is ready -> what they left for the end -> what is to be written -> select
#
# `loop.call_soon` would do it a turn later. A message that is alone in flight would then wait for nothing, with a
# system call of its own, before its bytes go to the slave.

_LOOK_S: Final = 50e-6
"""About what it costs to fall asleep and to be woken, on a virtual machine."""


class LoopTurns:
    """The ends of one loop's turns. Without a loop of `TurnSelector`'s, a turn ends where the running loop's next one
    begins. Event loop only.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: deque[Callable[[], object]] = deque()
        self._writes: deque[Callable[[], object]] = deque()
        self.last_read: Final[set[int]] = set()
        """Descriptors whose readers are called behind all others of a turn: they may have much to do, and no other
        waits for that."""

    @property
    def is_due(self) -> bool:
        """Something is left to do at the end of a turn."""
        return bool(self._soon or self._writes)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on somebody calls `end` at the end of each turn of `loop`, and sees to it that there is one."""
        self._loop = loop

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls back at the end of this turn, in the order in which it was asked for."""
        if self._loop is None:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._soon.append(callback)

    def write_soon(self, callback: Callable[[], object]) -> None:
        """The same behind all of `call_soon`: what they have to say leaves in one write."""
        if self._loop is None:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._writes.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Calls back after `delay` seconds."""
        # Kept, since asking which loop is running asks the kernel which process this is.
        return (self._loop or asyncio.get_running_loop()).call_later(delay, callback)

    def call_next(self, callback: Callable[[], object]) -> None:
        """Calls back at the beginning of the next turn, which comes at once."""
        (self._loop or asyncio.get_running_loop()).call_soon(callback)

    def read_last(self, fd: int) -> None:
        """`fd`, which has a reader, is among `last_read` as long as it has one."""
        self.last_read.add(fd)

    def end(self) -> None:
        """Does what is left to do. What comes of that is left to the next end, so that sockets get their turn; so is
        the rest when a callback raises."""
        for callbacks in (self._soon, self._writes):
            for _ in range(len(callbacks)):
                callbacks.popleft()()


class TurnSelector(selectors.DefaultSelector):
    """The platform's selector for a loop with `turns`.

    Behind all sockets that are ready it names one more, the end of a pipe that nobody writes to: its reader is called
    last, and is `turns.end`. Nothing of this is known to the loop.
    """

    def __init__(self, turns: LoopTurns) -> None:
        super().__init__()
        self._turns = turns
        self._pipe: Final = os.pipe()
        self._turn_end: tuple[selectors.SelectorKey, int] | None = None
        # The last wait was short: the next one is likely to be.
        self._is_soon_over = False

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the one that uses this selector."""
        loop.add_reader(self._pipe[0], self._turns.end)
        self._turn_end = (self.get_key(self._pipe[0]), selectors.EVENT_READ)
        self._turns.attach(loop)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Left by a timer, or by what another thread called for: their turn has no end but the next one's.
        is_due = self._turns.is_due
        ready = super().select(0) if is_due or timeout == 0 else self._wait(timeout)
        if self._turn_end is not None and (ready or is_due):
            if len(ready) > 1 and (last := self._turns.last_read):
                # Nearly each turn comes here: a sort takes up to twice as long.
                for index in range(len(ready) - 2, -1, -1):
                    if ready[index][0].fd in last:
                        ready.append(ready.pop(index))
            ready.append(self._turn_end)
        return ready

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._turns.last_read.discard(key.fd)  # It may be another's number next.
        return key

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Looks for a moment before it sleeps, if the last wait would have been over by then (docs/adr/0026)."""
        began = monotonic()
        if self._is_soon_over:
            while monotonic() - began < _LOOK_S:
                if ready := super().select(0):
                    return ready
        ready = super().select(timeout)
        self._is_soon_over = monotonic() - began < 2 * _LOOK_S
        return ready

    def close(self) -> None:
        super().close()
        for end in self._pipe:
            os.close(end)


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
            # At this moment only: whoever just wants a clock is spared a logging library.
            import structlog

            structlog.get_logger(__name__).warning(
                "event_loop_stalled", duration_ms=round(duration_s * 1_000), stall_count=self.stall_count
            )


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
        return time.monotonic_ns() // 1_000_000

    # The same clock in nanoseconds; an event loop's `time`, too, is this clock. As it is: read four times a message.
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
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

"""What is done once for everything that a turn of the event loop brought, at the end of that very turn.

    select -> the reader of each socket that is ready -> what they left for the end -> what is to be written -> select

`loop.call_soon` would do it a turn later. A message that is alone in flight would then wait for nothing, with a system
call of its own, before its bytes go to the slave.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

__all__ = ["LoopTurns", "TurnSelector"]

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
            ready.append(self._turn_end)
        return ready

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

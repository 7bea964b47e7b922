"""Time that passes when the test says so: a clock and the timers that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from tandemmq.core.clock import Clock


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualTime:
    """Satisfies `tandemmq.core.clock.Clock` and `tandemmq.broker.client_api.services.Timers`. Both clocks move
    together."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_at_start_ms = wall_ms
        self._passed_ms = 0
        self._soon: list[Callable[[], object]] = []
        self._timers: list[tuple[int, int, _Timer]] = []
        self._numbers = count()

    def monotonic_ms(self) -> int:
        """Since the start of the test."""
        return self._passed_ms

    def monotonic_ns(self) -> int:
        """Since the start of the test."""
        return self._passed_ms * 1_000_000

    def wall_ms(self) -> int:
        return self._wall_at_start_ms + self._passed_ms

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Runs at the next `end_turn`."""
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        """Runs when `advance` passes that time."""
        timer = _Timer(callback)
        heappush(self._timers, (self._passed_ms + round(delay * 1_000), next(self._numbers), timer))
        return timer

    def end_turn(self) -> None:
        """Ends the present turn of the event loop, and those its callbacks ask for."""
        while self._soon:
            self.end_one_turn()

    def end_one_turn(self) -> None:
        """Ends the present turn alone."""
        callbacks, self._soon = self._soon, []
        for callback in callbacks:
            callback()

    def advance(self, duration_ms: int) -> None:
        """Lets time pass, timers in their order."""
        self.end_turn()
        until_ms = self._passed_ms + duration_ms
        while self._timers and self._timers[0][0] <= until_ms:
            due_ms, _, timer = heappop(self._timers)
            self._passed_ms = max(self._passed_ms, due_ms)
            if timer.callback is not None:
                timer.callback()
            self.end_turn()
        self._passed_ms = until_ms


class OffsetClock:
    """A running clock that a test can push forward, to let leases end without waiting for them."""

    def __init__(self, running: Clock) -> None:
        self._running = running
        self._offset_ms = 0

    def monotonic_ms(self) -> int:
        """Of the running clock, plus what was pushed."""
        return self._running.monotonic_ms() + self._offset_ms

    def monotonic_ns(self) -> int:
        return self._running.monotonic_ns() + self._offset_ms * 1_000_000

    def wall_ms(self) -> int:
        """The same of the wall clock."""
        return self._running.wall_ms() + self._offset_ms

    def wall_ns(self) -> int:
        return self._running.wall_ns() + self._offset_ms * 1_000_000

    def push(self, duration_ms: int) -> None:
        """Moves both clocks forward."""
        self._offset_ms += duration_ms

"""The clock of a running process."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """Satisfies `mqcore.clock.Clock` with the operating system's clocks. The only module that reads them."""

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

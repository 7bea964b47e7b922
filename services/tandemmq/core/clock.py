"""Time as an argument: durations from the monotonic clock, stored timestamps from the wall clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells the time. Real in a process, virtual in a simulation."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never goes back. For durations and deadlines."""

    def monotonic_ns(self) -> int:
        """The same clock in nanoseconds: for measuring what takes less than a millisecond."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z; may jump. For what is stored or shown."""

    def wall_ns(self) -> int:
        """The same clock in nanoseconds."""

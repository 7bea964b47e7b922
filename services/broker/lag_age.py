"""For how long a slave has been behind: its lag in seconds, which bytes alone do not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqcore.clock import Clock
from mqcore.tracing.send_spans import OffsetTimeline

__all__ = ["LagAge"]

_TICKS_MAX: Final = 43_200
"""Twelve hours of seconds, in 1.4 MB at most; who is further behind is told as that far."""


class LagAge:
    """Remembers where the log ended at each second. `tick` once a second."""

    def __init__(self, *, end_offset: Callable[[], int], clock: Clock) -> None:
        self._end_offset = end_offset
        self._clock = clock
        self._ends = OffsetTimeline(entries_max=_TICKS_MAX)

    def tick(self) -> None:
        """Notes where the log ends now. After a cut ages count from there: what was before is not known any more."""
        end_offset = self._end_offset()
        if end_offset < self._ends.newest_offset:
            self._ends = OffsetTimeline(entries_max=_TICKS_MAX)
        self._ends.note(end_offset, self._clock.monotonic_ns())

    def lag_s(self, acked_offset: int) -> float:
        """Since the first second at whose end a byte was there that a slave at `acked_offset` lacks; 0.0 for none."""
        if acked_offset >= self._ends.newest_offset:
            return 0.0
        reached = self._ends.first_at_or_above(acked_offset + 1)
        if reached is None:
            return float(_TICKS_MAX)
        return (self._clock.monotonic_ns() - reached.at_ns) / 1e9

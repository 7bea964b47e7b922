"""Who begins a trace, and with which ids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from mqcore.tracing.trace_context import TraceContext, made_context

__all__ = ["HeadSampler"]

_NEVER: Final = 1 << 62


class HeadSampler:
    """Decides at the beginning of an operation. `chance` gives a float in [0, 1), `bits` an int of so many random
    bits.

    Chance is asked once for each operation taken: how many are let pass until the next one. That is the same as to ask
    it every time, and costs the others no more than to count.
    """

    def __init__(self, sample_rate: float, *, chance: Callable[[], float], bits: Callable[[int], int]) -> None:
        self._sample_rate = sample_rate
        self._log_passed = _log_passed(sample_rate)
        self._chance = chance
        self._bits = bits
        self._to_pass = self._drawn()

    @property
    def sample_rate(self) -> float:
        """Share of the operations without a context that are taken; it may change."""
        return self._sample_rate

    @sample_rate.setter
    def sample_rate(self, sample_rate: float) -> None:
        self._sample_rate = sample_rate
        self._log_passed = _log_passed(sample_rate)
        self._to_pass = self._drawn()

    def takes(self) -> bool:
        """Whether an operation that came without a context is to be traced."""
        if self._to_pass:
            self._to_pass -= 1
            return False
        self._to_pass = self._drawn()
        return True

    def child_of(self, parent: TraceContext) -> TraceContext:
        """A new span in the parent's trace, sampled whatever the parent was: who asks has decided to keep it."""
        made: TraceContext = made_context((parent.trace_id, self.new_span_id(), True))
        return made

    def new_root(self) -> TraceContext:
        """A span of a new trace."""
        made: TraceContext = made_context((self._bits(128) or 1, self.new_span_id(), True))
        return made

    def new_span_id(self) -> int:
        """Of one more span in a trace."""
        return self._bits(64) or 1

    def _drawn(self) -> int:
        """How many operations pass before the next one that is taken: n with the probability (1 - rate)^n * rate."""
        if self._sample_rate >= 1:
            return 0
        if self._sample_rate <= 0:
            return _NEVER
        return int(math.log1p(-self._chance()) / self._log_passed)


def _log_passed(sample_rate: float) -> float:
    """Logarithm of the share that is let pass; 0.0 where none or all are."""
    return math.log1p(-sample_rate) if 0 < sample_rate < 1 else 0.0

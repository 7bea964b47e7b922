"""Who begins a trace, and with which ids."""

from __future__ import annotations

from collections.abc import Callable

from mqcore.tracing.trace_context import TraceContext

__all__ = ["HeadSampler"]


class HeadSampler:
    """Decides at the beginning of an operation. `chance` gives a float in [0, 1), `bits` an int of so many random
    bits. The `sample_rate` may change."""

    def __init__(self, sample_rate: float, *, chance: Callable[[], float], bits: Callable[[int], int]) -> None:
        self.sample_rate = sample_rate
        self._chance = chance
        self._bits = bits

    def takes(self) -> bool:
        """Whether an operation that came without a context is to be traced."""
        return self._chance() < self.sample_rate

    def child_of(self, parent: TraceContext) -> TraceContext:
        """A new span in the parent's trace, sampled whatever the parent was: who asks has decided to keep it."""
        return TraceContext(parent.trace_id, self._span_id(), True)

    def new_root(self) -> TraceContext:
        """A span of a new trace."""
        return TraceContext(self._bits(128) or 1, self._span_id(), True)

    def _span_id(self) -> int:
        return self._bits(64) or 1

"""W3C Trace Context: the `traceparent` of a message or a call.

Source: W3C Recommendation, Trace Context Level 1, 3.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

__all__ = ["TRACEPARENT", "HeadSampler", "TraceContext", "TraceOptions", "parse_traceparent"]

TRACEPARENT: Final = "traceparent"
"""Name of the header, and of the message property."""

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED_FLAG: Final = 0x01


class TraceContext(NamedTuple):
    """One span's place: `trace_id` of 16 bytes and `span_id` of 8, both above 0."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header's text."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


made_context: Final = partial(tuple.__new__, TraceContext)
"""TraceContext of a tuple of its parts, without a frame of Python's: five are made for a send that is traced."""


def parse_traceparent(text: str) -> TraceContext | None:
    """The context a header states; None for anything that is none, which is then as if it were not there.

    Versions above 00 may go on after the flags; ff is none.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED_FLAG))
    return context if context.trace_id and context.span_id else None


# Who begins a trace, and with which ids.

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
        """A new id for one more span of a trace."""
        return self._bits(64) or 1

    def _drawn(self) -> int:
        """How many operations pass before the next one that is taken: n with the probability (1 - rate)^n * rate."""
        if self._sample_rate >= 1:
            return 0
        if self._sample_rate <= 0:
            return _NEVER
        return int(math.log1p(-self._chance()) / self._log_passed)


def _log_passed(sample_rate: float) -> float:
    """Logarithm of the share of traces that is kept; 0.0 where none or all are kept."""
    return math.log1p(-sample_rate) if 0 < sample_rate < 1 else 0.0


# What an operator decides about traces.


@dataclass(slots=True)
class TraceOptions:
    """When a trace is kept. A caller's own decision in its `traceparent` goes before `sample_rate`.

    Both may change while traces are made. The one who changes them tells those who keep a copy.
    """

    # Share of operations without a context, 0 to 1.
    sample_rate: float
    # An operation that takes longer, or fails, is kept whatever chance said. 0: none for its slowness.
    slow_ms: int

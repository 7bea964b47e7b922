"""What all parts of a broker that make spans share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.tracing.send_contexts import SendContexts
from mqcore.clock import Clock
from mqcore.routing.values import BrokerIdentity
from mqcore.tracing.trace_context import HeadSampler, TraceOptions
from mqservice.telemetry.span_sink import SpanSink

__all__ = ["BrokerTracing"]

_OFFSET_READINGS: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerTracing:
    """There is none while tracing is off: what `is not None` decides costs a message nothing."""

    identity: BrokerIdentity
    clock: Clock
    options: TraceOptions
    sampler: HeadSampler
    sink: SpanSink
    # Told of a send as soon as it is known to be traced, in the turn of its append if chance or its caller decide.
    send_contexts: SendContexts = field(default_factory=SendContexts)

    def wall_offset_ns(self) -> int:
        """What a time on the monotonic clock lacks to be one on the wall clock; asked for when spans are made.

        The two are read one after the other, and the process may rest in between: the closest of some readings counts.
        """
        return min(self._offset_reading() for _ in range(_OFFSET_READINGS))[1]

    def _offset_reading(self) -> tuple[int, int]:
        """How long it took, and what it came to."""
        before_ns = self.clock.monotonic_ns()
        wall_ns = self.clock.wall_ns()
        took_ns = self.clock.monotonic_ns() - before_ns
        return took_ns, wall_ns - before_ns - took_ns // 2

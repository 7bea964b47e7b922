"""What all parts of a broker that make spans share."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.tracing.send_contexts import SendContexts
from mqcore.clock import Clock
from mqcore.routing import BrokerIdentity
from mqcore.tracing import HeadSampler, TraceOptions
from mqservice.telemetry import SpanSink

__all__ = ["BrokerTracing"]


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
        """What a time on the monotonic clock lacks to be one on the wall clock; asked for when spans are made."""
        return self.clock.wall_ns() - self.clock.monotonic_ns()

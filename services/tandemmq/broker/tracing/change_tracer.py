"""A change of master as a trace: what each part of it took, on the broker that went through it.

Every change is kept: there are few. Those of the former and of the new master are traces of their own, of one epoch.
"""

from __future__ import annotations

import random
from typing import Final

from tandemmq.broker.failover.controller import ChangeOfMaster
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.tracing import attributes
from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanKind
from tandemmq.core.tracing.trace_context import TraceContext

__all__ = ["ChangeTracer"]

_NS_PER_MS: Final = 1_000_000


class ChangeTracer:
    """Makes the spans of a change when it is over."""

    def __init__(self, tracing: BrokerTracing) -> None:
        self._tracing = tracing

    def note(self, change: ChangeOfMaster) -> None:
        """A span for the whole, and one below it for each part."""
        identity = self._tracing.identity
        trace_id = _random_id(128)
        began_ns = (change.at_wall_ms - change.took_ms) * _NS_PER_MS
        described: dict[str, AttributeValue] = {
            attributes.BROKER_GROUP: identity.broker_name,
            attributes.BROKER_ID: identity.broker_id,
            attributes.EPOCH: change.epoch,
            attributes.CHANGE_REASON: change.reason,
        }
        root = SpanData(
            "become master" if change.is_master else "become slave",
            TraceContext(trace_id, _random_id(64), True),
            0,
            SpanKind.INTERNAL,
            began_ns,
            change.at_wall_ms * _NS_PER_MS,
            described,
        )
        spans = [root]
        for step in change.steps:
            ended_ns = began_ns + step.took_ms * _NS_PER_MS
            context = TraceContext(trace_id, _random_id(64), True)
            spans.append(SpanData(step.name, context, root.context.span_id, SpanKind.INTERNAL, began_ns, ended_ns))
            began_ns = ended_ns
        self._tracing.sink.add(spans)


def _random_id(bits: int) -> int:
    return random.getrandbits(bits) or 1

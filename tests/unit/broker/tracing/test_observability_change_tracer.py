from __future__ import annotations

import random

from support.manual_time import ManualTime
from tandemmq.broker.failover.controller import ChangeOfMaster, ChangeStep
from tandemmq.broker.tracing.observability import ChangeTracer
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.recent_spans import RecentSpans
from tandemmq.core.tracing.span_data import HeadSampler, TraceOptions


def test_a_change_is_a_trace_whose_parts_follow_each_other() -> None:
    kept = RecentSpans(limit_bytes=1 << 20)
    tracing = BrokerTracing(
        identity=BrokerIdentity("DefaultCluster", "broker-a", 1),
        clock=ManualTime(),
        options=TraceOptions(sample_rate=0.0, slow_ms=0),
        sampler=HeadSampler(0.0, chance=random.random, bits=random.getrandbits),
        sink=kept,
    )
    steps = (ChangeStep("end the slave's role", 20), ChangeStep("write the record", 5))
    ChangeTracer(tracing).note(ChangeOfMaster(3, True, "the lease was over", 10_000, 30, steps))
    (trace,) = kept.newest()
    root, *parts = sorted(trace.spans, key=lambda span: span.parent_span_id != 0)
    assert (root.name, root.parent_span_id) == ("become master", 0)
    assert (root.start_ns, root.end_ns) == (9_970_000_000, 10_000_000_000)
    assert root.attributes["tandemmq.epoch"] == 3
    assert root.attributes["tandemmq.failover.reason"] == "the lease was over"
    times = [(part.name, part.start_ns, part.end_ns) for part in parts]
    assert times == [
        ("end the slave's role", 9_970_000_000, 9_990_000_000),
        ("write the record", 9_990_000_000, 9_995_000_000),
    ]
    assert {part.parent_span_id for part in parts} == {root.context.span_id}

"""What a broker shows of itself: which traces it keeps and where they go, what its metrics are made of,
and how a change of master is traced.

Made first and closed last, so that the spans of the last sends leave too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tandemmq.broker.put import PutMeter
from tandemmq.broker.settings import BrokerSettings
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendTracer
from tandemmq.core.clock import Clock
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.recent_spans import RecentSpans
from tandemmq.core.tracing.send_spans import AckPolicy, ReplicaTimelines
from tandemmq.core.tracing.span_data import AttributeValue, HeadSampler, SpanData, SpanKind, TraceContext, TraceOptions
from tandemmq.service.telemetry.span_export import SpanExport, SpanFan, open_span_export, resource_attributes

if TYPE_CHECKING:
    from tandemmq.broker.failover.controller import ChangeOfMaster

_RECENT_SPANS_BYTES: Final = 10 << 20


class BrokerObservability:
    """What the parts of one broker are given to make traces and metrics with. With tracing off all about it is None."""

    def __init__(self, settings: BrokerSettings, *, identity: BrokerIdentity, clock: Clock) -> None:
        self.put_meter: Final = PutMeter()
        self.resource: Final = resource_attributes(
            service="broker",
            instance_id=f"{identity.cluster}/{identity.broker_name}/{identity.broker_id}",
            attributes={
                "tandemmq.cluster": identity.cluster,
                span_data.BROKER_GROUP: identity.broker_name,
                span_data.BROKER_ID: identity.broker_id,
                "tandemmq.role": str(settings.broker_role),
            },
        )
        self.trace_options: Final = settings.trace_options() if settings.trace_enable else None
        self.recent_spans: RecentSpans | None = None
        self._export: SpanExport | None = None
        self.tracing: BrokerTracing | None = None
        self.send_tracer: SendTracer | None = None
        self.replica_timelines: ReplicaTimelines | None = None
        if self.trace_options is None:
            return
        self.recent_spans = RecentSpans(limit_bytes=_RECENT_SPANS_BYTES)
        sinks: list[RecentSpans | SpanExport] = [self.recent_spans]
        if settings.trace_exporter_target:
            self._export = open_span_export(settings.trace_exporter_target, self.resource)
            sinks.append(self._export)
        chance = random.Random()
        self.tracing = BrokerTracing(
            identity=identity,
            clock=clock,
            options=self.trace_options,
            sampler=HeadSampler(self.trace_options.sample_rate, chance=chance.random, bits=chance.getrandbits),
            sink=SpanFan(sinks),
        )
        if settings.may_be_master:
            self.send_tracer = SendTracer(
                self.tracing,
                self.put_meter,
                policy=AckPolicy(
                    needed_slaves=settings.master_options().needed_slaves,
                    sync_flush=settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                    waits_for_slaves=settings.waits_for_slaves,
                ),
            )
        if not settings.is_master or settings.failover_authority:
            self.replica_timelines = ReplicaTimelines()

    def span_counts(self) -> Mapping[str, int]:
        """Spans by what became of them; empty while tracing is off."""
        if self.recent_spans is None:
            return {}
        counts = {"kept": self.recent_spans.kept_count}
        if self._export is not None:
            counts |= self._export.counts
        if self.send_tracer is not None:
            counts["no_room"] = self.send_tracer.dropped_count
        return counts

    def change(self, options: TraceOptions) -> None:
        """Keeps traces by other rules from now on. Without effect while tracing is off."""
        if self.trace_options is None or self.tracing is None:
            return
        self.trace_options.sample_rate = self.tracing.sampler.sample_rate = options.sample_rate
        self.trace_options.slow_ms = options.slow_ms
        if self.send_tracer is not None:
            self.send_tracer.options_changed()

    async def close(self) -> None:
        """Exports what is left; at most 2 s, whatever the receiver does."""
        if self.send_tracer is not None:
            self.send_tracer.build_all()
        if self._export is not None:
            await self._export.close()


# A change of master as a trace: what each part of it took, on the broker that went through it.
#
# Every change is kept: there are few. Those of the former and of the new master are traces of their own, of one epoch.

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
            span_data.BROKER_GROUP: identity.broker_name,
            span_data.BROKER_ID: identity.broker_id,
            span_data.EPOCH: change.epoch,
            span_data.CHANGE_REASON: change.reason,
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

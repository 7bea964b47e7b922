"""Spans as protobuf messages of TraceService."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tandemmq.admin.v1 import trace_service_pb2 as pb

from mqcore.tracing.attributes import MESSAGING_DESTINATION_NAME, RETAINED_FOR, RetainedFor
from mqcore.tracing.recent_spans import KeptTrace
from mqcore.tracing.span_data import AttributeValue, SpanData

__all__ = ["trace_message", "trace_summary"]

_MESSAGE_IDS_SHOWN: Final = 8
_TOPIC: Final = MESSAGING_DESTINATION_NAME


def trace_message(trace: KeptTrace) -> pb.Trace:
    """All of a trace."""
    return pb.Trace(
        trace_id=trace.trace_id.to_bytes(16),
        spans=[_span(span) for span in trace.spans],
        dropped_span_count=trace.dropped_count,
    )


def trace_summary(trace: KeptTrace) -> pb.TraceSummary:
    """A trace in one line: its outermost span here, which began first and ended last."""
    spans = trace.spans
    outermost = min(spans, key=lambda span: (span.start_ns, -span.end_ns))
    duration = Duration()
    duration.FromNanoseconds(outermost.end_ns - outermost.start_ns)
    return pb.TraceSummary(
        trace_id=trace.trace_id.to_bytes(16),
        name=outermost.name,
        start_time=_timestamp(outermost.start_ns),
        duration=duration,
        retained_for=_retained_for(spans),
        failure=next((span.failure for span in spans if span.failure), ""),
        topic=next((str(span.attributes[_TOPIC]) for span in spans if _TOPIC in span.attributes), ""),
        message_ids=list(islice(trace.message_ids, _MESSAGE_IDS_SHOWN)),
        message_count=len(trace.message_ids),
    )


def _retained_for(spans: Sequence[SpanData]) -> str:
    """The gravest reason any of the spans gives."""
    reasons = {str(span.attributes.get(RETAINED_FOR, "")) for span in spans}
    for reason in (RetainedFor.FAILED, RetainedFor.SLOW, RetainedFor.SAMPLED):
        if reason in reasons:
            return reason
    return RetainedFor.FAILED if any(span.failure for span in spans) else RetainedFor.SAMPLED


def _span(span: SpanData) -> pb.Span:
    return pb.Span(
        span_id=span.context.span_id.to_bytes(8),
        parent_span_id=span.parent_span_id.to_bytes(8) if span.parent_span_id else b"",
        parent_is_remote=span.parent_is_remote,
        name=span.name,
        kind=span.kind.value,
        start_time=_timestamp(span.start_ns),
        end_time=_timestamp(span.end_ns),
        attributes=_attributes(span.attributes),
        events=[
            pb.SpanEvent(name=event.name, event_time=_timestamp(event.at_ns), attributes=_attributes(event.attributes))
            for event in span.events
        ],
        links=[
            pb.SpanLink(
                trace_id=link.context.trace_id.to_bytes(16),
                span_id=link.context.span_id.to_bytes(8),
                attributes=_attributes(link.attributes),
            )
            for link in span.links
        ],
        failure=span.failure,
    )


def _timestamp(wall_ns: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(wall_ns)
    return stamp


def _attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, pb.AttributeValue]:
    return {key: _value(value) for key, value in attributes.items()}


def _value(value: AttributeValue) -> pb.AttributeValue:
    if isinstance(value, str):
        return pb.AttributeValue(text=value)
    if isinstance(value, bool):
        # Before int: a bool is one.
        return pb.AttributeValue(flag=value)
    if isinstance(value, int):
        return pb.AttributeValue(whole=value)
    if isinstance(value, float):
        return pb.AttributeValue(number=value)
    return pb.AttributeValue(list=pb.AttributeList(texts=value))

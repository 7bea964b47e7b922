"""TraceService's protobuf messages as values. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.admin.v1 import trace_service_pb2 as pb

from admin.trace_findings import BrokerSpan, SlaveHolding, StoredCopy, TraceLine, TracingState
from mqcore.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink
from mqcore.tracing.trace_context import TraceContext

__all__ = ["spans_of", "stored_copies", "trace_lines", "tracing_state"]

_KINDS = {kind.value: kind for kind in SpanKind}


def tracing_state(broker: pb.TracingBroker) -> TracingState:
    """How a broker traces."""
    return TracingState(
        broker=_key(broker),
        tracing=broker.tracing,
        sample_rate=broker.sample_rate,
        slow_threshold_ms=broker.slow_threshold.ToNanoseconds() / 1e6,
        trace_count=broker.trace_count,
        oldest_ms=broker.oldest_time.ToMilliseconds() if broker.HasField("oldest_time") else None,
    )


def spans_of(answer: pb.FindTracesResponse) -> tuple[list[BrokerSpan], int]:
    """All spans of an answer, and how many the broker did not keep."""
    key = _key(answer.broker)
    spans = [
        BrokerSpan(key, _span(span, int.from_bytes(trace.trace_id))) for trace in answer.traces for span in trace.spans
    ]
    return spans, sum(trace.dropped_span_count for trace in answer.traces)


def trace_lines(answer: pb.ListTracesResponse) -> list[TraceLine]:
    """The traces of a list."""
    key = _key(answer.broker)
    return [
        TraceLine(
            broker=key,
            trace_id=int.from_bytes(summary.trace_id),
            name=summary.name,
            start_ms=summary.start_time.ToMilliseconds(),
            duration_ms=summary.duration.ToNanoseconds() / 1e6,
            retained_for=summary.retained_for,
            failure=summary.failure,
            topic=summary.topic,
            message_ids=tuple(summary.message_ids),
            message_count=summary.message_count,
        )
        for summary in answer.traces
    ]


def stored_copies(answer: pb.FindMessageResponse) -> list[StoredCopy]:
    """Where a message lies in one replica."""
    key = _key(answer.broker)
    return [
        StoredCopy(
            broker=key,
            topic=message.topic,
            real_topic=message.real_topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            stored_bytes=message.stored_bytes,
            born_ms=message.born_time.ToMilliseconds(),
            born_host=message.born_host,
            stored_ms=message.store_time.ToMilliseconds(),
            store_host=message.store_host,
            flushed=message.flushed,
            slaves=tuple(SlaveHolding(slave.broker_id, slave.missing_bytes) for slave in message.slaves),
            reconsume_times=message.reconsume_times,
            tag=message.tag,
            keys=message.keys,
            traceparent=message.traceparent,
        )
        for message in answer.messages
    ]


def _key(broker: pb.TracingBroker) -> str:
    return f"{broker.broker_name}:{broker.broker_id}"


def _span(span: pb.Span, trace_id: int) -> SpanData:
    return SpanData(
        name=span.name,
        context=TraceContext(trace_id, int.from_bytes(span.span_id), True),
        parent_span_id=int.from_bytes(span.parent_span_id),
        kind=_KINDS.get(span.kind, SpanKind.INTERNAL),
        start_ns=span.start_time.ToNanoseconds(),
        end_ns=span.end_time.ToNanoseconds(),
        attributes=_attributes(span.attributes),
        links=tuple(
            SpanLink(
                TraceContext(int.from_bytes(link.trace_id), int.from_bytes(link.span_id), True),
                _attributes(link.attributes),
            )
            for link in span.links
        ),
        events=tuple(
            SpanEvent(event.name, event.event_time.ToNanoseconds(), _attributes(event.attributes))
            for event in span.events
        ),
        failure=span.failure,
        parent_is_remote=span.parent_is_remote,
    )


def _attributes(attributes: Mapping[str, pb.AttributeValue]) -> dict[str, AttributeValue]:
    return {key: _value(attributes[key]) for key in sorted(attributes)}


def _value(value: pb.AttributeValue) -> AttributeValue:
    match value.WhichOneof("value"):
        case "whole":
            return value.whole
        case "number":
            return value.number
        case "flag":
            return value.flag
        case "list":
            return tuple(value.list.texts)
        case _:
            return value.text

"""TraceService: the traces this broker kept, and where a message lies in its store. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.broker.queries.values import QueriesBusy
from tandemmq.core.message.properties import PROPERTY_KEYS, PROPERTY_REAL_TOPIC, PROPERTY_TAGS
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.recent_spans import KeptTrace, RecentSpans
from tandemmq.core.tracing.span_data import (
    MESSAGING_DESTINATION_NAME,
    RETAINED_FOR,
    TRACEPARENT,
    AttributeValue,
    RetainedFor,
    SpanData,
    TraceOptions,
)
from tandemmq.proto.admin.v1 import trace_service_pb2 as pb
from tandemmq.proto.admin.v1 import trace_service_pb2_grpc
from tandemmq.service.grpc_server import Context, Invalid, by_kind, refusing

if TYPE_CHECKING:
    from tandemmq.broker.queries.message_queries import FoundMessage


# Spans as protobuf messages of TraceService.

_MESSAGE_IDS_SHOWN: Final = 8
_TOPIC: Final = MESSAGING_DESTINATION_NAME


def trace_message(trace: KeptTrace) -> pb.Trace:
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


_TRACE_ID_BYTES: Final = 16
_TRACES_MAX: Final = 64
"""Of one answer: a message that was delivered again and again has many."""
_PAGE_SIZE: Final = 50
_PAGE_SIZE_MAX: Final = 200
_TIMESTAMP_MAX_MS: Final = 253_402_300_799_999


@refusing(by_kind((QueriesBusy, grpc.StatusCode.RESOURCE_EXHAUSTED)))
class TraceServicer(trace_service_pb2_grpc.TraceServiceServicer):
    """Answers from the memory of recent spans; `recent` and `options` are None when the broker traces nothing."""

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        recent: RecentSpans | None,
        options: TraceOptions | None,
        find_message: Callable[[str, str], Awaitable[list[FoundMessage]]],
        min_offset: Callable[[], int],
        is_indexed: bool,
    ) -> None:
        self._identity = identity
        self._recent = recent
        self._options = options
        self._find_message = find_message
        self._min_offset = min_offset
        self._is_indexed = is_indexed

    async def FindTraces(self, request: pb.FindTracesRequest, context: Context) -> pb.FindTracesResponse:
        traces: Sequence[KeptTrace] = ()
        if request.WhichOneof("key") == "trace_id":
            if len(request.trace_id) != _TRACE_ID_BYTES:
                raise Invalid("trace_id: write 16 bytes")
            found = self._recent.by_trace(int.from_bytes(request.trace_id)) if self._recent is not None else None
            traces = [found] if found is not None else ()
        elif request.message_id:
            traces = self._recent.by_message(request.message_id) if self._recent is not None else ()
        else:
            raise Invalid("key: name a message_id or a trace_id")
        return pb.FindTracesResponse(
            broker=self._broker(), traces=[trace_message(trace) for trace in traces[:_TRACES_MAX]]
        )

    async def ListTraces(self, request: pb.ListTracesRequest, context: Context) -> pb.ListTracesResponse:
        size = min(request.page_size if request.page_size > 0 else _PAGE_SIZE, _PAGE_SIZE_MAX)
        newest = self._recent.newest(notable_only=request.notable_only) if self._recent is not None else iter(())
        return pb.ListTracesResponse(
            broker=self._broker(), traces=[trace_summary(trace) for trace in islice(newest, size)]
        )

    async def FindMessage(self, request: pb.FindMessageRequest, context: Context) -> pb.FindMessageResponse:
        if not request.message_id:
            raise Invalid("message_id: it is empty")
        found = await self._find_message(request.message_id, request.topic)
        return pb.FindMessageResponse(
            broker=self._broker(),
            messages=[_stored(message) for message in found],
            min_offset=self._min_offset(),
            indexed=self._is_indexed,
        )

    def _broker(self) -> pb.TracingBroker:
        identity, options, recent = self._identity, self._options, self._recent
        answer = pb.TracingBroker(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            tracing=recent is not None and options is not None,
        )
        if options is not None:
            answer.sample_rate = options.sample_rate
            answer.slow_threshold.FromMilliseconds(options.slow_ms)
        if recent is not None:
            answer.trace_count = recent.trace_count
            if (oldest_ns := recent.oldest_ns) is not None:
                answer.oldest_time.FromNanoseconds(oldest_ns)
        return answer


def _stored(found: FoundMessage) -> pb.StoredMessage:
    record, properties = found.record, found.properties
    real_topic = properties.get(PROPERTY_REAL_TOPIC, "")
    message = pb.StoredMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        stored_bytes=record.total_size,
        born_host=str(record.born_host),
        store_host=str(record.store_host),
        flushed=found.flushed,
        slaves=[
            pb.ReplicaHolding(
                broker_id=slave.broker_id, holds=not slave.missing_bytes, missing_bytes=slave.missing_bytes
            )
            for slave in found.slaves
        ],
        reconsume_times=record.reconsume_times,
        tag=properties.get(PROPERTY_TAGS, ""),
        keys=properties.get(PROPERTY_KEYS, ""),
        real_topic=real_topic if real_topic != record.topic else "",
        traceparent=properties.get(TRACEPARENT, ""),
    )
    # What a client says of its clock; a timestamp ends with the year 9999.
    message.born_time.FromMilliseconds(min(max(0, record.born_timestamp_ms), _TIMESTAMP_MAX_MS))
    message.store_time.FromMilliseconds(record.store_timestamp_ms)
    return message

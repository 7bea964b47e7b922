"""What tools look up in this broker: MessageQueryService, what lies in its store, message by message, and TraceService,
the traces that it kept, and where a message lies. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.broker.queries.values import (
    Criteria,
    IndexIsOff,
    KeyCriteria,
    MessagePage,
    MessageUnknown,
    PageTokenInvalid,
    QueriedMessage,
    QueriesBusy,
    QueueCriteria,
    QueueState,
    TimeCriteria,
    TopicUnknown,
    WantedMessages,
)
from tandemmq.core.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    index_terms,
)
from tandemmq.core.message.record import offset_message_id
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.disk import DiskError
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
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.proto.admin.v1 import message_query_service_pb2_grpc, trace_service_pb2_grpc
from tandemmq.proto.admin.v1 import trace_service_pb2 as trace_pb
from tandemmq.service.grpc_server import Context, Invalid, by_kind, refusing
from tandemmq.service.protobuf import as_message

if TYPE_CHECKING:
    from tandemmq.broker.queries.message_queries import FoundMessage, MessageQueries


# Messages of the store as tools are shown them. The edge: protobuf stops here.

_VIEWS_PER_TURN: Final = 32
"""A millisecond."""
_TIMESTAMP_MAX_MS: Final = 253_402_300_799_999


def timestamp(wall_ms: int) -> Timestamp:
    """Of protobuf, which ends with the year 9999 and here begins with 1970: clients' clocks may say anything."""
    made = Timestamp()
    made.FromMilliseconds(min(max(0, wall_ms), _TIMESTAMP_MAX_MS))
    return made


async def page_answer(page: MessagePage) -> pb.QueryMessagesResponse:
    """A page of messages, with turns for others in between."""
    answer = pb.QueryMessagesResponse(next_page_token=page.next_page_token, scanned_count=page.scanned_count)
    for number, message in enumerate(page.messages, 1):
        answer.messages.append(message_view(message))
        if number % _VIEWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return answer


def message_view(message: QueriedMessage) -> pb.MessageView:
    outline, properties, body = message.outline, message.properties, message.body
    tag, _ = index_terms(dict(properties))
    own_id = offset_message_id(outline.store_host, outline.physical_offset)
    return pb.MessageView(
        topic=outline.topic,
        queue_id=outline.queue_id,
        queue_offset=outline.queue_offset,
        physical_offset=outline.physical_offset,
        record_bytes=outline.total_size,
        message_id=properties.get(PROPERTY_UNIQUE_KEY) or own_id,
        offset_message_id=own_id,
        tag=tag or "",
        keys=properties.get(PROPERTY_KEYS, "").split(),
        born_time=timestamp(outline.born_timestamp_ms),
        born_host=str(outline.born_host),
        store_time=timestamp(outline.store_timestamp_ms),
        store_host=str(outline.store_host),
        reconsume_times=outline.reconsume_times,
        sys_flag=outline.sys_flag,
        flag=outline.flag,
        body_crc=outline.body_crc,
        properties=properties,
        body_size=outline.body_bytes,
        body=body.data,
        compression=body.compression,
        body_problem=body.problem,
    )


def queue_status(state: QueueState) -> pb.QueueStatus:
    return pb.QueueStatus(
        queue_id=state.queue_id,
        min_offset=state.min_offset,
        max_offset=state.max_offset,
        oldest_store_time=None if state.oldest_store_ms is None else timestamp(state.oldest_store_ms),
        newest_store_time=None if state.newest_store_ms is None else timestamp(state.newest_store_ms),
    )


_LIMIT: Final = 50
_LIMIT_MAX: Final = 500
_BODY_BYTES_MAX: Final = 1 << 20
"""Of each message of a page."""
_ONE_BODY_BYTES_MAX: Final = 4 << 20
_DIGEST_BYTES_MAX: Final = 8 << 20
_TAGS_MAX: Final = 64

_STATUS_OF: Final = by_kind(
    (TopicUnknown, grpc.StatusCode.NOT_FOUND),
    (MessageUnknown, grpc.StatusCode.NOT_FOUND),
    (PageTokenInvalid, grpc.StatusCode.INVALID_ARGUMENT),
    (IndexIsOff, grpc.StatusCode.FAILED_PRECONDITION),
    (QueriesBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskError, grpc.StatusCode.INTERNAL),
)
"""What queries raise, as callers are told."""


@refusing(_STATUS_OF)
class MessageQueryServicer(message_query_service_pb2_grpc.MessageQueryServiceServicer):
    """Answers from this replica, master or slave."""

    def __init__(self, queries: MessageQueries) -> None:
        self._queries = queries

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesResponse:
        states = await self._queries.queue_states(request.topic)
        return pb.ListQueuesResponse(queues=[queue_status(state) for state in states])

    async def QueryMessages(self, request: pb.QueryMessagesRequest, context: Context) -> pb.QueryMessagesResponse:
        wanted = _wanted(request)
        page = await self._queries.messages(wanted, request.page_token)
        return await page_answer(page)

    async def GetMessage(self, request: pb.GetMessageRequest, context: Context) -> pb.GetMessageResponse:
        body_bytes = _count("body_bytes", request.body_bytes, most=_ONE_BODY_BYTES_MAX)
        place = request.WhichOneof("place")
        if place == "physical_offset":
            message = await self._queries.message_at(request.physical_offset, body_bytes=body_bytes)
        elif place == "queue":
            message = await self._queries.message_in_queue(
                request.queue.topic, request.queue.queue_id, request.queue.queue_offset, body_bytes=body_bytes
            )
        else:
            raise Invalid("place: name a physical_offset, or a queue and an offset in it")
        return pb.GetMessageResponse(message=message_view(message))

    async def DigestRecord(self, request: pb.DigestRecordRequest, context: Context) -> pb.DigestRecordResponse:
        if not 0 < request.size <= _DIGEST_BYTES_MAX or request.physical_offset < 0:
            raise Invalid(
                f"physical_offset {request.physical_offset}, size {request.size}: ask for 1 to {_DIGEST_BYTES_MAX} "
                "bytes from 0 on"
            )
        digest = await self._queries.digest(request.physical_offset, request.size)
        return as_message(pb.DigestRecordResponse, digest, held=digest.sha256 is not None)

    async def FindOffsets(self, request: pb.FindOffsetsRequest, context: Context) -> pb.FindOffsetsResponse:
        if not request.HasField("time"):
            raise Invalid("time: name a moment")
        time_ms = _milliseconds("time", request.time)
        found = await self._queries.find_offsets(request.topic, time_ms)
        return as_message(pb.FindOffsetsResponse, offsets=found)


def _wanted(request: pb.QueryMessagesRequest) -> WantedMessages:
    if len(request.tags) > _TAGS_MAX:
        raise Invalid(f"tags: {len(request.tags)} of them; name {_TAGS_MAX} at most")
    return WantedMessages(
        topic=request.topic,
        criteria=_criteria(request),
        limit=_count("limit", request.limit, most=_LIMIT_MAX) or _LIMIT,
        body_bytes=_count("body_bytes", request.body_bytes, most=_BODY_BYTES_MAX),
        tags=frozenset(request.tags),
    )


def _criteria(request: pb.QueryMessagesRequest) -> Criteria:
    kind = request.WhichOneof("query")
    if kind == "queue":
        stretch = request.queue
        if stretch.start_offset < 0 or stretch.end_offset < 0 or stretch.queue_id < 0:
            raise Invalid("queue: neither its id nor an offset is negative; end_offset 0 is the end")
        return QueueCriteria(stretch.queue_id, stretch.start_offset, stretch.end_offset)
    if kind == "time":
        start_ms, end_ms = _times(request.time)
        return TimeCriteria(start_ms, end_ms, request.time.newest_first)
    if kind == "key":
        if not request.key.key:
            raise Invalid("key: it is empty")
        start_ms, end_ms = _times(request.key)
        return KeyCriteria(request.key.key, start_ms, end_ms)
    raise Invalid("query: name a queue, a time or a key")


def _times(stretch: pb.TimeRange | pb.KeyQuery) -> tuple[int | None, int | None]:
    start_ms = end_ms = None
    if stretch.HasField("start_time"):
        start_ms = _milliseconds("start_time", stretch.start_time)
    if stretch.HasField("end_time"):
        end_ms = _milliseconds("end_time", stretch.end_time)
    return start_ms, end_ms


def _milliseconds(field: str, time: Timestamp) -> int:
    """Rounded up, as offsets are found by `at that time or later`."""
    try:
        nanoseconds: int = time.ToNanoseconds()
    except ValueError as error:
        raise Invalid(f"{field}: {error}") from error
    return max(0, -(-nanoseconds // 1_000_000))


def _count(field: str, value: int, *, most: int) -> int:
    if value < 0:
        raise Invalid(f"{field}: {value} is negative")
    return min(value, most)


# Spans as protobuf messages of TraceService.

_MESSAGE_IDS_SHOWN: Final = 8
_TOPIC: Final = MESSAGING_DESTINATION_NAME


def trace_message(trace: KeptTrace) -> trace_pb.Trace:
    return trace_pb.Trace(
        trace_id=trace.trace_id.to_bytes(16),
        spans=[_span(span) for span in trace.spans],
        dropped_span_count=trace.dropped_count,
    )


def trace_summary(trace: KeptTrace) -> trace_pb.TraceSummary:
    """A trace in one line: its outermost span here, which began first and ended last."""
    spans = trace.spans
    outermost = min(spans, key=lambda span: (span.start_ns, -span.end_ns))
    duration = Duration()
    duration.FromNanoseconds(outermost.end_ns - outermost.start_ns)
    return trace_pb.TraceSummary(
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


def _span(span: SpanData) -> trace_pb.Span:
    return trace_pb.Span(
        span_id=span.context.span_id.to_bytes(8),
        parent_span_id=span.parent_span_id.to_bytes(8) if span.parent_span_id else b"",
        parent_is_remote=span.parent_is_remote,
        name=span.name,
        kind=span.kind.value,
        start_time=_timestamp(span.start_ns),
        end_time=_timestamp(span.end_ns),
        attributes=_attributes(span.attributes),
        events=[
            trace_pb.SpanEvent(
                name=event.name, event_time=_timestamp(event.at_ns), attributes=_attributes(event.attributes)
            )
            for event in span.events
        ],
        links=[
            trace_pb.SpanLink(
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


def _attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, trace_pb.AttributeValue]:
    return {key: _value(value) for key, value in attributes.items()}


def _value(value: AttributeValue) -> trace_pb.AttributeValue:
    if isinstance(value, str):
        return trace_pb.AttributeValue(text=value)
    if isinstance(value, bool):
        # Before int: a bool is one.
        return trace_pb.AttributeValue(flag=value)
    if isinstance(value, int):
        return trace_pb.AttributeValue(whole=value)
    if isinstance(value, float):
        return trace_pb.AttributeValue(number=value)
    return trace_pb.AttributeValue(list=trace_pb.AttributeList(texts=value))


_TRACE_ID_BYTES: Final = 16
_TRACES_MAX: Final = 64
"""Of one answer: a message that was delivered again and again has many."""
_PAGE_SIZE: Final = 50
_PAGE_SIZE_MAX: Final = 200


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

    async def FindTraces(self, request: trace_pb.FindTracesRequest, context: Context) -> trace_pb.FindTracesResponse:
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
        return trace_pb.FindTracesResponse(
            broker=self._broker(), traces=[trace_message(trace) for trace in traces[:_TRACES_MAX]]
        )

    async def ListTraces(self, request: trace_pb.ListTracesRequest, context: Context) -> trace_pb.ListTracesResponse:
        size = min(request.page_size if request.page_size > 0 else _PAGE_SIZE, _PAGE_SIZE_MAX)
        newest = self._recent.newest(notable_only=request.notable_only) if self._recent is not None else iter(())
        return trace_pb.ListTracesResponse(
            broker=self._broker(), traces=[trace_summary(trace) for trace in islice(newest, size)]
        )

    async def FindMessage(self, request: trace_pb.FindMessageRequest, context: Context) -> trace_pb.FindMessageResponse:
        if not request.message_id:
            raise Invalid("message_id: it is empty")
        found = await self._find_message(request.message_id, request.topic)
        return trace_pb.FindMessageResponse(
            broker=self._broker(),
            messages=[_stored(message) for message in found],
            min_offset=self._min_offset(),
            indexed=self._is_indexed,
        )

    def _broker(self) -> trace_pb.TracingBroker:
        identity, options, recent = self._identity, self._options, self._recent
        answer = trace_pb.TracingBroker(
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


def _stored(found: FoundMessage) -> trace_pb.StoredMessage:
    record, properties = found.record, found.properties
    real_topic = properties.get(PROPERTY_REAL_TOPIC, "")
    return trace_pb.StoredMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        stored_bytes=record.total_size,
        born_host=str(record.born_host),
        store_host=str(record.store_host),
        flushed=found.flushed,
        slaves=[
            trace_pb.ReplicaHolding(
                broker_id=slave.broker_id, holds=not slave.missing_bytes, missing_bytes=slave.missing_bytes
            )
            for slave in found.slaves
        ],
        reconsume_times=record.reconsume_times,
        tag=properties.get(PROPERTY_TAGS, ""),
        keys=properties.get(PROPERTY_KEYS, ""),
        real_topic=real_topic if real_topic != record.topic else "",
        traceparent=properties.get(TRACEPARENT, ""),
        born_time=timestamp(record.born_timestamp_ms),
        store_time=timestamp(record.store_timestamp_ms),
    )

"""TraceService: the traces this broker kept, and where a message lies in its store. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import grpc
from tandemmq.admin.v1 import trace_service_pb2 as pb
from tandemmq.admin.v1 import trace_service_pb2_grpc

from broker.api.span_messages import trace_message, trace_summary
from broker.message_lookup import FoundMessage
from broker.queries.errors import QueriesBusy
from mqcore.message import property_names
from mqcore.routing.values import BrokerIdentity
from mqcore.tracing.recent_spans import KeptTrace, RecentSpans
from mqcore.tracing.trace_context import TRACEPARENT, TraceOptions

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["TraceServicer"]

_TRACE_ID_BYTES: Final = 16
_TRACES_MAX: Final = 64
"""Of one answer: a message that was delivered again and again has many."""
_PAGE_SIZE: Final = 50
_PAGE_SIZE_MAX: Final = 200
_TIMESTAMP_MAX_MS: Final = 253_402_300_799_999


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

    async def FindTraces(  # noqa: N802
        self, request: pb.FindTracesRequest, context: _Context
    ) -> pb.FindTracesResponse:
        traces: Sequence[KeptTrace] = ()
        if request.WhichOneof("key") == "trace_id":
            if len(request.trace_id) != _TRACE_ID_BYTES:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "trace_id: write 16 bytes")
            found = self._recent.by_trace(int.from_bytes(request.trace_id)) if self._recent is not None else None
            traces = [found] if found is not None else ()
        elif request.message_id:
            traces = self._recent.by_message(request.message_id) if self._recent is not None else ()
        else:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "key: name a message_id or a trace_id")
        return pb.FindTracesResponse(
            broker=self._broker(), traces=[trace_message(trace) for trace in traces[:_TRACES_MAX]]
        )

    async def ListTraces(  # noqa: N802
        self, request: pb.ListTracesRequest, context: _Context
    ) -> pb.ListTracesResponse:
        size = min(request.page_size if request.page_size > 0 else _PAGE_SIZE, _PAGE_SIZE_MAX)
        newest = self._recent.newest(notable_only=request.notable_only) if self._recent is not None else iter(())
        return pb.ListTracesResponse(
            broker=self._broker(), traces=[trace_summary(trace) for trace in islice(newest, size)]
        )

    async def FindMessage(  # noqa: N802
        self, request: pb.FindMessageRequest, context: _Context
    ) -> pb.FindMessageResponse:
        if not request.message_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "message_id: it is empty")
        found: list[FoundMessage] = []
        try:
            found = await self._find_message(request.message_id, request.topic)
        except QueriesBusy as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
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
    real_topic = properties.get(property_names.PROPERTY_REAL_TOPIC, "")
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
        tag=properties.get(property_names.PROPERTY_TAGS, ""),
        keys=properties.get(property_names.PROPERTY_KEYS, ""),
        real_topic=real_topic if real_topic != record.topic else "",
        traceparent=properties.get(TRACEPARENT, ""),
    )
    # What a client says of its clock; a timestamp ends with the year 9999.
    message.born_time.FromMilliseconds(min(max(0, record.born_timestamp_ms), _TIMESTAMP_MAX_MS))
    message.store_time.FromMilliseconds(record.store_timestamp_ms)
    return message

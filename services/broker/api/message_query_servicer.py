"""MessageQueryService: what lies in this broker's store, message by message. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from tandemmq.admin.v1 import message_query_service_pb2 as pb
from tandemmq.admin.v1 import message_query_service_pb2_grpc

from broker.api.message_views import digest_answer, message_view, page_answer, queue_status
from broker.queries.criteria import Criteria, KeyCriteria, QueueCriteria, TimeCriteria, WantedMessages
from broker.queries.errors import IndexIsOff, MessageUnknown, PageTokenInvalid, QueriesBusy, QueryError, TopicUnknown
from broker.queries.message_queries import MessageQueries
from mqcore.storage.disk import DiskError

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["QUERY_ERRORS", "MessageQueryServicer"]

_LIMIT: Final = 50
_LIMIT_MAX: Final = 500
_BODY_BYTES_MAX: Final = 1 << 20
"""Of each message of a page."""
_ONE_BODY_BYTES_MAX: Final = 4 << 20
_DIGEST_BYTES_MAX: Final = 8 << 20
_TAGS_MAX: Final = 64
_OFFSET_MAX: Final = (1 << 63) - 1

QUERY_ERRORS: Final = (
    (TopicUnknown, grpc.StatusCode.NOT_FOUND),
    (MessageUnknown, grpc.StatusCode.NOT_FOUND),
    (PageTokenInvalid, grpc.StatusCode.INVALID_ARGUMENT),
    (IndexIsOff, grpc.StatusCode.FAILED_PRECONDITION),
    (QueriesBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskError, grpc.StatusCode.INTERNAL),
)
"""What queries raise, as callers are told."""


class MessageQueryServicer(message_query_service_pb2_grpc.MessageQueryServiceServicer):
    """Answers from this replica, master or slave."""

    def __init__(self, queries: MessageQueries) -> None:
        self._queries = queries

    async def ListQueues(self, request: pb.ListQueuesRequest, context: _Context) -> pb.ListQueuesResponse:  # noqa: N802
        async with _told(context):
            states = await self._queries.queue_states(request.topic)
        return pb.ListQueuesResponse(queues=[queue_status(state) for state in states])

    async def QueryMessages(  # noqa: N802
        self, request: pb.QueryMessagesRequest, context: _Context
    ) -> pb.QueryMessagesResponse:
        wanted = await _wanted(request, context)
        async with _told(context):
            page = await self._queries.messages(wanted, request.page_token)
        return await page_answer(page)

    async def GetMessage(self, request: pb.GetMessageRequest, context: _Context) -> pb.GetMessageResponse:  # noqa: N802
        body_bytes = await _count("body_bytes", request.body_bytes, context, most=_ONE_BODY_BYTES_MAX)
        place = request.WhichOneof("place")
        async with _told(context):
            if place == "physical_offset":
                message = await self._queries.message_at(request.physical_offset, body_bytes=body_bytes)
            elif place == "queue":
                message = await self._queries.message_in_queue(
                    request.queue.topic, request.queue.queue_id, request.queue.queue_offset, body_bytes=body_bytes
                )
            else:
                await _refuse(context, "place: name a physical_offset, or a queue and an offset in it")
        return pb.GetMessageResponse(message=message_view(message))

    async def DigestRecord(  # noqa: N802
        self, request: pb.DigestRecordRequest, context: _Context
    ) -> pb.DigestRecordResponse:
        if not 0 < request.size <= _DIGEST_BYTES_MAX or request.physical_offset < 0:
            await _refuse(
                context,
                f"physical_offset {request.physical_offset}, size {request.size}: ask for 1 to {_DIGEST_BYTES_MAX} "
                "bytes from 0 on",
            )
        async with _told(context):
            return digest_answer(await self._queries.digest(request.physical_offset, request.size))

    async def FindOffsets(  # noqa: N802
        self, request: pb.FindOffsetsRequest, context: _Context
    ) -> pb.FindOffsetsResponse:
        if not request.HasField("time"):
            await _refuse(context, "time: name a moment")
        time_ms = await _milliseconds("time", request.time, context)
        async with _told(context):
            found = await self._queries.find_offsets(request.topic, time_ms)
        return pb.FindOffsetsResponse(
            offsets=[pb.FoundOffset(queue_id=one.queue_id, offset=one.offset) for one in found]
        )


async def _wanted(request: pb.QueryMessagesRequest, context: _Context) -> WantedMessages:
    if len(request.tags) > _TAGS_MAX:
        await _refuse(context, f"tags: {len(request.tags)} of them; name {_TAGS_MAX} at most")
    return WantedMessages(
        topic=request.topic,
        criteria=await _criteria(request, context),
        limit=await _count("limit", request.limit, context, most=_LIMIT_MAX) or _LIMIT,
        body_bytes=await _count("body_bytes", request.body_bytes, context, most=_BODY_BYTES_MAX),
        tags=frozenset(request.tags),
    )


async def _criteria(request: pb.QueryMessagesRequest, context: _Context) -> Criteria:
    kind = request.WhichOneof("query")
    if kind == "queue":
        stretch = request.queue
        if stretch.start_offset < 0 or stretch.end_offset < 0 or stretch.queue_id < 0:
            await _refuse(context, "queue: neither its id nor an offset is negative; end_offset 0 is the end")
        return QueueCriteria(stretch.queue_id, stretch.start_offset, stretch.end_offset)
    if kind == "time":
        start_ms, end_ms = await _times(request.time, context)
        return TimeCriteria(start_ms, end_ms, request.time.newest_first)
    if kind == "key":
        if not request.key.key:
            await _refuse(context, "key: it is empty")
        start_ms, end_ms = await _times(request.key, context)
        return KeyCriteria(request.key.key, start_ms, end_ms)
    await _refuse(context, "query: name a queue, a time or a key")
    return None


async def _times(stretch: pb.TimeRange | pb.KeyQuery, context: _Context) -> tuple[int | None, int | None]:
    start_ms = end_ms = None
    if stretch.HasField("start_time"):
        start_ms = await _milliseconds("start_time", stretch.start_time, context)
    if stretch.HasField("end_time"):
        end_ms = await _milliseconds("end_time", stretch.end_time, context)
    return start_ms, end_ms


async def _milliseconds(field: str, time: Timestamp, context: _Context) -> int:
    """Rounded up, as offsets are found by `at that time or later`."""
    try:
        nanoseconds: int = time.ToNanoseconds()
    except ValueError as error:
        await _refuse(context, f"{field}: {error}")
    return max(0, -(-nanoseconds // 1_000_000))


async def _count(field: str, value: int, context: _Context, *, most: int) -> int:
    if value < 0:
        await _refuse(context, f"{field}: {value} is negative")
    return min(value, most)


@asynccontextmanager
async def _told(context: _Context) -> AsyncIterator[None]:
    """Ends the call with a status where a query has no answer."""
    try:
        yield
    except (QueryError, DiskError) as error:
        code = next((code for kind, code in QUERY_ERRORS if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
        await context.abort(code, str(error))


async def _refuse(context: _Context, detail: str) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
    raise AssertionError("abort raises")

"""MessageQueryService: what lies in this broker's store, message by message. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import grpc
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
    QueryError,
    QueueCriteria,
    QueueState,
    RangeDigest,
    TimeCriteria,
    TopicUnknown,
    WantedMessages,
)
from tandemmq.core.message.properties import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY, index_terms
from tandemmq.core.message.record import offset_message_id
from tandemmq.core.storage.disk import DiskError
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.proto.admin.v1 import message_query_service_pb2_grpc

if TYPE_CHECKING:
    from tandemmq.broker.queries.message_queries import MessageQueries


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


def digest_answer(digest: RangeDigest) -> pb.DigestRecordResponse:
    """What a replica holds of a range."""
    return pb.DigestRecordResponse(
        held=digest.sha256 is not None,
        sha256=digest.sha256 or b"",
        min_offset=digest.min_offset,
        end_offset=digest.end_offset,
        flushed_offset=digest.flushed_offset,
    )


_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


_LIMIT: Final = 50
_LIMIT_MAX: Final = 500
_BODY_BYTES_MAX: Final = 1 << 20
"""Of each message of a page."""
_ONE_BODY_BYTES_MAX: Final = 4 << 20
_DIGEST_BYTES_MAX: Final = 8 << 20
_TAGS_MAX: Final = 64

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

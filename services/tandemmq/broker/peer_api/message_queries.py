"""MessageQueryService: what lies in this broker's store, message by message. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

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
    QueueCriteria,
    QueueState,
    TimeCriteria,
    TopicUnknown,
    WantedMessages,
)
from tandemmq.core.message.properties import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY, index_terms
from tandemmq.core.message.record import offset_message_id
from tandemmq.core.storage.disk import DiskError
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.proto.admin.v1 import message_query_service_pb2_grpc
from tandemmq.service.grpc_server import Context, Invalid, by_kind, refusing
from tandemmq.service.protobuf import as_message

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

"""Protobuf messages about stored messages as values, and queries as requests. The edge: protobuf stops here."""

from __future__ import annotations

from dataclasses import fields

from tandemmq.admin.v1 import message_query_service_pb2 as pb

from admin.operations.message_limits import PAGE_BODY_BYTES_MAX
from admin.operations.topic_messages import moment_ms
from admin.operations.values import Message, MessageQuery, MessageSummary, SearchOrder

__all__ = ["message_of", "query_request", "summary_of"]


def summary_of(broker_name: str, view: pb.MessageView) -> MessageSummary:
    """A message as a list shows it."""
    return MessageSummary(
        topic=view.topic,
        broker_name=broker_name,
        queue_id=view.queue_id,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        record_bytes=view.record_bytes,
        message_id=view.message_id,
        offset_message_id=view.offset_message_id,
        tag=view.tag,
        keys=tuple(view.keys),
        born_ms=moment_ms(view.born_time),
        born_host=view.born_host,
        store_ms=moment_ms(view.store_time),
        store_host=view.store_host,
        reconsume_times=view.reconsume_times,
        body_size=view.body_size,
        body=view.body,
    )


def message_of(broker_name: str, view: pb.MessageView) -> Message:
    """A message whole."""
    summary = summary_of(broker_name, view)
    return Message(
        **{field.name: getattr(summary, field.name) for field in fields(summary)},
        properties=dict(view.properties),
        sys_flag=view.sys_flag,
        flag=view.flag,
        body_crc=view.body_crc,
        compression=view.compression,
        body_problem=view.body_problem,
    )


def query_request(
    query: MessageQuery, *, start_ms: int, end_ms: int, limit: int, page_token: bytes
) -> pb.QueryMessagesRequest:
    """What one broker is asked. Times are [start_ms, end_ms), -1: open; they stand in for those of `query`."""
    request = pb.QueryMessagesRequest(
        topic=query.topic,
        limit=limit,
        body_bytes=min(max(0, query.body_bytes), PAGE_BODY_BYTES_MAX),
        tags=query.tags,
        page_token=page_token,
    )
    if query.queue_id >= 0:
        request.queue.queue_id = query.queue_id
        request.queue.start_offset = query.start_offset
        return request
    part: pb.KeyQuery | pb.TimeRange
    if query.key:
        part = request.key
        part.key = query.key
    else:
        part = request.time
        part.newest_first = query.order is SearchOrder.NEWEST
        part.SetInParent()
    if start_ms >= 0:
        part.start_time.FromMilliseconds(start_ms)
    if end_ms >= 0:
        part.end_time.FromMilliseconds(end_ms)
    return request

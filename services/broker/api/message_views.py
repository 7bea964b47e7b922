"""Messages of the store as tools are shown them. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from tandemmq.admin.v1 import message_query_service_pb2 as pb

from broker.queries.values import MessagePage, QueriedMessage, QueueState, RangeDigest
from mqcore.message.properties import index_terms
from mqcore.message.property_names import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from mqcore.message.record import offset_message_id

__all__ = ["digest_answer", "message_view", "page_answer", "queue_status", "timestamp"]

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
    """One message with all that is known of it."""
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
    """A queue's extent."""
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

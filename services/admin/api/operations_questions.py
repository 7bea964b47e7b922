"""Requests to ClusterOperationsService as values. The edge: protobuf stops here."""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from tandemmq.admin.v1 import cluster_operations_service_pb2 as pb

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.message_limits import BODY_BYTES_MAX, PAGE_BODY_BYTES_MAX
from admin.operations.values import (
    GroupChange,
    MessageQuery,
    PageRequest,
    ResetTarget,
    SearchOrder,
    TestMessage,
    TopicChange,
)

__all__ = [
    "categories_of",
    "group_change_of",
    "limited",
    "message_query_of",
    "page_request_of",
    "reset_target_of",
    "sent_message_of",
    "topic_change_of",
]

_PAGE_SIZE: Final = 50
_PAGE_SIZE_MAX: Final = 500
_PAGE_NUMBER_MAX: Final = 1_000_000

_CATEGORIES: Final = {
    pb.TOPIC_CATEGORY_TOPIC: "topic",
    pb.TOPIC_CATEGORY_RETRY: "retry",
    pb.TOPIC_CATEGORY_DEAD_LETTER: "dead letter",
    pb.TOPIC_CATEGORY_SYSTEM: "system",
}


def limited(field: str, value: int, *, default: int, at_most: int) -> int:
    """`value`, or `default` for 0. INVALID when it is below 0 or above `at_most`."""
    if not 0 <= value <= at_most:
        raise OperationFailed(FailureKind.INVALID, f"{field}: {value} is not between 0 and {at_most}")
    return value or default


def page_request_of(page_size: int, page_token: str) -> PageRequest:
    """A part of a list. Its tokens are the pages' numbers, which callers need not know."""
    size = limited("page_size", page_size, default=_PAGE_SIZE, at_most=_PAGE_SIZE_MAX)
    if not page_token:
        return PageRequest(1, size)
    if not (page_token.isascii() and page_token.isdigit() and 1 <= int(page_token[:9]) <= _PAGE_NUMBER_MAX):
        raise OperationFailed(FailureKind.INVALID, "page_token: no answer gave this one")
    return PageRequest(int(page_token), size)


def categories_of(request: pb.ListClusterTopicsRequest) -> tuple[str, ...]:
    """Kinds of topics; those made by people when none is named."""
    return tuple(_CATEGORIES.get(category, "topic") for category in request.categories) or ("topic",)


def topic_change_of(request: pb.PutClusterTopicRequest) -> TopicChange:
    """A topic to create or change."""
    return TopicChange(
        name=request.name,
        read_queue_count=request.read_queue_count,
        write_queue_count=request.write_queue_count,
        permission=request.permission,
        message_type=request.message_type,
        broker_names=tuple(request.broker_names),
    )


def group_change_of(request: pb.PutClusterGroupRequest) -> GroupChange:
    """A group to create or change."""
    return GroupChange(
        name=request.name,
        ordered=request.ordered if request.HasField("ordered") else None,
        retry_max_times=request.retry_max_times,
        enabled=request.enabled if request.HasField("enabled") else None,
    )


def reset_target_of(request: pb.ResetGroupOffsetsRequest) -> ResetTarget:
    """Where a group goes on."""
    target = request.WhichOneof("target")
    if target == "time":
        return ResetTarget(time_ms=_moment_ms("time", request.time))
    if target is None or not getattr(request, target):
        raise OperationFailed(FailureKind.INVALID, "target: set one of time, earliest and latest")
    return ResetTarget(earliest=target == "earliest", latest=target == "latest")


def message_query_of(request: pb.SearchMessagesRequest) -> MessageQuery:
    """Messages of a topic."""
    return MessageQuery(
        topic=request.topic,
        key=request.key,
        queue_id=request.queue_id if request.HasField("queue_id") else -1,
        start_offset=request.start_offset,
        broker_name=request.broker_name,
        start_ms=_moment_ms("start_time", request.start_time) if request.HasField("start_time") else -1,
        end_ms=_moment_ms("end_time", request.end_time) if request.HasField("end_time") else -1,
        order=SearchOrder.OLDEST if request.oldest_first else SearchOrder.NEWEST,
        tags=tuple(request.tags),
        limit=limited("page_size", request.page_size, default=_PAGE_SIZE, at_most=_PAGE_SIZE_MAX),
        body_bytes=limited("body_bytes", request.body_bytes, default=0, at_most=PAGE_BODY_BYTES_MAX),
        page_token=request.page_token,
    )


def sent_message_of(request: pb.SendTestMessageRequest) -> TestMessage:
    """A message to send."""
    if len(request.body) > BODY_BYTES_MAX:
        raise OperationFailed(FailureKind.INVALID, f"body: it has {len(request.body)} bytes, more than 4 MiB")
    return TestMessage(
        topic=request.topic,
        body=request.body,
        tag=request.tag,
        keys=tuple(request.keys),
        properties=dict(request.properties),
        message_group=request.message_group,
    )


def _moment_ms(field: str, time: Timestamp) -> int:
    if not 0 <= time.seconds < 253_402_300_800 or not 0 <= time.nanos < 1_000_000_000:
        raise OperationFailed(FailureKind.INVALID, f"{field}: it lies outside the years 1970 to 9999")
    return time.ToMilliseconds()

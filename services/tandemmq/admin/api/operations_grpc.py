"""ClusterOperationsService: `Operations` over gRPC, each call in the name of who makes it.

A call is a task that ends with it: a caller that goes away cancels the task, and the stop of the service all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

import structlog
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.admin.api import operations_answers as answers
from tandemmq.admin.api.access import Access, Refusal, request_of
from tandemmq.admin.operations.messages import BODY_BYTES_MAX, PAGE_BODY_BYTES_MAX
from tandemmq.admin.operations.operations import NotPermitted, Operations, OperationsDesk
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    GroupChange,
    MessageQuery,
    MessageSummary,
    PageRequest,
    ResetTarget,
    SearchOrder,
    TestMessage,
    TopicChange,
)
from tandemmq.core.clock import Clock
from tandemmq.http2.stream import Stream
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as broker_pb
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from tandemmq.service.rpc import Call, MethodTable, ServerStreamMethod, StatusCode, UnaryMethod

__all__ = [
    "BoundedTail",
    "OperationsServicer",
    "categories_of",
    "group_change_of",
    "limited",
    "message_query_of",
    "page_request_of",
    "reset_target_of",
    "sent_message_of",
    "topic_change_of",
]


# Requests to ClusterOperationsService as values. The edge: protobuf stops here.

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


log = structlog.get_logger(__name__)

_SERVICE_NAME: Final = "tandemmq.admin.v1.ClusterOperationsService"
# Each may ask every broker of the cluster.
_CALLS_MAX: Final = 100
_TAIL_S_MAX: Final = 3_600
# A reader that is further behind than this misses messages.
_TAIL_QUEUED_BYTES_MAX: Final = 1 << 20
_CLIENTS_MAX: Final = 1_000
_CLIENTS: Final = 200
_EVENTS_MAX: Final = 1_000
_EVENTS: Final = 200
_BODY_BYTES: Final = 64 << 10

_CODES: Final = {
    FailureKind.INVALID: StatusCode.INVALID_ARGUMENT,
    FailureKind.NOT_FOUND: StatusCode.NOT_FOUND,
    FailureKind.REFUSED: StatusCode.FAILED_PRECONDITION,
    FailureKind.UNAVAILABLE: StatusCode.UNAVAILABLE,
    FailureKind.PARTIAL: StatusCode.ABORTED,
}

_Unary = Callable[[Any, Operations], Awaitable[Message]]


class OperationsServicer:
    """The service. Who calls is found out here and nowhere else: its table needs no guard."""

    def __init__(self, desk: OperationsDesk, *, access: Access) -> None:
        self._desk = desk
        self._access = access
        self._tasks: dict[asyncio.Task[None], Call] = {}

    def method_table(self) -> MethodTable:
        """All methods."""
        unary: dict[str, tuple[type[Message], _Unary]] = {
            "ListClusterTopics": (pb.ListClusterTopicsRequest, _list_topics),
            "GetClusterTopic": (pb.GetClusterTopicRequest, _get_topic),
            "PutClusterTopic": (pb.PutClusterTopicRequest, _put_topic),
            "DeleteClusterTopic": (pb.DeleteClusterTopicRequest, _delete_topic),
            "ListClusterGroups": (pb.ListClusterGroupsRequest, _list_groups),
            "GetClusterGroup": (pb.GetClusterGroupRequest, _get_group),
            "PutClusterGroup": (pb.PutClusterGroupRequest, _put_group),
            "DeleteClusterGroup": (pb.DeleteClusterGroupRequest, _delete_group),
            "ResetGroupOffsets": (pb.ResetGroupOffsetsRequest, _reset_offsets),
            "ResendGroupDeadLetters": (pb.ResendGroupDeadLettersRequest, _resend_dead_letters),
            "ListClusterClients": (pb.ListClusterClientsRequest, _list_clients),
            "SearchMessages": (pb.SearchMessagesRequest, _search),
            "FindMessages": (pb.FindMessagesRequest, _find),
            "InspectMessage": (pb.InspectMessageRequest, _inspect),
            "SendTestMessage": (pb.SendTestMessageRequest, _send),
            "GetBrokerSettings": (pb.GetBrokerSettingsRequest, _get_settings),
            "UpdateBrokerSettings": (pb.UpdateBrokerSettingsRequest, _update_settings),
            "SetWritePermission": (pb.SetWritePermissionRequest, _set_write_permission),
            "ListClusterKeptTails": (pb.ListClusterKeptTailsRequest, _list_kept_tails),
            "RestoreKeptTail": (pb.RestoreKeptTailRequest, _restore_kept_tail),
            "AcceptGroupLoss": (pb.AcceptGroupLossRequest, _accept_loss),
            "ListClusterEvents": (pb.ListClusterEventsRequest, _list_events),
        }
        methods: dict[str, Any] = {
            name: UnaryMethod(self._answering(handler), request_type) for name, (request_type, handler) in unary.items()
        }
        methods["TailMessages"] = ServerStreamMethod(self._tail, pb.TailMessagesRequest)
        return MethodTable(
            _SERVICE_NAME, methods, otherwise=f"{_SERVICE_NAME} has {', '.join(methods)} and nothing else"
        )

    async def stop(self) -> None:
        """Ends all calls, and waits until they have ended."""
        tasks = dict(self._tasks)
        for task, call in tasks.items():
            call.finish(StatusCode.UNAVAILABLE, "the admin service is stopping")
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _answering(self, handler: _Unary) -> Callable[[Any, Call], None]:
        def handle(request: Any, call: Call) -> None:
            async def answer(operations: Operations) -> None:
                call.send(await handler(request, operations))

            self._begin(call, answer)

        return handle

    def _tail(self, request: pb.TailMessagesRequest, call: Call) -> None:
        async def answer(operations: Operations) -> None:
            body_bytes = limited("body_bytes", request.body_bytes, default=0, at_most=PAGE_BODY_BYTES_MAX)
            messages = operations.tail(request.topic, tags=tuple(request.tags), body_bytes=body_bytes)
            try:
                async with asyncio.timeout(_TAIL_S_MAX):
                    async for message in messages:
                        if isinstance(call, Stream) and call.queued_bytes > _TAIL_QUEUED_BYTES_MAX:
                            continue
                        call.send(pb.TailMessagesResponse(message=answers.cluster_message(message)))
            except TimeoutError:
                # It may be asked for again.
                return
            finally:
                if isinstance(messages, AsyncGenerator):
                    await messages.aclose()

        self._begin(call, answer)

    def _begin(self, call: Call, answer: Callable[[Operations], Awaitable[None]]) -> None:
        actor = self._access.actor_of(request_of(call))
        if isinstance(actor, Refusal):
            call.finish(StatusCode.UNAUTHENTICATED, actor.value)
            return
        if len(self._tasks) >= _CALLS_MAX:
            call.finish(StatusCode.RESOURCE_EXHAUSTED, f"{_CALLS_MAX} calls are in progress; try again")
            return
        task = asyncio.get_running_loop().create_task(_ending(call, lambda: answer(self._desk.acting_as(actor))))
        self._tasks[task] = call
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

        def cancel() -> None:
            task.cancel()

        call.on_cancel(cancel)


async def _ending(call: Call, answer: Callable[[], Awaitable[None]]) -> None:
    """The root of a call's task: whatever comes of it, the call ends."""
    try:
        await answer()
        call.finish()
    except OperationFailed as failure:
        code = StatusCode.PERMISSION_DENIED if isinstance(failure, NotPermitted) else _CODES[failure.kind]
        call.finish(code, _text_of(failure))
    except Exception:
        log.exception("operation_failed_unexpectedly")
        call.finish(StatusCode.INTERNAL, "the operation failed; the service's log has the cause")


def _text_of(failure: OperationFailed) -> str:
    said = f"{failure.problem}: {failure.cause}" if failure.cause else failure.problem
    return f"{said}; {failure.remedy}" if failure.remedy else said


# Topics


async def _list_topics(request: pb.ListClusterTopicsRequest, operations: Operations) -> Message:
    page = page_request_of(request.page_size, request.page_token)
    found = await operations.topics(search=request.search, categories=categories_of(request), page=page)
    return answers.topic_list(found)


async def _get_topic(request: pb.GetClusterTopicRequest, operations: Operations) -> Message:
    return answers.topic_answer(await operations.topic(request.name))


async def _put_topic(request: pb.PutClusterTopicRequest, operations: Operations) -> Message:
    result = await operations.put_topic(topic_change_of(request), dry_run=request.dry_run)
    return pb.PutClusterTopicResponse(report=answers.change_report(result))


async def _delete_topic(request: pb.DeleteClusterTopicRequest, operations: Operations) -> Message:
    result = await operations.delete_topic(request.name, dry_run=request.dry_run)
    return pb.DeleteClusterTopicResponse(report=answers.change_report(result))


# Groups and clients


async def _list_groups(request: pb.ListClusterGroupsRequest, operations: Operations) -> Message:
    page = page_request_of(request.page_size, request.page_token)
    return answers.group_list(await operations.groups(search=request.search, page=page))


async def _get_group(request: pb.GetClusterGroupRequest, operations: Operations) -> Message:
    return answers.group_answer(await operations.group(request.name))


async def _put_group(request: pb.PutClusterGroupRequest, operations: Operations) -> Message:
    result = await operations.put_group(group_change_of(request), dry_run=request.dry_run)
    return pb.PutClusterGroupResponse(report=answers.change_report(result))


async def _delete_group(request: pb.DeleteClusterGroupRequest, operations: Operations) -> Message:
    result = await operations.delete_group(
        request.name, even_with_members=request.even_with_members, dry_run=request.dry_run
    )
    return pb.DeleteClusterGroupResponse(report=answers.change_report(result))


async def _reset_offsets(request: pb.ResetGroupOffsetsRequest, operations: Operations) -> Message:
    moves = await operations.reset_offsets(
        request.group, request.topic, reset_target_of(request), dry_run=request.dry_run
    )
    return pb.ResetGroupOffsetsResponse(moves=[answers.offset_move(move) for move in moves])


async def _resend_dead_letters(request: pb.ResendGroupDeadLettersRequest, operations: Operations) -> Message:
    results = await operations.resend_dead_letters(
        request.group, request.broker_name, tuple(request.queue_offsets), dry_run=request.dry_run
    )
    return pb.ResendGroupDeadLettersResponse(letters=[answers.resent_letter(result) for result in results])


async def _list_kept_tails(_: pb.ListClusterKeptTailsRequest, operations: Operations) -> Message:
    return answers.kept_tail_list(*await operations.kept_tails())


async def _restore_kept_tail(request: pb.RestoreKeptTailRequest, operations: Operations) -> Message:
    result = await operations.restore_kept_tail(
        request.broker, request.name, page_token=request.page_token, dry_run=request.dry_run
    )
    return answers.restored_tail(result)


async def _accept_loss(request: pb.AcceptGroupLossRequest, operations: Operations) -> Message:
    loss = await operations.accept_loss(request.broker_name, names=request.names, dry_run=request.dry_run)
    return answers.accepted_loss(loss)


async def _list_clients(request: pb.ListClusterClientsRequest, operations: Operations) -> Message:
    limit = limited("limit", request.limit, default=_CLIENTS, at_most=_CLIENTS_MAX)
    return answers.client_list(await operations.clients(group=request.group, topic=request.topic, limit=limit))


# Messages


async def _search(request: pb.SearchMessagesRequest, operations: Operations) -> Message:
    return answers.message_page(await operations.search(message_query_of(request)))


async def _find(request: pb.FindMessagesRequest, operations: Operations) -> Message:
    found = await operations.find_message(request.message_id, topic=request.topic)
    return pb.FindMessagesResponse(messages=[answers.cluster_message(message) for message in found])


async def _inspect(request: pb.InspectMessageRequest, operations: Operations) -> Message:
    body_bytes = limited("body_bytes", request.body_bytes, default=_BODY_BYTES, at_most=BODY_BYTES_MAX)
    if request.WhichOneof("place") is None:
        raise OperationFailed(FailureKind.INVALID, "place: set physical_offset or queue")
    if request.HasField("queue"):
        place = request.queue
        detail = await operations.message_at(
            request.broker_name, place.topic, place.queue_id, place.queue_offset, body_bytes=body_bytes
        )
    else:
        detail = await operations.message(request.broker_name, request.physical_offset, body_bytes=body_bytes)
    return answers.inspected_message(detail)


async def _send(request: pb.SendTestMessageRequest, operations: Operations) -> Message:
    return answers.receipt(await operations.send(sent_message_of(request)))


# Brokers


async def _get_settings(request: pb.GetBrokerSettingsRequest, operations: Operations) -> Message:
    found = await operations.broker_settings(request.broker)
    return pb.GetBrokerSettingsResponse(settings=[answers.setting_view(setting) for setting in found.settings])


async def _update_settings(request: pb.UpdateBrokerSettingsRequest, operations: Operations) -> Message:
    changes = await operations.update_settings(request.broker, dict(request.values), dry_run=request.dry_run)
    return pb.UpdateBrokerSettingsResponse(
        changes=[
            broker_pb.SettingChange(key=change.key, from_value=change.from_value, to_value=change.to_value)
            for change in changes
        ]
    )


async def _set_write_permission(request: pb.SetWritePermissionRequest, operations: Operations) -> Message:
    result = await operations.set_write_permission(
        request.broker_name, writable=request.writable, dry_run=request.dry_run
    )
    return pb.SetWritePermissionResponse(report=answers.change_report(result))


async def _list_events(request: pb.ListClusterEventsRequest, operations: Operations) -> Message:
    limit = limited("limit", request.limit, default=_EVENTS, at_most=_EVENTS_MAX)
    lines, unseen = await operations.events(limit=limit)
    return pb.ListClusterEventsResponse(
        events=[answers.cluster_event(line) for line in lines], unseen=answers.unseen_messages(unseen)
    )


# A live tail that ends: after so long, after so many messages, or when nobody listens any more.

# How soon a listener that went is noticed while nothing comes in.
_LOOK_S: Final = 1.0
# A question that is wrong is refused at once; one that is right waits for messages.
_OPENING_S: Final = 0.5


class BoundedTail:
    """Iterates once over what a tail gives: at most `limit` messages, for at most `limit_ms`."""

    def __init__(
        self,
        tail: AsyncIterator[MessageSummary],
        *,
        limit: int,
        limit_ms: int,
        is_gone: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._tail = tail
        self._limit = limit
        self._ends_at_ms = clock.monotonic_ms() + limit_ms
        self._is_gone = is_gone
        self._clock = clock
        self._next: asyncio.Future[MessageSummary] | None = None

    async def open(self) -> None:
        """Begins. Raises what the tail raises at once: OperationFailed for a wrong question."""
        self._next = asyncio.ensure_future(anext(self._tail))
        try:
            done, _ = await asyncio.wait({self._next}, timeout=_OPENING_S)
            failure = self._next.exception() if done else None
            if failure is not None and not isinstance(failure, StopAsyncIteration):
                raise failure
        except BaseException:
            await self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[MessageSummary]:
        """The messages. May raise what the tail raises."""
        count = 0
        while count < self._limit:
            message = await self._next_message()
            if message is None:
                return
            count += 1
            yield message

    async def _next_message(self) -> MessageSummary | None:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._tail))
        while not self._next.done():
            left_s = (self._ends_at_ms - self._clock.monotonic_ms()) / 1_000
            if left_s <= 0 or await self._is_gone():
                return None
            await asyncio.wait({self._next}, timeout=min(_LOOK_S, left_s))
        found, self._next = self._next, None
        try:
            return found.result()
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        """Ends the tail. Whoever made this calls it in the end."""
        if self._next is not None:
            ended, self._next = self._next, None
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                # Somebody has to have looked; what it was is of no interest any more.
                ended.exception()
        close = getattr(self._tail, "aclose", None)
        if close is not None:
            await close()

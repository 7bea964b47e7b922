"""ClusterOperationsService: `Operations` over gRPC, each call in the name of who makes it. Protobuf stops here.

A call is a task that ends with it: a caller that goes away cancels the task, and the stop of the service all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import structlog
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.admin.api.access import Access, Refusal, request_of
from tandemmq.admin.operations.bodies import BODY_BYTES_MAX, PAGE_BODY_BYTES_MAX
from tandemmq.admin.operations.messages import CLIENT_COMMANDS, TRANSACTION_ENDS
from tandemmq.admin.operations.operations import NotPermitted, Operations, OperationsDesk
from tandemmq.admin.operations.questions import FailureKind, OperationFailed, invalid
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    AclEntry,
    GroupChange,
    MessageDetail,
    MessageQuery,
    Page,
    PageRequest,
    ResetTarget,
    SearchOrder,
    TailResult,
    TestMessage,
    TopicChange,
    UserChange,
)
from tandemmq.core.audit.run_summary import Tier
from tandemmq.http2.stream import Stream
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from tandemmq.proto.admin.v1.broker_access_service_pb2 import AclEntry as AclEntryMessage
from tandemmq.service.protobuf import as_message, as_value
from tandemmq.service.rpc import Call, MethodTable, ServerStreamMethod, StatusCode, UnaryMethod

log = structlog.get_logger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["ClusterOperationsService"]
# Each may ask every broker of the cluster.
_CALLS_MAX: Final = 100
_TAIL_S_MAX: Final = 3_600
# A reader that is further behind than this misses messages.
_TAIL_QUEUED_BYTES_MAX: Final = 1 << 20
_PAGE_SIZE: Final = 50
_PAGE_SIZE_MAX: Final = 500
_PAGE_NUMBER_MAX: Final = 1_000_000
_LINES: Final = 200
_LINES_MAX: Final = 1_000
"""Of a list without pages."""
_BODY_BYTES: Final = 64 << 10

_CODES: Final = {
    FailureKind.INVALID: StatusCode.INVALID_ARGUMENT,
    FailureKind.NOT_FOUND: StatusCode.NOT_FOUND,
    FailureKind.REFUSED: StatusCode.FAILED_PRECONDITION,
    FailureKind.UNAVAILABLE: StatusCode.UNAVAILABLE,
    FailureKind.PARTIAL: StatusCode.ABORTED,
}

_CATEGORIES: Final = {
    pb.TOPIC_CATEGORY_TOPIC: "topic",
    pb.TOPIC_CATEGORY_RETRY: "retry",
    pb.TOPIC_CATEGORY_DEAD_LETTER: "dead letter",
    pb.TOPIC_CATEGORY_SYSTEM: "system",
}


# Questions that are no values, or may be wrong


def _limited(field: str, value: int, *, default: int, at_most: int) -> int:
    """`value`, or `default` for 0. INVALID when it is below 0 or above `at_most`."""
    if not 0 <= value <= at_most:
        raise invalid(f"{field}: {value} is not between 0 and {at_most}")
    return value or default


def _limit(request: Any) -> int:
    return _limited("limit", request.limit, default=_LINES, at_most=_LINES_MAX)


def _page_request(page_size: int, page_token: str) -> PageRequest:
    """A part of a list. Its tokens are the pages' numbers, which callers need not know."""
    size = _limited("page_size", page_size, default=_PAGE_SIZE, at_most=_PAGE_SIZE_MAX)
    if not page_token:
        return PageRequest(1, size)
    is_number = page_token.isascii() and page_token.isdigit() and len(page_token) <= 9
    if not (is_number and 1 <= int(page_token) <= _PAGE_NUMBER_MAX):
        raise invalid("page_token: no answer gave this one")
    return PageRequest(int(page_token), size)


def _categories(request: pb.ListClusterTopicsRequest) -> tuple[str, ...]:
    """Kinds of topics; those made by people when none is named."""
    return tuple(_CATEGORIES.get(category, "topic") for category in request.categories) or ("topic",)


def _reset_target(request: pb.ResetGroupOffsetsRequest) -> ResetTarget:
    target = request.WhichOneof("target")
    if target == "time":
        return ResetTarget(time_ms=_moment_ms("time", request.time))
    if target is None or not getattr(request, target):
        raise invalid("target: set one of time, earliest and latest")
    return ResetTarget(earliest=target == "earliest", latest=target == "latest")


def _tier(text: str) -> Tier:
    try:
        return Tier(text or Tier.QUICK)
    except ValueError:
        raise invalid(f"tier: {text!r} is neither quick nor deep") from None


def _query(request: pb.SearchMessagesRequest) -> MessageQuery:
    return as_value(
        MessageQuery,
        request,
        start_ms=_moment_ms("start_time", request.start_time) if request.HasField("start_time") else -1,
        end_ms=_moment_ms("end_time", request.end_time) if request.HasField("end_time") else -1,
        order=SearchOrder.OLDEST if request.oldest_first else SearchOrder.NEWEST,
        limit=_limited("page_size", request.page_size, default=_PAGE_SIZE, at_most=_PAGE_SIZE_MAX),
        body_bytes=_limited("body_bytes", request.body_bytes, default=0, at_most=PAGE_BODY_BYTES_MAX),
    )


def _moment_ms(field: str, time: Timestamp) -> int:
    if not 0 <= time.seconds < 253_402_300_800 or not 0 <= time.nanos < 1_000_000_000:
        raise invalid(f"{field}: it lies outside the years 1970 to 9999")
    return time.ToMilliseconds()


def _sent_message(request: pb.SendTestMessageRequest) -> TestMessage:
    if len(request.body) > BODY_BYTES_MAX:
        raise invalid(f"body: it has {len(request.body)} bytes, more than 4 MiB")
    return as_value(TestMessage, request)


def _acl_entry(entry: AclEntryMessage) -> AclEntry:
    return as_value(AclEntry, entry, policy_type=entry.policy_type or "Custom", decision=entry.decision or "Allow")


def _inspected(request: pb.InspectMessageRequest, operations: Operations) -> Awaitable[MessageDetail]:
    body_bytes = _limited("body_bytes", request.body_bytes, default=_BODY_BYTES, at_most=BODY_BYTES_MAX)
    if request.WhichOneof("place") is None:
        raise invalid("place: set physical_offset or queue")
    if not request.HasField("queue"):
        return operations.message(request.broker_name, request.physical_offset, body_bytes=body_bytes)
    place = request.queue
    return operations.message_at(
        request.broker_name, place.topic, place.queue_id, place.queue_offset, body_bytes=body_bytes
    )


# Answers that are no values, or not as they are: fields of the message by name

_Fields: TypeAlias = Mapping[str, object]


async def _named(found: Awaitable[Any], *fields: str) -> _Fields:
    """What an operation gives, under this name; several things under several."""
    things = await found
    return dict(zip(fields, things if len(fields) > 1 else (things,), strict=True))


def _word(words: Mapping[str, int], constant: int) -> str:
    """The word that stands for an enum's constant; empty for others, which the operations refuse."""
    return next((word for word, known in words.items() if known == constant), "")


async def _page(found: Awaitable[Page[Any]], items: str) -> _Fields:
    page = await found
    following = str(page.number + 1) if page.number < page.last_number else ""
    return {items: page.items, "next_page_token": following, "total_count": page.total, "unseen": page.unseen}


async def _clients(found: Awaitable[Page[Any]]) -> _Fields:
    page = await found
    return {"clients": page.items, "total_count": page.total, "unseen": page.unseen}


async def _restored(found: Awaitable[TailResult]) -> TailResult:
    """A queue or a moment that is not known is 0 here."""
    result = await found
    messages = [replace(one, queue_id=max(0, one.queue_id), store_ms=max(0, one.store_ms)) for one in result.messages]
    return replace(result, messages=messages)


async def _loss(found: Awaitable[AcceptedLoss]) -> AcceptedLoss:
    """A moment that is not known is 0 in this value alone."""
    loss = await found
    return replace(loss, missing=[replace(one, last_seen_ms=one.last_seen_ms or -1) for one in loss.missing])


_METHODS: Final[dict[str, Callable[[Any, Operations], Awaitable[object]]]] = {
    "ListClusterTopics": lambda asked, to: _page(
        to.topics(
            search=asked.search,
            categories=_categories(asked),
            page=_page_request(asked.page_size, asked.page_token),
        ),
        "topics",
    ),
    "GetClusterTopic": lambda asked, to: to.topic(asked.name),
    "PutClusterTopic": lambda asked, to: to.put_topic(as_value(TopicChange, asked), dry_run=asked.dry_run),
    "DeleteClusterTopic": lambda asked, to: to.delete_topic(asked.name, dry_run=asked.dry_run),
    "ListClusterGroups": lambda asked, to: _page(
        to.groups(search=asked.search, page=_page_request(asked.page_size, asked.page_token)), "groups"
    ),
    "GetClusterGroup": lambda asked, to: to.group(asked.name),
    "PutClusterGroup": lambda asked, to: to.put_group(as_value(GroupChange, asked), dry_run=asked.dry_run),
    "DeleteClusterGroup": lambda asked, to: to.delete_group(
        asked.name, even_with_members=asked.even_with_members, dry_run=asked.dry_run
    ),
    "ResetGroupOffsets": lambda asked, to: _named(
        to.reset_offsets(asked.group, asked.topic, _reset_target(asked), dry_run=asked.dry_run), "moves"
    ),
    "ResendGroupDeadLetters": lambda asked, to: _named(
        to.resend_dead_letters(asked.group, asked.broker_name, tuple(asked.queue_offsets), dry_run=asked.dry_run),
        "letters",
    ),
    "ListClusterClients": lambda asked, to: _clients(
        to.clients(group=asked.group, topic=asked.topic, limit=_limit(asked))
    ),
    "SearchMessages": lambda asked, to: to.search(_query(asked)),
    "FindMessages": lambda asked, to: _named(to.find_message(asked.message_id, topic=asked.topic), "messages"),
    "InspectMessage": _inspected,
    "SendTestMessage": lambda asked, to: to.send(_sent_message(asked)),
    "GetBrokerSettings": lambda asked, to: to.broker_settings(asked.broker),
    "UpdateBrokerSettings": lambda asked, to: _named(
        to.update_settings(asked.broker, dict(asked.values), dry_run=asked.dry_run), "changes"
    ),
    "SetWritePermission": lambda asked, to: to.set_write_permission(
        asked.broker_name, writable=asked.writable, dry_run=asked.dry_run
    ),
    "ListClusterKeptTails": lambda _, to: _named(to.kept_tails(), "tails", "unseen"),
    "RestoreKeptTail": lambda asked, to: _restored(
        to.restore_kept_tail(asked.broker, asked.name, page_token=asked.page_token, dry_run=asked.dry_run)
    ),
    "AcceptGroupLoss": lambda asked, to: _loss(
        to.accept_loss(asked.broker_name, names=asked.names, dry_run=asked.dry_run)
    ),
    "FailOverGroup": lambda asked, to: to.failover(
        asked.broker_name,
        to=asked.to_broker_id if asked.HasField("to_broker_id") else None,
        unclean=asked.unclean,
        dry_run=asked.dry_run,
    ),
    "ListClusterLiteTopics": lambda asked, to: to.lite_topics(asked.topic, search=asked.search, limit=_limit(asked)),
    "ListClusterTransactions": lambda asked, to: to.transactions(topic=asked.topic, limit=_limit(asked)),
    "ResolveClusterTransaction": lambda asked, to: _named(
        to.resolve_transaction(asked.transaction_id, _word(TRANSACTION_ENDS, asked.end), dry_run=asked.dry_run),
        "transaction",
    ),
    "CommandClusterClient": lambda asked, to: _named(
        to.command_client(
            asked.client_id,
            _word(CLIENT_COMMANDS, asked.command),
            broker_name=asked.broker_name,
            topic=asked.topic,
            queue_id=asked.queue_id,
            queue_offset=asked.queue_offset,
        ),
        "replies",
    ),
    "ListClusterUsers": lambda asked, to: _named(to.users(search=asked.search), "users", "unseen"),
    "CreateClusterUser": lambda asked, to: to.create_user(as_value(UserChange, asked), dry_run=asked.dry_run),
    "UpdateClusterUser": lambda asked, to: to.update_user(as_value(UserChange, asked), dry_run=asked.dry_run),
    "DeleteClusterUser": lambda asked, to: to.delete_user(asked.username, dry_run=asked.dry_run),
    "ListClusterAcls": lambda asked, to: _named(
        to.acls(subject=asked.subject, resource=asked.resource), "acls", "unseen"
    ),
    "PutClusterAcl": lambda asked, to: to.put_acl(
        asked.subject, [_acl_entry(entry) for entry in asked.entries], dry_run=asked.dry_run
    ),
    "DeleteClusterAcl": lambda asked, to: to.delete_acl(
        asked.subject, tuple(asked.resources), policy_type=asked.policy_type, dry_run=asked.dry_run
    ),
    "CopyClusterUsers": lambda asked, to: to.copy_users(
        asked.from_broker_name,
        asked.to_broker_name,
        tuple(asked.usernames),
        only_users=asked.only_users,
        only_acls=asked.only_acls,
        dry_run=asked.dry_run,
    ),
    "StartVerification": lambda asked, to: to.verify(
        tier=_tier(asked.tier), groups=tuple(asked.groups), dry_run=asked.dry_run
    ),
    "GetVerification": lambda _, to: to.verification(),
    "ListClusterEvents": lambda asked, to: _named(to.events(limit=_limit(asked)), "events", "unseen"),
}
"""What each asks the operations; the answer is that value as the method's message, or its fields by name."""


class OperationsServicer:
    """The service. Who calls is found out here and nowhere else: its table needs no guard."""

    def __init__(self, desk: OperationsDesk, *, access: Access) -> None:
        self._desk = desk
        self._access = access
        self._tasks: dict[asyncio.Task[None], Call] = {}

    def method_table(self) -> MethodTable:
        methods: dict[str, Any] = {name: self._unary(name, question) for name, question in _METHODS.items()}
        methods["TailMessages"] = ServerStreamMethod(self._tail, pb.TailMessagesRequest)
        return MethodTable(
            _SERVICE.full_name, methods, otherwise=f"{_SERVICE.full_name} has {', '.join(methods)} and nothing else"
        )

    async def stop(self) -> None:
        """Ends all calls, and waits until they have ended."""
        tasks = dict(self._tasks)
        for task, call in tasks.items():
            call.finish(StatusCode.UNAVAILABLE, "the admin service is stopping")
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _unary(self, name: str, question: Callable[[Any, Operations], Awaitable[object]]) -> UnaryMethod[Any]:
        method = _SERVICE.methods_by_name[name]
        answer_type = GetMessageClass(method.output_type)

        def handle(request: Any, call: Call) -> None:
            async def answer(operations: Operations) -> None:
                found = await question(request, operations)
                if isinstance(found, Mapping):
                    call.send(as_message(answer_type, **found))
                else:
                    call.send(as_message(answer_type, found))

            self._begin(call, answer)

        return UnaryMethod(handle, GetMessageClass(method.input_type))

    def _tail(self, request: pb.TailMessagesRequest, call: Call) -> None:
        async def answer(operations: Operations) -> None:
            body_bytes = _limited("body_bytes", request.body_bytes, default=0, at_most=PAGE_BODY_BYTES_MAX)
            messages = operations.tail(request.topic, tags=tuple(request.tags), body_bytes=body_bytes)
            try:
                async with asyncio.timeout(_TAIL_S_MAX):
                    async for message in messages:
                        if isinstance(call, Stream) and call.queued_bytes > _TAIL_QUEUED_BYTES_MAX:
                            continue
                        call.send(as_message(pb.TailMessagesResponse, message=message))
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

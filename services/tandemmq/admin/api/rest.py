"""All routes together."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter
from starlette.types import Receive, Scope, Send

from tandemmq.admin.api.access import OPERATOR_ONLY, Problem, current_actor
from tandemmq.admin.audit_log import Actor
from tandemmq.admin.operations.bodies import BODY_BYTES_MAX, PAGE_BODY_BYTES_MAX
from tandemmq.admin.operations.groups import GROUP_ATTRIBUTES
from tandemmq.admin.operations.message_search import BoundedTail
from tandemmq.admin.operations.operations import Operations, OperationsDesk
from tandemmq.admin.operations.questions import invalid
from tandemmq.admin.operations.topics import TOPIC_ATTRIBUTES
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    Acl,
    AclEntry,
    BrokerSettings,
    ChangeResult,
    Client,
    ClientReply,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    GroupChange,
    GroupDetail,
    GroupSummary,
    HandOver,
    KeptTail,
    LiteTopicPage,
    MessageDetail,
    MessagePage,
    MessageQuery,
    MessageSummary,
    OffsetReset,
    Page,
    PageRequest,
    ReplicaCopy,
    ResetTarget,
    Route,
    SearchOrder,
    TailResult,
    TestMessage,
    TestReceipt,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Transaction,
    TransactionPage,
    Unseen,
    User,
    UserChange,
    Verification,
)
from tandemmq.admin.trace_reader import ClusterTraces, TraceFindings
from tandemmq.admin.trace_trees import findings_document, list_document
from tandemmq.core.audit.run_summary import Tier
from tandemmq.core.clock import Clock
from tandemmq.core.metadata.topic_table import MESSAGE_TYPES
from tandemmq.service.texts import MomentUnreadable, read_moment

# What values become on their way out where JSON has another shape


@dataclass(frozen=True)
class MessageDocument:
    """A message whole."""

    summary: MessageSummary
    properties: Mapping[str, str]
    sys_flag: int
    flag: int
    body_crc: int
    compression: str
    # Why the body cannot be shown; empty if it can.
    body_problem: str


@dataclass(frozen=True)
class MessageDetailDocument:
    """A message, its copies on the replicas, and what groups did with it."""

    message: MessageDocument
    copies: Sequence[ReplicaCopy]
    consumption: Mapping[str, str]
    unseen: Sequence[Unseen]

    @staticmethod
    def of(detail: MessageDetail) -> MessageDetailDocument:
        """The detail in JSON's shape."""
        message = detail.message
        rest: dict[str, Any] = {each.name: getattr(message, each.name) for each in fields(MessageDocument)[1:]}
        return MessageDetailDocument(
            MessageDocument(summary=message, **rest), detail.copies, detail.consumption, detail.unseen
        )


@dataclass(frozen=True)
class KeptTailsDocument:
    """What was cut off, by broker and place."""

    tails: Sequence[KeptTail]
    unseen: Sequence[Unseen]


@dataclass(frozen=True)
class EventsDocument:
    """What happened lately, newest first."""

    events: Sequence[EventLine]
    unseen: Sequence[Unseen]


@dataclass(frozen=True)
class OffsetResetDocument:
    """Where a group goes on, queue by queue."""

    dry_run: bool
    moves: Sequence[OffsetReset]


# What routes have in common: whose operations they are, parameters, and how they fail.

DryRun = Annotated[bool, Query(description="Change nothing; the answer says what would change.")]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000, description="Which page, from 1.")]
PageSize = Annotated[int, Query(ge=1, le=500, description="Items a page.")]


def _problem(description: str) -> dict[str, Any]:
    # By name: a model here would be compiled anew for each route, which takes as long as all the rest of the start.
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: _problem("Nobody is known to have sent this."),
    404: _problem("There is no such thing."),
    422: _problem("The question is wrong; `problem` names the field."),
    503: _problem("Nobody who could answer does."),
}
CHANGE_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = PROBLEMS | {
    403: _problem("The sender may look and not change, or a page of another origin sent this. Nothing was done."),
    409: _problem("The state of the cluster forbids it. Nothing was done."),
    502: _problem("Some brokers did it and others did not; repeating it is safe."),
}


def looks(tag: str) -> dict[str, Any]:
    """Of a route that looks; `tag` is its heading in the description of the API."""
    return {"tags": [tag], "responses": PROBLEMS}


def changes(tag: str) -> dict[str, Any]:
    """Of a route that changes something."""
    return {"tags": [tag], "responses": CHANGE_PROBLEMS, "dependencies": [OPERATOR_ONLY]}


class Body(BaseModel):
    """A request's JSON: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def operations_of(desk: OperationsDesk) -> Any:
    """A dependency: the operations in the name of who sent the request."""

    def acting(request: Request) -> Operations:
        return desk.acting_as(current_actor(request))

    dependency: Callable[[Request], Operations] = acting
    return Depends(dependency)


def moment_of(text: str, *, field: str, now_ms: int) -> int:
    """A moment in milliseconds, -1 for an empty text."""
    if not text:
        return -1
    try:
        return read_moment(text, now_ms=now_ms)
    except MomentUnreadable as error:
        raise invalid(f"{field}: {error}") from error


# Settings of brokers, write permission and events over HTTP.


class SettingsBody(Body):
    """Settings to change, all or none, until the broker's next start."""

    values: dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=4_000)]] = Field(
        min_length=1, max_length=200
    )


class WritePermissionBody(Body):
    """Whether producers get the queues of a broker group."""

    writable: bool


class AcceptLossBody(Body):
    """What is given up: all that a dry run told."""

    names: list[Annotated[str, Field(max_length=200)]] = Field(
        default_factory=list, max_length=200, description="Ids of disks, and files of tables."
    )


class FailoverBody(Body):
    """Who becomes the master."""

    to_broker_id: int | None = Field(
        default=None,
        ge=0,
        description="Its number in the group; absent: the member of the in-sync set that is nearest.",
    )
    unclean: bool = Field(
        default=False,
        description="Without a master: it becomes master although it may lack acknowledged messages. "
        "The others of the in-sync set are given up.",
    )


class VerificationBody(Body):
    """What is to be verified."""

    tier: Tier = Tier.QUICK
    groups: list[Annotated[str, Field(max_length=127)]] = Field(
        default_factory=list, max_length=1_000, description="Broker groups; empty: all. On Kubernetes always all."
    )


class RestoreBody(Body):
    """Where to begin."""

    page_token: str = Field(default="", max_length=2_000, description="Of the answer before; empty: at its start.")


def add_broker_routes(app: FastAPI, desk: OperationsDesk) -> None:
    acting = operations_of(desk)

    @app.get("/api/v1/brokers/{broker}/settings", **looks("brokers"))
    async def settings(broker: str, operations: Operations = acting) -> BrokerSettings:
        """Settings of a broker, named as in `broker-a:0`."""
        return await operations.broker_settings(broker)

    @app.patch("/api/v1/brokers/{broker}/settings", **changes("brokers"))
    async def update_settings(
        broker: str, body: SettingsBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> list[ConfigChange]:
        """Changes settings of a broker until its next start."""
        return list(await operations.update_settings(broker, body.values, dry_run=dry_run))

    @app.put("/api/v1/broker-groups/{broker_name}/write-permission", **changes("brokers"))
    async def set_write_permission(
        broker_name: str, body: WritePermissionBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer, or puts it back."""
        return await operations.set_write_permission(broker_name, writable=body.writable, dry_run=dry_run)

    @app.post("/api/v1/broker-groups/{broker_name}/accept-loss", **changes("brokers"))
    async def accept_loss(
        broker_name: str, body: AcceptLossBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> AcceptedLoss:
        """Has a master that waits at its start serve without what it waits for. What only the missing disks hold is
        lost: with `dry_run` it tells in numbers what that is, and `names` says all of it again."""
        return await operations.accept_loss(broker_name, names=body.names, dry_run=dry_run)

    @app.post("/api/v1/broker-groups/{broker_name}/failover", **changes("brokers"))
    async def failover(
        broker_name: str, body: FailoverBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> HandOver:
        """Has the group's master hand over to a member of its in-sync set, and waits until that serves. Nothing is done
        when it is the master already."""
        return await operations.failover(broker_name, to=body.to_broker_id, unclean=body.unclean, dry_run=dry_run)

    @app.get("/api/v1/verification", **looks("consistency"))
    async def verification(operations: Operations = acting) -> Verification:
        """The run of the consistency job that was started here last, and how far it is."""
        return await operations.verification()

    @app.post("/api/v1/verification", **changes("consistency"), status_code=HTTPStatus.ACCEPTED)
    async def verify(body: VerificationBody, dry_run: DryRun = False, operations: Operations = acting) -> Verification:
        """Starts a run of the consistency job. One at a time."""
        return await operations.verify(tier=body.tier, groups=body.groups, dry_run=dry_run)

    @app.get("/api/v1/kept-tails", **looks("brokers"))
    async def kept_tails(operations: Operations = acting) -> KeptTailsDocument:
        """What was cut off the logs of all brokers, and kept."""
        tails, unseen = await operations.kept_tails()
        return KeptTailsDocument(tails, unseen)

    @app.post("/api/v1/brokers/{broker}/kept-tails/{name}/restore", **changes("brokers"))
    async def restore_kept_tail(
        broker: str, name: str, body: RestoreBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> TailResult:
        """Stores again what is missing of a kept tail, some 4 MiB of it at a time, under the ids it had. Messages that
        some broker group holds are left alone, so repeating it is safe."""
        return await operations.restore_kept_tail(broker, name, page_token=body.page_token, dry_run=dry_run)

    @app.get("/api/v1/events", **looks("events"))
    async def events(
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200, operations: Operations = acting
    ) -> EventsDocument:
        """What happened lately on all brokers, and what operators did through this service, newest first."""
        lines, unseen = await operations.events(limit=limit)
        return EventsDocument(lines, unseen)

    @app.get("/api/v1/caller", tags=["events"], responses={401: PROBLEMS[401]})
    async def caller(request: Request) -> Actor:
        """Who you are to this service, and what you may do."""
        return current_actor(request)


# Messages over HTTP: search, one whole, a live tail, a test message.

_TAIL_S_MAX: Final = 600
_MESSAGE_JSON: Final = TypeAdapter(MessageSummary)

_Name = Annotated[str, Query(max_length=127)]
_QueueIdPath = Annotated[int, Path(ge=0, lt=1 << 31)]
_OffsetPath = Annotated[int, Path(ge=0, lt=1 << 63)]
_Offset = Annotated[int, Query(ge=0, lt=1 << 63)]
_BodyBytes = Annotated[int, Query(ge=0, le=BODY_BYTES_MAX, description="Bytes of the body that are wanted.")]
_ListBodyBytes = Annotated[int, Query(ge=0, le=PAGE_BODY_BYTES_MAX, description="Bytes of each body that are wanted.")]
_Tags = Annotated[list[str], Query(max_length=100, description="Only these tags; may be given more than once.")]


class SendBody(Body):
    """A message to send; its body as text or as base64."""

    body_text: str = Field("", max_length=BODY_BYTES_MAX)
    body_base64: str = Field("", max_length=BODY_BYTES_MAX * 4 // 3 + 4)
    tag: str = Field("", max_length=127)
    keys: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=64)
    properties: dict[Annotated[str, Field(max_length=127)], Annotated[str, Field(max_length=32_767)]] = Field(
        {}, max_length=200
    )
    message_group: str = Field("", max_length=200, description="FIFO topics need one.")


def add_message_routes(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    acting = operations_of(desk)

    @app.get("/api/v1/topics/{topic}/messages", **looks("messages"))
    async def search(
        topic: str,
        key: Annotated[str, Query(max_length=200, description="Only messages with this key.")] = "",
        broker_name: _Name = "",
        queue_id: Annotated[int, Query(ge=-1, lt=1 << 31, description="Needs broker_name; -1: all queues.")] = -1,
        start_offset: _Offset = 0,
        start: Annotated[str, Query(max_length=64, description="2026-11-22T04:20Z, or 2h ago.")] = "",
        end: Annotated[str, Query(max_length=64, description="Likewise.")] = "",
        order: SearchOrder = SearchOrder.NEWEST,
        tag: _Tags = [],  # noqa: B006
        text: Annotated[str, Query(max_length=200, description="Only with this in body, tag or keys.")] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        body_bytes: _ListBodyBytes = 0,
        page_token: Annotated[str, Query(max_length=4_000, description="As the page before gave it.")] = "",
        operations: Operations = acting,
    ) -> MessagePage:
        """Messages of a topic: the newest, of a time range, with a key, or of one queue from an offset on."""
        now_ms = clock.wall_ms()
        query = MessageQuery(
            topic=topic,
            key=key,
            queue_id=queue_id,
            start_offset=start_offset,
            broker_name=broker_name,
            start_ms=moment_of(start, field="start", now_ms=now_ms),
            end_ms=moment_of(end, field="end", now_ms=now_ms),
            order=order,
            tags=tag,
            text=text,
            limit=limit,
            body_bytes=body_bytes,
            page_token=page_token,
        )
        return await operations.search(query)

    @app.post("/api/v1/topics/{topic}/messages", **changes("messages"))
    async def send(topic: str, body: SendBody, operations: Operations = acting) -> TestReceipt:
        """Sends a message as a client would. 409 says what the broker said."""
        rest = body.model_dump(exclude={"body_text", "body_base64"})
        return await operations.send(TestMessage(topic, _body_of(body), **rest))

    @app.get("/api/v1/topics/{topic}/tail", **looks("messages"), response_class=StreamingResponse)
    async def tail(
        request: Request,
        topic: str,
        tag: _Tags = [],  # noqa: B006
        seconds: Annotated[int, Query(ge=1, le=_TAIL_S_MAX, description="The tail ends then.")] = 60,
        limit: Annotated[int, Query(ge=1, le=100_000, description="Or after so many messages.")] = 1_000,
        body_bytes: _ListBodyBytes = 4_096,
        operations: Operations = acting,
    ) -> StreamingResponse:
        """Messages as they come in, from now on: a line of JSON each. Ends by itself, or when you go."""
        found = BoundedTail(
            operations.tail(topic, tags=tag, body_bytes=body_bytes),
            limit=limit,
            limit_ms=seconds * 1_000,
            is_gone=request.is_disconnected,
            clock=clock,
        )
        # What is wrong with the question shows before the answer begins.
        await found.open()

        async def lines() -> AsyncIterator[bytes]:
            async for message in found:
                yield _MESSAGE_JSON.dump_json(message) + b"\n"

        return _TailResponse(found, lines())

    @app.get("/api/v1/topics/{topic}/messages/{broker_name}/{queue_id}/{queue_offset}", **looks("messages"))
    async def message_at(
        topic: str,
        broker_name: str,
        queue_id: _QueueIdPath,
        queue_offset: _OffsetPath,
        body_bytes: _BodyBytes = 65_536,
        operations: Operations = acting,
    ) -> MessageDetailDocument:
        """A message whole, by its place in a queue, with its copies compared byte by byte."""
        found = await operations.message_at(broker_name, topic, queue_id, queue_offset, body_bytes=body_bytes)
        return MessageDetailDocument.of(found)

    @app.get("/api/v1/broker-groups/{broker_name}/messages/{physical_offset}", **looks("messages"))
    async def message(
        broker_name: str, physical_offset: _OffsetPath, body_bytes: _BodyBytes = 65_536, operations: Operations = acting
    ) -> MessageDetailDocument:
        """A message whole, by its place in the CommitLog, with its copies compared byte by byte."""
        return MessageDetailDocument.of(await operations.message(broker_name, physical_offset, body_bytes=body_bytes))

    @app.get("/api/v1/messages", **looks("messages"))
    async def find_message(
        id: Annotated[str, Query(min_length=1, max_length=256)],  # noqa: A002 - the name in the address
        topic: _Name = "",
        operations: Operations = acting,
    ) -> list[MessageSummary]:
        """Messages by the id a client gave them, or by an id of address and offset; newest first."""
        return list(await operations.find_message(id, topic=topic))


class _TailResponse(StreamingResponse):
    """Ends its tail, also when nobody is left to read the first line."""

    def __init__(self, tail: BoundedTail, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, media_type="application/x-ndjson", headers={"cache-control": "no-store"})
        self._tail = tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._tail.close()


def _body_of(body: SendBody) -> bytes:
    if body.body_text and body.body_base64:
        raise invalid("send one of body_text and body_base64")
    if not body.body_base64:
        return body.body_text.encode()
    try:
        return base64.b64decode(body.body_base64, validate=True)
    except binascii.Error as error:
        raise invalid(f"body_base64: {error}") from error


# Groups, clients and dead letters over HTTP.


class GroupBody(Body):
    """A group as it is to be. What is left out stays as it is, or is the default."""

    ordered: bool | None = Field(None, description="Deliver message groups in order.")
    retry_max_times: int | None = Field(
        None,
        ge=0,
        le=1_000,
        description="Redeliveries after the first delivery, before the dead letter queue; 0: none.",
    )
    enabled: bool | None = Field(None, description="false: its consumers get nothing.")
    priority_factor: int | None = Field(
        None, ge=0, le=100, description="Of PRIORITY topics: how many of a hundred receives go by priority."
    )
    slow_broker_id: int | None = Field(
        None, ge=0, description="The slave that reads what lies far behind, with slaveReadEnable; 0: the master itself."
    )
    retry_delays_seconds: list[Annotated[int, Field(ge=1, le=86_400)]] = Field(
        default_factory=list,
        max_length=100,
        description="What a message that failed waits for its next delivery; the last one stays. Empty: as it is.",
    )
    attributes: dict[str, Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict,
        max_length=20,
        description=f"Any of {', '.join(GROUP_ATTRIBUTES)}; those left out stay, an empty value removes one.",
    )


class ResetBody(Body):
    """Where a group goes on in a topic; exactly one of `time`, `earliest` and `latest`."""

    topic: str = Field(max_length=127)
    time: str = Field("", max_length=64, description="The first message stored then: 2026-11-22T04:20Z, or 2h ago.")
    earliest: bool = Field(False, description="The oldest message still held.")
    latest: bool = Field(False, description="Past the newest message.")


class ResendBody(Body):
    """Dead letters of one broker group, by their offsets in the dead letter queue."""

    broker_name: str = Field(max_length=127)
    queue_offsets: list[Annotated[int, Field(ge=0, lt=1 << 63)]] = Field(min_length=1, max_length=100)


class TransactionEndBody(Body):
    """How a transaction ends."""

    end: Literal["commit", "rollback"]


class ClientCommandBody(Body):
    """What a client is told. The message to verify is named by its place."""

    command: Literal["print-stack", "verify-message", "reconnect"]
    broker_name: str = Field("", max_length=127)
    topic: str = Field("", max_length=255)
    queue_id: int = Field(0, ge=0, lt=1 << 31)
    queue_offset: int = Field(0, ge=0, lt=1 << 63)


def add_group_routes(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    acting = operations_of(desk)

    @app.get("/api/v1/groups", **looks("groups"))
    async def groups(
        search: Annotated[str, Query(max_length=127, description="A part of the name; case does not matter.")] = "",
        page: PageNumber = 1,
        page_size: PageSize = 50,
        operations: Operations = acting,
    ) -> Page[GroupSummary]:
        """Groups by name, with their lag."""
        return await operations.groups(search=search, page=PageRequest(page, page_size))

    @app.get("/api/v1/groups/{name}", **looks("groups"))
    async def group(name: str, operations: Operations = acting) -> GroupDetail:
        """A group with its lag by queue and its members."""
        return await operations.group(name)

    @app.put("/api/v1/groups/{name}", **changes("groups"))
    async def put_group(
        name: str, body: GroupBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Creates or changes a group."""
        return await operations.put_group(GroupChange(name, **body.model_dump()), dry_run=dry_run)

    @app.delete("/api/v1/groups/{name}", **changes("groups"))
    async def delete_group(
        name: str,
        even_with_members: Annotated[bool, Query(description="Although consumers of it are connected.")] = False,
        dry_run: DryRun = False,
        operations: Operations = acting,
    ) -> ChangeResult:
        """Removes a group with its progress."""
        return await operations.delete_group(name, even_with_members=even_with_members, dry_run=dry_run)

    @app.post("/api/v1/groups/{name}/offsets/reset", **changes("groups"))
    async def reset_offsets(
        name: str, body: ResetBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> OffsetResetDocument:
        """Sets where a group goes on in a topic. Messages in clients' hands may be consumed twice."""
        target = _target(body, now_ms=clock.wall_ms())
        moves = await operations.reset_offsets(name, body.topic, target, dry_run=dry_run)
        return OffsetResetDocument(dry_run=dry_run, moves=moves)

    @app.post("/api/v1/groups/{name}/dead-letters/resend", **changes("groups"))
    async def resend_dead_letters(
        name: str, body: ResendBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> list[DeadLetterResult]:
        """Puts dead letters back into the topics they came from. To list them, search the topic %DLQ% + group."""
        return list(await operations.resend_dead_letters(name, body.broker_name, body.queue_offsets, dry_run=dry_run))

    @app.get("/api/v1/transactions", **looks("transactions"))
    async def transactions(
        topic: Annotated[str, Query(max_length=127, description="Only those of this topic.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
        operations: Operations = acting,
    ) -> TransactionPage:
        """Transactions that are neither committed nor rolled back, the oldest first."""
        return await operations.transactions(topic=topic, limit=limit)

    @app.post("/api/v1/transactions/{transaction_id}/resolve", **changes("transactions"))
    async def resolve_transaction(
        transaction_id: str, body: TransactionEndBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> Transaction:
        """Commits a transaction, or rolls it back, in its producer's place. Repeating it is safe."""
        return await operations.resolve_transaction(transaction_id, body.end, dry_run=dry_run)

    @app.post("/api/v1/clients/{client_id}/command", **changes("clients"))
    async def command_client(
        client_id: str, body: ClientCommandBody, operations: Operations = acting
    ) -> list[ClientReply]:
        """Has a client print its stacks, verify a stored message, or connect anew; what it said, by broker."""
        place = body.model_dump(exclude={"command"})
        return list(await operations.command_client(client_id, body.command, **place))

    @app.get("/api/v1/clients", **looks("clients"))
    async def clients(
        group: Annotated[str, Query(max_length=127, description="Only consumers of this group.")] = "",
        topic: Annotated[str, Query(max_length=127, description="Only clients that use this topic.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
        operations: Operations = acting,
    ) -> Page[Client]:
        """Connected clients of all brokers, the one heard of last first."""
        return await operations.clients(group=group, topic=topic, limit=limit)


def _target(body: ResetBody, *, now_ms: int) -> ResetTarget:
    if sum((bool(body.time), body.earliest, body.latest)) != 1:
        raise invalid(
            "exactly one of time, earliest and latest says where the group goes on",
            remedy='send for example {"topic": "orders", "time": "2h"}',
        )
    if body.time:
        return ResetTarget(time_ms=moment_of(body.time, field="time", now_ms=now_ms))
    return ResetTarget(earliest=body.earliest, latest=body.latest)


# Users and policies over HTTP.

_Words = Annotated[str, Field(max_length=255)]


class UserBody(Body):
    """A user; what is not given stays as it is."""

    password: SecretStr = Field(default=SecretStr(""), max_length=256, description="What clients call secret key.")
    user_type: Literal["", "Super", "Normal"] = ""
    user_status: Literal["", "enable", "disable"] = ""

    def change(self, username: str) -> UserChange:
        return UserChange(username, self.password.get_secret_value(), self.user_type, self.user_status)


class AclEntryBody(Body):
    """What a user may do with a resource."""

    resource: _Words = Field(description="Topic:NAME, Group:NAME, NAME* for all that begin so, Topic:*, or *.")
    actions: list[Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]] = Field(min_length=1)
    decision: Literal["Allow", "Deny"] = "Allow"
    source_ips: list[Annotated[str, Field(max_length=50)]] = Field(
        default_factory=list, max_length=100, description="Addresses and networks (CIDR); empty: all."
    )
    policy_type: Literal["Custom", "Default"] = "Custom"


class AclBody(Body):
    """Entries to add, in place of those of the same type and resource."""

    entries: list[AclEntryBody] = Field(min_length=1, max_length=1_000)


class CopyUsersBody(Body):
    """Which users, and where from and to."""

    from_broker_name: _Words
    to_broker_name: _Words
    usernames: list[_Words] = Field(default_factory=list, max_length=1_000, description="Empty: all.")
    only_users: bool = False
    only_acls: bool = False


@dataclass(frozen=True)
class UsersDocument:
    """Users, and who could not be asked."""

    users: Sequence[User]
    unseen: Sequence[Unseen]


@dataclass(frozen=True)
class AclsDocument:
    """Policies, and who could not be asked."""

    acls: Sequence[Acl]
    unseen: Sequence[Unseen]


def add_access_routes(app: FastAPI, desk: OperationsDesk) -> None:
    acting = operations_of(desk)
    change = changes("users and policies")

    @app.get("/api/v1/users", **looks("users and policies"))
    async def users(
        search: Annotated[str, Query(max_length=127, description="A part of the name.")] = "",
        operations: Operations = acting,
    ) -> UsersDocument:
        """Users of the client API, without their secrets."""
        return UsersDocument(*await operations.users(search=search))

    @app.post("/api/v1/users/{username}", status_code=HTTPStatus.CREATED, **change)
    async def create_user(
        username: str, body: UserBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Makes a user on all masters."""
        return await operations.create_user(body.change(username), dry_run=dry_run)

    @app.patch("/api/v1/users/{username}", **change)
    async def update_user(
        username: str, body: UserBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Changes a user; clients notice within a second."""
        return await operations.update_user(body.change(username), dry_run=dry_run)

    @app.delete("/api/v1/users/{username}", **change)
    async def delete_user(username: str, dry_run: DryRun = False, operations: Operations = acting) -> ChangeResult:
        """Removes a user with its policies."""
        return await operations.delete_user(username, dry_run=dry_run)

    @app.post("/api/v1/users:copy", **change)
    async def copy_users(body: CopyUsersBody, dry_run: DryRun = False, operations: Operations = acting) -> ChangeResult:
        """Copies users with their secrets and policies to another broker group, which has the same key file."""
        return await operations.copy_users(**body.model_dump(), dry_run=dry_run)

    @app.get("/api/v1/acls", **looks("users and policies"))
    async def acls(
        subject: Annotated[str, Query(max_length=255, description="A part of the subject.")] = "",
        resource: Annotated[str, Query(max_length=255, description="A part of the resource.")] = "",
        operations: Operations = acting,
    ) -> AclsDocument:
        """What users may do."""
        return AclsDocument(*await operations.acls(subject=subject, resource=resource))

    @app.put("/api/v1/acls/{subject}", **change)
    async def put_acl(
        subject: str, body: AclBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Adds entries to the policies of a subject, `User:NAME`."""
        entries = [AclEntry(**entry.model_dump()) for entry in body.entries]
        return await operations.put_acl(subject, entries, dry_run=dry_run)

    @app.delete("/api/v1/acls/{subject}", **change)
    async def delete_acl(
        subject: str,
        resource: Annotated[
            list[_Words], Query(max_length=1_000, description="Their resources; absent: all entries.")
        ] = [],  # noqa: B006
        policy_type: Literal["", "Custom", "Default"] = "",
        dry_run: DryRun = False,
        operations: Operations = acting,
    ) -> ChangeResult:
        """Removes entries of a subject."""
        return await operations.delete_acl(subject, resource, policy_type=policy_type, dry_run=dry_run)


# Topics over HTTP.


Category = Literal["topic", "retry", "dead letter", "system"]


class TopicBody(Body):
    """A topic as it is to be. What is left out stays as it is, or is the brokers' default."""

    read_queue_count: int = Field(0, ge=0, le=1_024, description="Queues to receive from; 0: as it is.")
    write_queue_count: int = Field(0, ge=0, le=1_024, description="Queues to send to; 0: as it is.")
    permission: int = Field(0, ge=0, le=7, description="4 to receive, 2 to send, together 6; 0: as it is.")
    message_type: str = Field("", max_length=32, description=f"One of {', '.join(MESSAGE_TYPES)}; empty: as it is.")
    attributes: dict[str, Annotated[str, Field(max_length=100)]] = Field(
        {},
        max_length=20,
        description=f"Any of {', '.join(TOPIC_ATTRIBUTES)}; those left out stay, an empty value removes one.",
    )
    broker_names: list[Annotated[str, Field(max_length=127)]] = Field(
        [], max_length=1_000, description="Only on these broker groups; empty: on all."
    )


class TopicRoutes(Body):
    """What each NameServer says."""

    routes: list[Route]
    unseen: list[Unseen]


def add_topic_routes(app: FastAPI, desk: OperationsDesk) -> None:
    acting = operations_of(desk)

    @app.get("/api/v1/topics", **looks("topics"))
    async def topics(
        search: Annotated[str, Query(max_length=127, description="A part of the name; case does not matter.")] = "",
        category: Annotated[list[Category], Query(description="May be given more than once.")] = ["topic"],  # noqa: B006
        page: PageNumber = 1,
        page_size: PageSize = 50,
        operations: Operations = acting,
    ) -> Page[TopicSummary]:
        """Topics by name, with their counts."""
        return await operations.topics(search=search, categories=category, page=PageRequest(page, page_size))

    @app.get("/api/v1/topics/{name}", **looks("topics"))
    async def topic(name: str, operations: Operations = acting) -> TopicDetail:
        """A topic with its queues, what NameServers say of it, and the groups that read it."""
        return await operations.topic(name)

    @app.get("/api/v1/topics/{name}/routes", **looks("topics"))
    async def topic_routes(name: str, operations: Operations = acting) -> TopicRoutes:
        """What each NameServer says of a topic."""
        routes, unseen = await operations.topic_routes(name)
        return TopicRoutes(routes=list(routes), unseen=list(unseen))

    @app.get("/api/v1/topics/{name}/lite-topics", **looks("topics"))
    async def lite_topics(
        name: str,
        search: Annotated[str, Query(max_length=64, description="A part of the name.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
        operations: Operations = acting,
    ) -> LiteTopicPage:
        """Lite topics of a topic of the type LITE, by name."""
        return await operations.lite_topics(name, search=search, limit=limit)

    @app.put("/api/v1/topics/{name}", **changes("topics"))
    async def put_topic(
        name: str, body: TopicBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Creates or changes a topic, and waits until every NameServer routes to it."""
        return await operations.put_topic(TopicChange(name, **body.model_dump()), dry_run=dry_run)

    @app.delete("/api/v1/topics/{name}", **changes("topics"))
    async def delete_topic(name: str, dry_run: DryRun = False, operations: Operations = acting) -> ChangeResult:
        """Removes a topic from all masters. Nobody can consume its messages while there is no topic of that name.

        A topic made again under the name has them until they expire; groups begin in it as new ones do.
        """
        return await operations.delete_topic(name, dry_run=dry_run)


def add_rest(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    """Adds them. Before the routes of traces, whose address of a message would take in others."""
    add_topic_routes(app, desk)
    add_group_routes(app, desk, clock=clock)
    add_message_routes(app, desk, clock=clock)
    add_broker_routes(app, desk)
    add_access_routes(app, desk)
    _describe_problems(app)


def _describe_problems(app: FastAPI) -> None:
    """Adds to the API's description what its routes refer to."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        description["components"]["schemas"].setdefault("Problem", TypeAdapter(Problem).json_schema())
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


# Traces as JSON. Unlike the rest of the state these ask the brokers when somebody wants them.

_LISTED: Final = 50
_KEY_MAX: Final = 256
_NO_STORE: Final = {"cache-control": "no-store"}

_Key = Annotated[str, Query(max_length=_KEY_MAX)]


def add_traces(app: FastAPI, traces: ClusterTraces) -> None:
    @app.get("/api/v1/traces", tags=["traces"])
    async def newest_traces(
        notable: bool = False, count: Annotated[int, Query(ge=1, le=200)] = _LISTED
    ) -> JSONResponse:
        """The newest traces that brokers remember, slow and failed ones first; with `notable` no others."""
        return JSONResponse(list_document(await traces.newest(count=count, notable_only=notable)), headers=_NO_STORE)

    @app.get("/api/v1/traces/{trace_id}", tags=["traces"], responses={404: {"description": "Not known."}})
    async def trace(trace_id: str) -> JSONResponse:
        """A trace by its id or a whole traceparent, with the slave's part and the deliveries of its message."""
        return _answer(await traces.find(_checked(trace_id)))

    @app.get("/api/v1/messages/{message_id}", tags=["traces"], responses={404: {"description": "Not known."}})
    async def message(message_id: str, topic: _Key = "") -> JSONResponse:
        """What is known of a message: its traces, where it lies, and which replicas hold it."""
        return _answer(await traces.find(_checked(message_id), topic=topic))


def _checked(key: str) -> str:
    if len(key) > _KEY_MAX:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "no id is as long as that")
    return key


def _answer(findings: TraceFindings) -> JSONResponse:
    document: dict[str, Any] = findings_document(findings)
    known = findings.spans or findings.copies
    return JSONResponse(document, HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, headers=_NO_STORE)

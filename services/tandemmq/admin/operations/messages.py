"""Single messages: found by their ids, shown whole, their copies compared. Transactions
that nobody has decided, lite topics, and what clients are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import grpc
import grpc.aio

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.operations.bodies import BODY_BYTES_MAX
from tandemmq.admin.operations.questions import (
    Answer,
    BrokerPlanes,
    CallFailure,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    check_offset,
    check_queue,
    each_once,
    invalid,
    not_found,
    query_request,
    refused,
    unavailable,
    unseen_of,
    values_of,
)
from tandemmq.admin.operations.topics import ORDINARY, category_of
from tandemmq.admin.operations.values import (
    ClientReply,
    LiteTopic,
    LiteTopicPage,
    Message,
    MessageDetail,
    MessageQuery,
    MessageSummary,
    Progress,
    ReplicaCopy,
    TestMessage,
    TestReceipt,
    Transaction,
    TransactionPage,
    Unseen,
)
from tandemmq.client.messages import BrokerRefused, ClientError, SendReceipt, TopicNotFound
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.half_messages import BadTransactionId, TransactionId
from tandemmq.core.message import properties as names
from tandemmq.core.message.record import parse_offset_message_id
from tandemmq.core.metadata.topic_table import RESERVED_TOPICS, topic_name_problem
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.service.protobuf import as_value

if TYPE_CHECKING:
    from tandemmq.admin.operations.groups import GroupOperations


# Whether the members of a broker group hold the same bytes of one message.

_DIGEST_BYTES_MAX: Final = 8 << 20
"""As brokers allow. Of a larger record the beginning is compared."""


async def copies_of(
    questions: Questions, members: Sequence[BrokerState], physical_offset: int, record_bytes: int
) -> list[ReplicaCopy]:
    """Each member's copy of a record, in the order of `members`; those that do not answer are among them."""
    size = min(record_bytes, _DIGEST_BYTES_MAX)
    asked = [member for member in members if member.status is not None]
    found = await questions.brokers(
        asked, lambda broker: broker.messages.digest(physical_offset=physical_offset, size=size)
    )
    answers = {answer.subject: answer for answer in found}
    digests = [answers.get(member.key) or _silent(member) for member in members]
    master_key = next((member.key for member in members if member.is_master), "")
    return judged_copies(digests, physical_offset, size, master_key=master_key, whole=size == record_bytes)


def judged_copies(
    answers: Sequence[Answer[pb.DigestRecordResponse]],
    physical_offset: int,
    size: int,
    *,
    master_key: str,
    whole: bool = True,
) -> list[ReplicaCopy]:
    """Compares with the master's. `whole` False: only the beginning of the record was asked for."""
    master = next((answer.value for answer in answers if answer.subject == master_key), None)
    reference = master.sha256 if master is not None and master.held else None
    what = "the record" if whole else f"the first {size:,} bytes of the record"
    copies = [
        _judged(answer, reference, physical_offset, size, what, is_master=answer.subject == master_key)
        for answer in answers
    ]
    return [replace(copy, master=copy.broker == master_key) for copy in copies]


def _judged(
    answer: Answer[pb.DigestRecordResponse],
    reference: bytes | None,
    physical_offset: int,
    size: int,
    what: str,
    *,
    is_master: bool,
) -> ReplicaCopy:
    digest = answer.value
    if digest is None:
        reason = answer.failure.text if answer.failure is not None else "no answer"
        return ReplicaCopy(answer.subject, False, "", None, False, f"cannot be asked: {reason}")
    if not digest.held:
        return ReplicaCopy(answer.subject, False, "", None, False, _why_not_held(digest, physical_offset, size))
    flushed = digest.flushed_offset >= physical_offset + size
    disk = "on disk" if flushed else "not yet on disk"
    sha256 = digest.sha256.hex()
    if is_master:
        return ReplicaCopy(answer.subject, True, sha256, True, flushed, f"the master holds {what}, {disk}")
    if reference is None:
        verdict = f"holds {what}, {disk}; there is no copy of the master's to compare it with"
        return ReplicaCopy(answer.subject, True, sha256, None, flushed, verdict)
    if digest.sha256 == reference:
        return ReplicaCopy(answer.subject, True, sha256, True, flushed, f"holds the same bytes of {what}, {disk}")
    verdict = f"holds other bytes than the master where {what} lies; run `tandemmq verify` for this broker group"
    return ReplicaCopy(answer.subject, True, sha256, False, flushed, verdict)


def _why_not_held(digest: pb.DigestRecordResponse, physical_offset: int, size: int) -> str:
    if physical_offset < digest.min_offset:
        return f"holds it no more: its log begins at {digest.min_offset:,}"
    behind = physical_offset + size - digest.end_offset
    if behind > 0:
        return f"does not hold it yet: {behind:,} bytes behind"
    return "could not read it: its log changed meanwhile, or its disk fails"


def _silent(member: BrokerState) -> Answer[pb.DigestRecordResponse]:
    # It did not answer a moment ago; one that hangs would cost the time limit again.
    return Answer(member.key, member.broker_name, None, CallFailure.silent(member.error or "no answer"))


# A message once more, as a new one.


def message_again(message: Message) -> TestMessage:
    """What is to be sent for it: its body, tag, keys, own properties and message group; ids and times are new.

    REFUSED: only a part of its body is known, or its topic is none that clients send to.
    """
    problem = ""
    if message.body_problem:
        problem = f"its body cannot be read: {message.body_problem}"
    elif len(message.body) >= BODY_BYTES_MAX or (not message.compression and len(message.body) < message.body_size):
        problem = f"its body is larger than {BODY_BYTES_MAX:,} bytes, or only a part of it could be read"
    elif category_of(message.topic, _NO_OWN) != ORDINARY:
        problem = f"{message.topic} is no topic that clients send to"
    if problem:
        raise refused(
            "this message cannot be sent again from here",
            cause=problem,
            remedy="dead letters are sent again by their group: `tandemmq dlq resend`",
        )
    return TestMessage(
        topic=message.topic,
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        properties={name: value for name, value in message.properties.items() if name not in _WRITTEN_BY_SYSTEM},
        message_group=message.properties.get(names.PROPERTY_SHARDING_KEY, ""),
    )


# Topics named after the cluster and its brokers take no messages; a broker says so.
_NO_OWN: Final[frozenset[str]] = frozenset(RESERVED_TOPICS)
_WRITTEN_BY_SYSTEM: Final = frozenset(
    value for name, value in vars(names).items() if name.startswith("PROPERTY_") and isinstance(value, str)
)
"""Properties that belong to one sending of a message, or are given in fields of their own."""


_RECORDS_MAX: Final = 16
"""As many as a broker tells of one id: after redelivery and dead-lettering there is more than one."""
_ID_CHARACTERS_MAX: Final = 255


class MessageOperations:
    """Reads from the masters, or from the slaves of those that are away."""

    def __init__(self, members: Members, questions: Questions, groups: GroupOperations) -> None:
        self._members = members
        self._questions = questions
        self._groups = groups

    async def find(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """Messages by the id a client gave them, or by an id of address and offset, newest first. UNAVAILABLE when none
        is found and not everybody could be asked."""
        message_id = message_id.strip()
        if not message_id or len(message_id) > _ID_CHARACTERS_MAX:
            raise invalid("this is no message id", remedy=f"give 1 to {_ID_CHARACTERS_MAX} characters")
        readers = self._members.readers()
        by_offset = await self._by_offset_id(readers.brokers, message_id, topic)
        if found := [message for answer in by_offset for message in answer.value or ()]:
            return found
        by_client = await self._by_client_id(readers.brokers, message_id, topic)
        found = [message for answer in by_client for message in answer.value or ()]
        unseen = [*readers.unseen, *unseen_of(by_client, but=FailureKind.NOT_FOUND)]
        if not found and unseen:
            raise unavailable(
                f"message {message_id} was not found, but not everybody could be asked",
                cause="\n".join(f"{each.subject}: {each.reason}" for each in unseen),
                remedy="ask again when they are back",
            )
        return sorted(found, key=lambda message: (message.store_ms, message.physical_offset), reverse=True)

    async def at_physical(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        """The message whose record begins there whole, with its copies compared; at most 4 MiB of its body."""
        check_offset(physical_offset)
        request = pb.GetMessageRequest(physical_offset=physical_offset, body_bytes=_body_limit(body_bytes))
        return await self._detail(broker_name, request, f"no message begins at {physical_offset:,} on {broker_name}")

    async def at_queue(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        """The same, by its place in a queue."""
        check_offset(queue_offset)
        check_queue(queue_id)
        place = pb.QueuePlace(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
        request = pb.GetMessageRequest(queue=place, body_bytes=_body_limit(body_bytes))
        problem = f"queue {queue_id} of {topic} on {broker_name} has no message {queue_offset:,}"
        return await self._detail(broker_name, request, problem)

    async def _detail(self, broker_name: str, request: pb.GetMessageRequest, not_found: str) -> MessageDetail:
        # The group by its name: without one, readers are those of all groups.
        members = self._members.of_group(broker_name)
        readers = self._members.readers(broker_name)
        [reader] = readers.brokers
        [answer] = await self._questions.brokers([reader], lambda broker: broker.messages.message(request))
        if answer.value is None:
            assert answer.failure is not None
            is_absent = answer.failure.kind is FailureKind.NOT_FOUND
            raise answer.failure.failed(answer.subject, not_found if is_absent else "the message cannot be read")
        message = as_value(Message, answer.value, broker_name=broker_name)
        copies, (consumption, unseen) = await asyncio.gather(
            copies_of(self._questions, members, message.physical_offset, message.record_bytes),
            self._consumption(message),
        )
        return MessageDetail(message, copies, consumption, each_once(readers.unseen, unseen))

    async def _consumption(self, message: Message) -> tuple[dict[str, str], Sequence[Unseen]]:
        try:
            progress, unseen = await self._groups.progress_in(message.topic)
        except OperationFailed as failure:
            return {}, (Unseen(f"{message.broker_name}:0", failure.problem),)
        groups = sorted({one.group for one in progress})
        by_group = {
            one.group: one
            for one in progress
            if (one.broker_name, one.queue_id) == (message.broker_name, message.queue_id)
        }
        return {group: _standing(by_group.get(group), message.queue_offset) for group in groups}, unseen

    async def _by_client_id(
        self, readers: Sequence[BrokerState], message_id: str, topic: str
    ) -> list[Answer[list[MessageSummary]]]:
        async def of_topic(broker: BrokerPlanes) -> list[MessageSummary]:
            query = MessageQuery(topic, key=message_id)
            request = query_request(query, start_ms=-1, end_ms=-1, limit=_RECORDS_MAX, page_token=b"")
            answer = await broker.messages.query(request)
            views = [view for view in answer.messages if view.message_id == message_id]
            return [as_value(MessageSummary, view, broker_name=broker.broker.broker_name) for view in views]

        async def of_all_topics(broker: BrokerPlanes) -> list[MessageSummary]:
            answer = await broker.traces.message(message_id=message_id)
            if not answer.indexed:
                raise refused(
                    f"{broker.broker.key} cannot find messages by their ids",
                    cause="its messageIndexEnable is off",
                    remedy="look for the message by topic and time",
                )
            found = []
            for stored in answer.messages[:_RECORDS_MAX]:
                view = await _message_or_none(broker, stored.physical_offset)
                # The index mixes ids and keys: a message that merely has this text among its keys is another one.
                if view is not None and view.message_id == message_id:
                    found.append(as_value(MessageSummary, view, broker_name=broker.broker.broker_name))
            return found

        return await self._questions.brokers(readers, of_topic if topic else of_all_topics)

    async def _by_offset_id(
        self, readers: Sequence[BrokerState], message_id: str, topic: str
    ) -> list[Answer[list[MessageSummary]]]:
        """An id of address and offset. The address is not dialled: each broker is asked for its record at the offset,
        and the record knows its id."""
        try:
            _, physical_offset = parse_offset_message_id(message_id)
        except ValueError:
            return []
        if physical_offset < 0:
            return []
        request = pb.GetMessageRequest(physical_offset=physical_offset)

        async def ask(broker: BrokerPlanes) -> list[MessageSummary]:
            view = await broker.messages.message(request)
            is_it = view.offset_message_id.upper() == message_id.upper() and topic in ("", view.topic)
            return [as_value(MessageSummary, view, broker_name=broker.broker.broker_name)] if is_it else []

        return await self._questions.brokers(readers, ask)


async def _message_or_none(broker: BrokerPlanes, physical_offset: int) -> pb.MessageView | None:
    """None: it has expired since it was found."""
    try:
        return await broker.messages.message(pb.GetMessageRequest(physical_offset=physical_offset))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise


def _standing(progress: Progress | None, queue_offset: int) -> str:
    if progress is None:
        return "not known: it has not read this queue"
    return "acknowledged" if queue_offset < progress.committed_offset else "in flight or waiting"


def _body_limit(body_bytes: int) -> int:
    return min(max(0, body_bytes), BODY_BYTES_MAX)


# Sends a message as a client would, and finds out in which queue it lies.

_SENDS_AT_ONCE: Final = 4
_LIMIT_S: Final = 15.0
_ACCESS_POINTS_MAX: Final = 8


class SendClient(Protocol):
    """What is asked of a client: `tandemmq.client.Producer` has it."""

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
    ) -> SendReceipt:
        """Stores one message. Raises ClientError."""
        ...


MakeSendClient: TypeAlias = Callable[[tuple[str, ...]], AbstractAsyncContextManager[SendClient]]
"""Makes a client for these access points, which ends with its block."""


class MessageSending:
    """Each message has a client of its own: kept, it would be shown as a connected producer for ever."""

    def __init__(self, members: Members, questions: Questions, make_client: MakeSendClient, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._make_client = make_client
        self._clock = clock
        self._slots = asyncio.Semaphore(_SENDS_AT_ONCE)

    async def send(self, message: TestMessage) -> TestReceipt:
        """Where it was stored. REFUSED: the broker's own words; UNAVAILABLE: it may be stored all the same."""
        if (problem := topic_name_problem(message.topic)) is not None:
            raise invalid("this message cannot be sent", cause=problem)
        if len(message.body) > BODY_BYTES_MAX:
            raise invalid(
                "this message cannot be sent",
                cause=f"its body has {len(message.body):,} bytes; from here {BODY_BYTES_MAX:,} can be sent",
            )
        access_points = self._access_points()
        async with self._slots:
            began_ns = self._clock.monotonic_ns()
            outcome = await self._outcome(message, access_points)
            duration_ms = (self._clock.monotonic_ns() - began_ns) / 1e6
        if not isinstance(outcome, SendReceipt):
            raise _failed(message.topic, outcome)
        broker_name, queue_id = await self._place(message.topic, outcome)
        return TestReceipt(
            message_id=outcome.message_id,
            broker_name=broker_name,
            queue_id=queue_id,
            queue_offset=outcome.queue_offset,
            duration_ms=duration_ms,
        )

    def _access_points(self) -> tuple[str, ...]:
        answering, _ = self._members.answering()
        # A master's own route of its topics is the newest there is.
        masters_first = sorted(answering, key=lambda broker: not broker.is_master)
        endpoints = dict.fromkeys(broker.client_endpoint for broker in masters_first if broker.client_endpoint)
        return tuple(endpoints)[:_ACCESS_POINTS_MAX]

    async def _outcome(
        self, message: TestMessage, access_points: tuple[str, ...]
    ) -> SendReceipt | ClientError | TimeoutError:
        async with self._make_client(access_points) as client:
            # What leaves this block as an exception would come out as a group of one.
            try:
                async with asyncio.timeout(_LIMIT_S):
                    return await client.send(
                        message.topic,
                        message.body,
                        tag=message.tag or None,
                        keys=message.keys,
                        properties=message.properties,
                        message_group=message.message_group or None,
                    )
            except (ClientError, TimeoutError) as error:
                return error

    async def _place(self, topic: str, receipt: SendReceipt) -> tuple[str, int]:
        """Broker group and queue. The receipt knows only who was asked, which passes on what belongs to another group;
        that one and -1 if nobody shows the message."""
        query = MessageQuery(topic, key=receipt.message_id)
        request = query_request(query, start_ms=-1, end_ms=-1, limit=16, page_token=b"")
        try:
            readers = self._members.readers()
        except OperationFailed:
            return receipt.broker_name, -1
        answers = await self._questions.brokers(readers.brokers, lambda broker: broker.messages.query(request))
        for reader, answer in zip(readers.brokers, answers):
            for view in answer.value.messages if answer.value is not None else ():
                if view.queue_offset == receipt.queue_offset:
                    return reader.broker_name, view.queue_id
        return receipt.broker_name, -1


_CONFLICT_WITH_TYPE: Final = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
_TYPE_REMEDY: Final = (
    "for FIFO name a message group (--message-group); messages of the other types are sent by programs "
    "(docs/operations/clients.md), or choose a topic of the type NORMAL"
)


def _failed(topic: str, error: ClientError | TimeoutError) -> OperationFailed:
    problem = f"the message was not accepted in topic {topic}"
    match error:
        case TopicNotFound():
            return not_found(problem, cause=str(error), remedy="create the topic first")
        case BrokerRefused(retryable=False):
            is_of_type = error.code_name == _CONFLICT_WITH_TYPE
            remedy = _TYPE_REMEDY if is_of_type else "change what the cause names, and try again"
            return refused(problem, cause=str(error), remedy=remedy)
        case TimeoutError():
            cause = f"no answer within {_LIMIT_S:.0f} s"
        case _:
            cause = str(error)
    return unavailable(
        f"the message was not acknowledged in topic {topic}; it may be stored all the same",
        cause=cause,
        remedy="see the brokers' health, and look for the message before sending it again",
    )


# Lite topics; transactions that nobody has decided, and ending them; what clients are told over their streams.

TRANSACTION_ENDS: Final = {
    "commit": operations_pb.TRANSACTION_END_COMMIT,
    "rollback": operations_pb.TRANSACTION_END_ROLLBACK,
}
CLIENT_COMMANDS: Final = {
    "print-stack": operations_pb.CLIENT_COMMAND_PRINT_STACK,
    "verify-message": operations_pb.CLIENT_COMMAND_VERIFY_MESSAGE,
    "reconnect": operations_pb.CLIENT_COMMAND_RECONNECT,
}
_TRANSACTIONS_MAX: Final = 1_000


_LITE_TOPICS_MAX: Final = 1_000


class TransactionOperations:
    """Asks masters, and for clients all brokers."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def transactions(self, *, topic: str = "", limit: int = 200) -> TransactionPage:
        """Transactions that are neither committed nor rolled back, of all masters, the oldest first; at most 1,000."""
        limit = max(1, min(limit, _TRANSACTIONS_MAX))
        request = operations_pb.ListTransactionsRequest(topic=topic, limit=limit)
        readers = self._members.masters()
        answers = await self._questions.brokers(readers.brokers, lambda planes: planes.operations.transactions(request))
        found = [
            as_value(Transaction, view, broker_name=broker_name)
            for broker_name, answer in values_of(answers)
            for view in answer.transactions
        ]
        found.sort(key=lambda one: one.store_ms)
        total = sum(answer.total_count for _, answer in values_of(answers))
        return TransactionPage(tuple(found[:limit]), total, (*readers.unseen, *unseen_of(answers)))

    async def lite_topics(self, topic: str, *, search: str = "", limit: int = 200) -> LiteTopicPage:
        """Lite topics of a topic of the type LITE on all masters, by name; at most 1,000."""
        limit = max(1, min(limit, _LITE_TOPICS_MAX))
        request = operations_pb.ListLiteTopicsRequest(topic=topic, search=search, limit=limit)
        readers = self._members.masters()
        answers = await self._questions.brokers(readers.brokers, lambda planes: planes.operations.lite_topics(request))
        found = [
            as_value(LiteTopic, view, broker_name=broker_name)
            for broker_name, answer in values_of(answers)
            for view in answer.lite_topics
        ]
        texts = {answer.failure.text for answer in answers if answer.failure is not None}
        if answers and all(answer.value is None for answer in answers):
            raise refused(
                f"no master tells lite topics of {topic}",
                cause="\n".join(sorted(texts)),
                remedy="name a topic of the type LITE; `tandemmq topic list` shows types",
            )
        found.sort(key=lambda one: (one.lite_topic, one.broker_name))
        total = sum(answer.total_count for _, answer in values_of(answers))
        return LiteTopicPage(tuple(found[:limit]), total, (*readers.unseen, *unseen_of(answers)))

    async def resolve(self, transaction_id: str, end: str, *, dry_run: bool = False) -> Transaction:
        """Ends one in its producer's place: `commit` or `rollback`. Idempotent. REFUSED: it ended in the other way, or
        is not known."""
        if end not in TRANSACTION_ENDS:
            raise invalid(f"end: {end!r}", remedy="choose commit or rollback")
        try:
            broker_name = TransactionId.parse(transaction_id).broker_name
        except BadTransactionId as error:
            raise invalid(str(error), remedy="`tandemmq transaction list` shows those there are") from error
        [master] = self._members.masters_to_change([broker_name])
        request = operations_pb.ResolveTransactionRequest(
            transaction_id=transaction_id, end=TRANSACTION_ENDS[end], dry_run=dry_run
        )
        answer = await self._questions.broker(
            master,
            lambda planes: planes.operations.resolve_transaction(request),
            problem="the transaction was not ended",
        )
        return as_value(Transaction, answer.transaction, broker_name=broker_name)

    async def command_client(
        self,
        client_id: str,
        command: str,
        *,
        broker_name: str = "",
        topic: str = "",
        queue_id: int = 0,
        queue_offset: int = 0,
    ) -> Sequence[ClientReply]:
        """Tells a client to `print-stack`, to `reconnect`, or to `verify-message` with a stored one: what it said to
        each broker that it is connected to, or to the one master that is named. NOT_FOUND: no broker has a stream of
        it."""
        if command not in CLIENT_COMMANDS:
            raise invalid(f"command: {command!r}", remedy=f"choose one of {', '.join(CLIENT_COMMANDS)}")
        if command == "verify-message" and not (broker_name and topic):
            raise invalid(
                "which message is to be verified?",
                remedy="name its broker group, topic, queue and offset; the client must be connected to that group",
            )
        check_queue(queue_id)
        check_offset(queue_offset)
        brokers = self._members.masters_to_change([broker_name]) if broker_name else self._members.answering()[0]
        request = operations_pb.CommandClientRequest(
            client_id=client_id,
            command=CLIENT_COMMANDS[command],
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
        )
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.command_client(request))
        replies = tuple(
            as_value(ClientReply, answer.value, broker=answer.subject) for answer in answers if answer.value is not None
        )
        if not replies:
            texts = {answer.failure.text for answer in answers if answer.failure is not None}
            raise not_found(
                f"client {client_id} was not told",
                cause="\n".join(sorted(texts)) or "no broker answers",
                remedy="`tandemmq clients` shows who is connected",
            )
        return replies

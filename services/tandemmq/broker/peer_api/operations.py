"""BrokerOperationsService: what operators do to this broker. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import grpc
import structlog

from tandemmq.broker.client_api.client_commands import Unreachable
from tandemmq.broker.client_api.sessions import ClientSession
from tandemmq.broker.client_api.validation import OK, Outcome
from tandemmq.broker.group_changes import Edge, GroupChanges, InvalidOffsets, ResetTarget, StoreTime
from tandemmq.broker.kept_tails import KeptTails, TailUnknown
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.broker.queries.values import QueriesBusy, TopicUnknown
from tandemmq.broker.runtime_settings import RuntimeSettings, SettingsRefused
from tandemmq.core.delivery.half_messages import Half, Resolution
from tandemmq.core.message.properties import PROPERTY_BORN_HOST, decode_properties
from tandemmq.core.metadata.subscription_group_table import SYSTEM_GROUPS
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.grpc_server import Context, Invalid, Refused, by_kind, refusing
from tandemmq.service.logging import EventMemory
from tandemmq.service.protobuf import as_message

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts

log = structlog.get_logger(__name__)

_CLIENTS: Final = 200
_CLIENTS_MAX: Final = 1_000
_CLIENT_TOPICS_MAX: Final = 20_000
"""Of all clients of one answer: some 100 ms and 2 MiB."""
_CLIENT_TEXT_MAX: Final = 500
"""Characters of a version or an expression."""
_EVENTS: Final = 100
_EVENTS_MAX: Final = 500
_DEAD_LETTERS_MAX: Final = 100
_TAILS: Final = 100
_TAILS_MAX: Final = 500
_TAIL_READ_BYTES_MAX: Final = 1 << 20
_FINGERPRINTS_MAX: Final = 256
_RESTORED_MAX: Final = 64
_RESTORED_BYTES_MAX: Final = 4 << 20
_TRANSACTIONS: Final = 200
_TRANSACTIONS_MAX: Final = 1_000
_ENDS: Final = {pb.TRANSACTION_END_COMMIT: Resolution.COMMIT, pb.TRANSACTION_END_ROLLBACK: Resolution.ROLLBACK}
_MEMBERS_NAMED: Final = 3
_VALUES_MAX: Final = 200
_KEY_CHARACTERS_MAX: Final = 100
_VALUE_CHARACTERS_MAX: Final = 4_000

ResendDeadLetters: TypeAlias = Callable[[str, Sequence[int], bool], Awaitable[list[pb.ResentDeadLetter]]]
"""(group, queue offsets, dry run) -> what came of each, in their order."""


@refusing(
    by_kind(
        (InvalidOffsets, grpc.StatusCode.INVALID_ARGUMENT),
        (SettingsRefused, grpc.StatusCode.INVALID_ARGUMENT),
        (TopicUnknown, grpc.StatusCode.NOT_FOUND),
        (TailUnknown, grpc.StatusCode.NOT_FOUND),
        (Unreachable, grpc.StatusCode.NOT_FOUND),
        (QueriesBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
        # Nobody is told of a change before it is written.
        (NotSpread, grpc.StatusCode.UNAVAILABLE),
    )
)
class BrokerOperationsServicer(broker_operations_service_pb2_grpc.BrokerOperationsServiceServicer):
    """Answers for one broker."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        changes: GroupChanges,
        settings: RuntimeSettings,
        events: EventMemory,
        resend_dead_letters: ResendDeadLetters,
        kept_tails: KeptTails,
    ) -> None:
        self._parts = parts
        self._changes = changes
        self._settings = settings
        self._events = events
        self._resend_dead_letters = resend_dead_letters
        self._kept_tails = kept_tails
        self._transactions = parts.client_api.transactions
        self._lite = parts.client_api.lite

    # Clients

    async def ListClients(self, request: pb.ListClientsRequest, context: Context) -> pb.ListClientsResponse:
        limit = _limit(request.limit, default=_CLIENTS, maximum=_CLIENTS_MAX)
        matching = [
            session
            for session in reversed(self._parts.sessions.all())
            if (not request.group or session.group == request.group)
            and (not request.topic or request.topic in session.subscriptions)
        ]
        now_ms = self._parts.clock.monotonic_ms()
        answer = pb.ListClientsResponse(total_count=len(matching))
        turn = TurnLimit(self._parts.clock)
        topics_left = _CLIENT_TOPICS_MAX
        for session in matching[:limit]:
            topics_left -= len(session.subscriptions)
            if topics_left < 0 and answer.clients:
                # As if fewer had been asked for: a client says what it likes of itself, up to megabytes.
                break
            answer.clients.append(_client_view(session, now_ms))
            if turn.is_reached:
                await turn.pause()
        return answer

    # Groups

    async def DeleteSubscriptionGroup(
        self, request: pb.DeleteSubscriptionGroupRequest, context: Context
    ) -> pb.DeleteSubscriptionGroupResponse:
        self._masters_only()
        if not request.group:
            raise Invalid("group: name one")
        if request.group in SYSTEM_GROUPS:
            raise Invalid(f"group: {request.group} belongs to the system and stays")
        members = self._changes.members(request.group)
        if members and not request.even_with_members:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, _members_text(request.group, members))
        change = self._changes.removal_of if request.dry_run else self._changes.remove_group
        removal = change(request.group)
        await self._changes.written()
        return pb.DeleteSubscriptionGroupResponse(
            existed=removal.existed, topics=removal.topics, inflight_count=removal.inflight_count
        )

    async def ResetOffsets(self, request: pb.ResetOffsetsRequest, context: Context) -> pb.ResetOffsetsResponse:
        self._masters_only()
        try:
            target = _target(request)
        except ValueError as error:
            raise Invalid(f"time: {error}") from error
        if target is None:
            raise Invalid("target: name a time, earliest, latest, or the offset of a queue")
        self._both_exist(request)
        moves = await self._changes.moves(request.group, request.topic, target)
        # The search took its time; somebody may have deleted one of them, and the broker may be leaving.
        self._masters_only()
        self._both_exist(request)
        if not request.dry_run:
            self._changes.move(request.group, request.topic, moves)
            await self._changes.written()
        return as_message(pb.ResetOffsetsResponse, moves=moves)

    async def ResendDeadLetters(
        self, request: pb.ResendDeadLettersRequest, context: Context
    ) -> pb.ResendDeadLettersResponse:
        self._masters_only()
        if not request.group:
            raise Invalid("group: name one")
        if not 0 < len(request.queue_offsets) <= _DEAD_LETTERS_MAX:
            count = len(request.queue_offsets)
            raise Invalid(f"queue_offsets: {count} are named; name 1 to {_DEAD_LETTERS_MAX}")
        letters = await self._resend_dead_letters(request.group, request.queue_offsets, request.dry_run)
        return pb.ResendDeadLettersResponse(letters=letters)

    # Lite topics

    async def ListLiteTopics(self, request: pb.ListLiteTopicsRequest, context: Context) -> pb.ListLiteTopicsResponse:
        self._masters_only()
        limit = _limit(request.limit, default=_TRANSACTIONS, maximum=_TRANSACTIONS_MAX)
        names = self._lite.names(request.topic, request.search)
        if names is None:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, f"topic: {request.topic} is no topic of the type LITE here"
            )
        answer = pb.ListLiteTopicsResponse(total_count=len(names))
        turn = TurnLimit(self._parts.clock)
        for name in nsmallest(limit, names):
            standing = self._lite.standing(request.topic, name)
            if standing is None:
                continue  # It ended while others had their turn.
            view = answer.lite_topics.add(
                lite_topic=name,
                min_offset=standing.view.min_offset,
                max_offset=standing.view.max_offset,
                subscriber_count=standing.subscriber_count,
                lags=standing.lags,
            )
            view.last_store_time.FromMilliseconds(standing.view.last_stored_ms)
            if turn.is_reached:
                await turn.pause()
        return answer

    # Transactions

    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: Context
    ) -> pb.ListTransactionsResponse:
        self._masters_only()
        limit = _limit(request.limit, default=_TRANSACTIONS, maximum=_TRANSACTIONS_MAX)
        matching = [
            (half, transaction_id)
            for half, transaction_id in self._transactions.undecided()
            if request.topic in ("", half.topic)
        ]
        matching.sort(key=lambda pair: pair[0].queue_offset)
        answer = pb.ListTransactionsResponse(total_count=len(matching))
        turn = TurnLimit(self._parts.clock)
        for half, transaction_id in matching[:limit]:
            answer.transactions.append(self._transaction_view(half, transaction_id))
            if turn.is_reached:
                await turn.pause()
        return answer

    async def ResolveTransaction(
        self, request: pb.ResolveTransactionRequest, context: Context
    ) -> pb.ResolveTransactionResponse:
        self._masters_only()
        resolution = _ENDS.get(request.end)
        if resolution is None:
            raise Invalid("end: choose commit or rollback")
        wanted = self._transactions.wanted(request.transaction_id)
        if isinstance(wanted, Outcome):
            raise Invalid(f"transaction_id: {wanted.text}")
        half = self._transactions.half(wanted)
        view = pb.TransactionView(transaction_id=request.transaction_id, message_id=wanted.message_id)
        if half is not None:
            view = self._transaction_view(half, request.transaction_id)
        if request.dry_run and half is not None:
            return pb.ResolveTransactionResponse(transaction=view)
        if request.dry_run:
            # Whatever it says now it says again, and it changes nothing: the half has ended.
            outcome = self._transactions.ended_as(wanted, resolution)
        else:
            settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

            def settle(found: Outcome) -> None:
                if not settled.done():  # whoever asked may be gone
                    settled.set_result(found)

            self._transactions.decide(wanted, resolution, settle)
            outcome = await settled
            log.info(
                "transaction_resolved",
                by="operator",
                message_id=wanted.message_id,
                topic=view.topic,
                end=resolution.value,
                outcome=outcome.text,
            )
        if outcome is not OK:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, outcome.text)
        return pb.ResolveTransactionResponse(transaction=view)

    def _transaction_view(self, half: Half, transaction_id: str) -> pb.TransactionView:
        record = self._transactions.record(half)
        view = pb.TransactionView(
            transaction_id=transaction_id,
            topic=half.topic,
            message_id=half.message_id,
            check_count=half.check_count,
        )
        view.store_time.FromMilliseconds(half.stored_wall_ms)
        if record is not None:
            view.producer = decode_properties(record.properties).get(PROPERTY_BORN_HOST, "")
            view.body_bytes = len(record.body)
        return view

    # Clients' streams

    async def CommandClient(self, request: pb.CommandClientRequest, context: Context) -> pb.CommandClientResponse:
        commands, client_id = self._parts.client_api.commands, request.client_id
        if request.command == pb.CLIENT_COMMAND_PRINT_STACK:
            reply = await commands.print_stack(client_id)
        elif request.command == pb.CLIENT_COMMAND_VERIFY_MESSAGE:
            reply = await commands.verify(client_id, request.topic, request.queue_id, request.queue_offset)
        elif request.command == pb.CLIENT_COMMAND_RECONNECT:
            reply = commands.reconnect(client_id)
        else:
            raise Invalid("command: choose print_stack, verify_message or reconnect")
        return pb.CommandClientResponse(code=reply.code, text=reply.text)

    # Kept tails

    async def ListKeptTails(self, request: pb.ListKeptTailsRequest, context: Context) -> pb.ListKeptTailsResponse:
        limit = _limit(request.page_size, default=_TAILS, maximum=_TAILS_MAX)
        found, next_token = await self._kept_tails.tails(after=request.page_token, limit=limit)
        answer = pb.ListKeptTailsResponse(next_page_token=next_token)
        for tail in found:
            view = answer.tails.add(
                name=tail.name, start_offset=tail.start_offset, end_offset=tail.end_offset, reason=tail.reason
            )
            view.kept_time.FromMilliseconds(tail.kept_wall_ms)
        return answer

    async def ReadKeptTail(self, request: pb.ReadKeptTailRequest, context: Context) -> pb.ReadKeptTailResponse:
        if not 0 <= request.length_bytes <= _TAIL_READ_BYTES_MAX:
            raise Invalid(f"length_bytes: {request.length_bytes}; ask for at most {_TAIL_READ_BYTES_MAX}")
        data = await self._kept_tails.read(request.name, request.offset, request.length_bytes or _TAIL_READ_BYTES_MAX)
        return pb.ReadKeptTailResponse(data=data)

    async def CheckMessages(self, request: pb.CheckMessagesRequest, context: Context) -> pb.CheckMessagesResponse:
        if not 0 < len(request.messages) <= _FINGERPRINTS_MAX:
            raise Invalid(f"messages: {len(request.messages)} are named; name 1 to {_FINGERPRINTS_MAX}")
        for message in request.messages:
            if not message.message_id or not message.topic:
                raise Invalid("messages: each needs its message_id and its topic")
        return pb.CheckMessagesResponse(holdings=await self._kept_tails.check(request.messages))

    async def RestoreMessages(self, request: pb.RestoreMessagesRequest, context: Context) -> pb.RestoreMessagesResponse:
        self._masters_only()
        count, size = len(request.records), sum(map(len, request.records))
        if not 0 < count <= _RESTORED_MAX or (count > 1 and size > _RESTORED_BYTES_MAX):
            raise Invalid(
                f"records: {count} of {size} bytes; send 1 to {_RESTORED_MAX}, of {_RESTORED_BYTES_MAX} bytes or one"
            )
        try:
            restored = await self._kept_tails.restore(request.records, dry_run=request.dry_run)
            return pb.RestoreMessagesResponse(messages=restored)
        except TimeoutError as error:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "others restore messages here; try again") from error

    # Settings

    async def GetConfig(self, request: pb.GetConfigRequest, context: Context) -> pb.GetConfigResponse:
        return as_message(pb.GetConfigResponse, settings=self._settings.all())

    async def UpdateConfig(self, request: pb.UpdateConfigRequest, context: Context) -> pb.UpdateConfigResponse:
        # Each key that is not known costs a look at all that are.
        too_long = any(
            len(key) > _KEY_CHARACTERS_MAX or len(value) > _VALUE_CHARACTERS_MAX
            for key, value in request.values.items()
        )
        if len(request.values) > _VALUES_MAX or too_long:
            raise Invalid(
                f"values: name at most {_VALUES_MAX} settings, with keys of {_KEY_CHARACTERS_MAX} and values of "
                f"{_VALUE_CHARACTERS_MAX} characters"
            )
        change = self._settings.changes if request.dry_run else self._settings.change
        return as_message(pb.UpdateConfigResponse, changes=change(dict(request.values)))

    # Events

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        limit = _limit(request.limit, default=_EVENTS, maximum=_EVENTS_MAX)
        answer = pb.ListEventsResponse(last_sequence=self._events.last_sequence)
        answer.process_start_time.FromMilliseconds(self._parts.incarnation)
        for event in self._events.events_after(request.after_sequence, limit):
            view = answer.events.add(
                sequence=event.sequence, level=event.level, event=event.event, fields=dict(event.fields)
            )
            view.time.FromMilliseconds(event.wall_ms)
        return answer

    def _both_exist(self, request: pb.ResetOffsetsRequest) -> None:
        if not self._changes.has_topic(request.topic):
            raise Refused(grpc.StatusCode.NOT_FOUND, f"topic: this broker has no {request.topic}")
        if not self._changes.has_group(request.group):
            raise Refused(grpc.StatusCode.NOT_FOUND, f"group: this broker has no {request.group}")

    def _masters_only(self) -> None:
        refusal = self._parts.refusal
        if refusal is not None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"{refusal}; make the change on a serving master")


def _client_view(session: ClientSession, now_ms: int) -> pb.ClientView:
    view = pb.ClientView(
        client_id=session.client_id,
        client_type=session.client_type,
        group=session.group,
        language=session.language,
        version=session.version[:_CLIENT_TEXT_MAX],
        address=_address(session.peer),
        subscriptions={
            topic: expression[:_CLIENT_TEXT_MAX]
            for topic, expression in islice(session.subscriptions.items(), _CLIENT_TOPICS_MAX)
        },
    )
    view.silent_for.FromMilliseconds(max(0, now_ms - session.last_seen_ms))
    return view


def _address(peer: str) -> str:
    """`ipv4:10.0.0.4:5000` and `ipv6:%5B::1%5D:5000`, as gRPC writes them, without what only it needs."""
    return unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))


def _members_text(group: str, members: Sequence[ClientSession]) -> str:
    named = ", ".join(member.client_id for member in members[:_MEMBERS_NAMED])
    more = f" and {len(members) - _MEMBERS_NAMED} more" if len(members) > _MEMBERS_NAMED else ""
    return (
        f"group {group} has connected consumers: {named}{more}; stop them first, or they make the group anew with "
        "their next receive"
    )


def _target(request: pb.ResetOffsetsRequest) -> ResetTarget | None:
    """None when it names none. ValueError: a time outside the years 1 to 9999."""
    match request.WhichOneof("target"):
        case "time":
            return StoreTime(request.time.ToMilliseconds())
        case "earliest" if request.earliest:
            return Edge.EARLIEST
        case "latest" if request.latest:
            return Edge.LATEST
        case "offsets" if request.offsets.by_queue:
            return dict(request.offsets.by_queue)
        case _:
            return None


def _limit(asked: int, *, default: int, maximum: int) -> int:
    if not 0 <= asked <= maximum:
        raise Invalid(f"limit: {asked}; use 1 to {maximum}, or 0 for {default}")
    return asked or default

"""SendMessage: check, choose a queue, put, answer with what became of it. And RecallMessage, which takes a delayed one
back.

A request is stored whole or not at all: the first message that is refused refuses its companions, and a stored request
is one run of records in one queue.

A message group, and a lite topic, has one queue in the cluster, whatever language sends: clients hash differently, so
the broker decides again, and passes the request on when the queue is another broker group's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tandemmq.broker.client_api.delivery_encoding import number, tag_of
from tandemmq.broker.client_api.message_translation import NoTime, TopicTranslation, peer_of
from tandemmq.broker.client_api.sent_message import MESSAGES_MAX, SentMessage
from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.transactions import Transactions, transaction_problem
from tandemmq.broker.client_api.validation import (
    OK,
    PUT_OUTCOMES,
    Code,
    Outcome,
    check_client_id,
    check_message,
    check_topic,
    common_status,
    declared_type,
    ok_status,
    status_of,
)
from tandemmq.broker.delayed_messages import DelayedMessages, RecallRefusal, timer_message
from tandemmq.broker.message_group_homes import ORDERED_TYPES
from tandemmq.broker.put import PutAnswer
from tandemmq.core.delivery.deduplication import Deduplication, Window
from tandemmq.core.message.properties import InvalidProperty
from tandemmq.core.message.record import DEDUPLICATION_TOPIC, HALF_TOPIC, TIMER_TOPIC, OutgoingMessage
from tandemmq.core.metadata.topic_table import TopicConfig, deduplication_window_ms
from tandemmq.core.routing.queue_choice import queue_of_message_group, queue_of_priority
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.tracing.span_data import TRACEPARENT
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call, StatusCode

if TYPE_CHECKING:
    from tandemmq.broker.client_api.lite import LiteHandler
    from tandemmq.broker.client_api.quotas import ClientQuotas

log = structlog.get_logger(__name__)

_TYPES_STORED: Final[tuple[int, ...]] = (
    definition.NORMAL,
    definition.FIFO,
    definition.DELAY,
    definition.TRANSACTION,
    definition.PRIORITY,
    definition.LITE,
)
# By the topic's message type.
_TYPES_TAKEN: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "NORMAL": (definition.NORMAL,),
        "FIFO": (definition.FIFO,),
        "DELAY": (definition.DELAY,),
        "TRANSACTION": (definition.TRANSACTION,),
        "PRIORITY": (definition.PRIORITY,),
        "LITE": (definition.LITE,),
        "MIXED": (definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION),
    }
)
# Copies of messages of any kind end up there.
_TOPICS_OF_ANY_TYPE: Final = ("%RETRY%", "%DLQ%")
_NORMAL: Final[int] = definition.NORMAL
_TRANSACTION: Final[int] = definition.TRANSACTION
# Topics remembered; it forgets everything when it is full.
_DESTINATIONS_MAX: Final = 16_384
_TOO_MUCH_WAITS: Final = Outcome(
    Code.TOO_MANY_REQUESTS,
    "more is sent from this address than the log takes just now; send it again later",
    retryable=True,
    pause_ms=200,
)
_WAITING_BYTES_MAX: Final = 32 << 20
"""Messages that came again while the first of their id was on its way. A first one that waits is in the log."""
_WAITING_MESSAGE_BYTES: Final = 1_024
"""Of each, beside its body and properties."""
# How a `traceparent` of the one version there is begins; other texts have the field of the API, too.
_TRACEPARENT_START: Final = "00-"


class SendHandler:
    """Serves SendMessage. No task, future or log line per message: the broker calls back when the put is settled."""

    def __init__(
        self, services: BrokerServices, transactions: Transactions, lite: LiteHandler, quotas: ClientQuotas
    ) -> None:
        self._services = services
        self._lite = lite
        self._quotas = quotas
        self.is_limited: bool = False
        """Somebody has a quota of sends."""
        self._transactions = transactions
        # Asked for with every message.
        self._clock = services.clock
        self._topics = services.topics
        self._cluster = services.identity.cluster
        self._broker_name = services.identity.broker_name
        self._options = services.options
        self._tracer = services.send_tracer
        self._room = services.send_room
        self._destinations: dict[str, _Destination] = {}
        self.deduplication = Deduplication(services.topics)
        # Messages of topics with a window that wait for their first answer, by topic, where they are held, and id.
        self._pending: dict[tuple[str, str, str], _FirstAnswer] = {}
        self._waiting_bytes = 0

    def send_message(self, messages: list[SentMessage], call: Call) -> None:
        """Stores the request's messages, when it is their turn."""
        if self._room.is_full:
            request_bytes = len(call.request_data)
            if self._room.has_too_much(call.peer, request_bytes):
                self._refused(messages, call, _TOO_MUCH_WAITS)
                return
            if self._room.holds(call.peer, len(messages), request_bytes, partial(self._send_held, messages, call)):
                call.keep_request()
                return
        self._send(messages, call)

    def _send_held(self, messages: list[SentMessage], call: Call) -> None:
        """Nothing was looked at before it waited but who sends it: its topic may be another now."""
        try:
            self._send(messages, call)
        except Exception:
            # As in the front, a handler that raises costs its caller the call and nobody else anything.
            log.exception("handler_failed", path="SendMessage")
            call.finish(StatusCode.UNKNOWN, "the handler failed; the server's log has the cause")

    def _send(self, messages: list[SentMessage], call: Call) -> None:
        outgoing = self._accepted(messages, call)
        if isinstance(outgoing, str):
            refused = partial(self._refused, messages, call)
            self._services.group_calls.pass_on("SendMessage", call, broker_name=outgoing, refused=refused)
            return
        traceparents = _NO_TRACEPARENTS
        if self._tracer is not None:
            for sent in messages:
                if sent.trace_context or (sent.user_properties is not None and TRACEPARENT in sent.user_properties):
                    traceparents = _traceparents(messages)
                    break
        if isinstance(outgoing, list):
            first = messages[0]
            if first.message_type == _TRANSACTION:
                self._transactions.send(messages, outgoing, call, traceparents)
            elif first.delivery_timestamp is None:
                self._services.put(outgoing, _SendAnswer(outgoing, call), call, traceparents)
                if first.lite_topic:
                    self._lite.appended(first.topic)
            else:
                self._services.put(outgoing, self._delayed(messages, outgoing, call), call, traceparents)
            return
        if isinstance(outgoing, _StoredOnce):
            self._put_once(outgoing, call, traceparents)
            return
        self._refused(messages, call, outgoing)

    def _put_once(self, request: _StoredOnce, call: Call, traceparents: Sequence[str]) -> None:
        """Stores messages of a topic with a deduplication window, or tells what became of those that came before."""
        pending = [one for one in map(self._pending.get, request.keys) if one is not None]
        if pending:
            # The first of them is on its way: whatever becomes of it decides.
            self._await_first(pending[0], request, call, traceparents)
            return
        found = self._known(request)
        values = [value for value in found if value is not None]
        if not values:
            self._put_first(request, call, traceparents)
        elif len(values) < len(found):
            text = "some messages of the request were sent before, and others not: send the others by themselves"
            self._refused(request.messages, call, Outcome(Code.BAD_REQUEST, text))
        elif min(values) < 0:
            self._put_mark(request, values, call)
        else:
            self._answer_duplicates(request, values, call, PutStatus.PUT_OK)

    def _await_first(self, first: _FirstAnswer, request: _StoredOnce, call: Call, traceparents: Sequence[str]) -> None:
        size = sum(len(each.body) + len(each.properties) + _WAITING_MESSAGE_BYTES for each in request.outgoing)
        if self._waiting_bytes + size > _WAITING_BYTES_MAX and self._waiting_bytes:
            text = "too many messages wait here for the first of their id; send them again later"
            self._refused(request.messages, call, Outcome(Code.TOO_MANY_REQUESTS, text, retryable=True))
            return
        self._waiting_bytes += size

        def again() -> None:
            self._waiting_bytes -= size
            self._put_once(request, call, traceparents)

        first.waiting.append(again)

    def _known(self, request: _StoredOnce) -> list[int | None]:
        """What the window has of each message. A half that was rolled back, or whose end is forgotten, is sent anew."""
        now_ms = self._clock.wall_ms()
        found = [request.window.find(message_id, now_ms) for message_id in request.message_ids]
        if request.held_in == HALF_TOPIC:
            for place, value in enumerate(found):
                offset = value if value is None or value >= 0 else -1 - value
                if offset is not None and not self._transactions.may_commit(offset, request.message_ids[place]):
                    found[place] = None
        return found

    def _put_first(self, request: _StoredOnce, call: Call, traceparents: Sequence[str]) -> None:
        first = request.messages[0]
        answer = _FirstAnswer(self, request)
        self._pending.update(dict.fromkeys(request.keys, answer))
        if request.held_in == HALF_TOPIC:
            self._transactions.send(request.messages, request.outgoing, call, traceparents, beside=answer)
            return
        if first.delivery_timestamp is not None:
            answer.own = self._delayed(request.messages, request.outgoing, call)
        else:
            if first.lite_topic:
                # Others may have come to the lite topic while this one waited.
                request.outgoing = self._lite.outgoing(first, request.outgoing)
            answer.own = _SendAnswer(request.outgoing, call)
        self._services.put(request.outgoing, answer, call, traceparents)
        if first.lite_topic:
            self._lite.appended(first.topic)

    def _put_mark(self, request: _StoredOnce, values: list[int], call: Call) -> None:
        """Nobody knows that the first ones outlive a failure: they do if a record behind them does."""
        wall_ms = self._clock.wall_ms()
        mark = OutgoingMessage(
            topic=DEDUPLICATION_TOPIC,
            queue_id=0,
            body=request.message_ids[0].encode(),
            properties=b"",
            tags_code=0,
            index_keys=(),
            tag=None,
            born_timestamp_ms=wall_ms,
            born_host=self._services.store_host,
        )

        def done(results: list[AppendResult]) -> None:
            status = results[0].status
            if status is _PUT_OK:
                for message_id, value in zip(request.message_ids, values):
                    if value < 0:
                        request.window.confirm(message_id, -1 - value)
            self._answer_duplicates(request, values, call, status)

        self._services.put([mark], done)

    def _answer_duplicates(self, request: _StoredOnce, values: list[int], call: Call, status: PutStatus) -> None:
        self.deduplication.duplicate_count += len(values)
        offsets = [value if value >= 0 else -1 - value for value in values]
        results = [AppendResult(status, -1, -1, offset, 0) for offset in offsets]
        if request.held_in == HALF_TOPIC and status is _PUT_OK:
            self._transactions.answer_again(request.outgoing, offsets, call)
        elif request.held_in == TIMER_TOPIC:
            # As when it was held: the handle of one that was delivered takes nothing back.
            self._recallable(request.messages, request.outgoing, call).answer(results)
        else:
            _SendAnswer(request.outgoing, call).answer(results)

    def first_settled(
        self, request: _StoredOnce, results: list[AppendResult], waiting: list[Callable[[], object]]
    ) -> None:
        """What became of messages of a topic with a window. Whoever sent them again meanwhile is told now."""
        for key, result in zip(request.keys, results):
            self._pending.pop(key, None)  # A request may have an id twice.
            # The half of a sender that is told of a failure is rolled back.
            if result.status is _PUT_OK or (result.status.stored and request.held_in != HALF_TOPIC):
                offset = result.queue_offset
                value = offset if result.status is _PUT_OK else -1 - offset
                request.window.remember(key[2], value, result.store_timestamp_ms)
        self.deduplication.keep_within(self._options.deduplication_ids_max)
        left = waiting[::-1]
        try:
            while left:
                left.pop()()
        finally:
            # Behind one that fails: it keeps the answer from nobody else.
            for again in reversed(left):
                self._services.timers.call_soon(again)

    def _refused(self, messages: list[SentMessage], call: Call, outcome: Outcome) -> None:
        # Made now: what is held back must not keep the messages.
        response = refused_send(messages, outcome)
        refuse = partial(_refuse, call, response)
        if outcome.pause_ms:
            self._quotas.hold(call, outcome, refuse, kept_bytes=response.ByteSize())
        else:
            refuse()
        if self._tracer is not None:
            topic = messages[0].topic if messages else ""
            message_ids = tuple([sent.message_id for sent in messages])
            self._tracer.refused(topic, message_ids, call, _traceparents(messages), Code.Name(outcome.code))

    def _accepted(self, messages: list[SentMessage], call: Call) -> list[OutgoingMessage] | str | Outcome | _StoredOnce:
        """What is to be put, or the broker group that it is for, or why it is not."""
        if refused := check_client_id(call):
            return refused
        if (reason := self._services.refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        if not messages:
            return Outcome(Code.MESSAGE_CORRUPTED, "the request has no message")
        if len(messages) > 1 and (refused := _check_alike(messages)):
            return refused
        first = messages[0]
        topic = first.topic
        destination = self._destination(topic)
        # A destination has a good name.
        if destination is None and (refused := check_topic(topic)):
            return refused
        max_body_bytes, max_delay_ms = self._options.max_message_bytes, self._options.max_delay_ms
        clock = self._clock
        for sent in messages:
            if refused := check_message(sent, max_body_bytes, max_delay_ms, clock):
                return refused
        if destination is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist in this broker group")
        for sent in messages:
            kind = declared_type(sent)
            if kind != _NORMAL or not destination.is_normal:
                if refused := _check_type(kind, destination.config):
                    return refused
                if kind == _TRANSACTION and (refused := transaction_problem(sent) or self._transactions.refusal):
                    return refused
        ordered_by = first.message_group
        if destination.is_special and destination.is_lite:
            ordered_by = first.lite_topic
            if refused := self._lite.refused(first):
                return refused
        if ordered_by and destination.is_ordered:
            home = self._services.home_of(topic, ordered_by)
            if home != self._broker_name:
                return home
        if not destination.is_writable:
            return Outcome(Code.FORBIDDEN, f"topic {topic} has no writable queue in this broker group")
        if self.is_limited and (refused := self._quotas.refused_send(messages, call)):
            return refused
        # The client's own choice is advice that is ignored, as RocketMQ's proxy does: languages hash differently.
        if ordered_by:
            queue_id = queue_of_message_group(ordered_by, destination.queue_count)
        elif destination.is_by_priority:
            if first.priority < 0:
                return Outcome(Code.BAD_REQUEST, f"priority: {first.priority}; use 0 or more, larger is more urgent")
            queue_id = queue_of_priority(first.priority, destination.queue_count)
        else:
            queue_id = destination.next_queue()
        peer = peer_of(call.peer)
        translation = destination.translation
        try:
            outgoing = [translation.outgoing(sent, queue_id, peer, clock) for sent in messages]
            return self._special(messages, outgoing, destination) if destination.is_special else outgoing
        # Two names: compiled, a name has one class.
        except InvalidProperty as separator:
            return Outcome(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, str(separator))
        except NoTime as no_time:
            return Outcome(Code.BAD_REQUEST, str(no_time))

    def _special(
        self, messages: list[SentMessage], outgoing: list[OutgoingMessage], destination: _Destination
    ) -> list[OutgoingMessage] | _StoredOnce:
        """What is to be put into a LITE topic, or into one with a deduplication window."""
        if destination.is_lite:
            outgoing = self._lite.outgoing(messages[0], outgoing)
        if not destination.has_window:
            return outgoing
        held_in = ""
        if messages[0].message_type == _TRANSACTION:
            held_in = HALF_TOPIC
        elif messages[0].delivery_timestamp is not None:
            held_in = TIMER_TOPIC
        window = self.deduplication.window(destination.config, held_in)
        return outgoing if window is None else _StoredOnce(messages, outgoing, window, held_in)

    def _delayed(self, messages: list[SentMessage], outgoing: list[OutgoingMessage], call: Call) -> PutAnswer:
        """Has the messages wait for their time, all of them if that of any lies ahead."""
        dues_ms = [_delivery_ms(sent) for sent in messages]
        is_held = max(dues_ms) > self._clock.wall_ms()
        for message, due_ms in zip(outgoing, dues_ms):
            timer_message(message, due_ms, is_held=is_held)
        return self._recallable(messages, outgoing, call) if is_held else _SendAnswer(outgoing, call)

    def _recallable(self, messages: list[SentMessage], outgoing: list[OutgoingMessage], call: Call) -> PutAnswer:
        broker_name = self._services.identity.broker_name
        handles = [
            RecallHandle(sent.topic, broker_name, _delivery_ms(sent), sent.message_id).encode() for sent in messages
        ]
        return _DelayedAnswer(outgoing, call, handles, self._services.delayed)

    def _destination(self, topic: str) -> _Destination | None:
        """A topic of this broker group that clients may send to."""
        config = self._topics.get(topic)
        if config is None:
            return None
        known = self._destinations.get(topic)
        if known is None:
            if check_topic(topic):
                # The broker's own are in its table, too: what lies there decides over others' messages.
                return None
            if len(self._destinations) >= _DESTINATIONS_MAX:
                self._destinations.clear()
            known = self._destinations[topic] = _Destination(topic, self._cluster, config)
        elif known.config is not config:
            known.learn(config)
        return known


class _Destination:
    """A topic that messages are sent to: what its configuration says, and what its messages have in common."""

    def __init__(self, topic: str, cluster: str, config: TopicConfig) -> None:
        self.translation: Final = TopicTranslation(topic, cluster)
        self._turn = 0
        self.learn(config)

    def learn(self, config: TopicConfig) -> None:
        """The topic was changed."""
        self.config = config
        self.queue_count = config.write_queue_count
        self.is_normal = config.message_type == "NORMAL"
        self.has_window = deduplication_window_ms(config) > 0
        self.is_by_priority = config.message_type == "PRIORITY"
        self.is_lite = config.message_type == "LITE"
        self.is_ordered = config.message_type in ORDERED_TYPES or self.is_lite
        self.is_special = self.is_lite or self.has_window
        self.is_writable = config.writable and config.write_queue_count > 0

    def next_queue(self) -> int:
        """Deals messages out to the queues in turn."""
        turn = self._turn
        self._turn = turn + 1
        return turn % self.queue_count


def _delivery_ms(sent: SentMessage) -> int:
    delivery = sent.delivery_timestamp
    assert delivery is not None, "the messages are alike"
    return max(0, delivery.ToMilliseconds())


_NO_TRACEPARENTS: Final[list[str]] = []


def _traceparents(messages: Sequence[SentMessage]) -> list[str]:
    """Of the messages that brought one: as a property, as OpenTelemetry's senders write it, or in the API's field."""
    found = []
    for sent in messages:
        own = sent.user_properties.get(TRACEPARENT, "") if sent.user_properties is not None else ""
        if not own and sent.trace_context.startswith(_TRACEPARENT_START):
            own = sent.trace_context
        if own:
            found.append(own)
    return found


def _check_alike(messages: Sequence[SentMessage]) -> Outcome | None:
    """One request is one run of records in one queue."""
    if len(messages) > MESSAGES_MAX:
        return Outcome(Code.PAYLOAD_TOO_LARGE, f"messages: more than {MESSAGES_MAX} in one request; send several")
    first = messages[0]
    for sent in messages:
        if sent.topic != first.topic:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same topic")
        if (sent.delivery_timestamp is None) != (first.delivery_timestamp is None):
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must all have a delivery time, or none")
        if sent.message_group != first.message_group:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same message group")
        if (sent.message_type == _TRANSACTION) != (first.message_type == _TRANSACTION):
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must all be TRANSACTION, or none")
        if sent.lite_topic != first.lite_topic:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same lite topic")
        if sent.priority != first.priority:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same priority")
    return None


def _check_type(kind: int, config: TopicConfig) -> Outcome | None:
    takes_any = config.topic_name.startswith(_TOPICS_OF_ANY_TYPE)
    if not takes_any and kind not in _TYPES_TAKEN.get(config.message_type, ()):
        return Outcome(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {config.topic_name} takes {config.message_type} messages, "
            f"this one is {definition.MessageType.Name(definition.MessageType.ValueType(kind))}",
        )
    if kind not in _TYPES_STORED:
        name = definition.MessageType.Name(definition.MessageType.ValueType(kind))
        return Outcome(Code.NOT_IMPLEMENTED, f"{name} messages are not offered yet")
    return None


_REFUSED_ID_CHARACTERS: Final = 1_024


def refused_send(messages: list[SentMessage], outcome: Outcome) -> pb.SendMessageResponse:
    """Every entry carries the reason too: Java and Node read the first bad entry, Python and Go the overall status.
    It may be held back, so an id that is as long as a request is not repeated whole."""
    status = status_of(outcome)
    response = pb.SendMessageResponse(status=status)
    for sent in messages:
        response.entries.add(status=status, message_id=sent.message_id[:_REFUSED_ID_CHARACTERS])
    return response


def _refuse(call: Call, response: pb.SendMessageResponse) -> None:
    call.send(response)
    call.finish()


class _SendAnswer(PutAnswer):
    """Answers a request whose messages were put."""

    __slots__ = ("_call", "_messages")

    def __init__(self, messages: list[OutgoingMessage], call: Call) -> None:
        self._messages = messages
        self._call = call

    def answer(self, results: list[AppendResult]) -> None:
        call = self._call
        # A message is indexed by its id first.
        message_ids = [message.index_keys[0] for message in self._messages]
        for result in results:
            if result.status is not _PUT_OK:
                call.send(_response(message_ids, results))
                call.finish()
                return
        call.respond(_stored_response(message_ids, results))


class _StoredOnce:
    """A request to a topic with a deduplication window. `held_in`: the system topic that holds its messages first."""

    __slots__ = ("held_in", "keys", "message_ids", "messages", "outgoing", "window")

    def __init__(
        self, messages: list[SentMessage], outgoing: list[OutgoingMessage], window: Window, held_in: str
    ) -> None:
        self.messages = messages
        self.outgoing = outgoing
        self.window = window
        self.held_in = held_in
        self.message_ids = [sent.message_id for sent in messages]
        self.keys = [(sent.topic, held_in, sent.message_id) for sent in messages]


class _FirstAnswer(PutAnswer):
    """Answers a request whose messages were put into a topic with a window, and those that came again meanwhile."""

    __slots__ = ("_handler", "_request", "own", "waiting")

    def __init__(self, handler: SendHandler, request: _StoredOnce) -> None:
        self._handler = handler
        self._request = request
        self.own: PutAnswer | None = None
        """To the request itself; None: somebody else answers it."""
        self.waiting: list[Callable[[], object]] = []

    def answer(self, results: list[AppendResult]) -> None:
        if self.own is not None:
            self.own.answer(results)
        self._handler.first_settled(self._request, results, self.waiting)


class _DelayedAnswer(PutAnswer):
    """Answers a request of DELAY messages: each entry carries what takes its message back."""

    __slots__ = ("_call", "_delayed", "_handles", "_messages")

    def __init__(
        self, messages: list[OutgoingMessage], call: Call, handles: list[str], delayed: DelayedMessages
    ) -> None:
        self._messages = messages
        self._call = call
        self._handles = handles
        self._delayed = delayed

    def answer(self, results: list[AppendResult]) -> None:
        response = _response([message.index_keys[0] for message in self._messages], results)
        for entry, handle, result in zip(response.entries, self._handles, results):
            if result.status.stored:
                entry.recall_handle = handle
        self._call.send(response)
        self._call.finish()
        self._delayed.changed()


def _response(message_ids: list[str], results: list[AppendResult]) -> pb.SendMessageResponse:
    outcomes = [PUT_OUTCOMES[result.status] for result in results]
    response = pb.SendMessageResponse(status=common_status(outcomes))
    for message_id, result, outcome in zip(message_ids, results, outcomes, strict=True):
        # RocketMQ fills the transaction id of every message with its id; clients use it for half messages only.
        response.entries.add(
            status=status_of(outcome), message_id=message_id, transaction_id=message_id, offset=result.queue_offset
        )
    return response


# Looked up for every message: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK
_OK_FIELD: Final = pb.SendMessageResponse(status=ok_status()).SerializeToString()
_ENTRIES_TAG: Final = tag_of(pb.SendMessageResponse, "entries")
_ENTRY_OK: Final = pb.SendResultEntry(status=ok_status()).SerializeToString()
_MESSAGE_ID_TAG: Final = tag_of(pb.SendResultEntry, "message_id")
_TRANSACTION_ID_TAG: Final = tag_of(pb.SendResultEntry, "transaction_id")
_OFFSET_TAG: Final = tag_of(pb.SendResultEntry, "offset")


def _stored_response(message_ids: list[str], results: list[AppendResult]) -> bytes:
    """`_response` when every message is stored, put together from its bytes at a quarter of the cost."""
    parts = [_OK_FIELD]
    lengths = -1
    head = middle = b""
    for index, result in enumerate(results):
        encoded_id = message_ids[index].encode()
        queue_offset = result.queue_offset
        # Zero is the default, which protobuf leaves out.
        offset = number(queue_offset) if queue_offset else b""
        offset_bytes = len(offset)
        lengths_before, lengths = lengths, len(encoded_id) << 4 | offset_bytes
        if lengths != lengths_before:  # Those of a request are mostly all the same.
            head, middle = _entry_parts(len(encoded_id), offset_bytes)
        parts.append(head)
        parts.append(encoded_id)
        parts.append(middle)
        parts.append(encoded_id)
        if offset_bytes:
            parts.append(_OFFSET_TAG)
            parts.append(offset)
    return b"".join(parts)


def _entry_parts(id_bytes: int, offset_bytes: int) -> tuple[bytes, bytes]:
    """What stands before an entry's message id, its own length included, and what between that and the other id."""
    key = id_bytes << 4 | offset_bytes
    known = _known_entry_parts.get(key)
    if known is not None:
        return known
    id_length = number(id_bytes)
    head = _ENTRY_OK + _MESSAGE_ID_TAG + id_length
    middle = _TRANSACTION_ID_TAG + id_length
    offset_field_bytes = len(_OFFSET_TAG) + offset_bytes if offset_bytes else 0
    entry_bytes = len(head) + len(middle) + 2 * id_bytes + offset_field_bytes
    parts = (_ENTRIES_TAG + number(entry_bytes) + head, middle)
    if id_bytes <= _KNOWN_ID_BYTES_MAX:
        _known_entry_parts[key] = parts
    return parts


_KNOWN_ID_BYTES_MAX: Final = 127
_known_entry_parts: Final[dict[int, tuple[bytes, bytes]]] = {}
"""By the lengths of id and offset: as many as there are."""


# RecallMessage: takes back a delayed message before its time; and the handles that name such messages.
#
# A handle is RocketMQ's (RecallMessageHandle): the URL-safe base64 of `v1 topic brokerName deliverMs messageId`.

_VERSION: Final = "v1"
_TYPES: Final = ("DELAY", "MIXED")
_UNDER_WAY_MAX: Final = 1_024
_DIGITS_MAX: Final = 18


class RecallHandle(NamedTuple):
    """Which message, and who holds it."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle | None:
        """None: it is no handle."""
        try:
            parts = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode().split(" ", 4)
        except (binascii.Error, ValueError):
            return None
        if len(parts) != 5 or parts[0] != _VERSION or not all(parts):
            return None
        _, topic, broker_name, deliver_text, message_id = parts
        if not (deliver_text.isascii() and deliver_text.isdigit() and len(deliver_text) <= _DIGITS_MAX):
            return None
        return cls(topic, broker_name, int(deliver_text), message_id)


class RecallHandler:
    """Serves RecallMessage. A task for each: it may wait for a cold record, and for the slaves."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()

    def recall_message(self, request: pb.RecallMessageRequest, call: Call) -> None:
        """OK only once no replica delivers the message any more."""
        topic = request.topic.name
        if refused := check_client_id(call) or check_topic(topic):
            _answer(call, refused)
            return
        handle = RecallHandle.decode(request.recall_handle)
        if handle is None:
            _answer(
                call, Outcome(Code.BAD_REQUEST, "recall_handle: it is none; pass what the send of a DELAY message gave")
            )
            return
        if handle.topic != topic:
            _answer(call, Outcome(Code.BAD_REQUEST, f"recall_handle: it is of topic {handle.topic}, not of {topic}"))
            return
        services = self._services
        if handle.broker_name != services.identity.broker_name:
            services.group_calls.pass_on(
                "RecallMessage", call, broker_name=handle.broker_name, refused=lambda outcome: _answer(call, outcome)
            )
            return
        if refused := self._refusal(topic):
            _answer(call, refused)
            return
        task = asyncio.get_running_loop().create_task(self._recall(handle, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, topic: str) -> Outcome | None:
        services = self._services
        if (reason := services.refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        if len(self._tasks) >= _UNDER_WAY_MAX:
            return Outcome(Code.TOO_MANY_REQUESTS, f"{_UNDER_WAY_MAX} recalls are under way; try again", retryable=True)
        config = services.topics.get(topic)
        if config is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist in this broker group")
        if config.message_type not in _TYPES:
            return Outcome(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes {config.message_type} messages; only DELAY messages are recalled",
            )
        return None

    async def _recall(self, handle: RecallHandle, call: Call) -> None:
        try:
            found = await self._services.delayed.recall(handle.topic, handle.deliver_ms, handle.message_id)
        except Exception:
            log.exception("handler_failed", path="RecallMessage")
            _answer(call, Outcome(Code.INTERNAL_SERVER_ERROR, "the recall failed; the broker's log has the cause"))
            return
        outcome = Outcome(Code.NOT_FOUND, str(found)) if isinstance(found, RecallRefusal) else PUT_OUTCOMES[found]
        _answer(call, outcome, handle.message_id if outcome is OK else "")


def _answer(call: Call, outcome: Outcome, message_id: str = "") -> None:
    call.send(pb.RecallMessageResponse(status=status_of(outcome), message_id=message_id))
    call.finish()

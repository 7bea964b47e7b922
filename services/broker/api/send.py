"""SendMessage: check, choose a queue, put, answer with what became of it.

A request is stored whole or not at all: the first message that is refused refuses its companions, and a stored request
is one run of records in one queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as pb

from broker.api.message_translation import NoTime, born_host, outgoing_message
from broker.api.sent_message import SentMessage
from broker.api.services import BrokerServices
from broker.api.status_codes import PUT_OUTCOMES, Code, Outcome, common_status, ok_status, status_of
from broker.api.validation import check_client_id, check_message, check_topic, declared_type
from broker.api.wire_format import number, tag_of
from mqcore.message import InvalidProperty, OutgoingMessage
from mqcore.metadata import TopicConfig
from mqcore.routing.queue_choice import QueueRotation, queue_of_message_group
from mqcore.storage import AppendResult, PutStatus
from mqcore.tracing.trace_context import TRACEPARENT
from mqservice.rpc import Call

__all__ = ["SendHandler"]

_TYPES_STORED: Final = (definition.NORMAL, definition.FIFO)
# By the topic's message type.
_TYPES_TAKEN: Final = MappingProxyType(
    {
        "NORMAL": (definition.NORMAL,),
        "FIFO": (definition.FIFO,),
        "DELAY": (definition.DELAY,),
        "TRANSACTION": (definition.TRANSACTION,),
        "MIXED": (definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION),
    }
)
# Copies of messages of any kind end up there.
_TOPICS_OF_ANY_TYPE: Final = ("%RETRY%", "%DLQ%")
# How a `traceparent` of the one version there is begins; other texts have the field of the API, too.
_TRACEPARENT_START: Final = "00-"


class SendHandler:
    """Serves SendMessage. No task, future or log line per message: the broker calls back when the put is settled."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._rotation = QueueRotation()
        # Asked for with every message.
        self._clock = services.clock
        self._topics = services.topics
        self._cluster = services.identity.cluster
        self._options = services.options
        self._tracer = services.send_tracer

    def send_message(self, request: pb.SendMessageRequest, call: Call) -> None:
        """Stores the request's messages."""
        messages = [SentMessage(message) for message in request.messages[:]]
        outgoing = self._accepted(messages, call)
        traceparents = _NO_TRACEPARENTS
        if self._tracer is not None:
            for sent in messages:
                if sent.trace_context or TRACEPARENT in sent.user_properties:
                    traceparents = _traceparents(messages)
                    break
        if not isinstance(outgoing, Outcome):
            self._services.put(outgoing, partial(_answer, outgoing, call), call, traceparents)
            return
        _refuse(request, call, outgoing)
        if self._tracer is not None:
            topic = messages[0].topic if messages else ""
            message_ids = tuple([sent.message_id for sent in messages])
            self._tracer.refused(topic, message_ids, call, traceparents, Code.Name(outgoing.code))

    def _accepted(self, messages: list[SentMessage], call: Call) -> list[OutgoingMessage] | Outcome:
        """What is to be put, or why not."""
        if refused := check_client_id(call):
            return refused
        if (reason := self._services.refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        if not messages:
            return Outcome(Code.MESSAGE_CORRUPTED, "the request has no message")
        topic = messages[0].topic
        config = self._topics.get(topic)
        # A topic that exists has a good name.
        if config is None and (refused := check_topic(topic)):
            return refused
        now_ms = self._clock.wall_ms()
        if len(messages) > 1 and (refused := _check_alike(messages)):
            return refused
        max_body_bytes = self._options.max_message_bytes
        for sent in messages:
            if refused := check_message(sent, max_body_bytes=max_body_bytes, now_wall_ms=now_ms):
                return refused
        if config is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist in this broker group")
        for sent in messages:
            if refused := _check_type(sent, config):
                return refused
        if not config.writable or config.write_queue_count < 1:
            return Outcome(Code.FORBIDDEN, f"topic {topic} has no writable queue in this broker group")
        queue_id = self._queue(messages[0], config)
        peer_host = born_host(call.peer)
        cluster = self._cluster
        try:
            return [
                outgoing_message(sent, topic, queue_id, cluster=cluster, peer_host=peer_host, now_wall_ms=now_ms)
                for sent in messages
            ]
        except InvalidProperty as error:
            return Outcome(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error))
        except NoTime as error:
            return Outcome(Code.BAD_REQUEST, str(error))

    def _queue(self, first: SentMessage, config: TopicConfig) -> int:
        """The client's own choice is advice that is ignored, as RocketMQ's proxy does: languages hash differently."""
        if first.message_group:
            return queue_of_message_group(first.message_group, config.write_queue_count)
        return self._rotation.next_queue(config.topic_name, config.write_queue_count)


_NO_TRACEPARENTS: Final[list[str]] = []


def _traceparents(messages: Sequence[SentMessage]) -> list[str]:
    """Of the messages that brought one: as a property, as OpenTelemetry's senders write it, or in the API's field."""
    found = []
    for sent in messages:
        own = sent.user_properties.get(TRACEPARENT, "") if sent.user_properties else ""
        if not own and sent.trace_context.startswith(_TRACEPARENT_START):
            own = sent.trace_context
        if own:
            found.append(own)
    return found


def _check_alike(messages: Sequence[SentMessage]) -> Outcome | None:
    """One request is one run of records in one queue."""
    first = messages[0]
    for sent in messages:
        if sent.topic != first.topic:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same topic")
        if sent.message_group != first.message_group:
            return Outcome(Code.MESSAGE_CORRUPTED, "the messages of one request must have the same message group")
    return None


def _check_type(sent: SentMessage, config: TopicConfig) -> Outcome | None:
    kind = declared_type(sent)
    if kind == definition.NORMAL and config.message_type == "NORMAL":
        return None
    takes_any = config.topic_name.startswith(_TOPICS_OF_ANY_TYPE)
    if not takes_any and kind not in _TYPES_TAKEN.get(config.message_type, ()):
        return Outcome(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {config.topic_name} takes {config.message_type} messages, "
            f"this one is {definition.MessageType.Name(kind)}",
        )
    if kind not in _TYPES_STORED:
        return Outcome(Code.NOT_IMPLEMENTED, f"{definition.MessageType.Name(kind)} messages are not offered yet")
    return None


def _refuse(request: pb.SendMessageRequest, call: Call, outcome: Outcome) -> None:
    """Every entry carries the reason too: Java and Node read the first bad entry, Python and Go the overall status."""
    status = status_of(outcome)
    response = pb.SendMessageResponse(status=status)
    for message in request.messages:
        response.entries.add(status=status, message_id=message.system_properties.message_id)
    call.send(response)
    call.finish()


def _answer(messages: list[OutgoingMessage], call: Call, results: list[AppendResult]) -> None:
    for result in results:
        if result.status is not _PUT_OK:
            call.send(_response(_ids_of(messages), results))
            break
    else:
        call.send_encoded(_stored_response(_ids_of(messages), results))
    call.finish()


def _ids_of(messages: list[OutgoingMessage]) -> list[str]:
    # A message is indexed by its id first.
    return [message.index_keys[0] for message in messages]


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
    for message_id, result in zip(message_ids, results, strict=True):
        encoded_id = message_id.encode()
        id_length = number(len(encoded_id))
        entry = b"".join(
            (
                _ENTRY_OK,
                _MESSAGE_ID_TAG,
                id_length,
                encoded_id,
                _TRANSACTION_ID_TAG,
                id_length,
                encoded_id,
                # Zero is the default, which protobuf leaves out.
                _OFFSET_TAG + number(result.queue_offset) if result.queue_offset else b"",
            )
        )
        parts += (_ENTRIES_TAG, number(len(entry)), entry)
    return b"".join(parts)

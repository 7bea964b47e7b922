"""How a delivery ends: acknowledged, given more or less time, or moved to the dead letter queue.

In a group that fails over an answer waits until every member of the in-sync set has what was finished, so that a change
of master does not undo what a client was told. One that does not know in time gets a failure, and repeats its call.

A handle that cannot be honoured always gets INVALID_RECEIPT_HANDLE, whatever is wrong with it: push consumers repeat
every other failure once a second without end. Where nothing was done and it may be later, the call ends with
UNAVAILABLE: the official Go client takes every answer to an acknowledgement for a good one, whatever its status says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from tandemmq.broker.client_api.delivery_encoding import encoded_length, length_delimited, tag_of
from tandemmq.broker.client_api.request_fields import has_more_fields
from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.validation import (
    OK,
    Code,
    Outcome,
    check_client_id,
    check_group,
    check_lease,
    check_topic,
    common_status,
    ok_status,
    status_of,
)
from tandemmq.broker.tracing.receive_tracer import Failure, ReceiveTracer, SettleTrace
from tandemmq.core.delivery.lease_terms import HANDLE_SEPARATOR, broker_of_handle, encode_broker_name, read_handle
from tandemmq.core.delivery.lite_topics import lmq_name, parent_of_lmq
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call, StatusCode

if TYPE_CHECKING:
    from tandemmq.broker.dead_letters import DeadLetterQueues


# The request of AckMessage, the call that comes most often: most clients make one for each message.
#
# What they all send - group, topic, then entries of a message id and a handle - is read from its bytes in place, and
# an entry's bytes go into the answer as they are. Whatever looks otherwise is left to protobuf.
#
#     0A length   group: Resource
#     12 length   topic: Resource
#     1A length   entry, any number:  0A length  message id,  12 length  receipt handle

# In one request, which is done in one turn of the event loop.
_ENTRIES_MAX: Final = 1_024
# Group and topic, and entries; what a request of a later version has besides.
_FIELDS_MAX: Final = _ENTRIES_MAX + 16

# Pairs of a group and a topic whose encoded names are remembered; each costs about 300 bytes.
_NAMES_MAX: Final = 4_096

_GROUP: Final = tag_of(pb.AckMessageRequest, "group")[0]
_TOPIC: Final = tag_of(pb.AckMessageRequest, "topic")[0]
_ENTRY: Final = tag_of(pb.AckMessageRequest, "entries")[0]
# The fields of a request's entry have the same numbers in an answer's.
_MESSAGE_ID: Final = tag_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = tag_of(pb.AckMessageResultEntry, "receipt_handle")
_MESSAGE_ID_BYTE: Final = _MESSAGE_ID[0]
_RECEIPT_HANDLE_BYTE: Final = _RECEIPT_HANDLE[0]


class AckRequest:
    """One request. `entries` has message id and handle of each as they are encoded, in a request and in an answer.

    `lite_topics` has the lite topic of each; empty where none has one. Of a request with more than `_ENTRIES_MAX`
    entries it has more than that, not all.
    """

    __slots__ = ("entries", "group", "handles", "lite_topics", "topic")

    def __init__(
        self, group: str, topic: str, handles: list[str], entries: list[bytes], lite_topics: list[str] | None = None
    ) -> None:
        self.lite_topics: Final = lite_topics
        self.group: Final = group
        self.topic: Final = topic
        self.handles: Final = handles
        self.entries: Final = entries

    @staticmethod
    def FromString(data: bytes, /) -> AckRequest:  # noqa: N802  # as messages of protobuf have it
        """Reads a request; raises protobuf's DecodeError."""
        try:
            request = _plain(data)
        except IndexError:  # ends inside a field
            request = None
        return _any(data) if request is None else request


def _plain(data: bytes) -> AckRequest | None:
    """The usual request; None for any other."""
    size = len(data)
    if size < 2 or data[0] != _GROUP:
        return None
    topic_at = 2 + data[1]
    if data[topic_at] != _TOPIC:
        return None
    entry_at = topic_at + 2 + data[topic_at + 1]
    if data[1] > 0x7F or data[topic_at + 1] > 0x7F or entry_at > size:
        return None
    group, topic = _names(data[:entry_at])
    handles: list[str] = []
    entries: list[bytes] = []
    while entry_at < size:
        start = entry_at + 2
        end = start + data[entry_at + 1]
        entry = data[start:end]
        # In ASCII: no length of two bytes, and no text that is none.
        if data[entry_at] != _ENTRY or data[entry_at + 1] > 0x7F or end > size or not entry.isascii():
            return None
        handle_at = 2 + entry[1]
        if entry[0] != _MESSAGE_ID_BYTE or entry[handle_at] != _RECEIPT_HANDLE_BYTE:
            return None
        if handle_at + 2 + entry[handle_at + 1] != len(entry):
            return None
        handles.append(entry[handle_at + 2 :].decode())
        entries.append(entry)
        if len(handles) > _ENTRIES_MAX:
            break
        entry_at = end
    return AckRequest(group, topic, handles, entries)


@lru_cache(maxsize=_NAMES_MAX)
def _names(data: bytes) -> tuple[str, str]:
    """Group and topic of a request without entries."""
    request = pb.AckMessageRequest.FromString(data)
    return request.group.name, request.topic.name


def _any(data: bytes) -> AckRequest:
    if has_more_fields(data, _FIELDS_MAX):
        count = _ENTRIES_MAX + 1
        return AckRequest("", "", [""] * count, [b""] * count)
    request = pb.AckMessageRequest.FromString(data)
    # A list: protobuf's own container ends each iteration with an exception and its text.
    entries = request.entries[:]
    handles = [entry.receipt_handle for entry in entries]
    encoded = [_encoded(entry.message_id.encode(), handle.encode()) for entry, handle in zip(entries, handles)]
    lite_topics = [entry.lite_topic for entry in entries] if any(entry.lite_topic for entry in entries) else None
    return AckRequest(request.group.name, request.topic.name, handles, encoded, lite_topics)


def _encoded(message_id: bytes, handle: bytes) -> bytes:
    return b"".join(
        (_MESSAGE_ID, encoded_length(message_id), message_id, _RECEIPT_HANDLE, encoded_length(handle), handle)
    )


_ACK: Final = "AckMessage"
_CHANGE: Final = "ChangeInvisibleDuration"
_FORWARD: Final = "ForwardMessageToDeadLetterQueue"


class SettleHandler:
    """Serves AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

    `settled` is called after leases changed, so that receives which wait for one of them look.
    """

    def __init__(
        self,
        services: BrokerServices,
        dead_letters: DeadLetterQueues,
        *,
        settled: Callable[[], None],
        lite_settled: Callable[[str, str], None],
        tracer: ReceiveTracer | None,
    ) -> None:
        """`lite_settled` is told of acknowledgements in lite topics, by group and logical queue."""
        self._lite_settled = lite_settled
        self._services = services
        self._clock = services.clock
        self._leases = services.leases
        self._dead_letters = dead_letters
        self._settled = settled
        self._tracer = tracer
        # What the handles of this broker group end with.
        self._handle_end = HANDLE_SEPARATOR + encode_broker_name(services.identity.broker_name)
        # Acknowledged in this turn of the event loop, not yet written to the journal.
        self._unanswered: list[tuple[Call, bytes, AckRequest]] = []
        # When the first of them came.
        self._turn_ms = 0
        # Those of them that are traced.
        self._traced: list[SettleTrace] = []

    def ack_message(self, request: AckRequest, call: Call) -> None:
        """Finishes messages. Each entry has its own outcome; the overall one is theirs if they agree.

        Most clients acknowledge each message by a call of its own, many at a time. All of a turn are written to the
        journal at once, and answered after that.
        """
        handles = request.handles
        if len(handles) > _ENTRIES_MAX:
            self._refuse_ack(request, call, _TOO_MANY_ENTRIES)
            return
        if (owner := self._other_owner(handles)) is not None and self._refused(
            request.group, request.topic, call
        ) is None:
            refused = partial(self._refuse_ack, request, call)
            self._services.group_calls.pass_on(_ACK, call, broker_name=owner, refused=refused)
            return
        if not self._unanswered:
            # Leases end by the millisecond, not by the microsecond: one time will do for a turn.
            self._turn_ms = self._clock.monotonic_ms()
        outcomes = (
            self._acknowledged(request.group, request.topic, handles, call)
            if request.lite_topics is None
            else self._acknowledged_lite(request, request.lite_topics, call)
        )
        if isinstance(outcomes, Outcome):
            self._refuse_ack(request, call, outcomes)
            return
        if not self._unanswered:
            self._services.timers.call_soon(self.answer_acknowledged)
        self._unanswered.append((call, encoded_ack(request.entries, outcomes), request))
        if self._tracer is not None and (outcomes.count(OK) != len(outcomes) or self._tracer.follows(handles)):
            trace = self._tracer.settling(
                _ACK, call, topic=request.topic, group=request.group, handles=handles, failure=_failure_of(outcomes)
            )
            if trace is not None:
                self._traced.append(trace)

    def _refuse_ack(self, request: AckRequest, call: Call, outcome: Outcome) -> None:
        if outcome.retryable:
            call.finish(StatusCode.UNAVAILABLE, outcome.text)
        else:
            call.send_encoded(encoded_ack(request.entries, [outcome] * max(1, len(request.handles))))
            call.finish()
        self._trace(_ACK, request.topic, request.group, call, request.handles, outcome)

    def _other_owner(self, handles: Sequence[str]) -> str | None:
        """The broker group that made the handles, if that is another one; texts that are no handles do not count.
        Clients send handles of one group at a time; of several none is passed on."""
        own = self._handle_end
        for handle in handles:
            if not handle.endswith(own):
                break
        else:
            return None
        owners = {broker_of_handle(handle) for handle in handles} - {None}
        owner = owners.pop() if len(owners) == 1 else None
        return owner if owner != self._services.identity.broker_name else None

    def _acknowledged(self, group: str, topic: str, handles: list[str], call: Call) -> list[Outcome] | Outcome:
        """What became of each, or why the request is refused."""
        if not handles:
            return self._refused(group, topic, call) or _NO_ENTRY
        if self._services.read_refusal is None and check_client_id(call) is None:
            finished = self._leases.acknowledge_all(group=group, topic=topic, handles=handles, now_ms=self._turn_ms)
            if finished is not None:
                # Names under which messages are leased need no check.
                outcomes: list[Outcome] = []
                for is_finished, handle in zip(finished, handles):
                    outcomes.append(OK if is_finished else _unknown_handle(handle))
                return outcomes
        return self._refused(group, topic, call) or [_unknown_handle(handle) for handle in handles]

    def _acknowledged_lite(self, request: AckRequest, lite_topics: list[str], call: Call) -> list[Outcome] | Outcome:
        """The same where entries name lite topics."""
        group, topic = request.group, request.topic
        if refused := self._refused(group, topic, call):
            return refused
        outcomes: list[Outcome] = []
        settled: dict[str, None] = {}
        for handle, lite_topic in zip(request.handles, lite_topics):
            lmq = _leased_under(topic, lite_topic)
            if self._leases.acknowledge(group=group, topic=lmq, handle=handle, now_ms=self._turn_ms):
                outcomes.append(OK)
                settled[lmq] = None
            else:
                outcomes.append(_unknown_handle(handle))
        for lmq in settled:
            self._lite_settled(group, lmq)
        return outcomes

    def answer_acknowledged(self) -> None:
        """Writes what was acknowledged since the last call, then says so."""
        if not self._unanswered:
            return
        writing_ns = 0 if self._tracer is None else self._tracer.now_ns()
        self._services.persist_leases()
        unanswered, self._unanswered = self._unanswered, []
        traced, self._traced = self._traced, []
        self._services.when_progress_held(partial(self._answer, unanswered, traced, writing_ns))
        self._settled()

    def _answer(
        self,
        unanswered: list[tuple[Call, bytes, AckRequest]],
        traced: list[SettleTrace],
        writing_ns: int,
        is_held: bool,
    ) -> None:
        for call, response, _ in unanswered:
            if is_held:
                call.respond(response)
            else:
                call.finish(StatusCode.UNAVAILABLE, _NOT_HELD.text)
        if self._tracer is not None:
            self._trace_answered(self._tracer, unanswered[0], traced, writing_ns)

    def _trace_answered(
        self,
        tracer: ReceiveTracer,
        first: tuple[Call, bytes, AckRequest],
        traced: list[SettleTrace],
        writing_ns: int,
    ) -> None:
        """All of a turn waited for one write, and perhaps for its copies. If that was slow, and none of them is traced,
        the first one is."""
        wait = ("lease journal write", writing_ns, tracer.now_ns())
        if traced:
            tracer.settled(traced, wait=wait)
        elif tracer.is_slow(writing_ns):
            call, _, request = first
            self._trace(_ACK, request.topic, request.group, call, request.handles, OK, began_ns=writing_ns, wait=wait)

    def change_invisible_duration(self, request: pb.ChangeInvisibleDurationRequest, call: Call) -> None:
        """Lets a lease end at another time. The answer always has a handle: clients adopt it even with an error."""
        group, topic = request.group.name, request.topic.name
        invisible_ms = request.invisible_duration.ToMilliseconds()
        outcome = self._refused(group, topic, call) or check_lease(invisible_ms, min_ms=0) or OK
        handle: str = request.receipt_handle
        if outcome is OK and (owner := self._other_owner((handle,))) is not None:
            refused = partial(self._end_change, request, call, handle, True)
            self._services.group_calls.pass_on(_CHANGE, call, broker_name=owner, refused=refused)
            return
        if outcome is OK:
            changed = self._services.leases.change_invisible(
                group=group,
                topic=_leased_under(topic, request.lite_topic),
                handle=request.receipt_handle,
                invisible_ms=invisible_ms,
                now_ms=self._services.clock.monotonic_ms(),
                counts=not request.suspend,
            )
            self._services.persist_leases()
            if changed is None:
                outcome = _unknown_handle(request.receipt_handle)
            else:
                handle = changed
        if outcome is OK:
            self._services.when_progress_held(partial(self._end_change, request, call, handle))
        else:
            self._end_change(request, call, handle, True, outcome)
        self._settled()

    def _end_change(
        self,
        request: pb.ChangeInvisibleDurationRequest,
        call: Call,
        handle: str,
        is_held: bool,
        outcome: Outcome = OK,
    ) -> None:
        """Answers. The handle is the new one even if no other member may know it: here it is the one that counts."""
        if outcome.retryable:
            call.finish(StatusCode.UNAVAILABLE, outcome.text)
        else:
            if not is_held:
                outcome = _NOT_HELD
            call.send(pb.ChangeInvisibleDurationResponse(status=status_of(outcome), receipt_handle=handle))
            call.finish()
        self._trace(
            _CHANGE,
            request.topic.name,
            request.group.name,
            call,
            [request.receipt_handle],
            outcome,
            new_handle=handle,
        )

    def forward_to_dead_letter_queue(self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call) -> None:
        """Writes the message to `%DLQ%<group>`, then acknowledges it."""
        group, topic = request.group.name, request.topic.name
        refused = self._refused(group, topic, call, puts=True)
        if refused is not None:
            self._end_forward(request, call, refused, began_ns=None)
            return
        if (owner := self._other_owner((request.receipt_handle,))) is not None:
            no_answer = partial(self._end_forward, request, call, began_ns=None)
            self._services.group_calls.pass_on(_FORWARD, call, broker_name=owner, refused=no_answer)
            return
        lmq = _leased_under(topic, request.lite_topic)
        leased = self._services.leases.leased(
            group=group, topic=lmq, handle=request.receipt_handle, now_ms=self._services.clock.monotonic_ms()
        )
        if leased is None:
            if self._was_moved(group, lmq, request.receipt_handle):
                self._services.when_progress_held(partial(self._end_held_forward, request, call, None))
            else:
                self._end_forward(request, call, _unknown_handle(request.receipt_handle), began_ns=None)
            return
        began_ns = None if self._tracer is None else self._tracer.now_ns()
        self._dead_letters.move(
            leased.record, group=group, attempts=leased.attempt, done=partial(self._forwarded, request, call, began_ns)
        )

    def _forwarded(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call, began_ns: int | None, outcome: Outcome
    ) -> None:
        if outcome is OK:
            # The lease may have ended while the copy was written; then the message is delivered once more and the
            # next forward finds it moved already.
            lmq = _leased_under(request.topic.name, request.lite_topic)
            is_finished = self._services.leases.acknowledge(
                group=request.group.name,
                topic=lmq,
                handle=request.receipt_handle,
                now_ms=self._services.clock.monotonic_ms(),
            )
            if is_finished and request.lite_topic:
                self._lite_settled(request.group.name, lmq)
            self._services.persist_leases()
            self._services.when_progress_held(partial(self._end_held_forward, request, call, began_ns))
        else:
            self._end_forward(request, call, outcome, began_ns=began_ns)
        self._settled()

    def _end_held_forward(
        self,
        request: pb.ForwardMessageToDeadLetterQueueRequest,
        call: Call,
        began_ns: int | None,
        is_held: bool,
    ) -> None:
        self._end_forward(request, call, OK if is_held else _NOT_HELD, began_ns=began_ns)

    def _end_forward(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call, outcome: Outcome, *, began_ns: int | None
    ) -> None:
        """Answers. `began_ns`: since when the dead letter was being written, if it was."""
        call.send(pb.ForwardMessageToDeadLetterQueueResponse(status=status_of(outcome)))
        call.finish()
        if self._tracer is not None:
            wait = ("dead letter write", began_ns, self._tracer.now_ns()) if began_ns is not None else None
            self._trace(
                _FORWARD,
                request.topic.name,
                request.group.name,
                call,
                [request.receipt_handle],
                outcome,
                began_ns=began_ns,
                wait=wait,
            )

    def _was_moved(self, group: str, topic: str, handle: str) -> bool:
        """Whether an earlier forward did it and only its answer was lost; clients repeat a forward until it is OK."""
        receipt = read_handle(handle)
        if receipt is None:
            return False
        parent = parent_of_lmq(topic)
        if parent is not None:
            place = self._services.lite_topics.place(topic, receipt.queue_offset)
            return place is not None and self._dead_letters.was_moved(group, parent, place[0], place[1])
        return self._dead_letters.was_moved(group, topic, receipt.queue_id, receipt.queue_offset)

    def _refused(self, group: str, topic: str, call: Call, *, puts: bool = False) -> Outcome | None:
        if refused := check_client_id(call) or check_group(group) or check_topic(topic):
            return refused
        services = self._services
        if (reason := services.refusal if puts else services.read_refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        return None

    def _trace(
        self,
        method: str,
        topic: str,
        group: str,
        call: Call,
        handles: Sequence[str],
        outcome: Outcome,
        *,
        new_handle: str | None = None,
        began_ns: int | None = None,
        wait: tuple[str, int, int] | None = None,
    ) -> None:
        """Something was answered; whether that is traced is decided here."""
        if self._tracer is None:
            return
        trace = self._tracer.settling(
            method,
            call,
            topic=topic,
            group=group,
            handles=handles,
            failure=_failure_of((outcome,)),
            began_ns=began_ns,
        )
        if trace is not None:
            if new_handle is not None:
                self._tracer.handle_changed(trace, new_handle)
            self._tracer.settled((trace,), wait=wait)


def _leased_under(topic: str, lite_topic: str) -> str:
    return lmq_name(topic, lite_topic) if lite_topic else topic


def encoded_ack(entries: list[bytes], outcomes: list[Outcome]) -> bytes:
    """An AckMessageResponse: the outcome of each of `AckRequest.entries`, and of all. Joined by hand at a third of
    protobuf's cost."""
    parts = [b""]
    all_ok = True
    for entry, outcome in zip(entries, outcomes):
        if outcome is OK:
            encoded = entry + _OK_ENTRY
        else:
            encoded = entry + length_delimited(_ENTRY_STATUS, status_of(outcome).SerializeToString())
            all_ok = False
        parts.append(_ANSWER_ENTRY)
        parts.append(encoded_length(encoded))
        parts.append(encoded)
    parts[0] = _OK_OVERALL if all_ok and entries else _encoded_overall(outcomes)
    return b"".join(parts)


def _encoded_overall(outcomes: list[Outcome]) -> bytes:
    return pb.AckMessageResponse(status=common_status(outcomes)).SerializeToString()


_ANSWER_ENTRY: Final = tag_of(pb.AckMessageResponse, "entries")
_ENTRY_STATUS: Final = tag_of(pb.AckMessageResultEntry, "status")
_OK_OVERALL: Final = _encoded_overall([OK])
_OK_ENTRY: Final = length_delimited(_ENTRY_STATUS, ok_status().SerializeToString())
_NOT_HELD: Final = Outcome(
    Code.SLAVE_PERSISTENCE_TIMEOUT,
    "done here, but too few slaves have it in time for a change of master not to undo it; repeat the call",
    retryable=True,
)
_NO_ENTRY: Final = Outcome(Code.BAD_REQUEST, "the request has no entry")
_TOO_MANY_ENTRIES: Final = Outcome(
    Code.BAD_REQUEST, f"entries: more than {_ENTRIES_MAX} in one request; acknowledge by several"
)


def _unknown_handle(handle: str) -> Outcome:
    return Outcome(
        Code.INVALID_RECEIPT_HANDLE,
        f"receipt handle {handle[:64]!r} is not of a running lease of this broker group: "
        "it has ended, was replaced, or is another group's",
    )


def _failure_of(outcomes: Sequence[Outcome]) -> Failure | None:
    for outcome in outcomes:
        if outcome is not OK:
            return Failure(Code.Name(outcome.code), outcome.text)
    return None

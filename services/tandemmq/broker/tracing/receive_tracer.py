"""Which receives and which ends of deliveries are traced, and to which sends they are linked.

A receive is kept when its caller's context says so, or chance does, or the send of one of its messages was traced, or
it was refused or slow; how long it waited for messages is not slowness, and a poll that ends empty is never kept. What
ends a delivery is kept when its receive was, so that a message is seen to its end or not at all.

Nothing here raises into a handler: a trace that cannot be made is lost, and the first one is logged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tandemmq.core.delivery.queue_progress import Delivery
from tandemmq.core.message.properties import PROPERTY_UNIQUE_KEY
from tandemmq.core.message.record import Host, offset_message_id
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.span_data import (
    TRACEPARENT,
    AttributeValue,
    RetainedFor,
    SpanData,
    SpanKind,
    SpanLink,
    TraceContext,
    parse_traceparent,
    peer_attributes,
)
from tandemmq.service.rpc import CLIENT_ID_HEADER, Call

if TYPE_CHECKING:
    from tandemmq.broker.tracing.send_tracer import BrokerTracing


# How a receive and the end of a delivery look as spans. Pure: moments in, spans out.
#
# Both are server spans with links to the sends of their messages, never their children: one receive has messages of
# many traces (ADR 17). Moments are monotonic nanoseconds; `wall_offset_ns` added makes them wall clock.

_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
# (messaging.operation.name, messaging.operation.type) by method.
_OPERATIONS: Final = {
    "ReceiveMessage": ("receive", "receive"),
    "AckMessage": ("ack", "settle"),
    "ChangeInvisibleDuration": ("change_invisible_duration", "settle"),
    "ForwardMessageToDeadLetterQueue": ("forward_to_dead_letter_queue", "settle"),
}
# The names of a refused call are whatever its caller wrote.
_NAME_MAX: Final = 256


class Failure(NamedTuple):
    """Why a call was refused: RocketMQ's code by its name, and the text its caller was told."""

    kind: str
    text: str


class DeliveredMessage(NamedTuple):
    message_id: str
    # The send's span; None when the send was not traced.
    sent: TraceContext | None
    # The span of the receive that got it.
    received: TraceContext


@dataclass(frozen=True, slots=True)
class TracedCall:
    method: str
    topic: str
    group: str
    client_id: str
    # As the server names it, for example `ipv4:10.0.0.7:51234`.
    peer: str
    # The caller's own span.
    parent: TraceContext | None
    context: TraceContext
    retained_for: RetainedFor
    began_ns: int


@dataclass(slots=True)
class ReceiveTrace:
    """One ReceiveMessage under way."""

    parent: TraceContext | None
    # Its span, if it was decided at the beginning to keep it.
    context: TraceContext | None
    began_ns: int
    # When the last look for messages began; the first one begins with the call.
    looking_ns: int
    # When that look ended.
    leased_ns: int | None = None
    # When it began to wait; None: it found messages at once.
    waiting_ns: int | None = None


@dataclass(slots=True)
class SettleTrace:
    """The end of one or more deliveries, kept and under way."""

    call: TracedCall
    deliveries: Sequence[DeliveredMessage]
    message_count: int
    failure: Failure | None
    # What it waited for before it was answered, from when until when.
    wait: tuple[str, int, int] | None = None


def receive_spans(
    call: TracedCall,
    trace: ReceiveTrace,
    deliveries: Sequence[DeliveredMessage],
    *,
    message_count: int,
    failure: Failure | None,
    ended_ns: int,
    wall_offset_ns: int,
    child_of: Callable[[TraceContext], TraceContext],
) -> list[SpanData]:
    """The server's span, and in it the wait, the lease and the reply, as far as it came to them."""
    spans = [
        _server_span(
            call,
            deliveries,
            message_count=message_count,
            failure=failure,
            ended_ns=ended_ns,
            wall_offset_ns=wall_offset_ns,
            link_to_receive=False,
        )
    ]
    steps = []
    if trace.waiting_ns is not None:
        steps.append(("poll wait", trace.waiting_ns, trace.looking_ns))
    if trace.leased_ns is not None:
        steps += (("lease", trace.looking_ns, trace.leased_ns), ("reply", trace.leased_ns, ended_ns))
    for name, begin_ns, end_ns in steps:
        spans.append(_step(name, call, child_of(call.context), begin_ns + wall_offset_ns, end_ns + wall_offset_ns))
    return spans


def settle_spans(
    trace: SettleTrace,
    *,
    ended_ns: int,
    wall_offset_ns: int,
    child_of: Callable[[TraceContext], TraceContext],
) -> list[SpanData]:
    """The server's span, and in it what was waited for."""
    spans = [
        _server_span(
            trace.call,
            trace.deliveries,
            message_count=trace.message_count,
            failure=trace.failure,
            ended_ns=ended_ns,
            wall_offset_ns=wall_offset_ns,
            link_to_receive=True,
        )
    ]
    if trace.wait is not None:
        name, begin_ns, end_ns = trace.wait
        context = child_of(trace.call.context)
        spans.append(_step(name, trace.call, context, begin_ns + wall_offset_ns, end_ns + wall_offset_ns))
    return spans


def _server_span(
    call: TracedCall,
    deliveries: Sequence[DeliveredMessage],
    *,
    message_count: int,
    failure: Failure | None,
    ended_ns: int,
    wall_offset_ns: int,
    link_to_receive: bool,
) -> SpanData:
    said: dict[str, AttributeValue] = {
        **_said_always(call.method),
        span_data.MESSAGING_DESTINATION_NAME: call.topic[:_NAME_MAX],
        span_data.MESSAGING_CONSUMER_GROUP_NAME: call.group[:_NAME_MAX],
        span_data.MESSAGING_CLIENT_ID: call.client_id[:_NAME_MAX],
        **peer_attributes(call.peer),
        span_data.RETAINED_FOR: str(call.retained_for),
    }
    if message_count == 1 and deliveries:
        said[span_data.MESSAGING_MESSAGE_ID] = deliveries[0].message_id
    elif message_count > 1:
        said[span_data.MESSAGING_BATCH_MESSAGE_COUNT] = message_count
    if failure is not None:
        said[span_data.ERROR_TYPE] = failure.kind
    links = [
        SpanLink(one.sent, {span_data.MESSAGING_MESSAGE_ID: one.message_id})
        for one in deliveries
        if one.sent is not None
    ]
    if link_to_receive:
        links += map(SpanLink, {one.received: None for one in deliveries})
    parent = call.parent
    return SpanData(
        name=f"{_SERVICE}/{call.method}",
        context=call.context,
        parent_span_id=parent.span_id if parent is not None else 0,
        parent_is_remote=parent is not None,
        kind=SpanKind.SERVER,
        start_ns=call.began_ns + wall_offset_ns,
        end_ns=ended_ns + wall_offset_ns,
        attributes=said,
        links=tuple(links),
        failure=failure.text if failure is not None else "",
    )


def _step(name: str, call: TracedCall, context: TraceContext, start_ns: int, end_ns: int) -> SpanData:
    return SpanData(
        name=name,
        context=context,
        parent_span_id=call.context.span_id,
        kind=SpanKind.INTERNAL,
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
    )


@cache
def _said_always(method: str) -> dict[str, AttributeValue]:
    """The attributes that are the same in each call of a method."""
    operation, operation_type = _OPERATIONS[method]
    return {
        span_data.MESSAGING_SYSTEM: span_data.MESSAGING_SYSTEM_ROCKETMQ,
        span_data.MESSAGING_OPERATION_NAME: operation,
        span_data.MESSAGING_OPERATION_TYPE: operation_type,
        span_data.MESSAGING_ROCKETMQ_NAMESPACE: "",
        span_data.RPC_SYSTEM_NAME: "grpc",
        span_data.RPC_METHOD: f"{_SERVICE}/{method}",
        # Refusals travel in RocketMQ's own status.
        span_data.RPC_RESPONSE_STATUS_CODE: "OK",
    }


log = structlog.get_logger(__name__)

_RECEIVE: Final = "ReceiveMessage"
# Deliveries whose end is awaited, of 400 bytes each. Those that nobody acknowledges are pushed out by later ones.
_DELIVERIES_MAX: Final = 8_192
# Kept for a failure or for slowness: clients repeat what is refused, all of them at once.
_TROUBLES_PER_SECOND: Final = 100
_SECOND_NS: Final = 1_000_000_000
_MILLISECOND_NS: Final = 1_000_000
# The end of a `traceparent` that is not sampled; most are of that kind, and need no reading.
_NOT_SAMPLED: Final = b"-00"
# Of a property string: the name of the message's id, and what may stand before a name.
_UNIQUE_KEY: Final = f"{PROPERTY_UNIQUE_KEY}\x01".encode()
_PAIR_ENDS: Final = (b"", b"\x02")


class ReceiveTracer:
    """Traces of one broker's consumers. Event loop only."""

    def __init__(self, tracing: BrokerTracing) -> None:
        self.now_ns: Final = tracing.clock.monotonic_ns
        self._tracing = tracing
        self._sampler = tracing.sampler
        self._options = tracing.options
        # By receipt handle.
        self._delivered: OrderedDict[str, DeliveredMessage] = OrderedDict()
        self._troubles_since_ns = 0
        self._trouble_count = 0
        self._has_failed = False

    # Receives

    def receive_began(self, call: Call) -> ReceiveTrace:
        began_ns = call.received_ns or self.now_ns()
        parent = _parent_of(call)
        context = None
        if parent is not None:
            context = self._sampler.child_of(parent) if parent.is_sampled else None
        elif self._sampler.takes():
            context = self._sampler.new_root()
        return ReceiveTrace(parent, context, began_ns, began_ns)

    def delivered(
        self,
        trace: ReceiveTrace,
        call: Call,
        *,
        topic: str,
        group: str,
        deliveries: Sequence[Delivery],
        own_contexts: Mapping[int, Sequence[bytes]],
    ) -> None:
        """A receive was answered with messages. `own_contexts`: what they say of their traces, by physical offset."""
        try:
            ended_ns = self.now_ns()
            sent = self._sent(deliveries, own_contexts)
            if trace.context is not None or sent:
                reason = RetainedFor.SAMPLED
            elif self.is_slow(trace.looking_ns) and self._has_room_for_trouble(ended_ns):
                reason = RetainedFor.SLOW
            else:
                return
            traced = self._traced(_RECEIVE, call, trace.parent, trace.context, topic, group, reason, trace.began_ns)
            messages = []
            for delivery in deliveries:
                record = delivery.record
                context = sent.get(record.physical_offset)
                # One traced message in a hundred is one in a third of all full batches: the others stay out of it,
                # unless the receive is kept for its own sake.
                if context is None and sent and trace.context is None:
                    continue
                message = DeliveredMessage(_message_id(record), context, traced.context)
                messages.append(message)
                self._remember(delivery.handle, message)
            self._add_receive(traced, trace, messages, len(deliveries), None, ended_ns)
        except Exception:
            self._failed()

    def receive_refused(self, trace: ReceiveTrace, call: Call, *, topic: str, group: str, failure: Failure) -> None:
        """A receive was answered with an error."""
        try:
            ended_ns = self.now_ns()
            if trace.context is None and not self._has_room_for_trouble(ended_ns):
                return
            reason = RetainedFor.FAILED
            traced = self._traced(_RECEIVE, call, trace.parent, trace.context, topic, group, reason, trace.began_ns)
            self._add_receive(traced, trace, (), 0, failure, ended_ns)
        except Exception:
            self._failed()

    # Ends of deliveries

    def follows(self, handles: Sequence[str]) -> bool:
        """Whether one of these deliveries is traced. Asked of every acknowledgement."""
        return not self._delivered.keys().isdisjoint(handles)

    def is_slow(self, began_ns: int) -> bool:
        """Whether what began then has taken too long."""
        return 0 < self._options.slow_ms * _MILLISECOND_NS < self.now_ns() - began_ns

    def settling(
        self,
        method: str,
        call: Call,
        *,
        topic: str,
        group: str,
        handles: Sequence[str],
        failure: Failure | None = None,
        began_ns: int | None = None,
    ) -> SettleTrace | None:
        """It is known how deliveries end; None if that is not traced. `settled` is to follow when it is answered.

        `began_ns`: when the call came in, if that was not just now.
        """
        try:
            now_ns = self.now_ns()
            parent = _parent_of(call)
            # A handle that was refused may be shown again.
            found = self._delivered.get if failure is not None else self._delivered.pop
            messages = [message for handle in handles if (message := found(handle, None)) is not None]
            if failure is not None:
                reason = RetainedFor.FAILED
            elif messages:
                reason = RetainedFor.SAMPLED
            elif began_ns is not None and self.is_slow(began_ns):
                reason = RetainedFor.SLOW
            else:
                return None
            if reason is not RetainedFor.SAMPLED and not self._has_room_for_trouble(now_ns):
                return None
            if began_ns is None:
                began_ns = call.received_ns or now_ns
            traced = self._traced(method, call, parent, None, topic, group, reason, began_ns)
            return SettleTrace(traced, messages, len(handles), failure)
        except Exception:
            self._failed()
            return None

    def settled(self, traces: Sequence[SettleTrace], *, wait: tuple[str, int, int] | None = None) -> None:
        """They were answered. `wait`: what all of them waited for before, from when until when."""
        try:
            ended_ns, wall_offset_ns = self.now_ns(), self._tracing.wall_offset_ns()
            for trace in traces:
                trace.wait = wait
                self._tracing.sink.add(
                    settle_spans(
                        trace, ended_ns=ended_ns, wall_offset_ns=wall_offset_ns, child_of=self._sampler.child_of
                    )
                )
        except Exception:
            self._failed()

    def handle_changed(self, trace: SettleTrace, handle: str) -> None:
        """The delivery goes on under another handle."""
        for message in trace.deliveries:
            self._remember(handle, message)

    # What they share

    def _sent(
        self, deliveries: Sequence[Delivery], own_contexts: Mapping[int, Sequence[bytes]]
    ) -> dict[int, TraceContext]:
        """The spans of those messages' sends that were traced, by physical offset."""
        # Most have none.
        sent = self._tracing.send_contexts.contexts_at([delivery.record.physical_offset for delivery in deliveries])
        for physical_offset, texts in own_contexts.items():
            for text in texts:
                if text.endswith(_NOT_SAMPLED):
                    continue
                context = parse_traceparent(text.decode("ascii", "replace"))
                if context is not None and context.is_sampled:
                    sent[physical_offset] = context
                    break
        return sent

    def _traced(
        self,
        method: str,
        call: Call,
        parent: TraceContext | None,
        context: TraceContext | None,
        topic: str,
        group: str,
        reason: RetainedFor,
        began_ns: int,
    ) -> TracedCall:
        if context is None:
            context = self._sampler.child_of(parent) if parent is not None else self._sampler.new_root()
        client_id = call.header(CLIENT_ID_HEADER)
        return TracedCall(method, topic, group, client_id, call.peer, parent, context, reason, began_ns)

    def _add_receive(
        self,
        traced: TracedCall,
        trace: ReceiveTrace,
        messages: Sequence[DeliveredMessage],
        message_count: int,
        failure: Failure | None,
        ended_ns: int,
    ) -> None:
        self._tracing.sink.add(
            receive_spans(
                traced,
                trace,
                messages,
                message_count=message_count,
                failure=failure,
                ended_ns=ended_ns,
                wall_offset_ns=self._tracing.wall_offset_ns(),
                child_of=self._sampler.child_of,
            )
        )

    def _remember(self, handle: str, message: DeliveredMessage) -> None:
        self._delivered[handle] = message
        if len(self._delivered) > _DELIVERIES_MAX:
            self._delivered.popitem(last=False)

    def _has_room_for_trouble(self, now_ns: int) -> bool:
        if now_ns - self._troubles_since_ns >= _SECOND_NS:
            self._troubles_since_ns = now_ns
            self._trouble_count = 0
        self._trouble_count += 1
        return self._trouble_count <= _TROUBLES_PER_SECOND

    def _failed(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.exception("receive_trace_lost")


def _parent_of(call: Call) -> TraceContext | None:
    header = call.header(TRACEPARENT)
    return parse_traceparent(header) if header else None


def _message_id(record: StoredMessage) -> str:
    """As its receiver is told it."""
    before, name, rest = record.properties.partition(_UNIQUE_KEY)
    if name and before[-1:] in _PAIR_ENDS:
        return rest.partition(b"\x02")[0].decode("utf-8", "replace")
    return offset_message_id(Host(record.store_address, record.store_port), record.physical_offset)

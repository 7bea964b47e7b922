"""How a receive and the end of a delivery look as spans. Pure: moments in, spans out.

Both are server spans with links to the sends of their messages, never their children: one receive has messages of many
traces (ADR 17). Moments are monotonic nanoseconds; `wall_offset_ns` added makes them wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from mqcore.tracing import attributes
from mqcore.tracing.attributes import RetainedFor, peer_attributes
from mqcore.tracing.span_data import AttributeValue, SpanData, SpanKind, SpanLink
from mqcore.tracing.trace_context import TraceContext

__all__ = ["DeliveredMessage", "Failure", "ReceiveTrace", "SettleTrace", "TracedCall", "receive_spans", "settle_spans"]

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
    """A message whose delivery is traced."""

    message_id: str
    # The send's span; None when the send was not traced.
    sent: TraceContext | None
    # The span of the receive that got it.
    received: TraceContext


@dataclass(frozen=True, slots=True)
class TracedCall:
    """What is said of a call."""

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
        attributes.MESSAGING_DESTINATION_NAME: call.topic[:_NAME_MAX],
        attributes.MESSAGING_CONSUMER_GROUP_NAME: call.group[:_NAME_MAX],
        attributes.MESSAGING_CLIENT_ID: call.client_id[:_NAME_MAX],
        **peer_attributes(call.peer),
        attributes.RETAINED_FOR: str(call.retained_for),
    }
    if message_count == 1 and deliveries:
        said[attributes.MESSAGING_MESSAGE_ID] = deliveries[0].message_id
    elif message_count > 1:
        said[attributes.MESSAGING_BATCH_MESSAGE_COUNT] = message_count
    if failure is not None:
        said[attributes.ERROR_TYPE] = failure.kind
    links = [
        SpanLink(one.sent, {attributes.MESSAGING_MESSAGE_ID: one.message_id})
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
        attributes.MESSAGING_SYSTEM: attributes.MESSAGING_SYSTEM_ROCKETMQ,
        attributes.MESSAGING_OPERATION_NAME: operation,
        attributes.MESSAGING_OPERATION_TYPE: operation_type,
        attributes.MESSAGING_ROCKETMQ_NAMESPACE: "",
        attributes.RPC_SYSTEM_NAME: "grpc",
        attributes.RPC_METHOD: f"{_SERVICE}/{method}",
        # Refusals travel in RocketMQ's own status.
        attributes.RPC_RESPONSE_STATUS_CODE: "OK",
    }

"""Which receives are traced, how they look, and what they are linked to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.api_requests import Answer, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.span_data import SpanKind, TraceContext
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from unit.broker.tracing.conftest import Spans

SENT = TraceContext(0xAA, 0xBB, True)
NewTracing = Callable[..., BrokerTracing]
NewBroker = Callable[[BrokerTracing], BrokerAssembly]


def send(broker: BrokerAssembly, traceparent: str | None = None, *, trace_context: str | None = None) -> str:
    """A message; its id."""
    sent = message()
    if traceparent is not None:
        sent.user_properties["traceparent"] = traceparent
    if trace_context is not None:
        sent.system_properties.trace_context = trace_context
    call(broker, "SendMessage", send_request(sent))
    return sent.system_properties.message_id


def caller(traceparent: str) -> FakeCall:
    return FakeCall(metadata={"x-mq-client-id": "client@1", "traceparent": traceparent})


def test_receive_of_a_traced_message_is_kept_and_linked(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    message_id = send(broker, SENT.traceparent)
    receive(broker, receive_request())

    span = spans.only("ReceiveMessage")
    assert span.name == "apache.rocketmq.v2.MessagingService/ReceiveMessage"
    assert span.kind is SpanKind.SERVER
    assert span.parent_span_id == 0
    assert span.context.trace_id != SENT.trace_id
    [link] = span.links
    assert link.context == SENT
    assert link.attributes == {span_data.MESSAGING_MESSAGE_ID: message_id}
    assert span.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.rocketmq.namespace": "",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "group",
        "messaging.client.id": "client@1",
        "messaging.message.id": message_id,
        "rpc.system.name": "grpc",
        "rpc.method": "apache.rocketmq.v2.MessagingService/ReceiveMessage",
        "rpc.response.status_code": "OK",
        "network.peer.address": "127.0.0.1",
        "network.peer.port": 50_000,
        "tandemmq.trace.retained_for": "sampled",
    }


@pytest.mark.parametrize(
    "traceparent", [None, SENT._replace(is_sampled=False).traceparent, "nonsense", "00-00-00-01"], ids=str
)
def test_receive_of_what_is_not_traced_is_not_kept(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, traceparent: str | None
) -> None:
    broker = new_broker(new_tracing())
    send(broker, traceparent)
    receive(broker, receive_request())
    assert not spans


def test_rocketmqs_own_trace_context_counts_if_it_is_one(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    send(broker, "nonsense", trace_context=SENT.traceparent)
    receive(broker, receive_request())
    assert spans.only("ReceiveMessage").links[0].context == SENT


def test_send_that_the_broker_traced_is_linked(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    tracing = new_tracing()
    broker = new_broker(tracing)
    send(broker)
    tracing.send_contexts.note(0, SENT)
    send(broker)
    receive(broker, receive_request())

    span = spans.only("ReceiveMessage")
    assert [link.context for link in span.links] == [SENT]
    assert span.attributes[span_data.MESSAGING_BATCH_MESSAGE_COUNT] == 2


def test_chance_keeps_a_receive_without_links(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    broker = new_broker(new_tracing(sample_rate=1.0))
    send(broker)
    receive(broker, receive_request())
    assert spans.only("ReceiveMessage").links == ()


@pytest.mark.parametrize(("is_sampled", "kept"), [(True, 1), (False, 0)])
def test_callers_decision_goes_before_chance(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, is_sampled: bool, kept: int
) -> None:
    broker = new_broker(new_tracing(sample_rate=0.0 if is_sampled else 1.0))
    send(broker)
    own = TraceContext(0xCC, 0xDD, is_sampled)
    call(broker, "ReceiveMessage", receive_request(), caller(own.traceparent))

    servers = spans.named("ReceiveMessage")
    assert len(servers) == kept
    for span in servers:
        assert (span.context.trace_id, span.parent_span_id, span.parent_is_remote) == (0xCC, 0xDD, True)


def test_wait_lease_and_reply_are_its_steps_in_their_order(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime
) -> None:
    broker = new_broker(new_tracing())
    waiting = call(broker, "ReceiveMessage", receive_request(poll_ms=20_000))
    time.advance(3_000)
    send(broker, SENT.traceparent)
    time.advance(1)
    assert len(Answer.of(waiting).messages) == 1

    server, wait, lease, reply = spans
    assert [span.name for span in (wait, lease, reply)] == ["poll wait", "lease", "reply"]
    assert {span.parent_span_id for span in (wait, lease, reply)} == {server.context.span_id}
    assert {span.context.trace_id for span in spans} == {server.context.trace_id}
    assert len({span.context.span_id for span in spans}) == 4
    assert wait.end_ns - wait.start_ns == 3_000_000_000
    assert server.start_ns <= wait.start_ns <= wait.end_ns <= lease.start_ns <= lease.end_ns <= reply.end_ns
    assert server.end_ns == reply.end_ns
    assert wait.start_ns // 1_000_000 == 1_700_000_000_000


def test_empty_poll_is_never_kept(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime
) -> None:
    broker = new_broker(new_tracing(sample_rate=1.0))
    fake = call(broker, "ReceiveMessage", receive_request(poll_ms=5_000))
    time.advance(20_000)
    assert Answer.of(fake).code == definition.MESSAGE_NOT_FOUND
    assert not spans


def test_refusal_is_kept_with_its_cause(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    broker = new_broker(new_tracing())
    receive(broker, receive_request("missing"))

    [span] = spans
    assert span.failure == "topic missing does not exist in this broker group"
    assert span.attributes[span_data.ERROR_TYPE] == "TOPIC_NOT_FOUND"
    assert span.attributes[span_data.RETAINED_FOR] == "failed"


def test_refusals_are_kept_a_hundred_times_a_second_at_most(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime
) -> None:
    broker = new_broker(new_tracing())
    for _ in range(150):
        receive(broker, receive_request("missing"))
    assert len(spans) == 100
    time.advance(1_000)
    receive(broker, receive_request("missing"))
    assert len(spans) == 101


def test_slow_lease_is_kept_and_a_long_wait_is_not(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_broker(new_tracing())
    call(broker, "ReceiveMessage", receive_request(poll_ms=20_000))
    time.advance(10_000)
    send(broker)
    time.end_turn()
    assert not spans

    monkeypatch.setattr(broker, "persist_leases", lambda: time.advance(150))
    send(broker)
    receive(broker, receive_request())
    assert spans.only("ReceiveMessage").attributes[span_data.RETAINED_FOR] == "slow"
    assert spans.only("lease").end_ns - spans.only("lease").start_ns == 150_000_000


def test_names_of_a_refused_call_are_cut(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    broker = new_broker(new_tracing())
    receive(broker, receive_request("x" * 10_000, group="y" * 10_000))
    span = spans.only("ReceiveMessage")
    assert all(len(value) <= 256 for value in span.attributes.values() if isinstance(value, str))
    assert len(span.failure) <= 1_024


def test_trace_that_cannot_be_made_does_not_disturb_the_receive(
    new_tracing: NewTracing, new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing = new_tracing(sample_rate=1.0)
    broker = new_broker(tracing)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(tracing.sink, "add", broken)
    send(broker)
    assert len(receive(broker, receive_request()).messages) == 1
    receive(broker, receive_request("missing"))

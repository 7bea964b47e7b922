"""Which ends of deliveries are traced, and what they are linked to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.api_requests import ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.span_data import SpanKind, TraceContext
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from unit.broker.tracing.conftest import Spans

SENT = TraceContext(0xAA, 0xBB, True)
NewTracing = Callable[..., BrokerTracing]
NewBroker = Callable[[BrokerTracing], BrokerAssembly]


def delivered(broker: BrokerAssembly, *, is_traced: bool = True) -> tuple[str, str]:
    """A message that was sent and received: its id, and its handle."""
    sent = message()
    if is_traced:
        sent.user_properties["traceparent"] = SENT.traceparent
    call(broker, "SendMessage", send_request(sent))
    [handle] = receive(broker, receive_request()).handles
    return sent.system_properties.message_id, handle


def ack(broker: BrokerAssembly, *handles: str, fake: FakeCall | None = None) -> None:
    call(broker, "AckMessage", ack_request(*handles), fake)
    broker.end_turn()


def change(broker: BrokerAssembly, handle: str, invisible_ms: int) -> str:
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    answer = call(broker, "ChangeInvisibleDuration", request).only(pb.ChangeInvisibleDurationResponse)
    return answer.receipt_handle


def forward(broker: BrokerAssembly, handle: str) -> None:
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )
    call(broker, "ForwardMessageToDeadLetterQueue", request)


def test_acknowledgement_is_linked_to_the_send_and_to_the_receive(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    message_id, handle = delivered(broker)
    ack(broker, handle)

    span = spans.only("AckMessage")
    assert (span.kind, span.parent_span_id) == (SpanKind.SERVER, 0)
    assert [link.context for link in span.links] == [SENT, spans.only("ReceiveMessage").context]
    assert span.links[0].attributes == {span_data.MESSAGING_MESSAGE_ID: message_id}
    assert span.attributes[span_data.MESSAGING_OPERATION_NAME] == "ack"
    assert span.attributes[span_data.MESSAGING_OPERATION_TYPE] == "settle"
    assert span.attributes[span_data.MESSAGING_MESSAGE_ID] == message_id
    journal = spans.only("lease journal write")
    assert journal.parent_span_id == span.context.span_id
    assert span.start_ns <= journal.start_ns <= journal.end_ns <= span.end_ns


def test_acknowledgement_of_what_was_not_traced_is_not_kept(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    ack(broker, delivered(broker, is_traced=False)[1])
    assert not spans


def test_chance_of_the_receive_is_the_acknowledgements_too(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing(sample_rate=1.0))
    ack(broker, delivered(broker, is_traced=False)[1])
    assert [link.context for link in spans.only("AckMessage").links] == [spans.only("ReceiveMessage").context]


def test_several_deliveries_of_one_receive_are_one_span(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing(sample_rate=1.0))
    for _ in range(3):
        call(broker, "SendMessage", send_request(message()))
    ack(broker, *receive(broker, receive_request()).handles)
    span = spans.only("AckMessage")
    assert span.attributes[span_data.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert len(span.links) == 1


def test_callers_span_is_the_parent(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker)
    own = TraceContext(0xCC, 0xDD, True)
    ack(broker, handle, fake=FakeCall(metadata={"x-mq-client-id": "client@1", "traceparent": own.traceparent}))
    span = spans.only("AckMessage")
    assert (span.context.trace_id, span.parent_span_id) == (0xCC, 0xDD)


def test_refused_acknowledgement_is_kept_and_the_handle_stays_known(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker)
    broker.refusal = "the broker is stopping"
    ack(broker, handle)
    broker.refusal = None
    ack(broker, handle)

    refused, done = spans.named("AckMessage")
    assert refused.failure == "the broker is stopping"
    assert refused.attributes[span_data.ERROR_TYPE] == "FORBIDDEN"
    assert done.failure == ""
    assert refused.links == done.links


def test_a_client_that_repeats_what_is_refused_does_not_fill_the_memory(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker)
    broker.refusal = "the broker is stopping"
    for _ in range(150):
        ack(broker, handle)
    assert len(spans.named("AckMessage")) == 100


def test_changed_lease_is_traced_under_its_new_handle_too(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans
) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker)
    ack(broker, change(broker, handle, 60_000))
    assert spans.only("ChangeInvisibleDuration").links == spans.only("AckMessage").links


def test_forward_shows_how_long_the_dead_letter_took(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime
) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker)
    broker.puts_held = True
    forward(broker, handle)
    time.advance(40)
    assert not spans.named("ForwardMessageToDeadLetterQueue")
    broker.release_puts()

    span, step = spans.only("ForwardMessageToDeadLetterQueue"), spans.only("dead letter write")
    assert span.end_ns - span.start_ns == 40_000_000
    assert step.end_ns - step.start_ns == 40_000_000
    assert span.links[0].context == SENT


def test_slow_forward_is_kept(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime) -> None:
    broker = new_broker(new_tracing())
    _, handle = delivered(broker, is_traced=False)
    broker.puts_held = True
    forward(broker, handle)
    time.advance(150)
    broker.release_puts()
    assert spans.only("ForwardMessageToDeadLetterQueue").attributes[span_data.RETAINED_FOR] == "slow"


def test_of_acknowledgements_that_waited_long_for_the_journal_one_is_kept(
    new_tracing: NewTracing, new_broker: NewBroker, spans: Spans, time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_broker(new_tracing())
    handles = [delivered(broker, is_traced=False)[1] for _ in range(3)]
    for handle in handles:
        call(broker, "AckMessage", ack_request(handle))
    monkeypatch.setattr(broker, "persist_leases", lambda: time.advance(150))
    broker.end_turn()
    assert spans.only("AckMessage").attributes[span_data.RETAINED_FOR] == "slow"
    assert spans.only("lease journal write").end_ns - spans.only("lease journal write").start_ns == 150_000_000


def test_deliveries_nobody_ends_are_forgotten(new_tracing: NewTracing, new_broker: NewBroker, spans: Spans) -> None:
    tracing = new_tracing()
    broker = new_broker(tracing)
    _, first = delivered(broker)
    for _ in range(8_192):
        tracing_handle = delivered(broker)[1]
    ack(broker, first)
    ack(broker, tracing_handle)
    assert len(spans.named("AckMessage")) == 1

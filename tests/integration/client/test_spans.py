"""Spans of the client library, made with OpenTelemetry's SDK as an application sets it up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from support.broker_assembly import BrokerAssembly
from support.client_endpoint import serving
from tandemmq.client import BrokerRefused, ClientOptions, Producer, ReceivedMessage, SimpleConsumer
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.core.tracing.span_data import parse_traceparent
from tandemmq.service.event_loop import SystemClock

CLOCK = SystemClock()
APPLICATIONS = "00-000000000000000000000000000000aa-00000000000000bb-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def new_broker() -> BrokerAssembly:
    broker = BrokerAssembly(clock=CLOCK, timers=asyncio.get_running_loop())
    broker.add_topic("orders")
    return broker


async def sent_and_received(
    address: str, provider: TracerProvider | None, properties: Mapping[str, str] | None = None
) -> ReceivedMessage:
    """A message that went through the broker at `address`, acknowledged."""
    options = ClientOptions((address,), tracer_provider=provider, request_timeout_ms=30_000)
    async with Producer(options, CLOCK) as producer:
        await producer.send("orders", b"body", tag="paid", keys=["k1"], properties=properties)
    async with SimpleConsumer(options, CLOCK, group="group", subscriptions={"orders": "*"}) as consumer:
        [message] = await consumer.receive()
        with consumer.processing(message):
            pass
        with consumer.processing(message, as_child=True):
            pass
        await consumer.ack(message)
    return message


def only(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def traceparent_of(span: ReadableSpan) -> str:
    assert span.context is not None
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_send_is_a_producer_span_whose_context_the_message_carries(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    async with serving(new_broker()) as address:
        message = await sent_and_received(address, provider)

    span = only(exporter, "send orders")
    assert span.kind is SpanKind.PRODUCER
    assert message.properties == {"traceparent": traceparent_of(span)}
    assert span.attributes is not None
    assert span.attributes["messaging.message.id"] == message.message_id
    assert span.attributes["messaging.client.id"]
    assert {
        name: value
        for name, value in span.attributes.items()
        if name not in ("messaging.message.id", "messaging.client.id")
    } == {
        "messaging.system": "rocketmq",
        "messaging.rocketmq.namespace": "",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("k1",),
        "server.address": "127.0.0.1",
        "server.port": int(address.rpartition(":")[2]),
    }


async def test_receive_process_and_settle_link_to_the_send(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    async with serving(new_broker()) as address:
        message = await sent_and_received(address, provider)

    sent = only(exporter, "send orders").context
    linked, child = [span for span in exporter.get_finished_spans() if span.name == "process orders"]
    kinds = {
        only(exporter, "receive orders"): SpanKind.CLIENT,
        linked: SpanKind.CONSUMER,
        only(exporter, "ack orders"): SpanKind.CLIENT,
    }
    for span, kind in kinds.items():
        assert span.kind is kind
        assert [link.context.span_id for link in span.links] == [sent.span_id]
        assert span.context.trace_id != sent.trace_id
        assert span.attributes is not None
        assert span.attributes["messaging.consumer.group.name"] == "group"
        assert span.attributes["messaging.message.id"] == message.message_id
    assert child.parent is not None
    assert (child.parent.span_id, child.links) == (sent.span_id, ())


async def test_applications_own_context_is_left_and_linked_to(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    async with serving(new_broker()) as address:
        message = await sent_and_received(address, provider, {"traceparent": APPLICATIONS})

    span = only(exporter, "send orders")
    assert message.properties["traceparent"] == APPLICATIONS
    assert (span.kind, [link.context.span_id for link in span.links]) == (SpanKind.CLIENT, [0xBB])


async def test_without_an_sdk_nothing_is_added() -> None:
    async with serving(new_broker()) as address:
        message = await sent_and_received(address, None)
    assert message.properties == {}


async def test_a_send_that_is_not_sampled_says_so() -> None:
    async with serving(new_broker()) as address:
        message = await sent_and_received(address, TracerProvider(sampler=ALWAYS_OFF))
    context = parse_traceparent(message.properties["traceparent"])
    assert context is not None
    assert not context.is_sampled


async def test_failed_attempts_are_events_and_the_last_one_fails_the_span(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    broker = new_broker()
    broker.put_status = PutStatus.MESSAGE_ILLEGAL
    async with serving(broker) as address:
        options = ClientOptions((address,), tracer_provider=provider, send_attempts_max=2, request_timeout_ms=30_000)
        async with Producer(options, CLOCK) as producer:
            with pytest.raises(BrokerRefused):
                await producer.send("orders", b"body")
            broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
            with pytest.raises(Exception, match="2 attempts failed"):
                await producer.send("orders", b"body")

    refused, failed = exporter.get_finished_spans()
    assert refused.attributes is not None
    assert failed.attributes is not None
    assert refused.attributes["error.type"] == "PAYLOAD_TOO_LARGE"
    assert failed.attributes["error.type"] == "SendFailed"
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.attributes and event.attributes["error.type"] for event in failed.events] == [
        "SLAVE_PERSISTENCE_TIMEOUT"
    ] * 2


async def test_an_empty_poll_makes_no_span(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    async with serving(new_broker()) as address:
        options = ClientOptions((address,), tracer_provider=provider, request_timeout_ms=30_000)
        async with SimpleConsumer(options, CLOCK, group="g", subscriptions={"orders": "*"}, await_ms=5_000) as consumer:
            assert await consumer.receive() == []
    assert exporter.get_finished_spans() == ()

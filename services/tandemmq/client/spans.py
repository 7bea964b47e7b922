"""Spans of a client's own operations, after OpenTelemetry's conventions for messaging.

Only OpenTelemetry's API is used: nothing is recorded unless the application has set up an SDK. A send's context travels
in the message's property `traceparent`; one that the application put there is left as it is, and linked to. Receiving,
processing and settling *link* to the sends of their messages; only the processing of one message may be made the send's
child instead, if the application says so (ADR 17).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tandemmq.client.messages import BrokerRefused, ReceivedMessage
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.span_data import TRACEPARENT, AttributeValue

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class ClientSpans:
    """What one producer or consumer has recorded. `group`: the consumer's."""

    def __init__(self, tracer_provider: TracerProvider | None, *, client_id: str, group: str | None = None) -> None:
        """Without a provider the one of the process counts, whenever that is set."""
        self._tracer: Tracer = get_tracer("mqclient", tracer_provider=tracer_provider)
        self._common: dict[str, AttributeValue] = {
            span_data.MESSAGING_SYSTEM: span_data.MESSAGING_SYSTEM_ROCKETMQ,
            span_data.MESSAGING_ROCKETMQ_NAMESPACE: "",
            span_data.MESSAGING_CLIENT_ID: client_id,
        }
        if group is not None:
            self._common[span_data.MESSAGING_CONSUMER_GROUP_NAME] = group

    @contextmanager
    def send(
        self, topic: str, properties: MutableMapping[str, str], said: Mapping[str, AttributeValue]
    ) -> Iterator[Span]:
        """A send, retries included. Puts its context into `properties`, unless there is one."""
        creation = _context_in(properties)
        has_own = TRACEPARENT in properties
        with self._current(
            "send",
            "send",
            topic,
            # A span that only sends what another span created is no producer.
            SpanKind.CLIENT if has_own else SpanKind.PRODUCER,
            links=[Link(creation)] if creation is not None else [],
            said=said,
        ) as span:
            if not has_own:
                _PROPAGATOR.inject(properties)
            yield span

    def received(
        self,
        topic: str,
        endpoint: str,
        messages: Sequence[ReceivedMessage],
        *,
        began_ns: int,
        ended_ns: int,
        error: Exception | None = None,
    ) -> None:
        """A receive that brought messages or failed; made when that is known, since most polls bring none."""
        said: dict[str, AttributeValue] = {
            **endpoint_attributes(endpoint),
            span_data.MESSAGING_BATCH_MESSAGE_COUNT: len(messages),
        }
        if len(messages) == 1:
            said[span_data.MESSAGING_MESSAGE_ID] = messages[0].message_id
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=SpanKind.CLIENT,
            attributes=self._attributes("receive", "receive", topic, said),
            links=_links_to(messages),
            start_time=began_ns,
        )
        if error is not None:
            _mark_failed(span, error)
        span.end(ended_ns)

    @contextmanager
    def process(self, message: ReceivedMessage, *, as_child: bool) -> Iterator[Span]:
        """What the application does with one message."""
        sent = _context_in(message.properties)
        context = _PROPAGATOR.extract(message.properties, Context()) if as_child and sent is not None else None
        with self._current(
            "process",
            "process",
            message.topic,
            SpanKind.CONSUMER,
            links=_links_to([message]) if context is None else [],
            said=_message_attributes(message),
            context=context,
        ) as span:
            yield span

    @contextmanager
    def settle(self, operation: str, message: ReceivedMessage) -> Iterator[Span]:
        """The end of a delivery, or of its lease."""
        with self._current(
            operation,
            "settle",
            message.topic,
            SpanKind.CLIENT,
            links=_links_to([message]),
            said={**endpoint_attributes(message.endpoint), **_message_attributes(message)},
        ) as span:
            yield span

    @contextmanager
    def _current(
        self,
        operation: str,
        operation_type: str,
        topic: str,
        kind: SpanKind,
        *,
        links: Sequence[Link],
        said: Mapping[str, AttributeValue],
        context: Context | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            f"{operation} {topic}",
            context=context,
            kind=kind,
            attributes=self._attributes(operation, operation_type, topic, said),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                _mark_failed(span, error)
                raise

    def _attributes(
        self, operation: str, operation_type: str, topic: str, said: Mapping[str, AttributeValue]
    ) -> dict[str, AttributeValue]:
        return {
            **self._common,
            span_data.MESSAGING_OPERATION_NAME: operation,
            span_data.MESSAGING_OPERATION_TYPE: operation_type,
            span_data.MESSAGING_DESTINATION_NAME: topic,
            **said,
        }


def call_headers() -> tuple[tuple[str, str], ...]:
    """What a call has to carry so that the broker's span becomes the present one's child."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers)
    return tuple(headers.items())


def endpoint_attributes(endpoint: str) -> dict[str, AttributeValue]:
    """A gRPC target, as whom the client spoke to."""
    host, _, port = endpoint.removeprefix("ipv4:").removeprefix("ipv6:").split(",")[0].rpartition(":")
    said: dict[str, AttributeValue] = {span_data.SERVER_ADDRESS: host.strip("[]")}
    if port.isdigit():
        said[span_data.SERVER_PORT] = int(port)
    return said


def error_type(error: Exception) -> str:
    """A broker's code if it gave one, else the class of the error."""
    return error.code_name if isinstance(error, BrokerRefused) else type(error).__name__


def _mark_failed(span: Span, error: Exception) -> None:
    span.set_attribute(span_data.ERROR_TYPE, error_type(error))
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _message_attributes(message: ReceivedMessage) -> dict[str, AttributeValue]:
    return {
        span_data.MESSAGING_MESSAGE_ID: message.message_id,
        span_data.MESSAGING_DESTINATION_PARTITION_ID: str(message.queue_id),
    }


def _links_to(messages: Sequence[ReceivedMessage]) -> list[Link]:
    return [
        Link(sent, {span_data.MESSAGING_MESSAGE_ID: message.message_id})
        for message in messages
        if (sent := _context_in(message.properties)) is not None
    ]


def _context_in(properties: Mapping[str, str]) -> SpanContext | None:
    """The span a message was created by, if it says so."""
    if TRACEPARENT not in properties:
        return None
    context = get_current_span(_PROPAGATOR.extract(properties, Context())).get_span_context()
    return context if context.is_valid else None

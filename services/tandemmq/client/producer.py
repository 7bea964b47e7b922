"""Sends messages, many at a time, and tries another broker when one fails."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from opentelemetry.trace import Span

from tandemmq.client.client_session import ClientSession, KnownRoute, RouteBroker
from tandemmq.client.connection import ClientOptions, check_status
from tandemmq.client.messages import BrokerRefused, ClientError, MessageIdSource, SendFailed, SendReceipt
from tandemmq.client.spans import ClientSpans, endpoint_attributes, error_type
from tandemmq.core.clock import Clock
from tandemmq.core.tracing import span_data
from tandemmq.core.tracing.span_data import AttributeValue
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_HOST_NAME: Final = socket.gethostname()


class Producer:
    """Sends NORMAL and FIFO messages. An async context manager; event loop only.

    A send is retried at another broker group, under the same message id, until it is acknowledged or the attempts are
    used up. So a message is stored at least once when `send` returns, and perhaps more than once.
    """

    def __init__(self, options: ClientOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._topics: dict[str, None] = {}
        self._session = ClientSession(options, clock, settings=self._settings, group=None)
        self._spans = ClientSpans(options.tracer_provider, client_id=self._session.client_id)
        self._ids = MessageIdSource(clock)
        # Anywhere: else all short-lived producers would send to the same broker group.
        self._turn = int.from_bytes(os.urandom(2))
        self._isolated_until_ms: dict[str, int] = {}
        self._in_flight = asyncio.Semaphore(options.sends_in_flight_max)

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._session.__aexit__(*error)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        message_id: str | None = None,
    ) -> SendReceipt:
        """Stores one message. Many sends may run at once; their order is kept only within a message group sent in turn.

        SendFailed when every attempt failed for a passing reason, BrokerRefused at once when trying again cannot help.
        """
        message = _pb_message(
            topic, body, tag, keys, properties or {}, message_group, message_id or self._ids.next_id(), self._clock
        )
        self._topics[topic] = None
        with self._spans.send(topic, message.user_properties, _said_of(message)) as span:
            async with self._in_flight:
                return await self._send_until_stored(topic, message, span)

    async def _send_until_stored(self, topic: str, message: definition.Message, span: Span) -> SendReceipt:
        request = pb.SendMessageRequest(messages=[message])
        message_id = message.system_properties.message_id
        failures: list[ClientError] = []
        tried: set[str] = set()
        for attempt in range(1, self._options.send_attempts_max + 1):
            if failures:
                await asyncio.sleep(self._backoff_s(len(failures)))
            try:
                broker = self._choose(await self._session.route(topic), tried)
                tried.add(broker.name)
                answer = await self._session.connections.get(broker.endpoint).send_message(request)
                entry = answer.entries[0]
                check_status(broker.endpoint, "SendMessage", entry.status)
            except ClientError as error:
                if isinstance(error, BrokerRefused) and not error.retryable:
                    raise
                span.add_event("attempt failed", {span_data.ERROR_TYPE: error_type(error), "attempt": attempt})
                self._failed(topic, error)
                failures.append(error)
            else:
                self._isolated_until_ms.pop(broker.endpoint, None)
                span.set_attributes(endpoint_attributes(broker.endpoint))
                return SendReceipt(message_id, broker.name, entry.offset, attempt)
        raise SendFailed(topic, message_id, failures)

    def _choose(self, route: KnownRoute, tried: set[str]) -> RouteBroker:
        """Round robin over broker groups; those that failed this send or failed lately come last."""
        if not route.writable:
            raise ClientError(f"topic {route.topic}: no broker group accepts sends now")
        now_ms = self._clock.monotonic_ms()
        self._turn += 1
        rotated = [route.writable[(self._turn + place) % len(route.writable)] for place in range(len(route.writable))]
        return min(
            rotated,
            key=lambda broker: (broker.name in tried, self._isolated_until_ms.get(broker.endpoint, 0) > now_ms),
        )

    def _failed(self, topic: str, error: ClientError) -> None:
        self._session.routes.mark_stale(topic)
        if error.endpoint is not None:
            self._isolated_until_ms[error.endpoint] = self._clock.monotonic_ms() + self._options.isolation_ms

    def _backoff_s(self, failed_attempts: int) -> float:
        doubled_ms = self._options.send_backoff_initial_ms << (failed_attempts - 1)
        return min(doubled_ms, self._options.send_backoff_max_ms) / 1_000

    def _settings(self) -> definition.Settings:
        return definition.Settings(
            client_type=definition.PRODUCER,
            publishing=definition.Publishing(topics=[definition.Resource(name=topic) for topic in self._topics]),
            user_agent=definition.UA(language=definition.PYTHON, hostname=_HOST_NAME),
        )


def _said_of(message: definition.Message) -> dict[str, AttributeValue]:
    """What a span tells of the message."""
    system = message.system_properties
    said: dict[str, AttributeValue] = {
        span_data.MESSAGING_MESSAGE_ID: system.message_id,
        span_data.MESSAGING_MESSAGE_BODY_SIZE: len(message.body),
        span_data.MESSAGING_ROCKETMQ_MESSAGE_TYPE: "fifo" if system.HasField("message_group") else "normal",
    }
    if system.HasField("tag"):
        said[span_data.MESSAGING_ROCKETMQ_MESSAGE_TAG] = system.tag
    if system.keys:
        said[span_data.MESSAGING_ROCKETMQ_MESSAGE_KEYS] = tuple(system.keys)
    if system.HasField("message_group"):
        said[span_data.MESSAGING_ROCKETMQ_MESSAGE_GROUP] = system.message_group
    return said


def _pb_message(
    topic: str,
    body: bytes,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str],
    message_group: str | None,
    message_id: str,
    clock: Clock,
) -> definition.Message:
    """The message as it travels. Its time of birth is now."""
    system = definition.SystemProperties(
        message_id=message_id,
        keys=keys,
        message_type=definition.NORMAL if message_group is None else definition.FIFO,
        body_encoding=definition.IDENTITY,
        born_host=_HOST_NAME,
    )
    system.born_timestamp.FromMilliseconds(clock.wall_ms())
    if tag is not None:
        system.tag = tag
    if message_group is not None:
        system.message_group = message_group
    return definition.Message(
        topic=definition.Resource(name=topic), user_properties=properties, system_properties=system, body=body
    )

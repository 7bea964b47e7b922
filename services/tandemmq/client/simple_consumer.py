"""Receives messages under a lease and ends the lease with an acknowledgement."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Self

from opentelemetry.trace import Span

from tandemmq.client.client_session import ClientSession, RouteBroker
from tandemmq.client.connection import ClientOptions, check_status
from tandemmq.client.messages import ClientError, ReceivedMessage
from tandemmq.client.spans import ClientSpans
from tandemmq.core.clock import Clock
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_HOST_NAME: Final = socket.gethostname()
# A broker of RocketMQ holds an empty receive for at least so long, whatever is asked; all refuse calls that end sooner
# than the wait they ask for, if they end before this.
_WAIT_MIN_MS: Final = 5_000
# How long one that may be empty is waited for while another gives messages: a broker that has some answers at once.
_GLANCE_S: Final = 0.25
_GAVE_LATELY_MS: Final = 5_000


class SimpleConsumer:
    """One member of a consumer group. An async context manager; event loop only.

    `subscriptions` maps each topic to its tag filter: `*`, or tags joined by `||`. A message that is not acknowledged
    within its lease is delivered again, to any member.
    """

    def __init__(
        self,
        options: ClientOptions,
        clock: Clock,
        *,
        group: str,
        subscriptions: Mapping[str, str],
        await_ms: int = 20_000,
    ) -> None:
        if not subscriptions:
            raise ClientError("subscribe to at least one topic")
        self._options = options
        self._group = group
        self._subscriptions = dict(subscriptions)
        self._await_ms = await_ms
        self._session = ClientSession(options, clock, settings=self._settings, group=group)
        self._spans = ClientSpans(options.tracer_provider, client_id=self._session.client_id, group=group)
        self._clock = clock
        self._turn = 0
        # When each topic of each broker group gave messages; those whose last answer was empty are left out.
        self._gave_at_ms: dict[tuple[str, RouteBroker], int] = {}

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._session.__aexit__(*error)

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, await_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` from one broker group, the next in turn; [] when none came within `await_ms`.

        Brokers wait 5 to 20 s. With several topics or broker groups an empty answer says nothing of the others, but
        while one gives messages, an empty one holds up the caller for a moment only.
        """
        wait_ms = self._await_ms if await_ms is None else await_ms
        while True:
            topic, broker = source = await self._next_source()
            is_glance = self._another_gives(source)
            request = pb.ReceiveMessageRequest(
                group=definition.Resource(name=self._group),
                message_queue=definition.MessageQueue(
                    topic=definition.Resource(name=topic), broker=definition.Broker(name=broker.name)
                ),
                filter_expression=_filter(self._subscriptions[topic]),
                batch_size=max_messages,
            )
            request.invisible_duration.FromMilliseconds(invisible_ms)
            request.long_polling_timeout.FromMilliseconds(wait_ms)
            received = await self._receive_from(source, request, wait_ms=wait_ms, is_glance=is_glance)
            if received:
                self._gave_at_ms[source] = self._clock.monotonic_ms()
            else:
                self._gave_at_ms.pop(source, None)
            if received or not is_glance:
                return received

    async def _receive_from(
        self, source: tuple[str, RouteBroker], request: pb.ReceiveMessageRequest, *, wait_ms: int, is_glance: bool
    ) -> list[ReceivedMessage]:
        """One receive. A glance is given up when nothing came for a moment: the broker holds nothing for it then."""
        topic, broker = source
        began_ns = self._clock.wall_ns()
        received: list[ReceivedMessage] = []
        elements = self._session.connections.get(broker.endpoint).receive(
            request, timeout_ms=max(wait_ms, _WAIT_MIN_MS) + self._options.request_timeout_ms
        )
        try:
            async with asyncio.timeout(_GLANCE_S if is_glance else None) as limit:
                async for element in elements:
                    limit.reschedule(None)
                    if element.HasField("message"):
                        received.append(_received(element.message, broker.endpoint))
                    elif element.HasField("status") and element.status.code != definition.MESSAGE_NOT_FOUND:
                        check_status(broker.endpoint, "ReceiveMessage", element.status)
        except TimeoutError:
            return []
        except ClientError as error:
            self._session.routes.mark_stale(topic)
            ended_ns = self._clock.wall_ns()
            self._spans.received(topic, broker.endpoint, [], began_ns=began_ns, ended_ns=ended_ns, error=error)
            raise
        if received:
            ended_ns = self._clock.wall_ns()
            self._spans.received(topic, broker.endpoint, received, began_ns=began_ns, ended_ns=ended_ns)
        return received

    def _another_gives(self, source: tuple[str, RouteBroker]) -> bool:
        """Whether any other source gave messages when it was asked last, and that was a moment ago."""
        since_ms = self._clock.monotonic_ms() - _GAVE_LATELY_MS
        return any(gave_at_ms >= since_ms and other != source for other, gave_at_ms in self._gave_at_ms.items())

    def processing(self, message: ReceivedMessage, *, as_child: bool = False) -> AbstractContextManager[Span]:
        """A span around what the application does with a message: `with consumer.processing(message): ...`.

        It links to the message's send. With `as_child` it is that span's child instead, and so part of its trace: for
        applications that handle one message at a time and have no span of their own around it.
        """
        return self._spans.process(message, as_child=as_child)

    async def ack(self, message: ReceivedMessage) -> None:
        """Finishes a message for the group. BrokerRefused with INVALID_RECEIPT_HANDLE once the lease has ended."""
        request = pb.AckMessageRequest(
            group=definition.Resource(name=self._group),
            topic=definition.Resource(name=message.topic),
            entries=[pb.AckMessageEntry(message_id=message.message_id, receipt_handle=message.receipt_handle)],
        )
        with self._spans.settle("ack", message):
            await self._session.connections.get(message.endpoint).ack_message(request)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Lets the lease end `invisible_ms` from now; 0 gives the message up. Only the returned value can be acked."""
        request = pb.ChangeInvisibleDurationRequest(
            group=definition.Resource(name=self._group),
            topic=definition.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        with self._spans.settle("change_invisible_duration", message):
            answer = await self._session.connections.get(message.endpoint).change_invisible(request)
        return replace(message, receipt_handle=answer.receipt_handle)

    async def _next_source(self) -> tuple[str, RouteBroker]:
        """Topics in turn, and within each topic its broker groups in turn."""
        topics = tuple(self._subscriptions)
        turn, self._turn = self._turn, self._turn + 1
        topic = topics[turn % len(topics)]
        brokers = (await self._session.route(topic)).readable
        if not brokers:
            raise ClientError(f"topic {topic}: no broker group can be read now")
        return topic, brokers[turn // len(topics) % len(brokers)]

    def _settings(self) -> definition.Settings:
        settings = definition.Settings(
            client_type=definition.SIMPLE_CONSUMER,
            subscription=definition.Subscription(
                group=definition.Resource(name=self._group),
                subscriptions=[
                    definition.SubscriptionEntry(topic=definition.Resource(name=topic), expression=_filter(expression))
                    for topic, expression in self._subscriptions.items()
                ],
            ),
            user_agent=definition.UA(language=definition.PYTHON, hostname=_HOST_NAME),
        )
        settings.subscription.long_polling_timeout.FromMilliseconds(self._await_ms)
        return settings


def _filter(expression: str) -> definition.FilterExpression:
    return definition.FilterExpression(type=definition.TAG, expression=expression)


def _received(message: definition.Message, endpoint: str) -> ReceivedMessage:
    system = message.system_properties
    digest = system.body_digest
    return ReceivedMessage(
        topic=message.topic.name,
        body=message.body,
        tag=system.tag if system.HasField("tag") else None,
        keys=tuple(system.keys),
        properties=dict(message.user_properties),
        message_id=system.message_id,
        message_group=system.message_group if system.HasField("message_group") else None,
        born_timestamp_ms=system.born_timestamp.ToMilliseconds(),
        store_timestamp_ms=system.store_timestamp.ToMilliseconds(),
        queue_id=system.queue_id,
        queue_offset=system.queue_offset,
        delivery_attempt=system.delivery_attempt,
        receipt_handle=system.receipt_handle,
        endpoint=endpoint,
        intact=digest.type != definition.MD5
        or digest.checksum == hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper(),
    )

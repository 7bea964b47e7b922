"""Sends a message as a client would, and finds out in which queue it lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.message_limits import BODY_BYTES_MAX
from admin.operations.message_views import query_request
from admin.operations.questions import Questions
from admin.operations.values import MessageQuery, TestMessage, TestReceipt
from mqclient import BrokerRefused, ClientError, SendReceipt, TopicNotFound
from mqcore.clock import Clock
from mqcore.metadata.topic_table import topic_name_problem

__all__ = ["MakeSendClient", "MessageSending", "SendClient"]

_SENDS_AT_ONCE: Final = 4
_LIMIT_S: Final = 15.0
_ACCESS_POINTS_MAX: Final = 8


class SendClient(Protocol):
    """What is asked of a client: `mqclient.Producer` has it."""

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
    ) -> SendReceipt:
        """Stores one message. Raises ClientError."""
        ...


MakeSendClient: TypeAlias = Callable[[tuple[str, ...]], AbstractAsyncContextManager[SendClient]]
"""Makes a client for these access points, which ends with its block."""


class MessageSending:
    """Each message has a client of its own: kept, it would be shown as a connected producer for ever."""

    def __init__(self, members: Members, questions: Questions, make_client: MakeSendClient, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._make_client = make_client
        self._clock = clock
        self._slots = asyncio.Semaphore(_SENDS_AT_ONCE)

    async def send(self, message: TestMessage) -> TestReceipt:
        """Where it was stored. REFUSED: the broker's own words; UNAVAILABLE: it may be stored all the same."""
        if (problem := topic_name_problem(message.topic)) is not None:
            raise OperationFailed(FailureKind.INVALID, "this message cannot be sent", cause=problem)
        if len(message.body) > BODY_BYTES_MAX:
            raise OperationFailed(
                FailureKind.INVALID,
                "this message cannot be sent",
                cause=f"its body has {len(message.body):,} bytes; from here {BODY_BYTES_MAX:,} can be sent",
            )
        access_points = self._access_points()
        async with self._slots:
            began_ns = self._clock.monotonic_ns()
            outcome = await self._outcome(message, access_points)
            duration_ms = (self._clock.monotonic_ns() - began_ns) / 1e6
        if not isinstance(outcome, SendReceipt):
            raise _failed(message.topic, outcome)
        return TestReceipt(
            message_id=outcome.message_id,
            broker_name=outcome.broker_name,
            queue_id=await self._queue_id(message.topic, outcome),
            queue_offset=outcome.queue_offset,
            duration_ms=duration_ms,
        )

    def _access_points(self) -> tuple[str, ...]:
        answering, _ = self._members.answering()
        # A master's own route of its topics is the newest there is.
        masters_first = sorted(answering, key=lambda broker: not broker.is_master)
        endpoints = dict.fromkeys(broker.client_endpoint for broker in masters_first if broker.client_endpoint)
        return tuple(endpoints)[:_ACCESS_POINTS_MAX]

    async def _outcome(
        self, message: TestMessage, access_points: tuple[str, ...]
    ) -> SendReceipt | ClientError | TimeoutError:
        async with self._make_client(access_points) as client:
            # What leaves this block as an exception would come out as a group of one.
            try:
                async with asyncio.timeout(_LIMIT_S):
                    return await client.send(
                        message.topic,
                        message.body,
                        tag=message.tag or None,
                        keys=message.keys,
                        properties=message.properties,
                        message_group=message.message_group or None,
                    )
            except (ClientError, TimeoutError) as error:
                return error

    async def _queue_id(self, topic: str, receipt: SendReceipt) -> int:
        """The receipt does not say; -1 if the broker does not either."""
        query = MessageQuery(topic, key=receipt.message_id)
        request = query_request(query, start_ms=-1, end_ms=-1, limit=16, page_token=b"")
        try:
            readers = self._members.readers(receipt.broker_name)
        except OperationFailed:
            return -1
        [answer] = await self._questions.brokers(readers.brokers, lambda broker: broker.messages.query(request))
        views = answer.value.messages if answer.value is not None else ()
        return next((view.queue_id for view in views if view.queue_offset == receipt.queue_offset), -1)


def _failed(topic: str, error: ClientError | TimeoutError) -> OperationFailed:
    problem = f"the message was not accepted in topic {topic}"
    match error:
        case TopicNotFound():
            return OperationFailed(FailureKind.NOT_FOUND, problem, cause=str(error), remedy="create the topic first")
        case BrokerRefused(retryable=False):
            return OperationFailed(FailureKind.REFUSED, problem, cause=str(error))
        case TimeoutError():
            cause = f"no answer within {_LIMIT_S:.0f} s"
        case _:
            cause = str(error)
    return OperationFailed(
        FailureKind.UNAVAILABLE,
        f"the message was not acknowledged in topic {topic}; it may be stored all the same",
        cause=cause,
        remedy="see the brokers' health, and look for the message before sending it again",
    )

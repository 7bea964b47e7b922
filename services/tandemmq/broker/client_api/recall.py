"""RecallMessage: takes back a delayed message before its time; and the handles that name such messages.

A handle is RocketMQ's (RecallMessageHandle): the URL-safe base64 of `v1 topic brokerName deliverMs messageId`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Final, NamedTuple

from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.validation import (
    OK,
    PUT_OUTCOMES,
    Code,
    Outcome,
    check_client_id,
    check_topic,
    status_of,
)
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call

__all__ = ["RecallHandle", "RecallHandler"]

_VERSION: Final = "v1"
_TYPES: Final = ("DELAY", "MIXED")
_UNDER_WAY_MAX: Final = 1_024
_DIGITS_MAX: Final = 18


class RecallHandle(NamedTuple):
    """Which message, and who holds it."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """As clients get it."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle | None:
        """None: it is no handle."""
        try:
            parts = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode().split(" ", 4)
        except (binascii.Error, ValueError):
            return None
        if len(parts) != 5 or parts[0] != _VERSION or not all(parts):
            return None
        _, topic, broker_name, deliver_text, message_id = parts
        if not (deliver_text.isascii() and deliver_text.isdigit() and len(deliver_text) <= _DIGITS_MAX):
            return None
        return cls(topic, broker_name, int(deliver_text), message_id)


class RecallHandler:
    """Serves RecallMessage. A task for each: it may wait for a cold record, and for the slaves."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()

    def recall_message(self, request: pb.RecallMessageRequest, call: Call) -> None:
        """OK only once no replica delivers the message any more."""
        topic = request.topic.name
        if refused := check_client_id(call) or check_topic(topic):
            _answer(call, refused)
            return
        handle = RecallHandle.decode(request.recall_handle)
        if handle is None:
            _answer(
                call, Outcome(Code.BAD_REQUEST, "recall_handle: it is none; pass what the send of a DELAY message gave")
            )
            return
        if handle.topic != topic:
            _answer(call, Outcome(Code.BAD_REQUEST, f"recall_handle: it is of topic {handle.topic}, not of {topic}"))
            return
        services = self._services
        if handle.broker_name != services.identity.broker_name:
            services.group_calls.pass_on(
                "RecallMessage", call, broker_name=handle.broker_name, refused=lambda outcome: _answer(call, outcome)
            )
            return
        if refused := self._refusal(topic):
            _answer(call, refused)
            return
        task = asyncio.get_running_loop().create_task(self._recall(handle, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, topic: str) -> Outcome | None:
        services = self._services
        if (reason := services.refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        if len(self._tasks) >= _UNDER_WAY_MAX:
            return Outcome(Code.TOO_MANY_REQUESTS, f"{_UNDER_WAY_MAX} recalls are under way; try again", retryable=True)
        config = services.topics.get(topic)
        if config is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist in this broker group")
        if config.message_type not in _TYPES:
            return Outcome(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes {config.message_type} messages; only DELAY messages are recalled",
            )
        return None

    async def _recall(self, handle: RecallHandle, call: Call) -> None:
        status = await self._services.delayed.recall(handle.topic, handle.deliver_ms, handle.message_id)
        if status is None:
            outcome = Outcome(Code.NOT_FOUND, "the message was delivered or recalled before, or its time has come")
        else:
            outcome = PUT_OUTCOMES[status]
        _answer(call, outcome, handle.message_id if outcome is OK else "")


def _answer(call: Call, outcome: Outcome, message_id: str = "") -> None:
    call.send(pb.RecallMessageResponse(status=status_of(outcome), message_id=message_id))
    call.finish()

"""What an operator tells one client over its Telemetry stream, and what the client answers.

RocketMQ's proxy relays the same and waits as long. Which clients answer differs much: Python and Rust pass over such
commands, Go has stacks and verifies nothing, Node sends a verification back as it came.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.telemetry import RECONNECT, TelemetryHandler, TelemetryStream
from tandemmq.broker.client_api.transactions import delivered_message
from tandemmq.core.message.properties import PROPERTY_SHARDING_KEY, decode_properties
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_LIMIT_S: Final = 5.0
"""RocketMQ's grpcProxyRelayRequestTimeoutInSeconds."""
_WORDS: Final[dict[int, str]] = {
    definition.OK: "the listener consumed the message",
    definition.FAILED_TO_CONSUME_MESSAGE: "the listener failed to consume the message",
    definition.VERIFY_FIFO_MESSAGE_UNSUPPORTED: "the client consumes in order, and verifies no message of a group",
    definition.NOT_IMPLEMENTED: "the client is no push consumer, or its language cannot do this",
}


class Unreachable(LookupError):
    """There is no such client, or no such message, here."""


class ClientReply(NamedTuple):
    """A code by its name, and words for people."""

    code: str
    text: str


class ClientCommands:
    """Event loop only. Raises Unreachable."""

    def __init__(self, services: BrokerServices, telemetry: TelemetryHandler) -> None:
        self._services = services
        self._telemetry = telemetry

    def reconnect(self, client_id: str) -> ClientReply:
        for stream in self._streams(client_id):
            stream.command(RECONNECT)
        return ClientReply("SENT", "Java and Node clients connect anew; others pass over it")

    async def print_stack(self, client_id: str) -> ClientReply:
        nonce = secrets.token_hex(8)
        asked = pb.TelemetryCommand(print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce=nonce))
        answer = await self._answer(client_id, asked, nonce)
        if isinstance(answer, ClientReply):
            return answer
        # C++ sends no status.
        return ClientReply(_name_of(answer.status.code or definition.OK), answer.thread_stack_trace.thread_stack_trace)

    async def verify(self, client_id: str, topic: str, queue_id: int, queue_offset: int) -> ClientReply:
        """Hands a stored message to its listener. Nothing is acknowledged, whatever comes of it."""
        queues = self._services.queues
        entries = queues.entries(topic, queue_id, queue_offset, 1)
        record = queues.record(topic, queue_id, queue_offset, entries[0]) if entries else None
        if record is None:
            raise Unreachable(f"there is no message {queue_offset} in queue {queue_id} of {topic}")
        self._streams(client_id)
        session = self._services.sessions.get(client_id)
        config = None if session is None else self._services.groups.get(session.group)
        is_ordered = config is not None and config.consume_message_orderly
        if is_ordered and PROPERTY_SHARDING_KEY in decode_properties(record.properties):
            return _reply(definition.VERIFY_FIFO_MESSAGE_UNSUPPORTED, "")
        nonce = secrets.token_hex(8)
        message = delivered_message(record, definition.Resource(name=topic), queue_id=queue_id)
        asked = pb.TelemetryCommand(verify_message_command=pb.VerifyMessageCommand(nonce=nonce, message=message))
        answer = await self._answer(client_id, asked, nonce)
        if isinstance(answer, ClientReply):
            return answer
        if answer.HasField("verify_message_command"):
            return _reply(definition.NOT_IMPLEMENTED, "")
        return _reply(answer.status.code, answer.status.message)

    def _streams(self, client_id: str) -> Sequence[TelemetryStream]:
        streams = self._telemetry.streams_of(client_id)
        if not streams:
            raise Unreachable(f"client {client_id} has no open stream on this broker")
        return streams

    async def _answer(
        self, client_id: str, command: pb.TelemetryCommand, nonce: str
    ) -> pb.TelemetryCommand | ClientReply:
        stream = self._streams(client_id)[0]
        answered: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()

        def answer(said: pb.TelemetryCommand) -> None:
            if not answered.done():  # whoever asked may be gone
                answered.set_result(said)

        if not self._telemetry.ask(stream, command, nonce, answer):
            return ClientReply("TOO_MANY_REQUESTS", "too many commands wait for their answers; try again")
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await answered
        except TimeoutError:
            return ClientReply(
                "TIMEOUT", f"the client did not answer within {_LIMIT_S:.0f} s; Python and Rust clients never do"
            )
        finally:
            self._telemetry.forget(nonce)


def _reply(code: int, text: str) -> ClientReply:
    return ClientReply(_name_of(code), text or _WORDS.get(code, ""))


def _name_of(code: int) -> str:
    return definition.Code.Name(definition.Code.ValueType(code)) if code in definition.Code.values() else str(code)

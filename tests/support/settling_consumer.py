"""Consumers on threads that remember what they were told: which messages came, and which of them are finished."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc

from support.acknowledged_sends import ClientThread
from support.cluster_processes import ServiceProcess
from support.running_time import PATIENCE_S
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service

_SERVICE = "/apache.rocketmq.v2.MessagingService/"
_LEASE_MS = 10_000  # The shortest that may be asked for.
_POLL_MS = 5_000


@dataclass
class Deliveries:
    """What all consumers of a group were told."""

    finished: dict[str, float] = field(default_factory=dict)
    """When the acknowledgement of a message was answered with OK, by its id."""
    again: list[str] = field(default_factory=list)
    """Messages that came although their acknowledgement had been answered with OK before they were asked for."""
    came: set[str] = field(default_factory=set)
    """Ids of all that were delivered."""
    unanswered: int = 0
    """Acknowledgements that failed, or whose call did."""
    refusals: list[str] = field(default_factory=list)
    """What receives and acknowledgements were told that were answered, and refused."""
    ack_seconds: list[float] = field(default_factory=list)
    """Of those answered with OK."""


class SettlingConsumer(ClientThread):
    """Receives from one broker while the `with` block runs, and acknowledges each message by a call of its own;
    survives the broker's death."""

    def __init__(self, broker: ServiceProcess, topic: str, deliveries: Deliveries, *, group: str = "billing") -> None:
        super().__init__(broker, "settling-consumer")
        self._metadata = (("x-mq-client-id", f"settling@{broker.name}"), ("x-mq-language", "PYTHON"))
        self._topic = definition.Resource(name=topic)
        self._group = definition.Resource(name=group)
        self._deliveries = deliveries

    async def _work(self, channel: grpc.aio.Channel) -> None:
        receive = channel.unary_stream(
            f"{_SERVICE}ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )
        ack = channel.unary_unary(
            f"{_SERVICE}AckMessage",
            request_serializer=service.AckMessageRequest.SerializeToString,
            response_deserializer=service.AckMessageResponse.FromString,
        )
        while not self._stopping.is_set():
            try:
                messages = await self._receive(receive)
            except grpc.aio.AioRpcError:
                messages = []
            if messages:
                await asyncio.gather(*(self._acknowledge(ack, message) for message in messages))
            else:
                await asyncio.sleep(0.05)

    async def _receive(
        self, receive: grpc.aio.UnaryStreamMultiCallable[service.ReceiveMessageRequest, service.ReceiveMessageResponse]
    ) -> list[definition.Message]:
        request = service.ReceiveMessageRequest(
            group=self._group,
            message_queue=definition.MessageQueue(topic=self._topic),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=32,
        )
        request.invisible_duration.FromMilliseconds(_LEASE_MS)
        request.long_polling_timeout.FromMilliseconds(_POLL_MS)
        asked_s = time.monotonic()
        elements = [
            element
            async for element in receive(request, metadata=self._metadata, timeout=_POLL_MS / 1_000 + PATIENCE_S)
        ]
        messages = [element.message for element in elements if element.HasField("message")]
        statuses = [element.status for element in elements if element.HasField("status")]
        self._deliveries.refusals += [
            f"receive at {self._metadata[0][1]}: {status.message}"
            for status in statuses
            if status.code not in (definition.OK, definition.MESSAGE_NOT_FOUND)
        ]
        for message in messages:
            message_id = message.system_properties.message_id
            self._deliveries.came.add(message_id)
            if self._deliveries.finished.get(message_id, asked_s) < asked_s:
                self._deliveries.again.append(message_id)
        return messages

    async def _acknowledge(
        self,
        ack: grpc.aio.UnaryUnaryMultiCallable[service.AckMessageRequest, service.AckMessageResponse],
        message: definition.Message,
    ) -> None:
        system = message.system_properties
        entry = service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = service.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
        began_s = time.monotonic()
        try:
            answer = await ack(request, metadata=self._metadata, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError:
            self._deliveries.unanswered += 1
            return
        if answer.status.code == definition.OK:
            ended_s = time.monotonic()
            self._deliveries.finished.setdefault(system.message_id, ended_s)
            self._deliveries.ack_seconds.append(ended_s - began_s)
        else:
            self._deliveries.unanswered += 1
            self._deliveries.refusals.append(f"ack at {self._metadata[0][1]}: {answer.status.message}")

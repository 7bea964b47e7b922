"""A producer on a thread that remembers exactly which message ids were acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Self

import grpc

from support.cluster_processes import ServiceProcess
from support.running_time import PATIENCE_S
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service

METADATA = (("x-mq-client-id", "acknowledged-sends@1@0@0"), ("x-mq-language", "PYTHON"))


def body_of(message_id: str, size: int = 300) -> bytes:
    """The body a message is sent with: its id, then every byte value in turn."""
    return (message_id.encode() + bytes(range(256)) * (size // 256 + 1))[:size]


class ClientThread:
    """A client of one broker on a thread, while the `with` block runs. What it does is `_work`, until `_stopping`."""

    def __init__(self, broker: ServiceProcess, name: str, *, target: str = "") -> None:
        """`target`: another one than the broker, for gRPC; it may name several addresses."""
        self._endpoint = target or f"{broker.host}:{broker.ports['grpcServerPort']}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        async with grpc.aio.insecure_channel(self._endpoint, options=options) as channel:
            await self._work(channel)

    async def _work(self, channel: grpc.aio.Channel) -> None:
        raise NotImplementedError


class AcknowledgedSender(ClientThread):
    """Keeps 16 sends in flight to one broker while the `with` block runs; survives the broker's death.

    Message ids count up from `first_number`, and each body begins with its message's id: `body_of`. `pause_s` is the
    rest between the sends of each of those in flight, and may be changed on the way. `acknowledged` holds the ids
    answered OK, `refused` counts every other answer, `failed` broken calls.
    """

    def __init__(
        self,
        broker: ServiceProcess,
        topic: str,
        *,
        body_bytes: int = 300,
        inflight: int = 16,
        first_number: int = 1,
        pause_s: float = 0.0,
        target: str = "",
    ) -> None:
        super().__init__(broker, "acknowledged-sends", target=target)
        self._topic = topic
        self._body_bytes = body_bytes
        self._inflight = inflight
        self.pause_s = pause_s
        self._numbers = itertools.count(first_number)
        self.acknowledged: list[str] = []
        self.refused = 0
        self.failed = 0

    async def _work(self, channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        await asyncio.gather(*(self._send_on(call) for _ in range(self._inflight)))

    async def _send_on(
        self, call: grpc.aio.UnaryUnaryMultiCallable[service.SendMessageRequest, service.SendMessageResponse]
    ) -> None:
        while not self._stopping.is_set():
            message_id = f"01{next(self._numbers):032X}"
            message = self._message(message_id)
            try:
                answer = await call(service.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=5)
            except grpc.aio.AioRpcError:
                self.failed += 1
                await asyncio.sleep(0.05)
                continue
            if answer.status.code == definition.OK:
                self.acknowledged.append(message_id)
                await asyncio.sleep(self.pause_s)
            else:
                self.refused += 1
                await asyncio.sleep(max(0.01, self.pause_s))

    def _message(self, message_id: str) -> definition.Message:
        return definition.Message(
            topic=definition.Resource(name=self._topic),
            body=body_of(message_id, self._body_bytes),
            system_properties=definition.SystemProperties(
                message_id=message_id, message_type=definition.NORMAL, body_encoding=definition.IDENTITY
            ),
        )


class DelayedSender(AcknowledgedSender):
    """The same with DELAY messages, due 1 to 4 seconds later."""

    def _message(self, message_id: str) -> definition.Message:
        message = super()._message(message_id)
        message.system_properties.message_type = definition.DELAY
        delay_ms = 1_000 + int(message_id, 16) * 37 % 3_000
        message.system_properties.delivery_timestamp.FromMilliseconds(time.time_ns() // 1_000_000 + delay_ms)
        return message

"""The client API through raw stubs: no retries, no checks, nothing a client library would hide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self, TypeVar

import grpc.aio
from google.protobuf.message import Message

from support.api_requests import Answer, ack_request, receive_request, send_request
from support.fake_call import FakeCall
from support.running_time import PATIENCE_S
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

CLIENT_ID: Final = "host@1@0@abc"
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"

ResponseT = TypeVar("ResponseT", bound=Message)
TelemetryCall = grpc.aio.StreamStreamCall[pb.TelemetryCommand, pb.TelemetryCommand]


class RawClient:
    """One channel. Every call states the client id unless told otherwise."""

    def __init__(self, address: str, *options: tuple[str, int]) -> None:
        """`options`: of the channel, by gRPC's names."""
        self.channel = grpc.aio.insecure_channel(address, options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def unary(
        self, method: str, request: Message, response: type[ResponseT], *, client_id: str | None = CLIENT_ID
    ) -> ResponseT:
        call: grpc.aio.UnaryUnaryMultiCallable[Message, ResponseT] = self.channel.unary_unary(
            _SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return await call(request, metadata=_metadata(client_id), timeout=PATIENCE_S)

    def start_receive(
        self, request: pb.ReceiveMessageRequest, *, timeout_s: float = PATIENCE_S, client_id: str | None = CLIENT_ID
    ) -> grpc.aio.UnaryStreamCall[pb.ReceiveMessageRequest, pb.ReceiveMessageResponse]:
        """A receive that the test reads, or cancels, itself."""
        call: grpc.aio.UnaryStreamMultiCallable[pb.ReceiveMessageRequest, pb.ReceiveMessageResponse] = (
            self.channel.unary_stream(
                _SERVICE + "ReceiveMessage",
                request_serializer=pb.ReceiveMessageRequest.SerializeToString,
                response_deserializer=pb.ReceiveMessageResponse.FromString,
            )
        )
        return call(request, metadata=_metadata(client_id), timeout=timeout_s)

    async def receive(
        self, request: pb.ReceiveMessageRequest | None = None, *, timeout_s: float = PATIENCE_S
    ) -> Answer:
        """A whole receive; `Answer.of` checks the shape of the stream."""
        elements = [element async for element in self.start_receive(request or receive_request(), timeout_s=timeout_s)]
        stream = FakeCall(sent=list(elements))
        stream.finish()
        return Answer.of(stream)

    async def pull(
        self, request: pb.PullMessageRequest, *, timeout_s: float = PATIENCE_S
    ) -> list[pb.PullMessageResponse]:
        """All elements of one PullMessage."""
        call: grpc.aio.UnaryStreamMultiCallable[pb.PullMessageRequest, pb.PullMessageResponse] = (
            self.channel.unary_stream(
                _SERVICE + "PullMessage",
                request_serializer=pb.PullMessageRequest.SerializeToString,
                response_deserializer=pb.PullMessageResponse.FromString,
            )
        )
        return [element async for element in call(request, metadata=_metadata(CLIENT_ID), timeout=timeout_s)]

    @asynccontextmanager
    async def telemetry(self, *, client_id: str | None = CLIENT_ID) -> AsyncIterator[TelemetryCall]:
        """An open Telemetry stream."""
        call: grpc.aio.StreamStreamMultiCallable[pb.TelemetryCommand, pb.TelemetryCommand] = self.channel.stream_stream(
            _SERVICE + "Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        stream = call(None, metadata=_metadata(client_id))
        yield stream
        stream.cancel()

    async def send(self, *messages: definition.Message) -> pb.SendMessageResponse:
        """One SendMessage with all of them."""
        return await self.unary("SendMessage", send_request(*messages), pb.SendMessageResponse)

    async def ack(self, *handles: str) -> pb.AckMessageResponse:
        """One AckMessage with all of them."""
        return await self.unary("AckMessage", ack_request(*handles), pb.AckMessageResponse)

    async def change_invisible(self, handle: str, invisible_ms: int) -> pb.ChangeInvisibleDurationResponse:
        request = pb.ChangeInvisibleDurationRequest(
            group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        return await self.unary("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)

    async def query_route(self, topic: str) -> pb.QueryRouteResponse:
        address = definition.Address(host="127.0.0.1", port=8_081)
        request = pb.QueryRouteRequest(
            topic=definition.Resource(name=topic),
            endpoints=definition.Endpoints(scheme=definition.IPv4, addresses=[address]),
        )
        return await self.unary("QueryRoute", request, pb.QueryRouteResponse)


def _metadata(client_id: str | None) -> Sequence[tuple[str, str]]:
    return () if client_id is None else (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))

"""A service that does what its caller says, on either front, and grpcio's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from support.client_endpoint import FRONTS, Front
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.rpc import (
    BidiMethod,
    Call,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    UnaryMethod,
)

MESSAGE_BYTES_MAX = 64 << 20
SERVICE = "test.Mirror"


@dataclass
class Mirror:
    """What the handlers saw, in order."""

    seen: list[str] = field(default_factory=list)
    # Metadata, peer and deadline of unary calls, taken while they went on.
    calls: list[tuple[dict[str, str], str, int | None]] = field(default_factory=list)

    def unary(self, request: BytesValue, call: Call) -> None:
        self.calls.append((dict(call.metadata), call.peer, call.deadline_ms))
        call.on_cancel(lambda: self.seen.append("cancelled"))
        order = call.metadata.get("x-order", "")
        if order == "never":
            return
        if order.startswith("status "):
            call.finish(StatusCode[order.split()[1]], call.metadata.get("x-detail", "größer als 100 %\n€"))
            return
        if order == "raise":
            raise RuntimeError("on purpose")
        call.send(request)
        call.finish()

    def stream(self, request: BytesValue, call: Call) -> None:
        call.on_cancel(lambda: self.seen.append("cancelled"))
        for _ in range(int(call.metadata.get("x-count", "3"))):
            call.send(request)
        if call.metadata.get("x-order") != "never":
            call.finish()

    def bidi(self, call: Call) -> StreamHandler[BytesValue]:
        return _Echo(self, call)

    def table(self) -> MethodTable:
        return MethodTable(
            SERVICE,
            {
                "Unary": UnaryMethod(self.unary, BytesValue),
                "Stream": ServerStreamMethod(self.stream, BytesValue),
                "Bidi": BidiMethod(self.bidi, BytesValue),
            },
            otherwise="look elsewhere",
        )


class _Echo:
    def __init__(self, mirror: Mirror, call: Call) -> None:
        self._mirror = mirror
        self._call = call

    def message(self, message: BytesValue, /) -> None:
        if message.value == b"stop":
            self._call.finish(StatusCode.ABORTED, "as you say")
            return
        self._call.send(message)

    def half_closed(self) -> None:
        self._mirror.seen.append("half_closed")
        self._call.finish()

    def cancelled(self) -> None:
        self._mirror.seen.append("cancelled")


@dataclass(frozen=True, slots=True)
class Client:
    """grpcio's client of the mirror."""

    unary: Any
    stream: Any
    bidi: Any
    unknown: Any
    mirror: Mirror
    channel: grpc.aio.Channel


@pytest.fixture(params=list(FRONTS.values()), ids=list(FRONTS))
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    front: Front = request.param
    mirror = Mirror()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    coders: dict[str, Any] = {
        "request_serializer": BytesValue.SerializeToString,
        "response_deserializer": BytesValue.FromString,
    }
    async with (
        front(mirror.table(), SystemClock()) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
    ):
        yield Client(
            unary=channel.unary_unary(f"/{SERVICE}/Unary", **coders),
            stream=channel.unary_stream(f"/{SERVICE}/Stream", **coders),
            bidi=channel.stream_stream(f"/{SERVICE}/Bidi", **coders),
            unknown=channel.unary_unary(f"/{SERVICE}/Unknown", **coders),
            mirror=mirror,
            channel=channel,
        )

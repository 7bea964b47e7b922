"""Handlers under each front on loopback, called through a real channel: grpc.aio is the oracle for tandemmq.http2."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support.grpc_oracle import GrpcOracle
from support.http2_peer import unary_request
from support.running_time import PATIENCE_S
from tandemmq.http2 import frames
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import (
    BidiMethod,
    Call,
    ListenError,
    Method,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    UnaryMethod,
)

SERVICE = "test.v1.EchoService"
LOOPBACK = "127.0.0.1"


def _mqgrpc(port: int) -> Http2Front:
    return Http2Front(LOOPBACK, port, clock=SystemClock())


def _grpc_aio(port: int) -> GrpcOracle:
    return GrpcOracle(LOOPBACK, port, clock=SystemClock())


def _services(port: int) -> GrpcServer:
    return GrpcServer(LOOPBACK, port, clock=SystemClock())


# The front of the running test, by `front`.
new_server: Callable[[int], Http2Front | GrpcServer] = _mqgrpc


@pytest.fixture(autouse=True, params=[_mqgrpc, _grpc_aio], ids=["mqgrpc", "grpc.aio"])
def front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "new_server", request.param)


also_between_services = pytest.mark.parametrize(
    "front", [_mqgrpc, _grpc_aio, _services], ids=["mqgrpc", "grpc.aio", "services"], indirect=True
)
"""Handlers that answer in place run on the port between services, too."""


@asynccontextmanager
async def serving(methods: dict[str, Method], *, otherwise: str = "") -> AsyncIterator[grpc.aio.Channel]:
    server = new_server(0)
    server.add(MethodTable(SERVICE, methods, otherwise))
    port = await server.start()
    await server.set_serving(True)
    try:
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            yield channel
    finally:
        await server.stop(limit_ms=0)


def unary(channel: grpc.aio.Channel, name: str) -> Callable[..., grpc.aio.UnaryUnaryCall[StringValue, StringValue]]:
    return channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )


def echo(request: StringValue, call: Call) -> None:
    call.send(request)
    call.finish()


@also_between_services
async def test_unary_answer_in_place() -> None:
    async with serving({"Echo": UnaryMethod(echo, StringValue)}) as channel:
        assert (await unary(channel, "Echo")(StringValue(value="a"), timeout=PATIENCE_S)).value == "a"


async def test_unary_answer_given_later() -> None:
    def later(request: StringValue, call: Call) -> None:
        asyncio.get_running_loop().call_later(0.01, echo, request, call)

    async with serving({"Later": UnaryMethod(later, StringValue)}) as channel:
        assert (await unary(channel, "Later")(StringValue(value="b"), timeout=PATIENCE_S)).value == "b"


@also_between_services
async def test_handler_sees_metadata_peer_deadline_and_when_it_was_read() -> None:
    seen: dict[str, object] = {}
    began_ns = SystemClock().monotonic_ns()

    def look(request: StringValue, call: Call) -> None:
        assert call.deadline_ms is not None
        seen.update(id=call.metadata["x-mq-client-id"], peer=call.peer, received_ns=call.received_ns)
        seen["left_ms"] = call.deadline_ms - SystemClock().monotonic_ms()
        echo(request, call)

    async with serving({"Look": UnaryMethod(look, StringValue)}) as channel:
        await unary(channel, "Look")(StringValue(), timeout=PATIENCE_S, metadata=(("x-mq-client-id", "me"),))
    assert seen["id"] == "me"
    assert str(seen["peer"]).startswith("ipv4:127.0.0.1:")
    # gRPC rounds a timeout up; what matters is that it is a moment near, not a duration or one of another clock.
    assert 0 < int(str(seen["left_ms"])) <= 1_000 * PATIENCE_S
    # An event loop's time is a float, which rounds nanoseconds.
    assert began_ns - 1_000 <= int(str(seen["received_ns"])) <= SystemClock().monotonic_ns()


@also_between_services
async def test_error_status_and_detail_reach_the_caller() -> None:
    def refuse(_request: StringValue, call: Call) -> None:
        call.finish(StatusCode.FAILED_PRECONDITION, "not now")

    async with serving({"Refuse": UnaryMethod(refuse, StringValue)}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Refuse")(StringValue(), timeout=PATIENCE_S)
    assert caught.value.code() is StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "not now"


async def test_deadline_reaches_the_handler() -> None:
    came, cancelled = asyncio.Event(), asyncio.Event()

    def never(_request: StringValue, call: Call) -> None:
        came.set()
        call.on_cancel(cancelled.set)

    async with serving({"Never": UnaryMethod(never, StringValue)}) as channel:
        for timeout_s in (0.05, 0.5, 5, PATIENCE_S):  # On a busy machine the shortest may end on the way there.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "Never")(StringValue(), timeout=timeout_s)
            assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
            if came.is_set():
                break
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)


async def test_server_stream_delivers_all_in_order_then_ends() -> None:
    def count(request: StringValue, call: Call) -> None:
        for number in range(int(request.value)):
            call.send(StringValue(value=str(number)))
        call.finish()

    async with serving({"Count": ServerStreamMethod(count, StringValue)}) as channel:
        stream = channel.unary_stream(
            f"/{SERVICE}/Count",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )
        assert [m.value async for m in stream(StringValue(value="100"), timeout=PATIENCE_S)] == [
            str(n) for n in range(100)
        ]


async def test_stream_that_outruns_its_reader_is_ended() -> None:
    cancelled = asyncio.Event()

    def flood(_request: StringValue, call: Call) -> None:
        call.on_cancel(cancelled.set)
        message = StringValue(value="x" * (8 << 20))
        for _ in range(30):
            call.send(message)

    async with serving({"Flood": ServerStreamMethod(flood, StringValue)}) as channel:
        stream = channel.unary_stream(
            f"/{SERVICE}/Flood",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stream(StringValue(), timeout=PATIENCE_S):
                pass
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert cancelled.is_set()


async def test_handler_learns_that_its_finished_answer_was_not_written() -> None:
    cancelled, undelivered = asyncio.Event(), asyncio.Event()

    def answer(_request: StringValue, call: Call) -> None:
        call.on_cancel(cancelled.set)
        call.on_undelivered(undelivered.set)
        # More than the transport buffers for a caller that reads nothing.
        for _ in range(4):
            call.send(StringValue(value="x" * (8 << 20)))
        call.finish()

    async with serving({"Answer": ServerStreamMethod(answer, StringValue)}) as channel:
        call = channel.unary_stream(
            f"/{SERVICE}/Answer",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )(StringValue(), timeout=PATIENCE_S)
        await call.initial_metadata()
        assert not undelivered.is_set()
        call.cancel()
        await asyncio.wait_for(undelivered.wait(), PATIENCE_S)
    assert not cancelled.is_set()


async def test_written_answer_counts_as_delivered() -> None:
    undelivered = asyncio.Event()

    def answer(request: StringValue, call: Call) -> None:
        call.on_undelivered(undelivered.set)
        echo(request, call)

    async with serving({"Answer": ServerStreamMethod(answer, StringValue)}) as channel:
        stream = channel.unary_stream(
            f"/{SERVICE}/Answer",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )
        assert [m.value async for m in stream(StringValue(value="a"), timeout=PATIENCE_S)] == ["a"]
    assert not undelivered.is_set()


async def test_handler_learns_of_a_written_answer_whose_connection_was_reset() -> None:
    unread = asyncio.Event()

    def answer(request: StringValue, call: Call) -> None:
        call.on_undelivered(lambda: None)
        call.on_unread(unread.set)
        echo(request, call)

    server = _mqgrpc(0)
    server.add(MethodTable(SERVICE, {"Answer": ServerStreamMethod(answer, StringValue)}, ""))
    port = await server.start()
    try:
        peer = socket.create_connection((LOOPBACK, port))
        peer.sendall(frames.PREFACE + frames.settings({}))
        peer.sendall(unary_request(1, StringValue(value="a").SerializeToString(), (":path", f"/{SERVICE}/Answer")))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"a" not in received:
                received += await asyncio.to_thread(peer.recv, 1 << 16)
            assert not unread.is_set()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await unread.wait()
    finally:
        await server.stop(limit_ms=0)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_front_that_settles_hears_whether_its_callers_have_read_their_answers(answers: bool) -> None:
    unread: list[str] = []

    def answer(request: StringValue, call: Call) -> None:
        call.on_undelivered(lambda: None)
        call.on_unread(lambda: unread.append(request.value))
        echo(request, call)

    server = _mqgrpc(0)
    server.add(MethodTable(SERVICE, {"Answer": ServerStreamMethod(answer, StringValue)}, ""))
    port = await server.start()
    try:
        peer = socket.create_connection((LOOPBACK, port))
        peer.sendall(frames.PREFACE + frames.settings({}))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            peer.sendall(unary_request(1, StringValue(value="a").SerializeToString(), (":path", f"/{SERVICE}/Answer")))
            while b"grpc-status" not in received and b"a" not in received:
                received += await asyncio.to_thread(peer.recv, 1 << 16)
            settling = asyncio.create_task(server.settle(limit_ms=10_000 if answers else 200))
            while b"mq-read?" not in received:
                received += await asyncio.to_thread(peer.recv, 1 << 16)
            if answers:
                peer.sendall(frames.frame(frames.PING, frames.ACK, 0, b"mq-read?"))
            await settling
            assert unread == ([] if answers else ["a"])
            await server.settle(limit_ms=0)
            assert unread == ([] if answers else ["a"])
    finally:
        peer.close()
        await server.stop(limit_ms=0)


class EchoStream:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.was_cancelled = asyncio.Event()

    def message(self, message: StringValue, /) -> None:
        self.call.send(message)

    def half_closed(self) -> None:
        self.call.send(StringValue(value="bye"))
        self.call.finish()

    def cancelled(self) -> None:
        self.was_cancelled.set()


class PatientStream(EchoStream):
    def half_closed(self) -> None:
        """Goes on: only the end of the call counts here."""


def bidi(channel: grpc.aio.Channel) -> Callable[..., grpc.aio.StreamStreamCall[StringValue, StringValue]]:
    return channel.stream_stream(
        f"/{SERVICE}/Chat",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )


async def test_bidi_answers_until_the_caller_half_closes() -> None:
    async with serving({"Chat": BidiMethod(EchoStream, StringValue)}) as channel:
        chat = bidi(channel)(timeout=PATIENCE_S)
        await chat.write(StringValue(value="hello"))
        assert await chat.read() == StringValue(value="hello")
        await chat.done_writing()
        assert await chat.read() == StringValue(value="bye")
        assert await chat.code() is StatusCode.OK


async def test_bidi_handler_hears_of_a_closed_channel() -> None:
    opened: list[PatientStream] = []

    def accept(call: Call) -> PatientStream:
        opened.append(PatientStream(call))
        return opened[-1]

    async with serving({"Chat": BidiMethod(accept, StringValue)}) as channel:
        chat = bidi(channel)()
        await chat.write(StringValue(value="hello"))
        await chat.read()
        await channel.close(grace=None)
        await asyncio.wait_for(opened[0].was_cancelled.wait(), PATIENCE_S)


@also_between_services
async def test_unknown_method_says_where_to_go() -> None:
    async with serving({}, otherwise="ask a broker") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "SendMessage")(StringValue(), timeout=PATIENCE_S)
    assert caught.value.code() is StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "ask a broker"


@also_between_services
async def test_garbage_is_an_invalid_argument() -> None:
    async with serving({"Echo": UnaryMethod(echo, StringValue)}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Echo", bytes, bytes)(b"\xff\xff", timeout=PATIENCE_S)
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT


@also_between_services
async def test_health_follows_readiness() -> None:
    server = new_server(0)
    server.add(MethodTable(SERVICE, {}))
    port = await server.start()
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        before = await health.Check(request, timeout=PATIENCE_S)
        await server.set_serving(True)
        after = await health.Check(request, timeout=PATIENCE_S)
    await server.stop(limit_ms=0)
    assert before.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert after.status == health_pb2.HealthCheckResponse.SERVING


@also_between_services
async def test_second_server_on_a_port_is_refused() -> None:
    first = new_server(0)
    port = await first.start()
    second = new_server(port)
    with pytest.raises(ListenError, match=f"{LOOPBACK}:{port}"):
        await second.start()
    await first.stop(limit_ms=0)


@also_between_services
async def test_reflection_names_the_services() -> None:
    async with serving({"Echo": UnaryMethod(echo, StringValue)}) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        questions = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        [answer] = [answer async for answer in ask(questions, timeout=PATIENCE_S)]
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


@also_between_services
async def test_watched_health_follows_readiness() -> None:
    server = new_server(0)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        first = await watch.read()
        await server.set_serving(True)
        second = await watch.read()
        watch.cancel()
    await server.stop(limit_ms=0)
    assert first.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert second.status == health_pb2.HealthCheckResponse.SERVING


@also_between_services
async def test_handler_that_raises_costs_its_caller_the_call_alone() -> None:
    def broken(request: StringValue, call: Call) -> None:
        raise ZeroDivisionError

    async with serving({"Broken": UnaryMethod(broken, StringValue), "Echo": UnaryMethod(echo, StringValue)}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Broken")(StringValue(), timeout=PATIENCE_S)
        assert caught.value.code() is StatusCode.UNKNOWN
        assert (await unary(channel, "Echo")(StringValue(value="c"), timeout=PATIENCE_S)).value == "c"

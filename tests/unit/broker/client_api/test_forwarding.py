"""Calls that a member passes on to its group's master, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest.mock import patch

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.http2_peer import unary_request
from support.manual_time import ManualTime
from support.running_time import PATIENCE_S, until
from tandemmq.broker.client_api import forwarding
from tandemmq.broker.client_api.forwarding import (
    SETTLING,
    CallForwarder,
    GroupCalls,
    HeldOutcome,
    _Room,
)
from tandemmq.broker.client_api.sessions import by_address
from tandemmq.broker.client_api.validation import Code, Outcome, status_of
from tandemmq.core.clock import Clock
from tandemmq.http2 import frames
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.proto.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import (
    FORWARDED_HEADER,
    RECEIVE_HEADER,
    UNREAD,
    BidiMethod,
    Call,
    Method,
    MethodTable,
    ServerStreamMethod,
    StreamHandler,
    UnaryMethod,
    passed_on_nonce,
)

SERVICE = "apache.rocketmq.v2.MessagingService"


class Echo:
    """Sends each request of a stream back, with its server's name."""

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = name

    def message(self, message: pb.TelemetryCommand, /) -> None:
        self._call.send(
            pb.TelemetryCommand(status=definition.Status(message=f"{self._name}: {message.status.message}"))
        )

    def half_closed(self) -> None:
        self._call.finish()

    def cancelled(self) -> None:
        """Nothing is left."""


def table(name: str, seen: list[dict[str, str]]) -> MethodTable:
    def heartbeat(request: pb.HeartbeatRequest, call: Call) -> None:
        seen.append(dict(call.metadata))
        call.send(pb.HeartbeatResponse(status=definition.Status(code=definition.OK, message=name)))
        call.finish()

    def receive(request: pb.ReceiveMessageRequest, call: Call) -> None:
        for number in range(3):
            call.send(pb.ReceiveMessageResponse(status=definition.Status(message=f"{name} {number}")))
        call.finish()

    def query_route(request: pb.QueryRouteRequest, call: Call) -> None:
        call.send(pb.QueryRouteResponse(status=definition.Status(message=name)))
        call.finish()

    def ack_message(request: pb.AckMessageRequest, call: Call) -> None:
        call.send(pb.AckMessageResponse(status=definition.Status(message=name)))
        call.finish()

    def telemetry(call: Call) -> StreamHandler[pb.TelemetryCommand]:
        return Echo(call, name)

    return MethodTable(
        SERVICE,
        {
            "Heartbeat": UnaryMethod(heartbeat, pb.HeartbeatRequest),
            "AckMessage": UnaryMethod(ack_message, pb.AckMessageRequest),
            "QueryRoute": UnaryMethod(query_route, pb.QueryRouteRequest),
            "ReceiveMessage": ServerStreamMethod(receive, pb.ReceiveMessageRequest),
            "Telemetry": BidiMethod(telemetry, pb.TelemetryCommand),
        },
    )


@asynccontextmanager
async def front(
    name: str, seen: list[dict[str, str]], *, clock: Clock | None = None
) -> AsyncIterator[tuple[Http2Front, str]]:
    server = Http2Front("127.0.0.1", 0, clock=clock or ManualTime())
    server.add(table(name, seen))
    port = await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop(limit_ms=100)


@asynccontextmanager
async def member(
    master: Callable[[], str | None], seen: list[dict[str, str]], *, names: frozenset[str] | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, CallForwarder]]:
    """A member's front, and a client of it."""
    forwarder = CallForwarder(master, now_ms=ManualTime().monotonic_ms, names=names)
    async with front("member", seen) as (server, endpoint), grpc.aio.insecure_channel(endpoint) as channel:
        server.forward(forwarder)
        try:
            yield channel, forwarder
        finally:
            await forwarder.close()


async def heartbeat(channel: grpc.aio.Channel, limit_s: float = PATIENCE_S, **headers: str) -> str:
    call = MessagingServiceStub(channel).Heartbeat
    metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
    answer = await call(pb.HeartbeatRequest(), metadata=metadata, timeout=limit_s)
    return str(answer.status.message)


async def test_a_call_is_answered_by_the_master_who_hears_whose_it_is() -> None:
    seen: list[dict[str, str]] = []
    async with front("master", seen) as (_, endpoint), member(lambda: endpoint, []) as (channel, forwarder):
        assert await heartbeat(channel, x_mq_client_id="client@1") == "master"
        assert seen[0]["x-mq-client-id"] == "client@1"
        assert seen[0][FORWARDED_HEADER] == "1"
        assert forwarder.forwarded_count == 1


async def test_a_call_goes_one_hop() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        assert await heartbeat(channel, x_tandemmq_forwarded="1") == "member"


async def test_without_a_master_the_member_answers_at_once() -> None:
    async with member(lambda: None, []) as (channel, _):
        assert await heartbeat(channel) == "member"


class Link:
    """Passes bytes on to `endpoint`, and falls silent: connections stay open, and nothing comes through them."""

    def __init__(self, endpoint: str) -> None:
        self._host, _, self._port = endpoint.rpartition(":")
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: list[asyncio.Event] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def fall_silent(self) -> None:
        """Connections that are made from now on are sound."""
        for passes in self._open:
            passes.clear()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
        passes = asyncio.Event()
        passes.set()
        self._open.append(passes)
        for one, other in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass(one, other, passes)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        try:
            while data := await reader.read(65_536):
                await passes.wait()
                writer.write(data)
        finally:
            writer.close()


async def test_calls_to_a_master_that_falls_silent_end_long_before_their_deadline() -> None:
    async with front("master", []) as (_, endpoint):
        link = Link(endpoint)
        address = await link.start()
        async with member(lambda: address, []) as (channel, _):
            assert await heartbeat(channel) == "master"
            # Right now a ping of gRPC that measures the way is under way, too.
            link.fall_silent()
            async with asyncio.timeout(300):
                with pytest.raises(grpc.aio.AioRpcError, match="the group's master did not answer") as refused:
                    await heartbeat(channel, limit_s=3_600)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            # One of the next dials: the connection may go a little later than the call.
            async with asyncio.timeout(300):
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        assert await heartbeat(channel) == "master"
                        break
        await link.close()


async def test_where_roles_are_fixed_the_master_ends_deliveries_and_gets_nothing_else() -> None:
    async with (
        front("master", []) as (_, endpoint),
        member(lambda: endpoint, [], names=SETTLING) as (channel, forwarder),
    ):
        assert await heartbeat(channel) == "member"
        acknowledge = MessagingServiceStub(channel).AckMessage
        assert (await acknowledge(pb.AckMessageRequest(), timeout=PATIENCE_S)).status.message == "master"
        assert forwarder.forwarded_count == 1


async def test_routes_are_each_members_own_answer() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        call = MessagingServiceStub(channel).QueryRoute
        assert (await call(pb.QueryRouteRequest(), timeout=PATIENCE_S)).status.message == "member"


async def test_a_stream_of_answers_comes_whole() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        call = MessagingServiceStub(channel).ReceiveMessage
        answers = [answer.status.message async for answer in call(pb.ReceiveMessageRequest(), timeout=PATIENCE_S)]
        assert answers == ["master 0", "master 1", "master 2"]


async def test_a_stream_both_ways_is_passed_on_and_ends_with_either_side() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, forwarder):
        call = MessagingServiceStub(channel).Telemetry
        stream = call(None)
        for text in ("one", "two"):
            await stream.write(pb.TelemetryCommand(status=definition.Status(message=text)))
            answer = await stream.read()
            assert isinstance(answer, pb.TelemetryCommand)
            assert answer.status.message == f"master: {text}"
        await stream.done_writing()
        assert not isinstance(await stream.read(), pb.TelemetryCommand)

        stream = call(None)
        await stream.write(pb.TelemetryCommand(status=definition.Status(message="three")))
        await stream.read()
        await forwarder.close()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def nothing_is_left_unhandled() -> AsyncIterator[None]:
    """A broker ends when its loop is told of an exception that nobody took."""
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert told == []


async def test_clients_that_end_their_streams_at_any_moment_do_not_end_the_member() -> None:
    drawn = random.Random(1)  # 2 of these 1,800 ended it
    async with (
        nothing_is_left_unhandled(),
        front("master", []) as (_, endpoint),
        member(lambda: endpoint, []) as (channel, forwarder),
    ):
        open_stream = MessagingServiceStub(channel).Telemetry

        async def client() -> None:
            stream = open_stream()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError):
                for _ in range(drawn.randrange(3)):
                    await stream.write(pb.TelemetryCommand())
                    await asyncio.sleep(drawn.choice((0, drawn.random() / 100)))
                if drawn.random() < 0.7:
                    await stream.done_writing()
                await asyncio.sleep(drawn.choice((0, drawn.random() / 200)))
                stream.cancel()

        for number in range(60):
            await asyncio.gather(*(client() for _ in range(30)))
            if number % 10 == 5:
                await forwarder.close()  # as at a change of master


@pytest.mark.parametrize("side", ["_read", "_write"])
async def test_whatever_fails_in_a_stream_that_is_passed_on_ends_no_other_call(side: str) -> None:
    async def fails(_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with (
        nothing_is_left_unhandled(),
        front("master", []) as (_, endpoint),
        member(lambda: endpoint, []) as (channel, _),
    ):
        with patch.object(forwarding._ForwardedStream, side, fails):
            stream = MessagingServiceStub(channel).Telemetry()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.write(pb.TelemetryCommand())
                if side == "_read":
                    assert not isinstance(await stream.read(), pb.TelemetryCommand)
            stream.cancel()
        assert await heartbeat(channel) == "master"


async def test_a_call_whose_passing_on_fails_is_answered() -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    async with (
        nothing_is_left_unhandled(),
        front("master", []) as (_, endpoint),
        member(lambda: endpoint, []) as (channel, _),
    ):
        with patch.object(forwarding, "_answers", fails), pytest.raises(grpc.aio.AioRpcError, match="try again"):
            await heartbeat(channel)
        assert await heartbeat(channel) == "master"


async def test_a_master_that_is_gone_is_told_at_once() -> None:
    async with front("master", []) as (_, endpoint):
        pass
    async with member(lambda: endpoint, []) as (channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await heartbeat(channel)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_new_master_is_asked_as_soon_as_it_is_known() -> None:
    async with front("first", []) as (_, one), front("second", []) as (_, two):
        masters = [one]
        async with member(lambda: masters[0], []) as (channel, _):
            assert await heartbeat(channel) == "first"
            masters[0] = two
            assert await heartbeat(channel) == "second"
            await asyncio.sleep(0)


# Between broker groups.


class Sender:
    """A handler that passes each acknowledgement on to `owner`, and what it refused."""

    def __init__(self, endpoints: dict[str, str], owner: str = "broker-b") -> None:
        self.calls = GroupCalls(endpoints.get, now_ms=ManualTime().monotonic_ms)
        self.owner = owner

    def ack_message(self, request: pb.AckMessageRequest, call: Call) -> None:
        def refused(outcome: Outcome) -> None:
            call.send(pb.AckMessageResponse(status=status_of(outcome)))
            call.finish()

        self.calls.pass_on("AckMessage", call, broker_name=self.owner, refused=refused)

    def receive(self, request: pb.ReceiveMessageRequest, call: Call) -> None:
        def refused(outcome: Outcome) -> None:
            call.send(pb.ReceiveMessageResponse(status=status_of(outcome)))
            call.finish()

        self.calls.pass_on("ReceiveMessage", call, broker_name=self.owner, refused=refused)

    def table(self) -> MethodTable:
        return MethodTable(
            SERVICE,
            {
                "AckMessage": UnaryMethod(self.ack_message, pb.AckMessageRequest),
                "ReceiveMessage": ServerStreamMethod(self.receive, pb.ReceiveMessageRequest),
            },
        )


@asynccontextmanager
async def other_group(sender: Sender) -> AsyncIterator[grpc.aio.Channel]:
    server = Http2Front("127.0.0.1", 0, clock=ManualTime())
    server.add(sender.table())
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield channel
        finally:
            await sender.calls.close()
            await server.stop(limit_ms=100)


async def acknowledge(channel: grpc.aio.Channel, *, timeout_s: float = PATIENCE_S, **headers: str) -> definition.Status:
    call = MessagingServiceStub(channel).AckMessage
    metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
    answer = await call(pb.AckMessageRequest(group={"name": "g"}), metadata=metadata, timeout=timeout_s)
    assert isinstance(answer, pb.AckMessageResponse)
    return answer.status


async def test_the_owner_of_a_call_answers_it() -> None:
    async with front("owner", []) as (_, endpoint):
        sender = Sender({"broker-b": endpoint})
        async with other_group(sender) as channel:
            assert (await acknowledge(channel)).message == "owner"
            receive = MessagingServiceStub(channel).ReceiveMessage
            answers = [
                answer.status.message async for answer in receive(pb.ReceiveMessageRequest(), timeout=PATIENCE_S)
            ]
            assert answers == ["owner 0", "owner 1", "owner 2"]
            assert sender.calls.forwarded_counts == {"AckMessage": 1, "ReceiveMessage": 1}


@pytest.mark.parametrize("step", ["by a member", "by a group"])
@pytest.mark.parametrize("is_reset", [True, False])
async def test_who_gave_messages_hears_that_the_caller_of_who_passed_them_on_may_not_have_read_them(
    step: str, is_reset: bool
) -> None:
    names: list[str] = []

    def receive(request: pb.ReceiveMessageRequest, call: Call) -> None:
        names.append(call.header(RECEIVE_HEADER))
        is_told = names[-1].startswith(UNREAD)
        for _ in range(2 if is_told else 3):
            code = Code.MESSAGE_NOT_FOUND if is_told else Code.OK
            call.send(pb.ReceiveMessageResponse(status=definition.Status(code=code, message="answer")))
        call.finish()

    giver = Http2Front("127.0.0.1", 0, clock=ManualTime())
    giver.add(MethodTable(SERVICE, {"ReceiveMessage": ServerStreamMethod(receive, pb.ReceiveMessageRequest)}))
    endpoint = f"127.0.0.1:{await giver.start()}"
    sender = Sender({"broker-b": endpoint})
    passes_on = Http2Front("127.0.0.1", 0, clock=ManualTime())
    passes_on.add(sender.table())
    forwarder = CallForwarder(lambda: endpoint, now_ms=ManualTime().monotonic_ms)
    if step == "by a member":
        passes_on.forward(forwarder)
    port = await passes_on.start()
    try:
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(frames.PREFACE + frames.settings({}))
        peer.sendall(unary_request(1, b"", (":path", f"/{SERVICE}/ReceiveMessage")))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while received.count(b"answer") < 3:
                received += await asyncio.to_thread(peer.recv, 1 << 16)
            await asyncio.sleep(0.05)  # Its last frame, and what the peer's kernel acknowledges.
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                peer.recv(1 << 16)
            if is_reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await until(lambda: not passes_on.connection_count and len(names) >= 1 + is_reset)
        assert names[1:] == ([UNREAD + names[0]] if is_reset else [])
        assert names[0]
    finally:
        await forwarder.close()
        await sender.calls.close()
        await passes_on.stop(limit_ms=100)
        await giver.stop(limit_ms=100)


@pytest.mark.parametrize("next_master", ["another", "another, later", "this broker", "this broker, by closing"])
async def test_the_next_master_hears_of_an_answer_that_its_former_one_gave_and_nobody_read(next_master: str) -> None:
    told: list[str] = []
    here: list[tuple[str, str]] = []
    is_here = is_ready = False

    def receive(request: pb.ReceiveMessageRequest, call: Call) -> None:
        name = call.header(RECEIVE_HEADER)
        code = Code.OK
        if name.startswith(UNREAD):
            told.append(name)
            code = Code.MESSAGE_NOT_FOUND if is_ready else Code.FORBIDDEN
        for _ in range(2 if name.startswith(UNREAD) else 3):
            call.send(pb.ReceiveMessageResponse(status=definition.Status(code=code, message="answer")))
        call.finish()

    def unread_here(call: Call, name: str) -> bool:
        if is_here:
            here.append((call.header("x-mq-client-id"), name))
        return is_here

    servers: list[Http2Front] = []

    async def member(forwarder: CallForwarder | None = None) -> str:
        server = Http2Front("127.0.0.1", 0, clock=ManualTime())
        server.add(MethodTable(SERVICE, {"ReceiveMessage": ServerStreamMethod(receive, pb.ReceiveMessageRequest)}))
        server.forward(forwarder)
        servers.append(server)
        return f"127.0.0.1:{await server.start()}"

    master: str | None = await member()
    forwarder = CallForwarder(lambda: master, now_ms=SystemClock().monotonic_ms, unread_here=unread_here)
    endpoint = await member(forwarder)
    try:
        peer = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])))
        peer.sendall(frames.PREFACE + frames.settings({}))
        peer.sendall(unary_request(1, b"", (":path", f"/{SERVICE}/ReceiveMessage"), ("x-mq-client-id", "client@1")))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while received.count(b"answer") < 3:
                received += await asyncio.to_thread(peer.recv, 1 << 16)
            await servers[0].stop(limit_ms=0)
            master = await member() if next_master == "another" else None
            is_ready, is_here = next_master == "another", next_master == "this broker"
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await until(lambda: not servers[1].connection_count)
            if next_master == "another, later":
                master = await member()
                await until(lambda: told)
                is_ready = True
            if next_master == "this broker, by closing":
                is_here = True
                await forwarder.close(is_stopping=False)
            await until(lambda: here or (told and is_ready))
            if next_master == "another, later":
                await until(lambda: len(told) >= 2)
        assert {client_id for client_id, _ in here} == ({"client@1"} if "this" in next_master else set())
        names = {name.removeprefix(UNREAD) for name in [*told, *(name for _, name in here)]}
        assert [passed_on_nonce(name) is not None for name in names] == [True]
    finally:
        await forwarder.close()
        for server in servers:
            await server.stop(limit_ms=100)


async def test_an_owner_nobody_knows_is_refused_in_the_body() -> None:
    sender = Sender({})
    async with other_group(sender) as channel:
        status = await acknowledge(channel)
        assert status.code == definition.PROXY_TIMEOUT
        assert "broker-b" in status.message
        assert sender.calls.failed_counts == {"AckMessage": 1}


async def test_an_owner_that_is_gone_is_refused_in_the_body() -> None:
    async with front("owner", []) as (_, endpoint):
        pass
    async with other_group(Sender({"broker-b": endpoint})) as channel:
        assert (await acknowledge(channel)).code == definition.PROXY_TIMEOUT


@asynccontextmanager
async def silent_owner(*, hears_beats: bool = False) -> AsyncIterator[str]:
    """It takes calls and answers none."""

    def acknowledge(request: pb.AckMessageRequest | pb.HeartbeatRequest, call: Call) -> None:
        """Never."""

    server = Http2Front("127.0.0.1", 0, clock=ManualTime())
    methods: dict[str, Method] = {"AckMessage": UnaryMethod(acknowledge, pb.AckMessageRequest)}
    if hears_beats:
        methods["Heartbeat"] = UnaryMethod(acknowledge, pb.HeartbeatRequest)
    server.add(MethodTable(SERVICE, methods))
    try:
        yield f"127.0.0.1:{await server.start()}"
    finally:
        await server.stop(limit_ms=100)


async def test_an_owner_that_is_silent_is_given_up_before_the_callers_deadline() -> None:
    async with silent_owner() as endpoint, other_group(Sender({"broker-b": endpoint})) as channel:
        assert (await acknowledge(channel, timeout_s=1)).code == definition.PROXY_TIMEOUT


async def test_a_call_that_came_from_another_group_goes_no_further() -> None:
    async with front("owner", []) as (_, endpoint), other_group(Sender({"broker-b": endpoint})) as channel:
        assert (await acknowledge(channel, x_tandemmq_forwarded="2")).code == definition.PROXY_TIMEOUT
        # A member that is not master may have passed it on to this one.
        assert (await acknowledge(channel, x_tandemmq_forwarded="1")).message == "owner"


async def test_a_former_master_passes_on_what_another_group_sent_it() -> None:
    seen: list[dict[str, str]] = []
    async with front("master", seen) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        assert await heartbeat(channel, x_tandemmq_forwarded="2") == "master"
        assert seen[0][FORWARDED_HEADER] == "21"


async def test_too_many_calls_that_wait_for_one_group_are_refused_and_do_not_hold_up_another() -> None:
    async with silent_owner() as silent, front("owner", []) as (_, endpoint):
        sender = Sender({"broker-b": silent, "broker-c": endpoint})
        async with other_group(sender) as channel:
            waiting = [asyncio.create_task(acknowledge(channel, timeout_s=PATIENCE_S)) for _ in range(1_024)]
            await until(lambda: sender.calls.forwarded_counts.get("AckMessage", 0) >= len(waiting))
            assert (await acknowledge(channel)).code == definition.TOO_MANY_REQUESTS
            sender.owner = "broker-c"
            assert (await acknowledge(channel)).message == "owner"
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


# While a change of master is under way


@dataclass
class Change:
    """What a forwarder asks."""

    is_under_way: bool = True
    master: str | None = None

    def ask(self) -> bool:
        return self.is_under_way


@asynccontextmanager
async def changing_member(
    change: Change, seen: list[dict[str, str]], whose: Callable[[Call], str] = by_address
) -> AsyncIterator[tuple[grpc.aio.Channel, CallForwarder, Http2Front]]:
    clock = SystemClock()
    forwarder = CallForwarder(lambda: change.master, now_ms=clock.monotonic_ms, is_changing=change.ask, whose=whose)
    server = Http2Front("127.0.0.1", 0, clock=clock)
    server.add(table("member", seen))
    server.forward(forwarder)
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, forwarder, server
    finally:
        await forwarder.close()
        await server.stop(limit_ms=100)


async def until_held(forwarder: CallForwarder, count: int) -> None:
    await until(lambda: forwarder.held_count >= count)


def ended(forwarder: CallForwarder) -> dict[str, int]:
    """Without those that none has; nothing waits any more."""
    assert forwarder.held_count == 0
    return {outcome: count for outcome, count in forwarder.held_counts.items() if count}


async def test_a_call_waits_for_the_new_master_and_is_passed_on() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _), front("master", seen) as (_, master):
        call = asyncio.create_task(heartbeat(channel))
        await until_held(forwarder, 1)
        assert not call.done()
        change.master, change.is_under_way = master, False
        assert await call == "master"
        assert ended(forwarder) == {HeldOutcome.TAKEN: 1}


async def test_strangers_leave_room_for_callers_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who fills the wait for the next master would have everybody refused."""
    monkeypatch.setattr(forwarding, "_HELD_MAX", 10)
    monkeypatch.setattr(forwarding, "_IN_FLIGHT_MAX", 10)
    change = Change()

    def whose(call: Call) -> str:
        return "app" if call.header("x-known") == "1" else ""

    async with changing_member(change, [], whose) as (channel, forwarder, _), silent_owner() as silent:
        strangers = [asyncio.create_task(heartbeat(channel)) for _ in range(30)]
        await until_held(forwarder, 5)
        await until(lambda: forwarder.held_counts[HeldOutcome.NO_ROOM] >= 25)
        known = [asyncio.create_task(heartbeat(channel, x_known="1")) for _ in range(5)]
        await until_held(forwarder, 10)
        assert await heartbeat(channel, x_known="1") == "member", "all of it is taken"
        # The same on the way to a master that does not answer.
        change.master, change.is_under_way = silent, False
        await until(lambda: forwarder.forwarded_count >= 10)
        for task in (*strangers, *known):
            task.cancel()
        await asyncio.wait((*strangers, *known))
        await until(lambda: not forwarder._calls)
        strangers = [asyncio.create_task(heartbeat(channel)) for _ in range(30)]
        await until(lambda: forwarder.forwarded_count >= 15)
        await asyncio.wait(strangers, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert forwarder.forwarded_count == 15
        known = [asyncio.create_task(heartbeat(channel, x_known="1")) for _ in range(5)]
        await until(lambda: forwarder.forwarded_count >= 20)
        for task in (*strangers, *known):
            task.cancel()
        await asyncio.wait((*strangers, *known))


async def test_requests_under_way_to_the_master_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may send megabytes in each; nobody has looked at them before the master does."""
    monkeypatch.setattr(forwarding, "_BYTES_MAX", 10 << 10)
    change = Change(is_under_way=False)

    def whose(call: Call) -> str:
        return "app" if call.header("x-known") == "1" else ""

    async def acknowledged(channel: grpc.aio.Channel, *, known: str = "", size: int = 1_000) -> str:
        call = MessagingServiceStub(channel).AckMessage
        request = pb.AckMessageRequest(group=definition.Resource(name="x" * size))
        answer = await call(request, timeout=PATIENCE_S, metadata=(("x-known", known),))
        return str(answer.status.message)

    async with changing_member(change, [], whose) as (channel, forwarder, _), silent_owner() as silent:
        change.master = silent
        waiting = [asyncio.create_task(acknowledged(channel, size=20_000))]
        await until(lambda: forwarder.forwarded_count >= 1)
        assert await acknowledged(channel, known="1") == "member", "a large one passes alone"
        waiting[0].cancel()
        await until(lambda: not forwarder._bytes.total)
        waiting += [asyncio.create_task(acknowledged(channel)) for _ in range(5)]
        await until(lambda: forwarder.forwarded_count >= 6)
        assert await acknowledged(channel) == "member"
        waiting += [asyncio.create_task(acknowledged(channel, known="1")) for _ in range(5)]
        await until(lambda: forwarder.forwarded_count >= 11)
        assert await acknowledged(channel, known="1") == "member"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await until(lambda: not forwarder._bytes.total)


async def test_a_call_is_refused_when_a_change_ends_without_a_master() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        call = asyncio.create_task(heartbeat(channel))
        await until_held(forwarder, 1)
        change.is_under_way = False
        assert await call == "member"
        assert ended(forwarder) == {HeldOutcome.NO_MASTER: 1}


async def test_what_waits_when_the_broker_stops_is_refused() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        call = asyncio.create_task(heartbeat(channel))
        await until_held(forwarder, 1)
        await forwarder.close()
        assert await call == "member"
        assert ended(forwarder) == {HeldOutcome.NO_MASTER: 1}


async def test_calls_that_waited_are_this_brokers_own_when_it_became_master_in_their_order() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, server):
        calls = []
        for number in range(20):
            calls.append(asyncio.create_task(heartbeat(channel, x_number=f"{number}")))
            await until_held(forwarder, number + 1)
        server.forward(None)
        forwarder.let_go()
        assert await asyncio.gather(*calls) == ["member"] * 20
        assert [headers["x-number"] for headers in seen] == [f"{number}" for number in range(20)]
        assert ended(forwarder) == {HeldOutcome.TAKEN: 20}


async def test_a_call_is_answered_before_its_deadline_where_no_master_comes() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        assert await heartbeat(channel, limit_s=3.0) == "member"
        assert ended(forwarder) == {HeldOutcome.NO_MASTER: 1}


async def test_what_tells_where_masters_are_and_what_was_passed_on_before_does_not_wait() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        query = MessagingServiceStub(channel).QueryRoute
        assert (await query(pb.QueryRouteRequest(), timeout=PATIENCE_S)).status.message == "member"
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await heartbeat(channel, x_tandemmq_forwarded="1")
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ended(forwarder) == {}


@pytest.mark.parametrize("next_master", ["other", "the same", "nobody"])
async def test_a_call_whose_master_is_changing_waits_at_the_member_that_passed_it_on(next_master: str) -> None:
    """It hears later than the master that there is a change."""
    change, seen = Change(), list[dict[str, str]]()
    clock = SystemClock()
    at_master = CallForwarder(lambda: None, now_ms=clock.monotonic_ms, is_changing=change.ask)
    async with (
        front("other", seen, clock=clock) as (_, other),
        front("the same", seen, clock=clock) as (server, master),
    ):
        server.forward(at_master)
        at_member = CallForwarder(lambda: change.master or master, now_ms=clock.monotonic_ms)
        async with (
            front("member", seen, clock=clock) as (own, endpoint),
            grpc.aio.insecure_channel(endpoint) as channel,
        ):
            own.forward(at_member)
            calls = [asyncio.create_task(heartbeat(channel, 2 if next_master == "nobody" else 60)) for _ in range(3)]
            await until_held(at_member, 3)
            assert not seen
            if next_master == "other":
                change.master = other
            change.is_under_way = next_master == "nobody"
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert len(seen) == (0 if next_master == "nobody" else 3)
            for answer in answers:
                assert isinstance(answer, grpc.aio.AioRpcError) if next_master == "nobody" else answer == next_master
            assert at_master.held_count == 0
            await until(lambda: not at_member.held_count)
            await at_member.close()


async def test_what_waits_is_bounded() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        with patch("tandemmq.broker.client_api.forwarding._HELD_MAX", 3):
            waiting = [asyncio.create_task(heartbeat(channel)) for _ in range(3)]
            await until_held(forwarder, 3)
            assert await heartbeat(channel) == "member"
            change.is_under_way = False
            assert await asyncio.gather(*waiting) == ["member"] * 3
        assert ended(forwarder) == {HeldOutcome.NO_ROOM: 1, HeldOutcome.NO_MASTER: 3}


async def test_a_caller_that_went_away_is_not_answered_later() -> None:
    change = Change()
    seen: list[dict[str, str]] = []
    async with changing_member(change, seen) as (channel, forwarder, _):
        call = asyncio.create_task(heartbeat(channel))
        await until_held(forwarder, 1)
        call.cancel()
        await asyncio.wait([call])
        with pytest.raises(grpc.aio.AioRpcError):
            await heartbeat(channel, x_tandemmq_forwarded="1")  # The cancellation has come by now.
        change.is_under_way = False
        assert await heartbeat(channel) == "member"
        assert len(seen) == 1
        await until(lambda: not forwarder.held_count)
        assert ended(forwarder) == {HeldOutcome.CALLER_GONE: 1}


# Who has how much of the room


def _sender_of_users(endpoints: dict[str, str]) -> Sender:
    sender = Sender(endpoints)
    sender.calls = GroupCalls(endpoints.get, now_ms=ManualTime().monotonic_ms, whose=lambda call: call.header("x-user"))
    return sender


@pytest.mark.parametrize("room", ["calls", "bytes"])
async def test_who_has_all_calls_to_another_group_leaves_room_to_other_users(
    room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A request has five bytes.
    monkeypatch.setattr(
        forwarding, "_PER_GROUP_MAX" if room == "calls" else "_BYTES_MAX", 12 if room == "calls" else 60
    )
    async with silent_owner() as silent, other_group(_sender_of_users({"broker-b": silent})) as channel:

        def waiting(user: str, count: int) -> list[asyncio.Task[definition.Status]]:
            return [asyncio.create_task(acknowledge(channel, x_user=user)) for _ in range(count)]

        greedy = waiting("greedy", 30)
        async with asyncio.timeout(PATIENCE_S):
            while sum(task.done() for task in greedy) < 18:
                await asyncio.sleep(0.01)
        others = [*waiting("ann", 3), *waiting("bob", 2)]
        done, _ = await asyncio.wait([*greedy, *others], timeout=1)
        refused = [task for task in others if task in done]
        assert refused == []
        again = await acknowledge(channel, x_user="greedy")
        assert again.code == definition.TOO_MANY_REQUESTS
        for task in (*greedy, *others):
            task.cancel()
        await asyncio.wait((*greedy, *others))


async def test_who_has_all_calls_to_the_master_leaves_room_to_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "_HELD_MAX", 12)
    monkeypatch.setattr(forwarding, "_IN_FLIGHT_MAX", 12)
    change = Change()

    def whose(call: Call) -> str:
        return call.header("x-user")

    async with (
        changing_member(change, [], whose) as (channel, forwarder, _),
        silent_owner(hears_beats=True) as silent,
    ):
        greedy = [asyncio.create_task(heartbeat(channel, x_user="greedy")) for _ in range(30)]
        await until_held(forwarder, 12)
        await until(lambda: forwarder.held_counts[HeldOutcome.NO_ROOM] >= 18)
        ann = [asyncio.create_task(heartbeat(channel, x_user="ann")) for _ in range(3)]
        await until_held(forwarder, 15)
        assert await heartbeat(channel, x_user="greedy") == "member"
        # The same on the way to a master that does not answer.
        change.master, change.is_under_way = silent, False
        await until(lambda: forwarder.forwarded_count >= 15)
        bob = [asyncio.create_task(heartbeat(channel, x_user="bob")) for _ in range(2)]
        await until(lambda: forwarder.forwarded_count >= 17)
        assert await heartbeat(channel, x_user="greedy") == "member"
        for task in (*greedy, *ann, *bob):
            task.cancel()
        await asyncio.wait((*greedy, *ann, *bob))
        await until(lambda: not forwarder._calls.room.total and not forwarder._bytes.total)


@given(
    st.lists(st.tuples(st.sampled_from(["", "ann", "bob", "eve"]), st.integers(1, 9), st.booleans()), max_size=80),
    st.integers(1, 60),
)
def test_a_room_holds_twice_its_limit_at_most_and_whoever_has_less_than_a_share_gets_in(
    steps: list[tuple[str, int, bool]], limit: int
) -> None:
    room, taken = _Room(), list[tuple[str, int]]()
    for whose, size, is_end in steps:
        if is_end and taken:
            room.give_back(*taken.pop())
            continue
        total, own = sum(each for _, each in taken), sum(each for name, each in taken if name == whose)
        has_room = room.has(whose, size, limit)
        if not whose:
            assert has_room == (total + size <= limit // 2)
        elif total + size <= limit:
            assert has_room
        else:
            share = limit // (len({name for name, _ in taken}) + 1)
            assert has_room == (own + size <= share and total + size <= 2 * limit)
        if has_room:
            room.take(whose, size)
            taken.append((whose, size))
    for each in taken:
        room.give_back(*each)
    assert room.total == 0
    assert not room._of

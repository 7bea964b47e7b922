"""Calls that a member passes on to its group's master, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from support.manual_time import ManualTime
from tandemmq.broker.client_api.forwarding import FORWARDED_HEADER, SETTLING, CallForwarder
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import BidiMethod, Call, MethodTable, ServerStreamMethod, StreamHandler, UnaryMethod

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
async def front(name: str, seen: list[dict[str, str]]) -> AsyncIterator[tuple[Http2Front, str]]:
    server = Http2Front("127.0.0.1", 0, clock=ManualTime())
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


async def heartbeat(channel: grpc.aio.Channel, **headers: str) -> str:
    call = channel.unary_unary(
        f"/{SERVICE}/Heartbeat",
        request_serializer=pb.HeartbeatRequest.SerializeToString,
        response_deserializer=pb.HeartbeatResponse.FromString,
    )
    metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
    answer = await call(pb.HeartbeatRequest(), metadata=metadata, timeout=10)
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


async def test_where_roles_are_fixed_the_master_ends_deliveries_and_gets_nothing_else() -> None:
    async with (
        front("master", []) as (_, endpoint),
        member(lambda: endpoint, [], names=SETTLING) as (channel, forwarder),
    ):
        assert await heartbeat(channel) == "member"
        acknowledge = channel.unary_unary(
            f"/{SERVICE}/AckMessage",
            request_serializer=pb.AckMessageRequest.SerializeToString,
            response_deserializer=pb.AckMessageResponse.FromString,
        )
        assert (await acknowledge(pb.AckMessageRequest(), timeout=10)).status.message == "master"
        assert forwarder.forwarded_count == 1


async def test_routes_are_each_members_own_answer() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        call = channel.unary_unary(
            f"/{SERVICE}/QueryRoute",
            request_serializer=pb.QueryRouteRequest.SerializeToString,
            response_deserializer=pb.QueryRouteResponse.FromString,
        )
        assert (await call(pb.QueryRouteRequest(), timeout=10)).status.message == "member"


async def test_a_stream_of_answers_comes_whole() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, _):
        call = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        answers = [answer.status.message async for answer in call(pb.ReceiveMessageRequest(), timeout=10)]
        assert answers == ["master 0", "master 1", "master 2"]


async def test_a_stream_both_ways_is_passed_on_and_ends_with_either_side() -> None:
    async with front("master", []) as (_, endpoint), member(lambda: endpoint, []) as (channel, forwarder):
        call = channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
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

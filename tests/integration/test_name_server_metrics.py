"""What a NameServer tells of itself, and what a broker tells of its NameServers."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from integration.test_name_server import Broker, NameServer, linked, name_server, stub, until
from tandemmq.nameserver.name_server import NameServerMetrics
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.service.event_loop import LoopMeter, SystemClock


async def told(server: NameServer) -> dict[tuple[str, ...], float]:
    """Value by the metric's name after `rocketmq_nameserver_` and its labels."""
    metrics = NameServerMetrics(server.registry, clock=SystemClock(), loop_meter=LoopMeter())
    return {
        (family.info.name.removeprefix("rocketmq_nameserver_"), *labels): value
        for family in await metrics.collect()
        for labels, value in family.samples
        if isinstance(value, int | float)
    }


async def test_brokers_come_and_go_in_the_figures() -> None:
    async with name_server() as server:
        async with linked(Broker(), server) as member:
            await until(lambda: all(link.is_registered and link.is_watching for link in member.links.links), "linked")
            figures = await told(server)
            assert figures["registered_brokers", "DefaultCluster"] == 1
            assert (figures["topics",], figures["route_watchers",]) == (1, 1)
            assert figures["registrations_total", "new"] == 1
            assert figures["heartbeats_total",] >= 1
            assert 0 <= figures["heartbeat_age_seconds", "DefaultCluster", "broker-a", "0"] < 60
        await until(lambda: not server.live(), "noticed")
        figures = await told(server)
        assert figures["brokers_lost_total", "heartbeat_stream_ended"] == 1
        assert ("registered_brokers", "DefaultCluster") not in figures
        await until(lambda: server.registry.activity.watchers == 0, "the stream has ended")


async def test_queries_are_counted_by_whether_there_was_a_route() -> None:
    async with name_server() as server, linked(Broker(), server), stub(server) as calls:
        await until(server.live, "registered")
        await calls.GetTopicRoute(pb.GetTopicRouteRequest(topic="orders"))
        with pytest.raises(grpc.aio.AioRpcError):
            await calls.GetTopicRoute(pb.GetTopicRouteRequest(topic="nothing"))
        figures = await told(server)
        assert (figures["route_queries_total", "found"], figures["route_queries_total", "missing"]) == (1, 1)


async def test_a_name_server_that_says_nothing_grows_old() -> None:
    async with name_server() as server, linked(Broker(), server) as member:
        await until(lambda: member.links.links[0].is_registered, "registered")
        began_ms, heartbeats = SystemClock().monotonic_ms(), server.registry.activity.heartbeats
        await until(lambda: server.registry.activity.heartbeats >= heartbeats + 3, "three more heartbeats")
        # The third was sent when the second had been answered.
        assert member.links.links[0].silent_ms <= SystemClock().monotonic_ms() - began_ms
    async with linked(Broker(), NameServer(server.registry, 1)) as member:
        await asyncio.sleep(0.1)
        assert member.links.links[0].silent_ms >= 90

"""NameServers and the brokers' links to them, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
import pytest
from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from apache.rocketmq.v2 import service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tandemmq.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.nameserver.v1 import name_server_service_pb2_grpc

from mqcore.metadata.data_version import DataVersion
from mqcore.routing import BrokerEndpoints, BrokerIdentity, RegisteredBroker, Registration, TopicQueues
from mqservice.clock import SystemClock
from mqservice.logging import get_logger
from mqservice.name_server_link import NameServerLinks
from mqservice.route_messages import identity_message, registration_message
from nameserver.name_server import serving
from nameserver.route_registry import RouteRegistry
from nameserver.settings import NameServerSettings

LIMIT_S = 10.0
LOOPBACK = "127.0.0.1"
CLIENT_METADATA = (("x-mq-client-id", "test"),)
ACCESS_POINT = definition.Endpoints(scheme=definition.IPv4, addresses=[definition.Address(host=LOOPBACK, port=9876)])


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits for a condition that others bring about."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT_S:.0f} s: {what}") from None


@dataclass
class Broker:
    """What a broker tells NameServers."""

    broker_id: int = 0
    name: str = "broker-a"
    incarnation: int = 100
    liveness_timeout_ms: int = 10_000
    topics: tuple[str, ...] = ("orders",)
    data_version: DataVersion = field(default_factory=DataVersion)

    @property
    def identity(self) -> BrokerIdentity:
        return BrokerIdentity("DefaultCluster", self.name, self.broker_id)

    @property
    def client_endpoint(self) -> str:
        return f"{self.name}-{self.broker_id}:8081"

    def registration(self) -> Registration:
        return Registration(
            self.identity,
            BrokerEndpoints(self.client_endpoint, "", ""),
            self.incarnation,
            self.liveness_timeout_ms,
            self.data_version,
            tuple(TopicQueues(topic, 4, 4, 6) for topic in self.topics),
        )


@dataclass
class NameServer:
    registry: RouteRegistry
    port: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def live(self) -> list[tuple[str, int]]:
        return [(b.identity.broker_name, b.identity.broker_id) for b in self.registry.table.brokers()]


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[NameServer]:
    settings = NameServerSettings(
        listen_port=port, bind_address=LOOPBACK, scan_not_active_broker_interval=20, shutdown_timeout=0
    )
    async with serving(settings, clock=SystemClock(), log=get_logger()) as (registry, bound):
        yield NameServer(registry, bound)


@dataclass
class Member:
    """A broker's links, running."""

    links: NameServerLinks
    broker: Broker
    masters: list[RegisteredBroker | None]
    task: asyncio.Task[None]

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def linked(broker: Broker, *servers: NameServer) -> AsyncIterator[Member]:
    masters: list[RegisteredBroker | None] = []
    links = NameServerLinks(
        [server.address for server in servers],
        clock=SystemClock(),
        log=get_logger(),
        chance=random.Random(1),
        registrant=broker,
        heartbeat_interval_ms=50,
        on_master_changed=masters.append,
    )
    links.announce()
    member = Member(links, broker, masters, asyncio.create_task(links.run()))
    try:
        yield member
    finally:
        await member.kill()


@asynccontextmanager
async def stub(server: NameServer) -> AsyncIterator[name_server_service_pb2_grpc.NameServerServiceStub]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield name_server_service_pb2_grpc.NameServerServiceStub(channel)


# Registration and liveness


async def test_broker_registers_with_every_name_server() -> None:
    async with name_server() as first, name_server() as second, linked(Broker(), first, second) as member:
        await until(lambda: first.live() == second.live() == [("broker-a", 0)], "both know the broker")
        await until(lambda: all(link.is_registered for link in member.links.links), "the broker knows that")


async def test_killed_broker_is_removed_at_once_everywhere() -> None:
    # Its liveness timeout is far beyond the test's limit: only the broken connection can tell.
    broker = Broker(liveness_timeout_ms=600_000)
    async with name_server() as first, name_server() as second, linked(broker, first, second) as member:
        await until(lambda: all(link.is_registered for link in member.links.links), "registered")
        await member.kill()
        await until(lambda: first.live() == second.live() == [], "both noticed")


async def test_silent_broker_expires() -> None:
    async with name_server() as server, stub(server) as calls:
        await calls.RegisterBroker(registration_message(Broker(liveness_timeout_ms=100).registration()))
        heartbeats = calls.Heartbeat()
        await heartbeats.write(pb.HeartbeatRequest(identity=identity_message(Broker().identity), incarnation=100))
        await heartbeats.read()
        assert server.live() == [("broker-a", 0)]
        await until(lambda: server.live() == [], "expired although the stream is open")
        await heartbeats.write(pb.HeartbeatRequest(identity=identity_message(Broker().identity), incarnation=100))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await heartbeats.read()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_broker_that_was_forgotten_registers_again() -> None:
    async with name_server() as server, linked(Broker(), server):
        await until(server.live, "registered")
        server.registry.unregister(Broker().identity, incarnation=0)
        assert server.live() == []
        await until(server.live, "registered again")


async def test_changed_topics_are_told_before_the_next_heartbeat() -> None:
    broker = Broker()
    async with name_server() as server, linked(broker, server) as member:
        await until(lambda: member.links.route("orders"), "first topics")
        broker.topics, broker.data_version = ("orders", "bills"), broker.data_version.next(1)
        member.links.registration_changed()
        await until(lambda: member.links.route("bills"), "new topic in the route view")


async def test_changed_data_version_is_noticed_by_heartbeat() -> None:
    broker = Broker()
    async with name_server() as server, linked(broker, server) as member:
        await until(lambda: member.links.route("orders"), "first topics")
        broker.topics, broker.data_version = ("bills",), broker.data_version.next(1)
        await until(lambda: server.registry.table.route("bills"), "the NameServer asked for the table")


async def test_goodbye_removes_the_broker_and_it_stays_away() -> None:
    async with name_server() as first, name_server() as second, linked(Broker(), first, second) as member:
        await until(lambda: all(link.is_registered for link in member.links.links), "registered")
        await member.links.unregister()
        assert first.live() == second.live() == []
        # Four heartbeat intervals in which it would come back if it did.
        await asyncio.sleep(0.2)
        assert first.live() == second.live() == []


async def test_goodbye_does_not_wait_for_a_dead_name_server() -> None:
    async with AsyncExitStack() as stack:
        survivor = await stack.enter_async_context(name_server())
        async with name_server() as other:
            member = await stack.enter_async_context(linked(Broker(), survivor, other))
            await until(lambda: all(link.is_registered for link in member.links.links), "registered")
        async with asyncio.timeout(5):
            await member.links.unregister()
        assert survivor.live() == []


# Routes


async def test_slave_learns_of_its_master_and_of_its_loss() -> None:
    async with name_server() as first, name_server() as second, linked(Broker(1), first, second) as slave:
        await until(lambda: slave.links.view.brokers, "the slave sees itself")
        assert slave.links.master is None
        async with linked(Broker(0), first, second) as master:
            await until(lambda: all(link.is_registered for link in master.links.links), "the master is registered")
            await until(lambda: slave.links.master, "the slave sees its master")
            await until(lambda: len(slave.links.view.brokers) == 2, "both members are seen")
        await until(lambda: slave.links.master is None, "the slave sees that it is gone")
        assert [master and master.identity.broker_id for master in slave.masters] == [0, None]


async def test_one_dead_name_server_changes_nothing() -> None:
    async with AsyncExitStack() as stack:
        survivor = await stack.enter_async_context(name_server())
        async with name_server() as other:
            member = await stack.enter_async_context(linked(Broker(), survivor, other))
            await until(lambda: all(link.is_registered for link in member.links.links), "registered")
        await until(lambda: not member.links.links[1].is_watching, "the loss is noticed")
        assert member.links.route("orders") is not None
        assert member.masters[-1] is not None
        async with name_server(other.port) as returned:
            await until(returned.live, "the broker came back to the restarted one")
            await until(lambda: all(link.is_watching for link in member.links.links), "and watches it")
        assert [master is not None for master in member.masters] == [True]


async def test_view_stays_while_no_name_server_can_be_reached() -> None:
    async with AsyncExitStack() as stack:
        async with name_server() as server:
            member = await stack.enter_async_context(linked(Broker(), server))
            await until(lambda: member.links.route("orders"), "route known")
        await until(lambda: not member.links.links[0].is_watching, "the loss is noticed")
        assert member.links.route("orders") is not None
        assert member.links.links[0].error


async def test_watcher_that_reads_late_gets_the_newest_snapshot() -> None:
    async with name_server() as server, stub(server) as calls:
        watch = calls.WatchRoutes(pb.WatchRoutesRequest())
        first = await watch.read()
        broker = Broker()
        for number in range(60):
            # Each snapshot is larger than a transport buffer, so they cannot all be on their way.
            topics = tuple(f"topic-{number:03}-{index:05}" for index in range(1_500))
            broker = replace(broker, topics=topics, data_version=broker.data_version.next(number))
            await calls.RegisterBroker(registration_message(broker.registration()))
        newest = server.registry.table.revision
        revisions = [first.revision]
        async with asyncio.timeout(LIMIT_S):
            while revisions[-1] != newest:
                revisions.append((await watch.read()).revision)
        watch.cancel()
        assert revisions == sorted(revisions)
        # How many fit the transport's own buffers is its affair; kept here is one.
        assert len(revisions) < 60


# Refusals and administration


async def test_registration_without_sense_names_all_that_is_wrong() -> None:
    async with name_server() as server, stub(server) as calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.RegisterBroker(pb.RegisterBrokerRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "identity.cluster is empty" in str(caught.value.details())
    assert "liveness_timeout" in str(caught.value.details())


async def test_second_process_of_one_identity_is_refused() -> None:
    async with name_server() as server, linked(Broker(incarnation=200), server), stub(server) as calls:
        await until(server.live, "registered")
        elsewhere = replace(Broker(incarnation=100).registration(), endpoints=BrokerEndpoints("elsewhere:8081"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.RegisterBroker(registration_message(elsewhere))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "broker-a id 0 is alive at broker-a-0:8081" in str(caught.value.details())


async def test_wiped_write_permission_reaches_watchers() -> None:
    async with name_server() as server, linked(Broker(), server) as member, stub(server) as calls:
        await until(lambda: member.links.route("orders"), "route known")
        answer = await calls.WipeWritePermission(pb.WipeWritePermissionRequest(broker_name="broker-a"))
        assert answer.topic_count == 1

        def permission() -> int:
            route = member.links.route("orders")
            return route.queues[0].permission if route is not None else 0

        await until(lambda: permission() == 4, "read-only")
        await calls.AddWritePermission(pb.AddWritePermissionRequest(broker_name="broker-a"))
        await until(lambda: permission() == 6, "writable again")


async def test_key_value_configuration_and_broker_list() -> None:
    async with name_server() as server, linked(Broker(), server), stub(server) as calls:
        await until(server.live, "registered")
        await calls.PutKvConfig(pb.PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
        listed = await calls.ListKvConfigs(pb.ListKvConfigsRequest(namespace="ORDER_TOPIC_CONFIG"))
        assert dict(listed.entries) == {"orders": "broker-a:4"}
        route = await calls.GetTopicRoute(pb.GetTopicRouteRequest(topic="orders"))
        assert route.route.order_topic_conf == "broker-a:4"
        await calls.DeleteKvConfig(pb.DeleteKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="orders"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.GetKvConfig(pb.GetKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="orders"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        [broker] = (await calls.ListBrokers(pb.ListBrokersRequest())).brokers
        age_ms = SystemClock().wall_ms() - broker.last_seen_time.ToMilliseconds()
        assert -1_000 < age_ms < 5_000


# Official clients


async def test_official_clients_find_routes_and_assignments() -> None:
    async with name_server() as server, linked(Broker(), server):
        await until(server.live, "registered")
        async with grpc.aio.insecure_channel(server.address) as channel:
            client = service_pb2_grpc.MessagingServiceStub(channel)
            topic = definition.Resource(name="orders")
            route = await client.QueryRoute(
                service.QueryRouteRequest(topic=topic, endpoints=ACCESS_POINT), metadata=CLIENT_METADATA
            )
            assert route.status.code == definition.OK
            assert len(route.message_queues) == 4
            assignment = await client.QueryAssignment(
                service.QueryAssignmentRequest(
                    topic=topic, group=definition.Resource(name="billing"), endpoints=ACCESS_POINT
                ),
                metadata=CLIENT_METADATA,
            )
            assert assignment.status.code == definition.OK
            assert [a.message_queue.id for a in assignment.assignments] == [-1]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.Heartbeat(service.HeartbeatRequest(), metadata=CLIENT_METADATA)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "send this call to a broker" in str(caught.value.details())


async def test_name_server_is_ready_when_it_serves() -> None:
    async with name_server() as server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

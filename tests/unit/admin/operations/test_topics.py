"""The list of all topics is read again when a broker's topic table changed, and only then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import grpc

from support.cluster_states import healthy_cluster
from support.fake_brokers import FakeQuestions, rpc_error
from support.manual_time import ManualTime
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.questions import Answer, Members
from tandemmq.admin.operations.topics import RouteOperations, TopicTables
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb


class Cluster(RouteOperations):
    """One broker group and what NameServers say of it. Counts how often all topics were asked for."""

    def __init__(self) -> None:
        self.state: ClusterState = healthy_cluster()
        self.topics_held = ["orders", "broker-a", "%DLQ%g"]
        self.version = 1
        self.asked = 0
        self.failure: grpc.aio.AioRpcError | None = None
        self.are_name_servers_up = True
        self.clock = ManualTime()
        members = Members(lambda: self.state)
        questions = FakeQuestions(
            {key: SimpleNamespace(admin=SimpleNamespace(topics=self.topics)) for key in ("broker-a:0", "broker-a:1")}
        )
        super().__init__(members, questions)
        self.tables = TopicTables(members, questions, self, clock=self.clock)

    async def topics(self, *, include_system: bool, without_queues: bool) -> list[admin_pb.TopicStatus]:
        assert include_system
        assert without_queues
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [admin_pb.TopicStatus(topic=name) for name in self.topics_held]

    async def brokers(self) -> list[Answer[list[nameserver_pb.RegisteredBroker]]]:
        if not self.are_name_servers_up:
            return []
        known = [
            nameserver_pb.RegisteredBroker(
                identity=nameserver_pb.BrokerIdentity(broker_name="broker-a", broker_id=broker_id),
                data_version=nameserver_pb.DataVersion(counter=self.version),
            )
            for broker_id in (0, 1)
        ]
        return [Answer("10.0.0.1:9876", "", known)]

    async def names_after(self, passed_ms: int) -> list[tuple[str, str]]:
        self.clock.advance(passed_ms)
        return [(name, category) for name, _, category in (await self.tables.get()).names]


async def test_an_unchanged_table_is_not_read_again_for_a_minute() -> None:
    cluster = Cluster()
    expected = [("%DLQ%g", "dead letter"), ("broker-a", "system"), ("orders", "topic")]
    for _ in range(20):
        assert await cluster.names_after(2_500) == expected
    assert cluster.asked == 1
    for _ in range(20):
        await cluster.names_after(2_500)
    assert cluster.asked == 2


async def test_a_changed_table_is_read_again() -> None:
    cluster = Cluster()
    await cluster.names_after(0)
    cluster.topics_held.append("payments")
    cluster.version += 1
    assert ("payments", "topic") not in await cluster.names_after(2_000)
    assert ("payments", "topic") in await cluster.names_after(1)
    cluster.topics_held.remove("payments")
    cluster.tables.forget()
    assert ("payments", "topic") not in await cluster.names_after(0)


async def test_without_name_servers_it_is_read_every_time() -> None:
    cluster = Cluster()
    await cluster.names_after(0)
    cluster.are_name_servers_up = False
    await cluster.names_after(2_500)
    await cluster.names_after(2_500)
    assert cluster.asked == 3


async def test_a_broker_that_did_not_tell_is_asked_again() -> None:
    cluster = Cluster()
    cluster.failure = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED)
    assert await cluster.names_after(0) == []
    assert [each.subject for each in (await cluster.tables.get()).unseen] == ["broker-a:0"]
    cluster.failure = None
    assert len(await cluster.names_after(2_500)) == 3


async def test_a_slave_that_stands_in_is_read_and_said() -> None:
    cluster = Cluster()
    await cluster.names_after(0)
    [first, second] = cluster.state.brokers
    cluster.state = replace(cluster.state, brokers=(replace(first, status=None, error="refused"), second))
    await cluster.names_after(2_500)
    assert cluster.asked == 2
    assert [each.subject for each in (await cluster.tables.get()).unseen] == ["broker-a:0"]

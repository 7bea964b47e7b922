"""NameServers and the brokers' links to them, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.certificates import NAME_SERVER, TestCertificates
from support.certificates import broker as broker_identity
from support.manual_time import ManualTime
from support.running_time import PATIENCE_S
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.group_memory import GroupMemory
from tandemmq.core.routing.route_table import RegistrationRefused
from tandemmq.core.routing.values import (
    BrokerEndpoints,
    BrokerIdentity,
    GroupMemoryAnswer,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    TopicQueues,
)
from tandemmq.http2.errors import TlsMode
from tandemmq.nameserver.name_server import serving
from tandemmq.nameserver.route_registry import GroupMemoryFile, RouteRegistry, StoreFolderError
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.logging import get_logger
from tandemmq.service.name_server_link import NameServerLinks
from tandemmq.service.route_messages import identity_message, registration_message
from tandemmq.service.service_channels import ServiceTls, use_service_tls

LOOPBACK = "127.0.0.1"
CLIENT_METADATA = (("x-mq-client-id", "test"),)
ACCESS_POINT = definition.Endpoints(scheme=definition.IPv4, addresses=[definition.Address(host=LOOPBACK, port=9876)])


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits for a condition that others bring about."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}") from None


@dataclass
class Broker:
    """What a broker tells NameServers."""

    broker_id: int = 0
    name: str = "broker-a"
    incarnation: int = 100
    liveness_timeout_ms: int = 10_000
    topics: tuple[str, ...] = ("orders",)
    data_version: DataVersion = field(default_factory=DataVersion)
    disk_id: str = ""
    run: int = 0
    epoch: int = 0
    end_offset: int = 0
    known_replicas: tuple[ReplicaMemory, ...] = ()
    recovering: str = ""
    unproven: bool = False
    record_version: tuple[int, int] = (0, 0)

    @property
    def identity(self) -> BrokerIdentity:
        return BrokerIdentity("DefaultCluster", self.name, self.broker_id)

    @property
    def client_endpoint(self) -> str:
        return f"{self.name}-{self.broker_id}:8081"

    def registration(self) -> Registration:
        return Registration(
            self.identity,
            BrokerEndpoints(self.client_endpoint, f"{self.name}-{self.broker_id}:10911", ""),
            self.incarnation,
            self.liveness_timeout_ms,
            self.data_version,
            tuple(TopicQueues(topic, 4, 4, 6) for topic in self.topics),
            self.disk_id,
            self.run,
            self.epoch,
            self.end_offset,
            self.known_replicas,
            self.recovering,
            unproven=self.unproven,
            record_version=self.record_version,
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
async def name_server(port: int = 0, *, folder: Path | None = None) -> AsyncIterator[NameServer]:
    settings = NameServerSettings(
        listen_port=port,
        bind_address=LOOPBACK,
        scan_not_active_broker_interval=20,
        shutdown_timeout=0,
        store_path_root_dir=str(folder or ""),
    )
    async with serving(settings, clock=SystemClock(), log=get_logger()) as (registry, bound):
        yield NameServer(registry, bound)


@dataclass
class Member:
    """A broker's links, running."""

    links: NameServerLinks
    broker: Broker
    masters: list[RegisteredBroker | None]
    superseded: list[str]
    task: asyncio.Task[None]

    @property
    def master(self) -> RegisteredBroker | None:
        """Of its group, as the NameServers tell; one that recovers is none."""
        name = self.broker.identity.broker_name
        group = [each for each in self.links.view.brokers if each.identity.broker_name == name]
        return next((each for each in group if each.is_master and not each.recovering), None)

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def linked(broker: Broker, *servers: NameServer) -> AsyncIterator[Member]:
    masters: list[RegisteredBroker | None] = []
    superseded: list[str] = []

    def note_master() -> None:
        master, before = member.master, masters[-1] if masters else None
        if (master and master.incarnation) != (before and before.incarnation):
            masters.append(master)

    links = NameServerLinks(
        [server.address for server in servers],
        clock=SystemClock(),
        log=get_logger(),
        chance=random.Random(1),
        registrant=broker,
        heartbeat_interval_ms=50,
        on_routes_changed=note_master,
        on_superseded=superseded.append,
    )
    links.announce()
    member = Member(links, broker, masters, superseded, asyncio.create_task(links.run()))
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
        await calls.RegisterBroker(registration_message(Broker(liveness_timeout_ms=2_000).registration()))
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
        async with asyncio.timeout(PATIENCE_S):
            await member.links.unregister()
        assert survivor.live() == []


class LaterClock(SystemClock):
    hours = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.hours * 3_600_000


@pytest.mark.parametrize("is_renewed", [True, False])
async def test_a_broker_that_renewed_its_certificate_is_there_when_the_old_one_ends(
    tmp_path: Path, is_renewed: bool
) -> None:
    """Its stream of heartbeats ends with the certificate that it began with, and with the stream its registration."""
    certificates, clock, lost = TestCertificates(tmp_path), LaterClock(), 0
    settings = NameServerSettings(
        listen_port=0,
        bind_address=LOOPBACK,
        shutdown_timeout=0,
        service_tls_mode=TlsMode.ENFORCING,
        service_tls_path=str(certificates.issue(NAME_SERVER)),
    )
    caller = certificates.issue(broker_identity(0), folder="caller", days=1)
    async with serving(settings, clock=clock, log=get_logger()) as (registry, port):
        server = NameServer(registry, port)
        with use_service_tls(ServiceTls(CertificateFolder(caller, clock=SystemClock()))):
            async with linked(Broker(), server) as member:
                await until(lambda: member.links.links[0].is_registered, "its heartbeats are answered")
                if not is_renewed:
                    clock.hours = 25
                    await until(lambda: not server.live(), "it ends with its certificate")
                    return
                link = member.links._links[0]
                before, activity = link.connection, registry.activity
                certificates.issue(broker_identity(0), folder="caller")
                await until(lambda: link.connection is not before, "it takes the new one")
                # One may have been under way on the old connection, and the next ends that.
                heartbeats = activity.heartbeats
                await until(lambda: activity.heartbeats >= heartbeats + 3, "it beats on the new connection")
                clock.hours = 25
                for _ in range(800):
                    lost += not server.live()
                    await asyncio.sleep(0.005)
    assert lost == 0


# Group memory


def memory_of(answer: GroupMemoryAnswer | None) -> list[tuple[int, str, int, int, int, bool, bool]]:
    assert answer is not None
    return [(m.broker_id, m.disk_id, m.run, m.epoch, m.end_offset, m.left, m.live) for m in answer.replicas]


def unannounced(broker: Broker, *addresses: str) -> NameServerLinks:
    """Links of a broker that asks before it says anything of itself."""
    return NameServerLinks(addresses, clock=SystemClock(), log=get_logger(), chance=random.Random(1), registrant=broker)


async def test_starting_broker_learns_which_disks_its_group_had_from_each_name_server() -> None:
    former = Broker(disk_id="disk-1", run=3, epoch=2, end_offset=700)
    slave = Broker(1, disk_id="disk-s", run=5, epoch=2, end_offset=650)
    async with (
        name_server() as first,
        name_server() as second,
        linked(former, first) as member,
        linked(slave, first),
    ):
        await until(lambda: len(first.live()) == 2, "registered")
        former.end_offset = 900
        await until(lambda: first.registry.table.brokers()[0].end_offset == 900, "its heartbeats tell the end")
        await member.kill()
        await until(lambda: len(first.live()) == 1, "killed")
        links = unannounced(Broker(disk_id="disk-2"), first.address, second.address, f"{LOOPBACK}:1")
        answers = await links.group_memory(limit_s=PATIENCE_S)
    assert memory_of(answers[first.address]) == [
        (0, "disk-1", 3, 2, 900, False, False),
        (1, "disk-s", 5, 2, 650, False, True),
    ]
    assert memory_of(answers[second.address]) == []
    assert answers[f"{LOOPBACK}:1"] is None
    known = answers[first.address]
    assert known is not None
    assert known.replicas[0].metadata_endpoint == "broker-a-0:10911"
    assert 0 <= known.memory_age_ms < 60_000
    assert abs(known.replicas[0].last_seen_wall_ms - SystemClock().wall_ms()) < 60_000


async def test_broker_tells_of_replicas_that_this_name_server_never_met() -> None:
    other = ReplicaMemory(1, "disk-s", 4, 2, 500, "slave:10911", 1_000, left=True)
    broker = Broker(disk_id="disk-1", run=1, epoch=2, known_replicas=(other,))
    async with name_server() as server, linked(broker, server):
        await until(server.live, "registered")
        assert server.registry.group_memory("DefaultCluster", "broker-a").replicas[1] == replace(other, unproven=True)


async def test_what_a_starting_broker_says_of_its_disk_is_marked_until_a_heartbeat_tells_that_it_is_proven() -> None:
    broker = Broker(disk_id="disk-1", run=2, epoch=1, end_offset=500, unproven=True)
    async with name_server() as server, linked(broker, server) as member:

        def unproven() -> list[bool]:
            return [each.unproven for each in server.registry.group_memory("DefaultCluster", "broker-a").replicas]

        await until(unproven, "heard of")
        assert unproven() == [True]
        broker.unproven = False
        await until(lambda: unproven() == [False], "proven")
        broker.unproven = True
        await member.links.unregister(is_log_closed=True)
        [known] = server.registry.group_memory("DefaultCluster", "broker-a").replicas
        assert (known.left, known.live) == (False, False), "where its log ends it did not say"


async def test_goodbye_is_remembered_with_the_end_of_the_closed_log() -> None:
    broker = Broker(disk_id="disk-1", run=3, epoch=2, end_offset=700)
    async with name_server() as server, linked(broker, server) as member:
        await until(server.live, "registered")
        await member.links.unregister()
        [known] = server.registry.group_memory("DefaultCluster", "broker-a").replicas
        assert (known.left, known.live) == (False, False)
        broker.end_offset = 720
        await member.links.unregister(is_log_closed=True)
        [known] = server.registry.group_memory("DefaultCluster", "broker-a").replicas
        assert (known.left, known.end_offset) == (True, 720)


async def test_memory_outlives_the_name_server_and_says_how_far_back_it_reaches(tmp_path: Path) -> None:
    broker = Broker(disk_id="disk-1", run=3, epoch=2, end_offset=700)
    async with name_server(folder=tmp_path / "deep" / "store") as server, linked(broker, server) as member:
        # And its heartbeats flow, so that their end is noticed at once.
        await until(lambda: member.links.links[0].is_registered, "registered")
        await member.kill()
        await until(lambda: not server.live(), "killed")
    file = tmp_path / "deep" / "store" / "groupMemory.json"
    age = json.loads(file.read_text())["content"]
    age["madeTime"] -= 3_600_000
    file.write_text(json.dumps({"crc32": zlib.crc32(json.dumps(age, sort_keys=True).encode()), "content": age}))
    async with name_server(folder=tmp_path / "deep" / "store") as server:
        answer = server.registry.group_memory("DefaultCluster", "broker-a")
    assert memory_of(answer) == [(0, "disk-1", 3, 2, 700, False, False)]
    assert answer.memory_age_ms >= 3_600_000


async def test_memory_is_written_while_the_name_server_runs(tmp_path: Path) -> None:
    file = tmp_path / "groupMemory.json"
    async with name_server(folder=tmp_path) as server, linked(Broker(disk_id="disk-1", run=3), server):
        await until(lambda: file.exists() and "disk-1" in file.read_text(), "written")


async def test_news_that_comes_during_the_last_write_is_written_as_well(tmp_path: Path) -> None:
    file = GroupMemoryFile(tmp_path, clock=SystemClock(), log=get_logger())
    assert file.load() is None
    memory = GroupMemory()
    keeping = asyncio.create_task(file.keep(memory))
    # Its first write is on the way, without this.
    await asyncio.sleep(0)
    memory.told_of_another(("DefaultCluster", "broker-a"), ReplicaMemory(0, "disk-1"))
    file.stop()
    async with asyncio.timeout(PATIENCE_S):
        await keeping
    file.close()
    written = GroupMemory.restored((tmp_path / "groupMemory.json").read_text())
    assert [each.disk_id for each in written.replicas(("DefaultCluster", "broker-a"))] == ["disk-1"]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"crc32": 1, "content": {}}'])
async def test_damaged_memory_is_kept_aside_and_the_start_goes_on(
    damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "groupMemory.json").write_bytes(damage)
    async with name_server(folder=tmp_path) as server:
        answer = server.registry.group_memory("DefaultCluster", "broker-a")
        assert (answer.replicas, answer.memory_age_ms < 60_000) == ((), True)
    [kept] = tmp_path.glob("groupMemory.json.damaged-*")
    assert kept.read_bytes() == damage
    assert "group_memory_damaged" in capsys.readouterr().out
    GroupMemory.restored((tmp_path / "groupMemory.json").read_text())


async def test_two_name_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    async with name_server(folder=tmp_path):
        with pytest.raises(StoreFolderError, match="another NameServer uses this folder"):
            async with name_server(folder=tmp_path):
                pass
    async with name_server(folder=tmp_path):
        pass


async def test_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFolderError, match=f"storePathRootDir={tmp_path / 'file'}: .*name a folder"):
        async with name_server(folder=tmp_path / "file"):
            pass


async def test_operator_gives_replicas_up() -> None:
    async with name_server() as server, linked(Broker(disk_id="disk-1"), server), stub(server) as calls:
        await until(server.live, "registered")
        for broker_id, disk_id in ((0, "disk-0"), (1, "disk-s"), (2, "disk-t")):
            server.registry.table.memory.told_of_another(
                ("DefaultCluster", "broker-a"), ReplicaMemory(broker_id, disk_id)
            )
        request = pb.ForgetReplicasRequest(cluster="DefaultCluster", broker_name="broker-a", broker_id=0)
        answer = await calls.ForgetReplicas(request)
        assert [each.disk_id for each in answer.forgotten] == ["disk-0"]
        request.ClearField("broker_id")
        answer = await calls.ForgetReplicas(request)
        assert [each.disk_id for each in answer.forgotten] == ["disk-s", "disk-t"]
        left = await calls.GetGroupMemory(pb.GetGroupMemoryRequest(cluster="DefaultCluster", broker_name="broker-a"))
        assert [each.disk_id for each in left.replicas] == ["disk-1"]
        with pytest.raises(grpc.aio.AioRpcError, match="broker_name is empty"):
            await calls.ForgetReplicas(pb.ForgetReplicasRequest(cluster="DefaultCluster"))


async def test_broker_that_recovers_is_seen_by_others_and_gets_its_route_when_it_serves() -> None:
    broker = Broker(disk_id="disk-1", run=2, recovering="waits for broker-a-1", topics=())
    async with name_server() as server, linked(broker, server) as member, linked(Broker(1, topics=()), server) as slave:
        await until(lambda: len(slave.links.view.brokers) == 2, "the slave sees it")
        assert slave.links.view.brokers[0].recovering == "waits for broker-a-1"
        assert slave.master is None
        broker.recovering, broker.topics, broker.data_version = "", ("orders",), broker.data_version.next(1)
        member.links.registration_changed()
        await until(lambda: slave.master, "the slave sees its master")
        await until(lambda: slave.links.route("orders"), "a route")


async def test_superseded_master_is_told_once_by_refusals() -> None:
    async with name_server() as first, name_server() as second:
        for server in (first, second):
            server.registry.table.memory.told_of_another(
                ("DefaultCluster", "broker-a"), ReplicaMemory(0, "disk-2", 1, 5)
            )
        async with linked(Broker(disk_id="disk-1", run=3, epoch=4), first, second) as member:
            await until(lambda: all("superseded" in link.error for link in member.links.links), "both refused")
            assert len(member.superseded) == 1
            assert "disk-2" in member.superseded[0]
            assert first.live() == second.live() == []


def test_who_is_refused_again_and_again_fills_no_disk_of_a_name_server_and_hides_nobody() -> None:
    clock = ManualTime()
    registry = RouteRegistry(clock=clock, log=get_logger())
    registry.table.memory.told_of_another(("DefaultCluster", "broker-a"), ReplicaMemory(0, "disk-2", 1, 5))
    stale = Broker(disk_id="disk-1", run=3, epoch=4).registration()
    with structlog.testing.capture_logs() as lines:
        for number in range(3_000):
            answer = registry.register(stale, peer=f"ipv4:10.0.0.7:{number}")
            assert isinstance(answer, RegistrationRefused)
            registry.tell_refused(Broker(name=f"broker-{number}").identity, "why", peer=f"ipv4:10.0.0.8:{number}")
        registry.tell_refused(BrokerIdentity("c" * 2_000_000, "b" * 2_000_000, 0), "w" * 2_000_000, peer="ipv4:::9")
        assert len(lines) == 1 + 25 + 1
        clock.advance(10_000)
        registry.register(stale, peer="ipv4:10.0.0.7:9")
    assert max(len(str(line)) for line in lines) < 2_000
    assert lines[-1]["not_told"] == 2_999
    assert sum(1 + line.get("not_told", 0) + line.get("others_not_told", 0) for line in lines) == 6_002
    assert registry.activity.registrations["refused"] == 3_001


@pytest.mark.parametrize("name", ["n", "b" * 300, "ü" * 5_000])
async def test_a_refusal_does_not_repeat_megabytes(name: str) -> None:
    async with name_server() as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = name_server_service_pb2_grpc.NameServerServiceStub(channel)
        request = registration_message(
            replace(Broker(name=name).registration(), endpoints=BrokerEndpoints("x" * 1_000_000, "", ""))
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RegisterBroker(request, timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(refused.value.details() or "") <= 1_000


async def test_superseded_master_is_told_by_heartbeats() -> None:
    async with name_server() as server, linked(Broker(disk_id="disk-1", run=3, epoch=4), server) as member:
        await until(server.live, "registered")
        later = ReplicaMemory(0, "disk-2", 1, 5)
        async with linked(Broker(1, disk_id="disk-s", known_replicas=(later,)), server):
            await until(lambda: member.superseded, "told")
            await until(lambda: len(server.live()) == 2, "both are registered")
    assert len(member.superseded) == 1
    assert "epoch 5 on disk disk-2" in member.superseded[0]


async def test_process_of_another_disk_waits_until_the_live_one_has_gone() -> None:
    second = Broker(incarnation=900, disk_id="disk-2", run=1, epoch=4)
    async with name_server() as server, linked(Broker(disk_id="disk-1", run=3, epoch=4), server) as first:
        await until(lambda: first.links.links[0].is_registered, "registered")
        async with linked(second, server) as waiting:
            await until(lambda: "disk-1" in waiting.links.links[0].error, "refused with words")
            assert [broker.disk_id for broker in server.registry.table.brokers()] == ["disk-1"]
            await first.kill()
            await until(lambda: waiting.links.links[0].is_registered, "its turn")
            assert waiting.superseded == []


async def test_registration_with_nonsense_about_disks_is_refused_by_field() -> None:
    broken = replace(Broker(disk_id="d" * 65, run=-1).registration(), known_replicas=(ReplicaMemory(1, ""),) * 257)
    async with name_server() as server, stub(server) as calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.RegisterBroker(registration_message(broken))
    for field_name in ("disk_id", "run, epoch, end_offset", "known_replicas has more", "an entry of known_replicas"):
        assert field_name in str(caught.value.details())


# Routes


async def test_slave_learns_of_its_master_and_of_its_loss() -> None:
    async with name_server() as first, name_server() as second, linked(Broker(1), first, second) as slave:
        await until(lambda: slave.links.view.brokers, "the slave sees itself")
        assert slave.master is None
        async with linked(Broker(0), first, second) as master:
            await until(lambda: all(link.is_registered for link in master.links.links), "the master is registered")
            await until(lambda: slave.master, "the slave sees its master")
            await until(lambda: len(slave.links.view.brokers) == 2, "both members are seen")
        await until(lambda: slave.master is None, "the slave sees that it is gone")
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
        async with asyncio.timeout(PATIENCE_S):
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
        assert -1_000 < age_ms < 1_000 * PATIENCE_S


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
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

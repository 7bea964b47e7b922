"""A NameServer and a broker group of real processes that know each other by certificates, among strangers."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.acknowledged_sends import AcknowledgedSender
from support.certificates import ADMIN, CLUSTER, GROUP, TestCertificates, broker, now
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, lasting_port, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.core.access.identity import AdminLevel, Identity, server_name
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.proto.broker.v1 import replica_service_pb2_grpc
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as ns_pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.service_channels import ServiceTls, use_service_tls

TOPIC = "orders"


@dataclass
class SecureGroup:
    certificates: TestCertificates
    cluster: ProcessCluster
    name_server: ServiceProcess
    master: ServiceProcess
    slave: ServiceProcess
    replicates_with_tls: bool

    def as_admin(self, level: AdminLevel = AdminLevel.REPAIR) -> ServiceTls:
        return ServiceTls(CertificateFolder(self.certificates.issue(ADMIN[level]), clock=SystemClock()))

    def slaves(self) -> list[int]:
        async def ask() -> list[int]:
            return [slave.broker_id for slave in (await broker_status(self.master)).slaves if slave.verified]

        with use_service_tls(self.as_admin()):
            return asyncio.run(ask())


@pytest.fixture(scope="module", params=["disabled", "enforcing"], ids=["plain replication", "replication with TLS"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGroup]:
    folder = tmp_path_factory.mktemp("secure")
    certificates = TestCertificates(folder / "certificates")
    with ProcessCluster(folder, certificates=certificates) as cluster:
        name_server = cluster.add_name_server()
        open_port = lasting_port()
        tls = {"haTlsMode": str(request.param)}
        master = cluster.add_broker(GROUP, broker_id=0, settings={"openListenPort": str(open_port), **tls})
        slave = cluster.add_broker(GROUP, broker_id=1, settings=tls)
        master.settings["openListenPort"] = str(open_port)
        made = SecureGroup(certificates, cluster, name_server, master, slave, request.param == "enforcing")
        with use_service_tls(made.as_admin()):
            asyncio.run(create_topic(master, TOPIC, queues=4))
        wait_until(lambda: made.slaves() == [1], limit_s=PATIENCE_S, what="the slave is in sync")
        yield made


@contextmanager
def stranger(group: SecureGroup, process: ServiceProcess, identity: Identity | None) -> Iterator[grpc.Channel]:
    """A channel of somebody with this identity, or with none, who takes the server for one of his own."""
    target = f"127.0.0.1:{process.ports['listenPort']}"
    if identity is None:
        with grpc.insecure_channel(target) as channel:
            yield channel
        return
    chain, key = group.certificates.authority.issue(identity, now=now(), days=1)
    credentials = grpc.ssl_channel_credentials(group.certificates.authority.pem, key, chain)
    name = ("grpc.ssl_target_name_override", server_name(CLUSTER))
    with grpc.secure_channel(target, credentials, options=(name,)) as channel:
        yield channel


def _code(error: pytest.ExceptionInfo[grpc.RpcError]) -> str:
    return str(error.value.code().name)


def _registration(group: str, broker_id: int, *, cluster: str = CLUSTER) -> ns_pb.RegisterBrokerRequest:
    request = ns_pb.RegisterBrokerRequest(
        identity=ns_pb.BrokerIdentity(cluster=cluster, broker_name=group, broker_id=broker_id),
        incarnation=1 << 60,
        epoch=1 << 40,
        disk_id="stranger",
    )
    request.endpoints.client = request.endpoints.ha = request.endpoints.metadata = "10.6.6.6:1"
    request.liveness_timeout.FromMilliseconds(60_000)
    return request


def _brokers(group: SecureGroup) -> set[tuple[str, int, str]]:
    with stranger(group, group.name_server, ADMIN[AdminLevel.VIEWER]) as channel:
        stub = name_server_service_pb2_grpc.NameServerServiceStub(channel)
        answer = stub.ListBrokers(ns_pb.ListBrokersRequest(), timeout=PATIENCE_S)
    return {(each.identity.broker_name, each.identity.broker_id, each.endpoints.ha) for each in answer.brokers}


@pytest.mark.parametrize(
    ("identity", "code", "words"),
    [
        (None, "UNAVAILABLE", ""),
        (ADMIN[AdminLevel.REPAIR], "PERMISSION_DENIED", "it takes a broker"),
        (broker(0, group="broker-b"), "PERMISSION_DENIED", "is of broker group broker-b"),
        (broker(1), "PERMISSION_DENIED", "is of broker-a:1, the call speaks for broker-a:0"),
        (broker(0, cluster="OtherCluster"), "PERMISSION_DENIED", "is of cluster OtherCluster"),
    ],
)
def test_nobody_else_registers_as_the_master_or_takes_it_away(
    group: SecureGroup, identity: Identity | None, code: str, words: str
) -> None:
    before = _brokers(group)
    assert {(name, broker_id) for name, broker_id, _ in before} == {(GROUP, 0), (GROUP, 1)}
    request = _registration(GROUP, 0)
    with stranger(group, group.name_server, identity) as channel:
        stub = name_server_service_pb2_grpc.NameServerServiceStub(channel)
        calls: list[tuple[object, Message]] = [
            (stub.RegisterBroker, request),
            (stub.UnregisterBroker, ns_pb.UnregisterBrokerRequest(identity=request.identity, incarnation=1 << 60)),
        ]
        for call, message in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call(message, timeout=PATIENCE_S)  # type: ignore[operator]
            assert _code(refused) == code
            assert words in str(refused.value)
        beat = ns_pb.HeartbeatRequest(identity=request.identity, incarnation=1 << 60, epoch=1 << 40)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Heartbeat(iter([beat]), timeout=PATIENCE_S))
        assert _code(refused) == code
    assert _brokers(group) == before


def test_a_member_cannot_prove_another_members_log(group: SecureGroup) -> None:
    request = replica_pb.VerifyReplicaRequest(
        cluster=CLUSTER, broker_name=GROUP, broker_id=2, disk_id="x", connection="127.0.0.1:9"
    )
    with stranger(group, group.master, broker(1)) as channel, pytest.raises(grpc.RpcError) as refused:
        replica_service_pb2_grpc.ReplicaServiceStub(channel).VerifyReplica(request, timeout=PATIENCE_S)
    assert "the call speaks for broker-a:2" in str(refused.value)
    with stranger(group, group.master, broker(0, group="broker-b")) as channel, pytest.raises(grpc.RpcError) as refused:
        replica_service_pb2_grpc.ReplicaServiceStub(channel).VerifyReplica(request, timeout=PATIENCE_S)
    assert _code(refused) == "PERMISSION_DENIED"


def test_probes_need_no_certificate_on_their_own_port_and_nothing_else_is_there(group: SecureGroup) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{group.master.settings['openListenPort']}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service="tandemmq.probe.ready"), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            replica_service_pb2_grpc.ReplicaServiceStub(channel).GetLogExtent(
                replica_pb.GetLogExtentRequest(), timeout=PATIENCE_S
            )
        assert _code(refused) == "UNIMPLEMENTED"


def _send(group: SecureGroup, *, timeout_s: float = PATIENCE_S) -> int:
    """The status code of one send, which waits for a slave."""
    target = f"127.0.0.1:{group.master.ports['grpcServerPort']}"
    with grpc.insecure_channel(target) as channel:
        call = MessagingServiceStub(channel).SendMessage
        message = definition.Message(topic=definition.Resource(name=TOPIC), body=b"x")
        message.system_properties.message_id = f"01{time.time_ns():032X}"
        message.system_properties.message_type = definition.NORMAL
        metadata = (("x-mq-client-id", "secure@1@0@0"), ("x-mq-language", "PYTHON"))
        answer = call(service.SendMessageRequest(messages=[message]), metadata=metadata, timeout=timeout_s)
        return int(answer.status.code)


def test_a_stranger_on_the_replication_port_acknowledges_nothing(group: SecureGroup) -> None:
    assert _send(group) == definition.OK
    group.slave.stop()
    end_offset = sum(map(len, commit_log_bytes(group.cluster.store_folder("broker-a-0")).values()))
    strangers = []
    try:
        for offset in (0, 1, end_offset, 1 << 40, -1, -2):
            sock = socket.create_connection(("127.0.0.1", group.master.ports["haListenPort"]), timeout=PATIENCE_S)
            strangers.append(sock)
            sock.sendall(struct.pack(">q", offset))
        with use_service_tls(group.as_admin()):
            status = asyncio.run(broker_status(group.master))
        # At whatever the log's end is now, too.
        sock = socket.create_connection(("127.0.0.1", group.master.ports["haListenPort"]), timeout=PATIENCE_S)
        strangers.append(sock)
        sock.sendall(struct.pack(">q", status.end_offset))
        try:
            heard = sock.recv(64)
        except ConnectionResetError:
            heard = b""
        assert heard == b"", "closed, and not a byte of the log given away"
        assert group.slaves() == []
        assert _send(group) != definition.OK
    finally:
        for sock in strangers:
            sock.close()
        group.slave.start()
    wait_until(lambda: group.slaves() == [1], limit_s=PATIENCE_S, what="the slave is back")
    assert _send(group) == definition.OK


def test_certificates_change_under_load_and_no_send_fails(group: SecureGroup) -> None:
    processes = (group.name_server, group.master, group.slave)
    with AcknowledgedSender(group.master, TOPIC, inflight=4, pause_s=0.01) as sender:
        for _ in range(2):
            taken = {process.name: _taken(process) for process in processes}
            acknowledged = len(sender.acknowledged)
            for process in processes:
                folder = Path(process.settings["serviceTlsPath"])
                found = CertificateFolder(folder, clock=SystemClock()).current()
                group.certificates.issue(found.identity, folder=folder.name)
            for process in processes:
                _wait_until_taken(group, process, after=taken[process.name])
            _wait_until_sent(sender, acknowledged + 50)
    assert (sender.failed, sender.refused) == (0, 0)
    assert group.slaves() == [1]
    # It connects again with the new ones.
    group.slave.stop()
    group.slave.start()
    wait_until(lambda: group.slaves() == [1], limit_s=PATIENCE_S, what="the slave is back")
    assert _send(group) == definition.OK
    secured = [event for event in group.master.events() if event.get("event") == "slave_secured"]
    assert bool(secured) == group.replicates_with_tls


def _wait_until_taken(group: SecureGroup, process: ServiceProcess, *, after: int) -> None:
    def is_taken() -> bool:
        # Files are looked at when somebody comes.
        with stranger(group, process, ADMIN[AdminLevel.VIEWER]) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        return _taken(process) > after

    wait_until(is_taken, limit_s=PATIENCE_S, what=f"{process.name} has taken its new certificate")


def _wait_until_sent(sender: AcknowledgedSender, count: int) -> None:
    wait_until(lambda: len(sender.acknowledged) > count, limit_s=PATIENCE_S, what="sends go on")


def _taken(process: ServiceProcess) -> int:
    return sum(1 for event in process.events() if event.get("event") == "certificates_taken")

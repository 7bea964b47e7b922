"""What a broker does for an orchestrator, over real processes: probes, drain, look at its peers, external listener."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demo.evidence import logged_message_ids
from support.acknowledged_sends import METADATA, AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, lasting_port, wait_until
from support.running_time import PATIENCE_S, run_program
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

TOPIC = "in-cluster"
STARTED, LIVE, READY = "tandemmq.probe.started", "tandemmq.probe.live", "tandemmq.probe.ready"


def health(process: ServiceProcess, name: str) -> bool:
    """One probe, as kubelet asks it."""
    with grpc.insecure_channel(f"127.0.0.1:{process.ports['listenPort']}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S
        )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def admin_call(process: ServiceProcess, method: str, request: object) -> object:
    """One call of a broker's admin plane."""
    with grpc.insecure_channel(f"127.0.0.1:{process.ports['listenPort']}") as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        return getattr(stub, method)(request, timeout=PATIENCE_S)


def is_in_sync(master: ServiceProcess) -> bool:
    return any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves)


def start_pair(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess]:
    """A NameServer, a SYNC_MASTER and its slave, in sync."""
    cluster.add_name_server()
    master = cluster.add_broker("broker-a", settings={"drainGracePeriod": "300"})
    slave = cluster.add_broker("broker-a", broker_id=1)
    asyncio.run(create_topic(master, TOPIC))
    wait_until(lambda: is_in_sync(master), limit_s=120, what="the slave is in sync")
    return master, slave


def routed_hosts(endpoint: str) -> list[str]:
    """Where a client is sent that asks at `endpoint`."""
    host, port = endpoint.rsplit(":", 1)
    access_point = definition.Endpoints(
        scheme=definition.IPv4, addresses=[definition.Address(host=host, port=int(port))]
    )
    with grpc.insecure_channel(endpoint) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        topic = definition.Resource(name=TOPIC)
        route = stub.QueryRoute(
            service.QueryRouteRequest(topic=topic, endpoints=access_point), metadata=METADATA, timeout=PATIENCE_S
        )
        assignment = stub.QueryAssignment(
            service.QueryAssignmentRequest(
                topic=topic, group=definition.Resource(name="readers"), endpoints=access_point
            ),
            metadata=METADATA,
            timeout=PATIENCE_S,
        )
    queues = [*route.message_queues, *(item.message_queue for item in assignment.assignments)]
    return sorted({f"{a.host}:{a.port}" for queue in queues for a in queue.broker.endpoints.addresses})


def test_probes_tell_started_live_and_ready_apart(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        wait_until(lambda: health(slave, READY), limit_s=120, what="the slave is ready")
        for process in (master, slave):
            assert [health(process, name) for name in (STARTED, LIVE, READY, "")] == [True] * 4
        name_server = cluster.name_servers[0]
        assert health(name_server, STARTED)
        assert health(name_server, LIVE)
        wait_until(lambda: health(name_server, READY), limit_s=120, what="the NameServer has warmed up")

        slave.kill()
        # A master without its slave works on; that its group must not lose it is the disruption budget's to see.
        assert health(master, READY)
        slave.start()
        wait_until(lambda: health(slave, READY), limit_s=120, what="the slave is ready again")
        master.kill()
        wait_until(lambda: not health(slave, READY), limit_s=120, what="a slave without a master is not ready")
        assert [health(slave, name) for name in (STARTED, LIVE)] == [True, True]


def test_drained_master_leaves_nothing_to_lose(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 200, limit_s=120, what="200 acknowledged sends")
            result = run_program(
                [sys.executable, "-m", "tandemmq.broker.drain", "--limit", "60000"],
                env={"TANDEMMQ_LISTEN_PORT": str(master.ports["listenPort"])},
            )
            line = json.loads(result.stdout)
            assert result.returncode == 0, result.stderr
            assert line["slaves_hold_everything"], line
            assert 300 <= line["waited_ms"] < 60_000
            wait_until(lambda: sender.refused > 0, limit_s=120, what="a drained master refuses sends")
            count = len(sender.acknowledged)
        assert not health(master, READY)
        assert not health(master, "")
        assert health(master, LIVE)
        assert len(sender.acknowledged) == count
        status = asyncio.run(broker_status(slave))
        assert status.end_offset == line["end_offset"]
        again = admin_call(master, "Drain", pb.DrainRequest(time_limit_ms=60_000))
        assert isinstance(again, pb.DrainResponse)
        assert again.slaves_hold_everything
        assert again.waited_ms < 30_000
        # Killed, as if the pod's time was over: the slave has it all.
        master.kill()
        assert slave.stop() == 0
        assert set(sender.acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-1"))
        master.start()
        assert master.stop() == 0
        ours, theirs = (commit_log_bytes(cluster.store_folder(f"broker-a-{number}")) for number in (0, 1))
        assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def test_drained_slave_leaves_at_once_and_follows_on(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        answer = admin_call(slave, "Drain", pb.DrainRequest(time_limit_ms=60_000))
        assert isinstance(answer, pb.DrainResponse)
        assert answer.slaves_hold_everything
        assert answer.waited_ms < 30_000
        assert not health(slave, READY)
        assert is_in_sync(master)
        with pytest.raises(grpc.RpcError, match="time_limit_ms: -1 is negative"):
            admin_call(master, "Drain", pb.DrainRequest(time_limit_ms=-1))
        assert health(master, READY)


def test_drain_command_never_fails_a_stop(tmp_path: Path) -> None:
    result = run_program(
        [sys.executable, "-m", "tandemmq.broker.drain", "--limit", "500", "--target", f"127.0.0.1:{lasting_port()}"]
    )
    assert result.returncode == 0
    assert json.loads(result.stdout)["event"] == "drain_failed"


def test_peers_are_probed_both_ways(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        of_slave = admin_call(slave, "ProbePeers", pb.ProbePeersRequest())
        of_master = admin_call(master, "ProbePeers", pb.ProbePeersRequest())
        assert isinstance(of_slave, pb.ProbePeersResponse)
        assert isinstance(of_master, pb.ProbePeersResponse)
        name_server = cluster.namesrv_addr
        assert [(p.peer, p.plane, p.reachable, p.resolved_ip) for p in of_slave.probes] == [
            (name_server, "nameserver", True, "127.0.0.1"),
            ("broker-a:0", "ha", True, "127.0.0.1"),
            ("broker-a:0", "metadata", True, "127.0.0.1"),
        ]
        assert [(p.peer, p.plane, p.reachable) for p in of_master.probes] == [
            (name_server, "nameserver", True),
            ("broker-a:1", "metadata", True),
        ]
        assert list(of_master.problems) == []
        assert of_master.disk.path == str(cluster.store_folder("broker-a-0"))
        assert 0 < of_master.disk.free_bytes < of_master.disk.total_bytes
        assert of_master.disk.warning_ratio == pytest.approx(0.99)

        cluster.name_servers[0].kill()

        def sees_the_loss() -> bool:
            answer = admin_call(master, "ProbePeers", pb.ProbePeersRequest())
            assert isinstance(answer, pb.ProbePeersResponse)
            return bool(answer.problems) and not answer.probes[0].reachable and bool(answer.probes[0].error)

        wait_until(sees_the_loss, limit_s=120, what="the master sees that the NameServer is gone")


def test_external_listener_names_external_endpoints_only(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        port = lasting_port()
        external = {
            "externalListenPort": str(port),
            "externalAdvertisedHost": "mq.example.org",
            "externalAdvertisedPort": "30081",
        }
        with_external = cluster.add_broker("broker-a", settings={"brokerRole": "ASYNC_MASTER", **external})
        without = cluster.add_broker("broker-b", settings={"brokerRole": "ASYNC_MASTER"})
        for broker in (with_external, without):
            asyncio.run(create_topic(broker, TOPIC))
        inside = f"127.0.0.1:{with_external.ports['grpcServerPort']}"
        inside_too = f"127.0.0.1:{without.ports['grpcServerPort']}"
        wait_until(lambda: routed_hosts(inside) == sorted([inside, inside_too]), limit_s=120, what="both are routed")
        assert routed_hosts(f"127.0.0.1:{port}") == ["mq.example.org:30081"]
        with_external.ports["grpcServerPort"] = port
        with AcknowledgedSender(with_external, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 20, limit_s=120, what="sends through the external listener")


def test_broker_refuses_to_advertise_loopback_in_a_cluster(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tandemmq.broker",
        "--set",
        f"storePathRootDir={tmp_path}",
        "--set",
        "bindAddress=127.0.0.1",
    ]
    for key in ("listenPort", "haListenPort", "grpcServerPort"):
        command += ["--set", f"{key}=0"]
    refused = run_program([*command, "--set", "namesrvAddr=192.0.2.7:9876"])
    assert refused.returncode == 2
    assert refused.stderr.startswith("brokerIP1=127.0.0.1: is loopback, but NameServer 192.0.2.7:9876 is on another")
    by_name = run_program([*command, "--set", "namesrvAddr=name-server.invalid:9876"])
    assert by_name.returncode == 75, "the name may get an address that is this machine's, too"
    assert "brokerIP1=127.0.0.1: is loopback, but NameServer name-server.invalid:9876" in by_name.stdout
    unresolved = run_program([*command, "--set", "brokerIP1=broker.invalid", "--set", "addressResolveTimeout=700"])
    assert unresolved.returncode == 75
    assert unresolved.stdout.count("advertised_name_does_not_resolve") == 1
    assert "brokerIP1=broker.invalid: does not resolve" in unresolved.stdout

"""One face for both systems: a NameServer, a master, its slave, and the address of the client API.

Both run the preset 2m-2s-sync of one broker group: SYNC_MASTER with inSyncReplicas=2, so that a send waits for its
slave, ASYNC_FLUSH, every other setting at its default. A pair with `synchronous=False` is an ASYNC_MASTER, which can be
filled without a slave.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import grpc

ROOT: Final = Path(__file__).resolve().parent.parent
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))

from processes import MeasurementFailed, free_port, wait_for
from support.cluster_processes import ServiceProcess
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc, broker_operations_service_pb2_grpc
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as reader_pb
from tandemmq.proto.broker.v1.replica_reader_service_pb2_grpc import ReplicaReaderServiceStub

START_LIMIT_S: Final = 120.0
IN_SYNC_LIMIT_S: Final = 60.0
RPC_LIMIT_S: Final = 10.0


class Member(StrEnum):
    """The two brokers of a group."""

    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a broker's store is, in bytes of its CommitLog."""

    end_offset: int
    # ConsumeQueue entries are built up to here.
    dispatched_offset: int


class SystemUnderTest(Protocol):
    """What a measurement may ask of a system. Stores survive `stop` and `kill`; `wipe` empties one."""

    @property
    def label(self) -> str:
        """Name in rows and tables."""

    @property
    def endpoint(self) -> str:
        """host:port of the client API (gRPC)."""

    @property
    def ha_port(self) -> int:
        """Port of the master that slaves connect to."""

    def pids(self) -> dict[str, int]:
        """Running processes a message passes, by name: master, slave and, if it stands apart, proxy."""

    def start(self, *, with_slave: bool = True) -> None:
        """Starts everything; returns when the client API is open and the slave, if wanted, is in sync."""

    def launch(self, member: Member) -> None:
        """Starts one broker again without waiting for it."""

    def stop(self, member: Member, *, kill: bool = False) -> None:
        """Ends one broker in order, or by SIGKILL."""

    def stop_all(self) -> None:
        """Ends every process of the system."""

    def pause(self) -> None:
        """Takes the system's idle work off the CPUs while another system is measured."""

    def resume(self) -> None:
        """Ends a pause."""

    def wipe(self, member: Member) -> None:
        """Removes the store of a stopped broker."""

    def create_topic(self, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
        """Creates a topic on the master."""

    def create_group(self, group: str, *, ordered: bool = False) -> None:
        """Makes a consumer group known, where that is needed."""

    def progress(self, member: Member) -> Progress | None:
        """How far a broker is; None while it does not answer."""

    def store_folder(self, member: Member) -> Path:
        """Where a broker keeps its files."""


def tls_settings(folder: Path) -> dict[str, str]:
    """Of a broker that takes plain clients and TLS, with the certificate that `make_certificate` puts there."""
    return {
        "tlsMode": "permissive",
        "tlsCertPath": str(folder / "tls.crt"),
        "tlsKeyPath": str(folder / "tls.key"),
    }


def make_certificate(folder: Path) -> None:
    """A certificate for this machine, as cert-manager makes them by default for servers: ECDSA on P-256."""
    folder.mkdir(parents=True, exist_ok=True)
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    paths = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    made = subprocess.run(["openssl", *request.split(), *paths], capture_output=True, text=True, check=False)
    if made.returncode:
        raise MeasurementFailed(f"openssl makes no certificate: {made.stderr.strip()[-300:]}")


@dataclass
class TandemPair:
    """TandemMQ: one NameServer, one master, one slave, as `python -m` processes."""

    folder: Path
    label: str = "tandemmq"
    synchronous: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    _processes: dict[str, ServiceProcess] = field(default_factory=dict)
    _channels: dict[Member, grpc.Channel] = field(default_factory=dict)

    def _service(self, name: str, module: str, settings: Mapping[str, str], port_keys: tuple[str, ...]) -> None:
        self._processes[name] = ServiceProcess(
            name=f"{self.label}-{name}",
            module=module,
            settings=dict(settings),
            log_path=self.folder / "logs" / f"{name}.log",
            port_keys=port_keys,
            ports={key: free_port() for key in port_keys},
            start_limit_s=START_LIMIT_S,
        )

    def _prepare(self) -> None:
        """Settings and ports of all processes; done once, a restarted process keeps them."""
        if self._processes:
            return
        self._service("namesrv", "tandemmq.nameserver", {"bindAddress": "127.0.0.1"}, ("listenPort",))
        role = "SYNC_MASTER" if self.synchronous else "ASYNC_MASTER"
        for member in Member:
            is_master = member is Member.MASTER
            broker = {
                "brokerName": "broker-a",
                "brokerId": "0" if is_master else "1",
                "brokerRole": role if is_master else "SLAVE",
                "namesrvAddr": f"127.0.0.1:{self._processes['namesrv'].ports['listenPort']}",
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "storePathRootDir": str(self.store_folder(member)),
                # RocketMQ's pop starts a new group at the oldest message while the queue is in memory, as it is here.
                "consumeFromEarliest": "true",
                **({"inSyncReplicas": "2"} if is_master and self.synchronous else {}),
                **self.settings,
            }
            self._service(member, "tandemmq.broker", broker, ("listenPort", "haListenPort", "grpcServerPort"))

    @property
    def endpoint(self) -> str:
        """Client API of the master."""
        return f"127.0.0.1:{self._processes[Member.MASTER].ports['grpcServerPort']}"

    @property
    def ha_port(self) -> int:
        """Replication port of the master."""
        return self._processes[Member.MASTER].ports["haListenPort"]

    def pids(self) -> dict[str, int]:
        """Master and slave, if they run."""
        found = {}
        for member in Member:
            broker = self._processes.get(member)
            if broker is not None and broker.process is not None and broker.process.poll() is None:
                found[str(member)] = broker.pid
        return found

    def start(self, *, with_slave: bool = True) -> None:
        """Starts NameServer, master and slave."""
        self._prepare()
        for name in ("namesrv", Member.MASTER, *((Member.SLAVE,) if with_slave else ())):
            try:
                self._processes[name].start()
            except AssertionError as error:
                raise MeasurementFailed(f"{self.label}: {error}") from error
        if with_slave:
            wait_for(self._slave_is_in_sync, limit_s=IN_SYNC_LIMIT_S, what=f"the slave of {self.label} is in sync")

    def launch(self, member: Member) -> None:
        """Starts a broker on the ports it had."""
        self._processes[member].start(wait=False)

    def stop(self, member: Member, *, kill: bool = False) -> None:
        """SIGTERM or SIGKILL to a broker."""
        broker = self._processes[member]
        if kill:
            broker.kill()
        elif broker.process is not None:
            broker.stop()

    def stop_all(self) -> None:
        """Kills what runs: a store that is thrown away needs no orderly end."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        for process in self._processes.values():
            process.kill()

    def pause(self) -> None:
        """Nothing: idle, both brokers together use some 1 % of a CPU, and timeouts of theirs would run on."""

    def resume(self) -> None:
        """Nothing."""

    def wipe(self, member: Member) -> None:
        """Removes the store."""
        shutil.rmtree(self.store_folder(member), ignore_errors=True)

    def store_folder(self, member: Member) -> Path:
        """Below our folder."""
        return self.folder / f"store-{member}"

    def _channel(self, member: Member) -> grpc.Channel:
        if member not in self._channels:
            self._channels[member] = grpc.insecure_channel(
                f"127.0.0.1:{self._processes[member].ports['listenPort']}",
                options=[("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)],
            )
        return self._channels[member]

    def _stub(self, member: Member) -> broker_admin_service_pb2_grpc.BrokerAdminServiceStub:
        return broker_admin_service_pb2_grpc.BrokerAdminServiceStub(self._channel(member))

    def _status(self, member: Member) -> pb.GetBrokerStatusResponse | None:
        try:
            status: pb.GetBrokerStatusResponse = self._stub(member).GetBrokerStatus(
                pb.GetBrokerStatusRequest(), timeout=RPC_LIMIT_S
            )
        except grpc.RpcError:
            return None
        return status

    def _slave_is_in_sync(self) -> bool:
        status = self._status(Member.MASTER)
        return status is not None and any(slave.in_sync for slave in status.slaves)

    def create_topic(self, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
        """Through the admin plane."""
        request = pb.UpdateTopicRequest(
            topic=topic, read_queue_count=queues, write_queue_count=queues, message_type=message_type
        )
        self._stub(Member.MASTER).UpdateTopic(request, timeout=RPC_LIMIT_S)

    def change_settings(self, settings: Mapping[str, str]) -> None:
        """Of the master, until its next start."""
        stub = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(self._channel(Member.MASTER))
        stub.UpdateConfig(operations_pb.UpdateConfigRequest(values=settings), timeout=RPC_LIMIT_S)

    def create_group(self, group: str, *, ordered: bool = False) -> None:
        """Nothing for an ordinary one: the first receive creates it."""
        if ordered:
            request = pb.UpdateSubscriptionGroupRequest(group=group, consume_message_orderly=True)
            self._stub(Member.MASTER).UpdateSubscriptionGroup(request, timeout=RPC_LIMIT_S)

    def progress(self, member: Member) -> Progress | None:
        """From the broker's status."""
        status = self._status(member)
        return None if status is None else Progress(status.end_offset, status.dispatched_offset)

    def is_saved(self, member: Member) -> bool:
        """Whether every message of a broker has its ConsumeQueue entry in a file."""
        stub = ReplicaReaderServiceStub(self._channel(member))
        state = stub.DescribeReplica(reader_pb.DescribeReplicaRequest(), timeout=RPC_LIMIT_S)
        return bool(state.queues_offset == state.end_offset)

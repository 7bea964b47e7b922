"""A RocketMQ broker group: NameServer, master, slave and the gRPC proxy, apart or inside the broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from peer.installation import Installation
from peer.remoting import Credentials, RemotingAdmin
from processes import ChildProcess, MeasurementFailed, free_port, wait_for
from system_under_test import Member, Progress

START_LIMIT_S: Final = 120.0
IN_SYNC_LIMIT_S: Final = 60.0
NAMESRV, PROXY = "namesrv", "proxy"
_AUTH: Final = "org.apache.rocketmq.auth"
# A broker listens for its fast channel two below listenPort.
FAST_PORT_DISTANCE: Final = 2
NAMESRV_HEAP, BROKER_HEAP, PROXY_HEAP, BROKER_AND_PROXY_HEAP = "256m", "1g", "1g", "2g"


class ProxyMode(StrEnum):
    """Where the gRPC proxy is: a process of its own (cluster), or in the master's (local)."""

    CLUSTER = "cluster"
    LOCAL = "local"


@dataclass
class RocketPair:
    """Processes of one broker group and its proxy; every port is our own choice, so that several groups can run."""

    folder: Path
    installation: Installation
    proxy_mode: ProxyMode
    synchronous: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    certificate: tuple[Path, Path] | None = None
    """Certificate and key of the proxy in the broker; without it, one that RocketMQ makes."""
    credentials: Credentials | None = None
    """The first, super user of a group that asks who calls, by the proxy in the broker."""
    _processes: dict[str, ChildProcess] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """rocketmq_local or rocketmq_cluster."""
        return f"rocketmq_{self.proxy_mode}"

    @property
    def endpoint(self) -> str:
        """The proxy's gRPC port."""
        return f"127.0.0.1:{self._ports['grpc']}"

    @property
    def namesrv_endpoint(self) -> str:
        """Where clients of the remoting protocol begin."""
        return f"127.0.0.1:{self._ports[NAMESRV]}"

    @property
    def ha_port(self) -> int:
        """Replication port of the master."""
        return self._ports["master-ha"]

    def _process(self, name: str, command: list[str]) -> None:
        self._processes[name] = ChildProcess(
            name=f"{self.label}-{name}",
            command=command,
            log_path=self.folder / "logs" / f"{name}.out",
            environment={"ROCKETMQ_HOME": str(self.installation.folder), "NAMESRV_ADDR": self.namesrv_endpoint},
        )

    def _prepare(self) -> None:
        """Configuration files, ports and command lines; done once."""
        if self._processes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = {name: free_port() for name in (NAMESRV, "grpc", "proxy-remoting", "master-ha", "slave-ha")}
        self._ports |= {str(member): free_port(also_below=FAST_PORT_DISTANCE) for member in Member}
        self._process(
            NAMESRV,
            self.installation.java(
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                *("-c", self._properties("namesrv", {"listenPort": str(self._ports[NAMESRV])})),
                heap=NAMESRV_HEAP,
                home=self.folder / "logs" / NAMESRV,
            ),
        )
        broker = "org.apache.rocketmq.broker.BrokerStartup"
        if self.proxy_mode is ProxyMode.LOCAL:
            master = self._proxy_command("-bc", self._broker_file(Member.MASTER), heap=BROKER_AND_PROXY_HEAP)
        else:
            master = self._broker_command(broker, Member.MASTER)
            self._process(PROXY, self._proxy_command(heap=PROXY_HEAP))
        self._process(Member.MASTER, master)
        self._process(Member.SLAVE, self._broker_command(broker, Member.SLAVE))

    def _broker_command(self, main_class: str, member: Member) -> list[str]:
        home = self.folder / "logs" / member
        return self.installation.java(
            main_class, "-c", self._broker_file(member), heap=BROKER_HEAP, home=home, pretouch=True
        )

    def _proxy_command(self, *arguments: str, heap: str) -> list[str]:
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.namesrv_endpoint,
            "localServeAddr": "127.0.0.1",
            "grpcServerPort": self._ports["grpc"],
            "remotingListenPort": self._ports["proxy-remoting"],
            "useEndpointPortFromRequest": True,
            **self._access("org.apache.rocketmq.proxy.auth.Proxy"),
        }
        if self.certificate is not None:
            certificate, key = map(str, self.certificate)
            settings |= {"tlsTestModeEnable": False, "tlsCertPath": certificate, "tlsKeyPath": key}
        path = self.folder / "proxy.json"
        path.write_text(json.dumps(settings))
        return self.installation.java(
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pc", str(path), "-pm", str(self.proxy_mode), "-n", self.namesrv_endpoint, *arguments),
            heap=heap,
            home=self.folder / "logs" / PROXY,
            pretouch=self.proxy_mode is ProxyMode.LOCAL,
        )

    def _properties(self, name: str, settings: Mapping[str, str]) -> str:
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    def _broker_file(self, member: Member) -> str:
        """conf/2m-2s-sync/broker-a(-s).properties on loopback addresses, inSyncReplicas, and room for pauses."""
        is_master = member is Member.MASTER
        role = "SYNC_MASTER" if self.synchronous else "ASYNC_MASTER"
        return self._properties(
            member,
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerId": "0" if is_master else "1",
                "deleteWhen": "04",
                "fileReservedTime": "48",
                "brokerRole": role if is_master else "SLAVE",
                "flushDiskType": "ASYNC_FLUSH",
                "namesrvAddr": self.namesrv_endpoint,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "listenPort": str(self._ports[member]),
                "haListenPort": str(self._ports[f"{member}-ha"]),
                "storePathRootDir": str(self.store_folder(member)),
                # The default of 20 s would end the replication connection of a group that is paused for longer.
                "haHousekeepingInterval": "300000",
                **({"inSyncReplicas": "2"} if self.synchronous else {}),
                **self._access(f"{_AUTH}.%s.provider.Local"),
                **self.settings,
            },
        )

    def _access(self, known_by: str) -> dict[str, str]:
        """ACL 2.0 of a broker or proxy. `known_by`: how the names of the classes begin that look users and policies up,
        with %s for the kind."""
        if self.credentials is None:
            return {}
        user = {"username": self.credentials.access_key, "password": self.credentials.secret_key}
        inner = {"accessKey": self.credentials.access_key, "secretKey": self.credentials.secret_key}
        settings = {
            "initAuthenticationUser": json.dumps(user),
            "innerClientAuthenticationCredentials": json.dumps(inner),
        }
        for kind in ("authentication", "authorization"):
            settings |= {
                f"{kind}Enabled": "true",
                f"{kind}Provider": f"{_AUTH}.{kind}.provider.Default{kind.capitalize()}Provider",
                f"{kind}MetadataProvider": f"{known_by.replace('%s', kind)}{kind.capitalize()}MetadataProvider",
            }
        return settings

    def _admin(self, member: Member) -> RemotingAdmin:
        return RemotingAdmin(self._ports[member], self.credentials)

    def pids(self) -> dict[str, int]:
        """Master, slave and, in cluster mode, the proxy, if they run."""
        names = (Member.MASTER, Member.SLAVE, PROXY)
        running = {str(name): self._processes[name] for name in names if name in self._processes}
        return {name: process.pid for name, process in running.items() if process.is_running}

    def broker_pids(self) -> dict[str, int]:
        """Master and slave: what a message of the remoting protocol passes."""
        return {name: pid for name, pid in self.pids().items() if name != PROXY}

    def start(self, *, with_slave: bool = True) -> None:
        """Starts NameServer, master, slave, proxy, in this order."""
        self._prepare()
        self._start(NAMESRV)
        self._start(Member.MASTER)
        if with_slave:
            self._start(Member.SLAVE)
            wait_for(
                self._slave_is_in_sync, limit_s=IN_SYNC_LIMIT_S, pause_s=0.2, what=f"a slave of {self.label} in sync"
            )
        if self.proxy_mode is ProxyMode.CLUSTER:
            self._start(PROXY)
        else:
            self._wait_port(Member.MASTER, self._ports["grpc"])

    def _start(self, name: str) -> None:
        self._processes[name].start()
        self._wait_port(name, self._ports["grpc" if name == PROXY else name])

    def _wait_port(self, name: str, port: int) -> None:
        # Not the table of listening sockets: only an accepted connection shows that somebody answers.
        self._processes[name].wait_until(lambda: _accepts(port), limit_s=START_LIMIT_S, what=f"port {port} is open")

    def _slave_is_in_sync(self) -> bool:
        try:
            with self._admin(Member.MASTER) as admin:
                return admin.slaves_in_sync() > 0
        except OSError:
            return False

    def launch(self, member: Member) -> None:
        """Starts one broker again; with the master of a cluster-mode pair nothing else starts."""
        self._processes[member].start()

    def stop(self, member: Member, *, kill: bool = False) -> None:
        """SIGTERM or SIGKILL to one broker."""
        self._processes[member].stop(by=signal.SIGKILL if kill else signal.SIGTERM)

    def stop_all(self) -> None:
        """Kills what runs: a store that is thrown away needs no orderly end."""
        for process in self._processes.values():
            process.stop(by=signal.SIGKILL)  # ends a paused process too

    def pause(self) -> None:
        """SIGSTOP: idle, a group of RocketMQ keeps 15 to 25 % of a CPU busy, which would burden what is measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.is_running:
                os.kill(process.pid, number)

    def wipe(self, member: Member) -> None:
        """Removes the store."""
        shutil.rmtree(self.store_folder(member), ignore_errors=True)

    def store_folder(self, member: Member) -> Path:
        """Below our folder."""
        return self.folder / f"store-{member}"

    def create_topic(self, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
        """On the master; the NameServer learns of it before a proxy asks."""
        with self._admin(Member.MASTER) as admin:
            admin.create_topic(topic, queues, message_type=message_type)

    def create_group(self, group: str, *, ordered: bool = False) -> None:
        """On the master: the proxy refuses a consumer whose group is not there."""
        with self._admin(Member.MASTER) as admin:
            admin.create_group(group, ordered=ordered)

    def progress(self, member: Member) -> Progress | None:
        """From the broker's runtime statistics."""
        try:
            with self._admin(member) as admin:
                offsets = admin.offsets()
        except (OSError, MeasurementFailed):
            return None
        return Progress(offsets.end_offset, offsets.end_offset - offsets.dispatch_behind_bytes)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0

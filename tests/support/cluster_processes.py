"""Real NameServer and broker processes on loopback for tests and benchmarks.

Members of a `ProcessCluster` keep their ports, which no other process is given while they are down. A `ServiceProcess`
without ports asks for any, and learns them from its own `*_serving` log line. Every wait has a limit and shows the log
when it runs out.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from support.certificates import NAME_SERVER, TestCertificates
from support.certificates import broker as broker_identity
from support.own_network import Node
from support.process_template import ForkedProcess, shared_template
from support.running_time import PATIENCE_S
from tandemmq.core.access.identity import Identity

STOP_LIMIT_S: Final = 30.0

# How full the machine's disk is decides no test.
ANY_DISK: Final[Mapping[str, str]] = {
    "diskMaxUsedSpaceRatio": "0.97",
    "diskSpaceCleanForciblyRatio": "0.98",
    "diskSpaceWarningLevelRatio": "0.99",
}
# Small files, so that many brokers fit a test machine and logs roll within a test.
SMALL_STORE: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "maxMessageSize": str(4 << 20),
}


NAME_SERVER_PORTS: Final = ("listenPort",)
BROKER_PORTS: Final = ("listenPort", "haListenPort", "grpcServerPort", "metricsPromExporterPort")
# Above the well-known ones, and below those of `tandemmq up` and those that kernels give to whoever asks for any.
LASTING_PORTS: Final = range(12_000, 20_000)


_claims: Final[dict[int, socket.socket]] = {}


def lasting_port() -> int:
    """A port that is free, and stays so for a process that is started again: nobody gets it by chance.

    Who takes one holds an abstract Unix socket of its name until its cluster ends, so that tests side by side never
    take the port of a member that is down.
    """
    for _ in range(1_000):
        port = random.choice(LASTING_PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0tandemmq-test-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                _claims[port] = claim
                return port
        except OSError:
            claim.close()
    raise AssertionError("no port is free")


def wait_until(condition: Callable[[], bool], *, limit_s: float, what: str) -> None:
    """Polls `condition` until it holds; AssertionError naming `what` when the limit passes.

    The longer it takes, the less often it looks: a look may be a call to each member of a cluster.
    """
    deadline = time.monotonic() + limit_s
    pause_s = 0.02
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(pause_s)
        pause_s = min(0.1, 1.2 * pause_s)


@dataclass
class ServiceProcess:
    """One `python -m <module>` with its settings, log file and ports."""

    name: str
    module: str
    settings: dict[str, str]
    log_path: Path
    port_keys: tuple[str, ...]
    ports: dict[str, int] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    start_limit_s: float = PATIENCE_S
    host: str = "127.0.0.1"
    # What its command line begins with, such as `ip netns exec NAME`.
    prefix: tuple[str, ...] = ()
    _log_start: int = 0

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self.process is not None
        return self.process.pid

    def start(self, *, wait: bool = True) -> None:
        """Starts the process; with `wait`, returns once it serves and its ports are known."""
        settings = self.settings | {key: str(self.ports.get(key, 0)) for key in self.port_keys}
        arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        template = shared_template()
        if template is not None and not self.prefix:
            self.process = template.start(self.module, arguments, self.log_path)
        else:
            command = [*self.prefix, sys.executable, "-m", self.module, *arguments]
            with self.log_path.open("ab") as output:
                self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_serving()

    def wait_serving(self) -> None:
        """Waits for the line with which the process says that it serves."""
        serving: dict[str, Any] = {}

        def found() -> bool:
            assert self.process is not None
            for event in self.events():
                if str(event.get("event", "")).endswith("_serving"):
                    serving.update(event)
                    return True
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log_text()}")
            return False

        try:
            wait_until(found, limit_s=self.start_limit_s, what=f"{self.name} serves")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text()}") from None
        self.ports = {key: int(serving[key]) for key in self.port_keys if key in serving}

    def events(self) -> list[dict[str, Any]]:
        """Log lines since the last start, parsed; lines that are not JSON are left out."""
        found = []
        for line in self.log_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                found.append(event)
        return found

    def log_text(self) -> str:
        """What the process wrote since its last start."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as source:
            source.seek(self._log_start)
            return source.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, by pid; returns when it is gone."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(STOP_LIMIT_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit code. AssertionError when the process does not end."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not stop:\n{self.log_text()}") from None
        code = self.process.poll()
        assert code is not None
        return code


class ProcessCluster:
    """NameServers and brokers below one folder; everything is killed by pid at the end."""

    def __init__(self, folder: Path, *, certificates: TestCertificates | None = None) -> None:
        """With `certificates` the members speak TLS to each other."""
        self.folder = folder
        self.certificates = certificates
        self.name_servers: list[ServiceProcess] = []
        self.brokers: dict[str, ServiceProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.brokers.values(), *self.name_servers]:
            process.kill()
            for port in process.ports.values():
                if port in _claims:
                    _claims.pop(port).close()

    @property
    def namesrv_addr(self) -> str:
        """All NameServers as RocketMQ writes them."""
        return ";".join(f"{server.host}:{server.ports['listenPort']}" for server in self.name_servers)

    def add_name_server(self, *, with_disk: bool = False, host: str = "127.0.0.1") -> ServiceProcess:
        """Starts one more NameServer; `with_disk`: what it remembers outlives it."""
        number = len(self.name_servers)
        server = ServiceProcess(
            name=f"namesrv-{number}",
            module="tandemmq.nameserver",
            settings={
                "bindAddress": host,
                **({"storePathRootDir": str(self.folder / f"namesrv-{number}")} if with_disk else {}),
                **self._certificate_of(NAME_SERVER),
            },
            log_path=self.folder / "logs" / f"namesrv-{number}.log",
            port_keys=NAME_SERVER_PORTS,
            ports={key: lasting_port() for key in NAME_SERVER_PORTS},
            host=host,
        )
        # Listed before it starts: one that does not start in time is ended with the others.
        self.name_servers.append(server)
        server.start()
        return server

    def add_broker(
        self,
        name: str = "broker-a",
        *,
        broker_id: int = 0,
        settings: Mapping[str, str] | None = None,
        wait: bool = True,
        node: Node | None = None,
    ) -> ServiceProcess:
        """Starts a broker of group `name`: a SYNC_MASTER for id 0, else a SLAVE, unless `settings` say otherwise.

        With `wait`, returns once it serves. On a `node` it has the network of that.
        """
        key = f"{name}-{broker_id}"
        host = "127.0.0.1" if node is None else node.address
        role = {"brokerRole": "SYNC_MASTER" if broker_id == 0 else "SLAVE"}
        broker = ServiceProcess(
            name=key,
            module="tandemmq.broker",
            settings={
                "brokerName": name,
                "brokerId": str(broker_id),
                "namesrvAddr": self.namesrv_addr,
                "bindAddress": host,
                "brokerIP1": host,
                "storePathRootDir": str(self.folder / key),
                # A master that is started alone does not look long for members that nobody ever heard of.
                "masterRecoveryTimeout": "2000",
                **ANY_DISK,
                **SMALL_STORE,
                **role,
                **self._certificate_of(broker_identity(broker_id, group=name)),
                **(settings or {}),
            },
            log_path=self.folder / "logs" / f"{key}.log",
            port_keys=BROKER_PORTS,
            ports={key: lasting_port() for key in BROKER_PORTS},
            host=host,
            prefix=() if node is None else node.command,
        )
        self.brokers[key] = broker
        broker.start(wait=wait)
        return broker

    def _certificate_of(self, identity: Identity) -> dict[str, str]:
        return {} if self.certificates is None else self.certificates.settings(identity)

    def store_folder(self, key: str) -> Path:
        """Where a broker keeps its files."""
        return self.folder / key


def commit_log_bytes(store: Path) -> dict[str, bytes]:
    """CommitLog files of a store by name."""
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir()) if path.is_file()}

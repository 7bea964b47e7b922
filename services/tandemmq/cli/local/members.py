"""One child process: started, watched for health, restarted when it dies, stopped in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Final

import grpc.aio

from tandemmq.admin.rpc import BrokerAdminCalls, Channels, serving
from tandemmq.cli.local.folder import (
    METRICS_PORT_KEY,
    ClusterFolder,
    Member,
    MemberKind,
    admin_file,
    is_free,
    join_addresses,
    listens,
    member_environment,
    read_member,
    replace_text,
    text_of,
    with_values,
)

if TYPE_CHECKING:
    from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb

# How often health is asked: often while a start is waited for, rarely afterwards.
_STARTING_POLL_S: Final = 0.2
_SERVING_POLL_S: Final = 1.0
# Pause before a restart: doubled with each death, forgotten after a minute of life.
_BACKOFF_FIRST_S: Final = 1.0
_BACKOFF_MAX_S: Final = 30.0
_BACKOFF_FORGOTTEN_S: Final = 60.0
_LOG_TAIL_LINES: Final = 8


class MemberState(StrEnum):
    """Where a member stands."""

    WAITING = "waiting"  # not started yet
    STARTING = "starting"
    HELD = "held"  # a master that waits for a replica, or for an operator: it is up, and serves nobody
    SERVING = "serving"
    UNREADY = "unready"  # runs, has served, does not at the moment
    DIED = "died"  # will be restarted unless that is switched off
    STOPPING = "stopping"
    STOPPED = "stopped"


class SupervisedMember:
    """Runs one member until `stop`. For one event loop; `run` once.

    A member that never served is not restarted: it would fail in the same way again, and its log says why.
    """

    def __init__(
        self,
        member: Member,
        folder: ClusterFolder,
        channels: Channels,
        *,
        restart: bool,
        announce: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.member = member
        self.state = MemberState.WAITING
        self.pid = 0
        self.restart_count = 0
        # Of the last death: why, and the last lines of the log.
        self.last_exit = ""
        self.last_words: list[str] = []
        self._folder = folder
        self._channels = channels
        self._restart = restart
        self._announce = announce
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._has_served = False
        self._stop = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def failed_to_start(self) -> bool:
        """True when it died before it served once."""
        return self.state is MemberState.DIED and not self._has_served

    async def run(self) -> None:
        """Keeps the process alive until `stop` is called or it may not be restarted."""
        loop = asyncio.get_running_loop()
        backoff_s = _BACKOFF_FIRST_S
        try:
            while not self._stop.is_set():
                started_s = loop.time()
                log_start, exit_code = await self._run_once()
                if self._stop.is_set():
                    break
                self._note_death(exit_code, log_start)
                if not self._restart or not self._has_served:
                    return
                if loop.time() - started_s > _BACKOFF_FORGOTTEN_S:
                    backoff_s = _BACKOFF_FIRST_S
                self._announce(f"{self.member.name}: restarting in {backoff_s:.0f} s")
                await self._pause(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                self.restart_count += 1
            self._enter(MemberState.STOPPED)
        finally:
            self._finished.set()

    async def stop(self, *, limit_s: float) -> None:
        """Asks the process to end, waits, and kills it by its pid when the limit has passed."""
        self._stop.set()
        if self.state is MemberState.WAITING:
            return
        process = self._process
        if process is not None:
            self._enter(MemberState.STOPPING)
            process.terminate()
        try:
            async with asyncio.timeout(limit_s):
                await self._finished.wait()
        except TimeoutError:
            self._announce(f"{self.member.name}: still running after {limit_s:.0f} s, killed")
            if self._process is not None:
                self._process.kill()
            await self._finished.wait()

    async def _run_once(self) -> tuple[int, int]:
        """One life of the process. Returns where its log begins and its exit code (minus the signal)."""
        with self._folder.log_path(self.member.name).open("ab") as log:
            log_start = log.seek(0, os.SEEK_END)
            process = await asyncio.create_subprocess_exec(
                *self.member.command(),
                cwd=self._folder.root,
                env=member_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal goes to the whole process group; members are stopped in order by us instead.
                start_new_session=True,
            )
        self._process, self.pid = process, process.pid
        self._enter(MemberState.STARTING)
        if self._stop.is_set():
            process.terminate()
        try:
            async with asyncio.TaskGroup() as tasks:
                health = tasks.create_task(self._watch_health())
                exit_code = await process.wait()
                health.cancel()
        finally:
            if process.returncode is None:
                process.kill()
            self._process, self.pid = None, 0
        return log_start, exit_code

    async def _watch_health(self) -> None:
        while True:
            healthy = await self._is_serving() and self._answers_itself()
            if healthy and self.state in (MemberState.STARTING, MemberState.HELD, MemberState.UNREADY):
                self._has_served = True
                self._enter(MemberState.SERVING)
            elif not healthy and self.state is MemberState.STARTING and await self._is_held():
                self._enter(MemberState.HELD)
            elif not healthy and self.state is MemberState.SERVING:
                self._enter(MemberState.UNREADY)
            if self.state is MemberState.SERVING:
                await asyncio.to_thread(self._folder.bound_log, self.member.name)
            await asyncio.sleep(_SERVING_POLL_S if self.state is MemberState.SERVING else _STARTING_POLL_S)

    async def _is_serving(self) -> bool:
        if self.member.has_tls:
            # By a certificate that only its users have to believe.
            return listens(self.pid, self.member.health_port)
        return await serving(self._channels, self.member.health_address)

    def _answers_itself(self) -> bool:
        # A member that begins on a port that another cluster has just taken is about to end with an error.
        return self.state is MemberState.SERVING or listens(self.pid, self.member.health_port)

    async def is_acting_master(self) -> bool:
        """It is the master of a group that fails over, by its own word; asked for 3 s at most."""
        status = await self._status()
        return status is not None and status.failover.acts

    async def _is_held(self) -> bool:
        status = await self._status()
        return status is not None and status.start_wait.needs_operator

    async def _status(self) -> admin_pb.GetBrokerStatusResponse | None:
        if self.member.kind is not MemberKind.BROKER:
            return None
        try:
            return await BrokerAdminCalls(self._channels, self.member.address("listenPort")).status()
        except grpc.aio.AioRpcError:
            return None

    def _note_death(self, exit_code: int, log_start: int) -> None:
        self.last_exit = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        self.last_words = self._folder.log_tail(self.member.name, lines=_LOG_TAIL_LINES, since=log_start)
        self._enter(MemberState.DIED)
        for line in self.last_words:
            self._announce(f"{self.member.name} | {line}")

    async def _pause(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _enter(self, state: MemberState) -> None:
        self.state = state
        detail = {
            MemberState.STARTING: f"pid {self.pid}",
            MemberState.SERVING: f"on {', '.join(f'{key} {port}' for key, port in self.member.ports.items())}",
            MemberState.DIED: self.last_exit,
        }.get(state, "")
        self._announce(f"{self.member.name}: {state}{', ' + detail if detail else ''}")
        self._changed()


# The admin service beside a local cluster's members: the console that `tandemmq up` prints the link of.
#
# What `conf/admin.properties` or `--set` states is left as it is; NameServers, port and where `tandemmq verify` leaves
# its runs are told for this run only.

# The admin service's default; a cluster beside it gets the next one.
_HTTP_PORT: Final = 8_080


def admin_member(
    folder: ClusterFolder, members: Sequence[Member], overrides: dict[str, list[str]], *, near: bool
) -> Member:
    """The admin service of these members; its file is laid out if it is missing.

    `near`: the members' ports are new, and so is its own, which is written into its file as theirs are: the first free
    one above them, instead of the default.
    """
    path = folder.conf / f"{MemberKind.ADMIN}.properties"
    if not os.path.lexists(path):
        replace_text(path, admin_file())
    taken = {port for member in members for port in member.ports.values()}
    http_port = str(next(spare_ports(max(taken) + 1 if near else _HTTP_PORT, taken)))
    if near:
        replace_text(path, with_values(text_of(path), {"httpPort": http_port}))
    admin = read_member(folder, MemberKind.ADMIN, overrides)
    name_servers = join_addresses(
        member.address("listenPort") for member in members if member.kind is MemberKind.NAME_SERVER
    )
    results = str(folder.root / "consistency")
    return with_defaults(admin, {"namesrvAddr": name_servers, "httpPort": http_port, "consistencyResults": results})


def with_defaults(member: Member, values: Mapping[str, str]) -> Member:
    """With those of the values that the member does not state, and that are not empty."""
    new = {key: value for key, value in values.items() if value and key not in member.settings}
    overrides = (*(f"{key}={value}" for key, value in new.items()), *member.overrides)
    return replace(member, settings={**member.settings, **new}, overrides=overrides)


def spare_ports(first: int, taken: set[int]) -> Iterator[int]:
    """Ports from `first` on that neither a member nor anybody else has; each is taken when it is given."""
    for port in count(first):
        if port not in taken and is_free(port):
            taken.add(port)
            yield port


# What `tandemmq up --tracing` adds: traces of every message, and metrics of every member.
#
# What a file in DIR/conf or `--set` states is left as it is. The rest is for this run only: the files are not changed,
# so the next `tandemmq up` without the option runs as before.

# The exporter's default; a cluster beside it gets the next ones.
_METRICS_PORT: Final = 5_557
# Short enough to see a burst of a few seconds.
_SCRAPE_INTERVAL: Final = "5s"


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a traced cluster differs."""

    # OTLP/gRPC receiver as host:port; empty: traces stay in the brokers' memory.
    target: str = ""


def traced_members(members: Sequence[Member], tracing: Tracing, *, near: bool) -> list[Member]:
    """The members with tracing and metrics on.

    `near`: new ports begin above the members' own instead of at the default.
    """
    taken = {port for member in members for port in member.ports.values()}
    metrics_ports = spare_ports(max(taken) + 1 if near else _METRICS_PORT, taken)
    found = []
    for member in members:
        if member.kind is MemberKind.ADMIN:
            found.append(member)
            continue
        wanted = {"metricsExporterType": "PROM"}
        if METRICS_PORT_KEY not in member.settings:
            wanted[METRICS_PORT_KEY] = str(next(metrics_ports))
        if member.kind is MemberKind.BROKER:
            wanted |= {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": tracing.target}
        found.append(with_defaults(member, wanted))
    return found


def scrape_configuration(members: Sequence[Member], folder: ClusterFolder) -> str:
    """A file for Prometheus that scrapes all members that serve metrics; "" if none does."""
    targets: dict[MemberKind, list[str]] = {}
    for member in members:
        if member.kind is MemberKind.ADMIN:
            targets[member.kind] = [member.address("httpPort")]
        elif member.tells_metrics:
            targets.setdefault(member.kind, []).append(member.address(METRICS_PORT_KEY))
    if not targets:
        return ""
    lines = [
        f"# Written by `tandemmq up`: prometheus --config.file={folder.root}/prometheus.yml",
        "#   --enable-feature=exemplar-storage   also keeps which trace a slow send belongs to",
        f"global: {{scrape_interval: {_SCRAPE_INTERVAL}}}",
        "scrape_configs:",
    ]
    for kind, addresses in targets.items():
        lines += [f"  - job_name: {kind}", f"    static_configs: [{{targets: [{', '.join(addresses)}]}}]"]
    return "\n".join(lines) + "\n"

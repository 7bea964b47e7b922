"""One `tandemmq up`: the supervisor, its live view or lines, and cluster.json kept true."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tandemmq.admin.cluster_reader import ClusterReader
from tandemmq.admin.rpc import Channels
from tandemmq.cli.ending import CommandError, OutputClosed, Refused, one_line, signals_to_end
from tandemmq.cli.local.certificates import ClusterCertificates, caller_certificate
from tandemmq.cli.local.folder import (
    ClusterFolder,
    ClusterRecord,
    Member,
    MemberKind,
    MemberRecord,
    data_option,
    free_ports,
    lay_out,
    make_authority_folders,
    member_environment,
    member_problems,
    port_count,
    preset_files,
    read_members,
    renumber,
    split_overrides,
    start_mark,
)
from tandemmq.cli.local.members import (
    MemberState,
    SupervisedMember,
    Tracing,
    admin_member,
    scrape_configuration,
    traced_members,
    with_defaults,
)
from tandemmq.cli.output import new_table
from tandemmq.service.service_channels import use_service_tls
from tandemmq.service.settings import EXIT_REFUSED, EXIT_TRY_AGAIN
from tandemmq.service.texts import bytes_text

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.cluster_state import BrokerState, BrokerStatus, ClusterState


# The live picture of `tandemmq up`: members, replication, and how to connect.

_STATE_STYLES = {
    "serving": "green",
    "starting": "yellow",
    "unready": "yellow",
    "held": "bold red",
    "died": "bold red",
    "stopping": "yellow",
}


@dataclass(frozen=True, slots=True)
class MemberLine:
    """What the supervisor knows of a member."""

    name: str
    role: str
    pid: int
    state: str
    ports: Mapping[str, int]
    restart_count: int
    last_exit: str
    # `name:id` of a broker; empty for others.
    broker_key: str


class PutRates:
    """Messages per second of each broker, from one reading of the cluster to the next."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self.per_second: dict[str, float] = {}

    def update(self, state: ClusterState, *, now_s: float) -> None:
        """Takes a reading made at `now_s` of any monotonic clock. A broker that began anew starts at 0."""
        for broker in state.brokers:
            if broker.status is None:
                self.per_second.pop(broker.key, None)
                self._last.pop(broker.key, None)
                continue
            count = broker.status.put_count
            last_s, last_count = self._last.get(broker.key, (now_s, count))
            if now_s > last_s:
                self.per_second[broker.key] = max(0.0, (count - last_count) / (now_s - last_s))
            self._last[broker.key] = (now_s, count)


def up_picture(
    record: ClusterRecord,
    lines: Iterable[MemberLine],
    state: ClusterState | None,
    rates: Mapping[str, float],
    events: Sequence[str],
    folder: str,
) -> RenderableType:
    """One frame of the live view; `state` is None until the first reading."""
    brokers = {broker.key: broker for broker in state.brokers} if state else {}
    parts: list[RenderableType] = [
        Text.assemble(("TandemMQ ", "bold"), f"{record.preset}, {record.state}"),
        _members(lines, brokers, rates),
    ]
    parts += _waiting(brokers.values())
    if events:
        parts += ["", Text("\n".join(events), style="dim", no_wrap=True, overflow="ellipsis")]
    if record.state == "ready":
        parts += ["", Text("\n".join(connect_lines(record, folder)))]
    return Group(*parts)


def connect_lines(record: ClusterRecord, folder: str) -> list[str]:
    """How to use the running cluster."""
    endpoints = ";".join(record.client_endpoints)
    option = data_option(Path(folder))
    seen = (
        [
            f"console              {record.admin_url}",
            f"metrics              prometheus --config.file={shlex.quote(f'{folder}/prometheus.yml')}",
        ]
        if record.admin_url
        else []
    )
    return [
        f"endpoints for SDKs   {endpoints}   (gRPC, TLS off)",
        f'Python               Producer(ClientConfiguration("{endpoints}", Credentials()), ("greetings",))',
        f"NameServers          {';'.join(record.name_servers)}",
        f"data, logs           {folder}/store, {folder}/logs",
        *seen,
        f"try                  seq 100 | tandemmq produce greetings{option}",
        f"                     tandemmq consume greetings --group readers{option}",
        f"stop                 Ctrl-C, or tandemmq down{option}",
    ]


def _members(lines: Iterable[MemberLine], brokers: Mapping[str, BrokerState], rates: Mapping[str, float]) -> Table:
    table = new_table("member", "role", "pid", "state", "ports", "end offset", "lag bytes", "put/s", "restarts")
    for line in lines:
        broker = brokers.get(line.broker_key)
        status = broker.status if broker else None
        table.add_row(
            line.name,
            status.role_in_words if status else line.role,
            str(line.pid or "-"),
            Text(
                line.state + (f" ({line.last_exit})" if line.state == "died" else ""), _STATE_STYLES.get(line.state, "")
            ),
            " ".join(str(port) for port in line.ports.values()),
            f"{status.end_offset:,}" if status else "-",
            _lag(status),
            f"{rates[line.broker_key]:,.0f}" if line.broker_key in rates and status and not status.master_link else "-",
            str(line.restart_count),
        )
    return table


def _waiting(brokers: Iterable[BrokerState]) -> list[RenderableType]:
    """Of each master that waits: for what, and what ends it."""
    parts: list[RenderableType] = []
    for broker in brokers:
        wait = broker.status.start_wait if broker.status is not None else None
        if wait is None or not wait.needs_operator:
            continue
        parts += ["", Text(f"{broker.key} waits: {wait.reason}", "bold red")]
        if wait.acceptable:
            parts.append(Text(f"  gone for good? tandemmq broker accept-loss {broker.broker_name}"))
    return parts


def _lag(status: BrokerStatus | None) -> str:
    if status is None:
        return "-"
    if status.master_link is not None:
        link = status.master_link
        return f"{link.lag_bytes:,}" if link.state == "transfer" else link.state
    return f"{max(slave.lag_bytes for slave in status.slaves):,}" if status.slaves else "-"


# Runs all members of a local cluster: start order, readiness, stop order.

# Above a broker's own limit for an orderly stop (shutdownTimeout, 15 s).
_STOP_LIMIT_S: Final = 20.0
_READY_POLL_S: Final = 0.1


class ClusterSupervisor:
    """Starts NameServers, then the rest; stops the admin service, masters, slaves, NameServers.

    Brokers start together because a SYNC_MASTER that lost unflushed pages waits for its slave's copy before it serves.
    Masters stop first: they take themselves out of the routes, and sends still waiting for a slave find it there. Not
    those of groups that fail over: who is master there stops last, so that nobody is left to hand over to.
    """

    def __init__(self, supervised: Sequence[SupervisedMember], *, start_limit_s: float) -> None:
        self.members = tuple(supervised)
        self._start_limit_s = start_limit_s

    async def run(self, stop: asyncio.Event, *, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        """Runs the cluster until `stop` is set. CommandError when a member does not come up; all are stopped then."""
        async with asyncio.TaskGroup() as tasks:
            try:
                for wave in (self._of(MemberKind.NAME_SERVER), self._of(MemberKind.BROKER, MemberKind.ADMIN)):
                    for supervised in wave:
                        tasks.create_task(supervised.run(), name=supervised.member.name)
                    await self._until_serving(wave, stop)
                if not stop.is_set():
                    ready()
                await stop.wait()
            finally:
                stopping()
                await self._stop_in_order()

    async def _until_serving(self, wave: Sequence[SupervisedMember], stop: asyncio.Event) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._start_limit_s
        while not stop.is_set():
            # One that is held may be so for days: operators look at it, and at the others, meanwhile.
            waiting = [each for each in wave if each.state not in (MemberState.SERVING, MemberState.HELD)]
            if not waiting:
                return
            for supervised in waiting:
                if supervised.failed_to_start:
                    raise _start_failure(supervised, f"it ended with {supervised.last_exit}")
            if asyncio.get_running_loop().time() > deadline_s:
                raise _start_failure(waiting[0], f"it does not serve after {self._start_limit_s:.0f} s")
            await asyncio.sleep(_READY_POLL_S)

    async def _stop_in_order(self) -> None:
        brokers = self._of(MemberKind.BROKER)
        last = [each for each in brokers if each.member.authority and await each.is_acting_master()]
        others = [each for each in brokers if each not in last]
        first = [each for each in others if each.member.authority or each.member.role != "SLAVE"]
        rest = [each for each in others if each not in first]
        for wave in (self._of(MemberKind.ADMIN), first, [*rest, *last], self._of(MemberKind.NAME_SERVER)):
            async with asyncio.TaskGroup() as tasks:
                for supervised in wave:
                    tasks.create_task(supervised.stop(limit_s=_STOP_LIMIT_S))

    def _of(self, *kinds: MemberKind) -> list[SupervisedMember]:
        return [supervised for supervised in self.members if supervised.member.kind in kinds]


def _start_failure(supervised: SupervisedMember, cause: str) -> CommandError:
    lines = "\n".join(supervised.last_words)
    return CommandError(
        f"{supervised.member.name} did not start",
        cause=f"{cause}\n{lines}" if lines else cause,
        remedy=f"see logs/{supervised.member.name}.log in the data folder; the cluster was stopped again",
    )


# A SYNC_MASTER that lost unflushed pages waits up to masterRecoveryTimeout (60 s) for its slave's copy.
_START_LIMIT_S: Final = 90.0
_READ_INTERVAL_S: Final = 1.0
_STARTING_FRAME_S: Final = 0.25
_EVENT_LINES: Final = 10
_RENEWAL_INTERVAL_S: Final = 3_600.0


class LocalCluster:
    """One `tandemmq up`: supervisor, live view or lines, and cluster.json kept true."""

    def __init__(
        self,
        folder: ClusterFolder,
        preset: str,
        members: Sequence[Member],
        *,
        restart: bool,
        live: bool,
        console: Console,
    ) -> None:
        self._folder = folder
        self._console = console
        self._live = live
        self._restart = restart
        self._members = members
        self._events: deque[str] = deque(maxlen=_EVENT_LINES)
        self._stop = asyncio.Event()
        self._output_closed: OutputClosed | None = None
        self._supervised: list[SupervisedMember] = []
        self._record = ClusterRecord(
            preset=preset,
            state="starting",
            supervisor_pid=os.getpid(),
            supervisor_start_mark=start_mark(os.getpid()) or "",
            name_servers=_addresses(members, MemberKind.NAME_SERVER, "listenPort"),
            client_endpoints=_addresses(
                [member for member in members if member.role != "SLAVE"], MemberKind.BROKER, "grpcServerPort"
            ),
            members=(),
            admin_url="".join(
                f"http{'s' * member.has_tls}://{member.address('httpPort')}/"
                for member in members
                if member.kind is MemberKind.ADMIN
            ),
        )

    async def run(self) -> None:
        """Start, run until a signal to end or until nobody reads the output, stop.

        cluster.json is there for exactly that time. CommandError, inside an exception group, when a member does not
        come up; OutputClosed once all are stopped.
        """
        loop = asyncio.get_running_loop()
        # A second Ctrl-C changes nothing: the stop has a limit, and ending before it would leave members behind.
        for number in signals_to_end():
            loop.add_signal_handler(number, self._stop.set)
        tls = caller_certificate(self._folder.root)
        with use_service_tls(tls):
            await self._run(renewed=tls is not None)
        if self._output_closed is not None:
            raise self._output_closed

    async def _run(self, *, renewed: bool) -> None:
        channels, plain_channels = Channels(), Channels(plain=True)
        self._supervised = [
            SupervisedMember(
                member,
                self._folder,
                # Its port is for people, too.
                plain_channels if member.kind is MemberKind.ADMIN else channels,
                restart=self._restart,
                announce=self._announce,
                changed=self._write_record,
            )
            for member in self._members
        ]
        self._folder.write_scrape_configuration(scrape_configuration(self._members, self._folder))
        supervisor = ClusterSupervisor(self._supervised, start_limit_s=_START_LIMIT_S)
        try:
            async with asyncio.TaskGroup() as tasks:
                view = tasks.create_task(self._show(channels)) if self._live else None
                renewal = tasks.create_task(self._renew()) if renewed else None
                try:
                    await supervisor.run(self._stop, ready=self._is_ready, stopping=self._is_stopping)
                finally:
                    for task in (view, renewal):
                        if task is not None:
                            task.cancel()
        finally:
            self._folder.remove_record()
            await channels.close()
            await plain_channels.close()

    async def _renew(self) -> None:
        """Issues certificates again before they end; members take them as they are."""
        while True:
            await asyncio.sleep(_RENEWAL_INTERVAL_S)
            for folder in ClusterCertificates(self._folder).make(self._members):
                self._announce(f"cluster: new certificate in {folder}")

    def _is_ready(self) -> None:
        self._enter("ready")
        self._announce("cluster: ready")
        if not self._live:
            for line in connect_lines(self._record, str(self._folder.root)):
                self._print(line)

    def _is_stopping(self) -> None:
        self._enter("stopping")
        self._announce("cluster: stopping")

    def _enter(self, state: str) -> None:
        self._record = replace(self._record, state=state)
        self._write_record()

    def _announce(self, line: str) -> None:
        stamped = f"{time.strftime('%H:%M:%S')} {line}"
        self._events.append(stamped)
        if not self._live:
            self._print(stamped)

    def _print(self, line: str) -> None:
        if self._output_closed is not None:
            return
        try:
            self._console.print(one_line(line), soft_wrap=True)
        except OutputClosed as closed:
            self._end_unseen(closed)

    def _end_unseen(self, closed: OutputClosed) -> None:
        """Nobody sees the cluster any more, and nobody would stop it: it stops in order."""
        self._output_closed = closed
        self._stop.set()

    def _write_record(self) -> None:
        records = tuple(_member_record(supervised, self._folder) for supervised in self._supervised)
        self._record = replace(self._record, members=records)
        try:
            self._folder.write_record(self._record)
        except OSError as error:
            # On a full disk, say. The members go on; commands see what was written last.
            self._announce(f"cluster: cluster.json was not written: {error.strerror}")

    async def _show(self, channels: Channels) -> None:
        try:
            await self._refresh(channels)
        except OutputClosed as closed:
            self._end_unseen(closed)

    async def _refresh(self, channels: Channels) -> None:
        reader = ClusterReader(channels, self._record.name_servers, self._record.expected_brokers)
        rates = PutRates()
        loop = asyncio.get_running_loop()
        with Live(self._picture(None, rates), console=self._console, auto_refresh=False, screen=False) as live:
            try:
                while True:
                    ready = self._record.state == "ready"
                    state = await reader.read() if ready else None
                    if state is not None:
                        rates.update(state, now_s=loop.time())
                    live.update(self._picture(state, rates), refresh=True)
                    await asyncio.sleep(_READ_INTERVAL_S if ready else _STARTING_FRAME_S)
            finally:
                live.update(self._picture(None, rates), refresh=True)

    def _picture(self, state: ClusterState | None, rates: PutRates) -> RenderableType:
        lines = [_member_line(supervised) for supervised in self._supervised]
        return up_picture(self._record, lines, state, rates.per_second, list(self._events), str(self._folder.root))


def _member_record(supervised: SupervisedMember, folder: ClusterFolder) -> MemberRecord:
    member = supervised.member
    is_broker = member.kind is MemberKind.BROKER
    return MemberRecord(
        name=member.name,
        kind=str(member.kind),
        role=member.role,
        pid=supervised.pid,
        start_mark=(start_mark(supervised.pid) or "") if supervised.pid else "",
        ports=member.ports,
        config=str(folder.root / member.config_path),
        log=str(folder.log_path(member.name)),
        store=str(folder.root / member.settings.get("storePathRootDir", "store")) if is_broker else "",
        broker=member.expected_broker() if is_broker else None,
    )


def _member_line(supervised: SupervisedMember) -> MemberLine:
    member = supervised.member
    broker = member.expected_broker() if member.kind is MemberKind.BROKER else None
    return MemberLine(
        name=member.name,
        role=member.role,
        pid=supervised.pid,
        state=str(supervised.state),
        ports=member.ports,
        restart_count=supervised.restart_count,
        last_exit=supervised.last_exit,
        broker_key=f"{broker.broker_name}:{broker.broker_id}" if broker else "",
    )


def _addresses(members: Sequence[Member], kind: MemberKind, port_key: str) -> tuple[str, ...]:
    return tuple(member.address(port_key) for member in members if member.kind is kind)


# Lays out a local cluster's configuration and has all of it checked before anything starts.

# As the first port: whatever is free.
FREE_PORTS: Final = 0
# A check takes a second of a processor, and there is one a member. So long: the machine may be busy with other things.
_CHECK_LIMIT_S: Final = 300.0


def refuse_leftovers(folder: ClusterFolder) -> None:
    """CommandError when members of an earlier `tandemmq up` that was killed still run. The folder is locked by us."""
    record = folder.read_record()
    left = [member for member in record.members if member.running] if record else []
    if left:
        raise Refused(
            f"members of an earlier cluster still run in {folder.root}",
            cause=", ".join(f"{member.name} (pid {member.pid})" for member in left),
            remedy=f"stop them with `tandemmq down{data_option(folder.root)}`",
        )


def checked_members(
    folder: ClusterFolder,
    *,
    preset: str | None,
    first_port: int | None,
    overrides: Sequence[str],
    admin: bool = True,
    tracing: Tracing | None = None,
    secure: bool = False,
) -> tuple[str, list[Member]]:
    """The preset's name and the members in start order. CommandError names every mistake of every member.

    `first_port` None keeps the ports that are in the files; FREE_PORTS or a port writes new ones into them. With
    `admin` the admin service is the last of the members. With `secure`, or certificates that are there, each member has
    one of its own.
    """
    name = lay_out(folder, preset)
    if first_port is not None:
        count = port_count(name)
        ports = free_ports(count) if first_port == FREE_PORTS else range(first_port, first_port + count)
        renumber(folder, name, ports)
    names = [*preset_files(name), *([MemberKind.ADMIN] if admin else [])]
    by_member = split_overrides(overrides, names)
    members = read_members(folder, name, by_member)
    near = first_port is not None
    if admin:
        members.append(admin_member(folder, members, by_member, near=near))
    if tracing is not None:
        members = traced_members(members, tracing, near=near)
    certificates = ClusterCertificates(folder)
    if secure or certificates.are_there:
        certificates.make(members)
        members = [with_defaults(member, certificates.settings_of(member)) for member in members]
    make_authority_folders(folder, members)
    _refuse_small_disk(folder, members)
    problems = [*member_problems(members), *_own_problems(members, folder)]
    if problems:
        # Members are told by --set what this run adds, whatever option it came from.
        has_target = tracing is not None and bool(tracing.target)
        given = ["--set"] if overrides or not has_target else []
        given += ["--trace-target"] if has_target else []
        is_given = any("(--set)" in each for each in problems)
        remedies = [f"mend what {' or '.join(given)} says"] if is_given else []
        if not folder.is_new:
            remedies.append(f"edit the files in {folder.conf}, or delete one to get the preset's back")
        # A new folder is gone again by then, with its files.
        if any("Port" in each for each in problems) or not remedies:
            remedies.append(f"for other ports, tandemmq up{data_option(folder.root)} --free-ports, or --port-base")
        raise Refused(
            f"{len(problems)} mistake(s) in the configuration; nothing was started",
            cause="\n".join(problems),
            remedy="; ".join(remedies),
        )
    return name, members


def _refuse_small_disk(folder: ClusterFolder, members: Sequence[Member]) -> None:
    """CommandError when a new folder has no room for the first CommitLog file of each broker: the cluster would start,
    be healthy, and take no message."""
    brokers = [member for member in members if member.kind is MemberKind.BROKER]
    sizes = [member.settings.get("mappedFileSizeCommitLog", "") for member in brokers]
    needed = sum(int(size) for size in sizes if size.isascii() and size.isdigit())
    free = shutil.disk_usage(folder.root).free
    if folder.is_new and free < needed:
        raise Refused(
            f"the disk of {folder.root} has {bytes_text(free)} of room",
            cause=f"brokers reserve {bytes_text(needed)} for their first messages",
            remedy="make room, or choose a folder on another disk: --data DIR",
        )


def _own_problems(members: Sequence[Member], folder: ClusterFolder) -> list[str]:
    """What each member says of its own configuration: asked of the very program that will read it."""
    checks: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = pool.map(lambda member: _check(member, folder, checks), members)
        try:
            return [f"{member.name}: {line}" for member, lines in zip(members, answers, strict=True) for line in lines]
        except BaseException:
            # What they would say nobody waits for.
            for check in checks:
                check.kill()
            raise


def _check(member: Member, folder: ClusterFolder, checks: list[subprocess.Popen[str]]) -> list[str]:
    """What it says of itself; its process is added to `checks`."""
    check = subprocess.Popen(
        member.command("--check"),
        cwd=folder.root,
        env=member_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    checks.append(check)
    try:
        output, errors = check.communicate(timeout=_CHECK_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        check.kill()
        check.communicate()
        raise CommandError(
            f"the check of {member.name} gave no answer within {_CHECK_LIMIT_S:.0f} s; nothing was started",
            cause="this machine is too busy, or its disk does not answer",
            remedy=f"see what keeps it busy, then try again; by hand: {shlex.join(member.command('--check'))}",
        ) from error
    if check.returncode == 0:
        return []
    lines = [line for line in (output + errors).splitlines() if line.strip()]
    if check.returncode in (EXIT_REFUSED, EXIT_TRY_AGAIN) and lines:
        return lines
    return [f"its check ended with exit code {check.returncode}: {lines[-1] if lines else 'no output'}"]

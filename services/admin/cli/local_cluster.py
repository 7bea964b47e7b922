"""One `tandemmq up`: the supervisor, its live view or lines, and cluster.json kept true."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

from admin.cli.cluster_folder import ClusterFolder, ClusterRecord, MemberRecord
from admin.cli.cluster_supervisor import ClusterSupervisor
from admin.cli.member import Member, MemberKind
from admin.cli.process_table import start_mark
from admin.cli.supervised_member import SupervisedMember
from admin.cli.traced_members import scrape_configuration
from admin.cli.up_view import MemberLine, PutRates, connect_lines, up_picture
from admin.cluster_reader import ClusterReader
from admin.cluster_state import ClusterState
from admin.rpc import Channels

__all__ = ["LocalCluster"]

# A SYNC_MASTER that lost unflushed pages waits up to masterRecoveryTimeout (60 s) for its slave's copy.
_START_LIMIT_S: Final = 90.0
_READ_INTERVAL_S: Final = 1.0
_STARTING_FRAME_S: Final = 0.25
_EVENT_LINES: Final = 10


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
                f"http://{member.address('httpPort')}/" for member in members if member.kind is MemberKind.ADMIN
            ),
        )

    async def run(self) -> None:
        """Start, run until SIGINT or SIGTERM, stop. cluster.json is there for exactly that time.

        CommandError, inside an exception group, when a member does not come up.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        # A second Ctrl-C changes nothing: the stop has a limit, and ending before it would leave members behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        channels = Channels()
        self._supervised = [
            SupervisedMember(
                member,
                self._folder,
                channels,
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
                try:
                    await supervisor.run(stop, ready=self._is_ready, stopping=self._is_stopping)
                finally:
                    if view is not None:
                        view.cancel()
        finally:
            self._folder.remove_record()
            await channels.close()

    def _is_ready(self) -> None:
        self._enter("ready")
        self._announce("cluster: ready")
        if not self._live:
            for line in connect_lines(self._record, str(self._folder.root)):
                self._console.print(line, highlight=False, soft_wrap=True)

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
            self._console.print(stamped, highlight=False, soft_wrap=True, markup=False)

    def _write_record(self) -> None:
        records = tuple(_member_record(supervised, self._folder) for supervised in self._supervised)
        self._record = replace(self._record, members=records)
        self._folder.write_record(self._record)

    async def _show(self, channels: Channels) -> None:
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

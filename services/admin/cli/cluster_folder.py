"""The data folder of a local cluster.

DIR/conf/<member>.properties   configuration, copied from the preset once; a changed file wins
DIR/conf/PRESET                name of that preset
DIR/logs/<member>.log          output of each process, appended
DIR/store/<member>/            what brokers and NameServers store
DIR/cluster.json               members, pids and ports of the running cluster
DIR/prometheus.yml             scrapes them, if they serve metrics
DIR/lock                       locked while `tandemmq up` runs; holds its pid
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.process_table import is_running
from admin.cluster_state import ExpectedBroker

__all__ = ["DEFAULT_FOLDER", "ClusterFolder", "ClusterRecord", "MemberRecord", "join_addresses"]

DEFAULT_FOLDER: Final = Path("data")
# A broker's settings make a line of about 3 KB, the longest there is; reading more for a tail would be of no use.
_LOG_LINE_BYTES: Final = 4_000
_SHOWN_LINE_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member in cluster.json."""

    name: str
    kind: str
    role: str
    # 0 while it does not run.
    pid: int
    # `start_mark` of that pid.
    start_mark: str
    ports: Mapping[str, int]
    config: str
    log: str
    # Empty for a NameServer.
    store: str
    broker: ExpectedBroker | None

    @property
    def running(self) -> bool:
        """True when the process noted here is still there."""
        return self.pid > 0 and is_running(self.pid, self.start_mark)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """cluster.json: what runs, for every other command."""

    preset: str
    # starting, ready or stopping.
    state: str
    supervisor_pid: int
    supervisor_start_mark: str
    # `host:port` each.
    name_servers: tuple[str, ...]
    client_endpoints: tuple[str, ...]
    members: tuple[MemberRecord, ...]
    # Of the admin service, empty without one.
    admin_url: str = ""

    @property
    def supervised(self) -> bool:
        """True when the `tandemmq up` that wrote this still runs."""
        return is_running(self.supervisor_pid, self.supervisor_start_mark)

    @property
    def expected_brokers(self) -> tuple[ExpectedBroker, ...]:
        """Brokers that should be there, running or not."""
        return tuple(member.broker for member in self.members if member.broker is not None)


class ClusterFolder:
    """Paths and files of one data folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.conf = self.root / "conf"
        self.logs = self.root / "logs"
        self.scrape_configuration = self.root / "prometheus.yml"
        self._record_path = self.root / "cluster.json"
        self._lock_path = self.root / "lock"
        self._lock_fd = -1

    def prepare(self) -> None:
        """Makes the folders; refuses when that is not possible."""
        try:
            for folder in (self.root, self.conf, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(
                f"the data folder {self.root} cannot be used",
                cause=f"{error.strerror}: {error.filename}",
                remedy="choose a folder you may write to with --data",
                exit_code=EXIT_REFUSED,
            ) from error

    def lock(self) -> None:
        """Takes the folder until this process ends; refuses when another `tandemmq up` has it."""
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise CommandError(
                f"a cluster already runs in {self.root}",
                cause=f"process {owner} holds {self._lock_path}",
                remedy=f"look at it with `tandemmq status --data {self.root}`, stop it with `tandemmq down --data "
                f"{self.root}`, or start another one with a different --data and --port-base",
                exit_code=EXIT_REFUSED,
            ) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._lock_fd = fd

    def log_path(self, member: str) -> Path:
        """Where a member's output goes."""
        return self.logs / f"{member}.log"

    def read_record(self) -> ClusterRecord | None:
        """cluster.json, or None when there is none."""
        try:
            fields = json.loads(self._record_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        try:
            members = tuple(_member_record(member) for member in fields.pop("members"))
            return ClusterRecord(
                **fields
                | {
                    "name_servers": tuple(fields["name_servers"]),
                    "client_endpoints": tuple(fields["client_endpoints"]),
                },
                members=members,
            )
        except (KeyError, TypeError) as error:
            raise CommandError(
                f"{self._record_path} cannot be read",
                cause=f"it was written by another version ({error})",
                remedy="stop that cluster with the version that started it, or remove the file if nothing runs",
                exit_code=EXIT_REFUSED,
            ) from error

    def write_record(self, record: ClusterRecord) -> None:
        """Replaces cluster.json; a reader sees the old or the new one, never half of it."""
        temporary = self._record_path.with_suffix(".json.new")
        temporary.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._record_path)

    def write_scrape_configuration(self, text: str) -> None:
        """Replaces prometheus.yml; "" removes it."""
        if text:
            self.scrape_configuration.write_text(text, encoding="utf-8")
        else:
            self.scrape_configuration.unlink(missing_ok=True)

    def remove_record(self) -> None:
        """Says that nothing runs."""
        self._record_path.unlink(missing_ok=True)

    def log_tail(self, member: str, *, lines: int, since: int = 0) -> list[str]:
        """The last lines a member wrote after byte `since` of its log, each cut to what a reader takes in."""
        limit = lines * _LOG_LINE_BYTES
        try:
            with self.log_path(member).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(since, size - limit))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line[:_SHOWN_LINE_CHARACTERS] for line in text.splitlines()[-lines:]]


def _member_record(fields: dict[str, object]) -> MemberRecord:
    broker = fields.pop("broker")
    return MemberRecord(
        **fields,  # type: ignore[arg-type]
        broker=ExpectedBroker(**broker) if isinstance(broker, dict) else None,
    )


def join_addresses(addresses: Iterable[str]) -> str:
    """Addresses the way RocketMQ's settings and clients write them."""
    return ";".join(addresses)

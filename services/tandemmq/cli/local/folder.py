"""The data folder of a local cluster.

DIR/conf/<member>.properties   configuration, copied from the preset once; a changed file wins
DIR/conf/PRESET                name of that preset
DIR/logs/<member>.log          output of each process, appended; beyond 64 MiB it goes on from nothing, beside .log.1
DIR/store/<member>/            what brokers and NameServers store
DIR/authority/                 who is master of each group that fails over
DIR/certs/                     certificates of the members, if they know each other by such
DIR/cluster.json               members, pids and ports of the running cluster
DIR/prometheus.yml             scrapes them, if they serve metrics
DIR/lock                       locked while `tandemmq up` runs; holds its pid
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tandemmq.cli.ending import CommandError, Refused

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import ExpectedBroker

RecordT = TypeVar("RecordT")


# One process of a local cluster, as its configuration file describes it.


class MemberKind(StrEnum):
    """Which program a member is: the name of its package."""

    NAME_SERVER = "nameserver"
    BROKER = "broker"
    ADMIN = "admin"


# Every port a member always listens on; none is derived from another.
PORT_KEYS: Final = {
    MemberKind.NAME_SERVER: ("listenPort",),
    MemberKind.BROKER: ("grpcServerPort", "listenPort", "haListenPort"),
    MemberKind.ADMIN: ("httpPort",),
}
METRICS_PORT_KEY: Final = "metricsPromExporterPort"
_AUTHORITY_KEY: Final = "failoverAuthority"
_HEALTH_PORT_KEYS: Final = {
    MemberKind.NAME_SERVER: "listenPort",
    MemberKind.BROKER: "listenPort",
    MemberKind.ADMIN: "httpPort",
}
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a local cluster. Its working folder is the data folder."""

    name: str
    # Its file with the overrides of this run.
    settings: Mapping[str, str]
    # `key=value` of this run, as given to the process.
    overrides: tuple[str, ...] = ()

    @property
    def kind(self) -> MemberKind:
        """By the name of the file: `namesrv-…` is a NameServer, `admin` the admin service, anything else a broker."""
        if self.name == MemberKind.ADMIN:
            return MemberKind.ADMIN
        return MemberKind.NAME_SERVER if self.name.startswith("namesrv-") else MemberKind.BROKER

    @property
    def role(self) -> str:
        """NAMESERVER, ADMIN, SYNC_MASTER, ASYNC_MASTER or SLAVE."""
        if self.kind is not MemberKind.BROKER:
            return "NAMESERVER" if self.kind is MemberKind.NAME_SERVER else "ADMIN"
        return self.settings.get("brokerRole", "ASYNC_MASTER")

    @property
    def authority(self) -> str:
        """Who keeps the record of its group's master; empty: its group does not fail over."""
        return self.settings.get(_AUTHORITY_KEY, "")

    @property
    def config_path(self) -> str:
        """Below the data folder."""
        return f"conf/{self.name}.properties"

    @property
    def port_keys(self) -> tuple[str, ...]:
        """Every port it listens on as it is configured."""
        return (*PORT_KEYS[self.kind], METRICS_PORT_KEY) if self.tells_metrics else PORT_KEYS[self.kind]

    @property
    def ports(self) -> dict[str, int]:
        """Stated ports by key; what is no port number is left out."""
        stated = {key: self.settings.get(key, "") for key in self.port_keys}
        return {key: int(text) for key, text in stated.items() if text.isascii() and text.isdigit()}

    @property
    def tells_metrics(self) -> bool:
        """True when it serves Prometheus on a port of its own."""
        return "PROM" in self.settings.get("metricsExporterType", "").split(";")

    @property
    def host(self) -> str:
        """Where this machine reaches the member."""
        bound = self.settings.get("bindAddress", "")
        return "127.0.0.1" if bound in _ANY_ADDRESS else bound

    def address(self, port_key: str) -> str:
        """`host:port` of one plane, for this machine."""
        return f"{self.host}:{self.ports[port_key]}"

    @property
    def has_tls(self) -> bool:
        """An admin whose port is served by TLS alone."""
        return self.kind is MemberKind.ADMIN and bool(self.settings.get("tlsCertPath"))

    @property
    def health_address(self) -> str:
        """Where grpc.health.v1 is served."""
        return self.address(_HEALTH_PORT_KEYS[self.kind])

    @property
    def health_port(self) -> int:
        return self.ports[_HEALTH_PORT_KEYS[self.kind]]

    def command(self, *extra: str) -> list[str]:
        """The process's command line. -P keeps the working folder, which is the user's, off the module path."""
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-P", "-m", f"tandemmq.{self.kind}", "--config", self.config_path, *overrides, *extra]

    def expected_broker(self) -> ExpectedBroker:
        """What a NameServer should know of this broker."""
        from tandemmq.admin.cluster_state import ExpectedBroker

        broker_id = self.settings.get("brokerId", "0")
        return ExpectedBroker(
            cluster=self.settings.get("brokerClusterName", "DefaultCluster"),
            broker_name=self.settings.get("brokerName", "broker-a"),
            broker_id=int(broker_id) if broker_id.isdigit() else 0,
            client_endpoint=self.address("grpcServerPort"),
            metadata_endpoint=self.address("listenPort"),
            ha_endpoint=self.address("haListenPort"),
        )


def member_environment() -> dict[str, str]:
    """The environment of every member: ours, without the settings in it.

    One environment cannot configure six processes: TANDEMMQ_LISTEN_PORT would give all of them the same port. And what
    gRPC says of itself belongs into their logs.
    """
    is_silenced = os.environ.get("GRPC_VERBOSITY") == "NONE"
    left_out = ("TANDEMMQ_", "GRPC_VERBOSITY") if is_silenced else ("TANDEMMQ_",)
    return {key: value for key, value in os.environ.items() if not key.startswith(left_out)}


def member_problems(members: Sequence[Member]) -> list[str]:
    """What is wrong between members, a line each: no member can see it in its own file alone."""
    return [
        *_port_problems(members),
        *_name_server_problems(members),
        *_identity_problems(members),
        *_authority_problems(members),
    ]


def _port_problems(members: Sequence[Member]) -> Iterator[str]:
    taken: dict[int, str] = {}
    for member in members:
        for key in member.port_keys:
            if key not in member.settings:
                yield f"{member.name}: {key}: not stated; write {key}=<port> into {member.config_path}"
        for key, port in member.ports.items():
            owner = taken.setdefault(port, f"{member.name} ({key})")
            if owner != f"{member.name} ({key})":
                yield f"{member.name}: {key}: port {port} is taken by {owner}; give each plane a port of its own"


def _name_server_problems(members: Sequence[Member]) -> Iterator[str]:
    ports = {
        member.ports["listenPort"]
        for member in members
        if member.kind is MemberKind.NAME_SERVER and "listenPort" in member.ports
    }
    for member in members:
        if member.kind is not MemberKind.BROKER:
            continue
        named = [part.strip() for part in member.settings.get("namesrvAddr", "").split(";") if part.strip()]
        wrong = [address for address in named if address.rpartition(":")[2] not in map(str, ports)]
        if wrong or len(named) < len(ports):
            correct = ";".join(f"127.0.0.1:{port}" for port in sorted(ports))
            yield f"{member.name}: namesrvAddr: names not this cluster's NameServers; set namesrvAddr={correct}"


def _identity_problems(members: Sequence[Member]) -> Iterator[str]:
    owners: dict[tuple[str, str], str] = {}
    for member in members:
        is_broker = member.kind is MemberKind.BROKER
        own = {"storePathRootDir": member.settings.get("storePathRootDir", "store" if is_broker else "")}
        if is_broker:
            broker_name, broker_id = member.settings.get("brokerName", "broker-a"), member.settings.get("brokerId", "0")
            own["brokerName and brokerId"] = f"{broker_name}:{broker_id}"
        for key, value in own.items():
            # A NameServer without a folder stores nothing.
            owner = owners.setdefault((key, value), member.name) if value else member.name
            if owner != member.name:
                yield f"{member.name}: {key}: {value} is {owner}'s already; give each member its own"


def _authority_problems(members: Sequence[Member]) -> Iterator[str]:
    """A member that knows no record would be master beside the one that the record names."""
    first: dict[str, Member] = {}
    for member in members:
        if member.kind is not MemberKind.BROKER:
            continue
        other = first.setdefault(member.settings.get("brokerName", "broker-a"), member)
        if member.authority != other.authority:
            yield (
                f"{member.name}: {_AUTHORITY_KEY}: {member.authority or '(empty)'} is not that of {other.name}, "
                f"{other.authority or '(empty)'}; give the whole group the same"
            )


# Whether a process noted down earlier still runs: a pid alone may belong to another program by now.


def start_mark(pid: int) -> str | None:
    """Tells two processes of one pid apart: when it started, as the system writes it. None when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ask_ps(pid)
    # The command, in parentheses, may hold anything; state is the first field after it, start time the twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def is_running(pid: int, mark: str) -> bool:
    """True when the process that had this mark is still there."""
    return start_mark(pid) == mark


def _ask_ps(pid: int) -> str | None:
    # macOS and the BSDs have no /proc.
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def listens(pid: int, port: int) -> bool:
    """True when it is this process that listens on the port. Where the system does not say whose a port is, too."""
    if not Path("/proc/self/net/tcp").exists():
        return True
    owned = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    try:
        return any(os.readlink(entry) in owned for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended, or closed one of its files just now; whoever waits for it asks again
        return False


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


# As /proc/net/tcp writes the state.
_LISTENING: Final = "0A"
DEFAULT_FOLDER: Final = Path("data")
_PORT_MAX: Final = 65_535
# A broker's settings make a line of about 3 KB, the longest there is; reading more for a tail would be of no use.
_LOG_LINE_BYTES: Final = 4_000
_LOG_BYTES_MAX: Final = 64 << 20
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
    def is_over(self) -> bool:
        """True when nothing of it runs any more: it was killed, or the machine was. Processes in a container, or of
        another user, may be hidden from us; their ports are not."""
        if self.supervised or any(member.running for member in self.members):
            return False
        ports = {port for member in self.members for port in member.ports.values()}
        return all(is_free(port) for port in ports if port <= _PORT_MAX)

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
        self.certs = self.root / "certs"
        self.scrape_configuration = self.root / "prometheus.yml"
        self._record_path = self.root / "cluster.json"
        self._lock_path = self.root / "lock"
        self._lock_fd = -1
        # Folders that were not there before, outermost first.
        self._made: list[Path] = []

    @property
    def is_new(self) -> bool:
        """True when this start made it."""
        return self.conf in self._made

    @contextlib.contextmanager
    def kept_if_done(self) -> Iterator[None]:
        """If the block fails, what was made of the folder in it is removed again; what was there before stays.

        CommandError when the system refuses something: another user's folder, a full disk.
        """
        try:
            yield
        except OSError as error:
            self._discard()
            raise Refused(
                f"the data folder {self.root} cannot be used",
                cause=f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error),
                remedy="choose a folder with room that you may write to: --data DIR",
            ) from error
        except BaseException:
            self._discard()
            raise

    def prepare(self) -> None:
        store = self.root / "store"
        for folder in (self.root, self.conf, self.logs, store):
            self._check_owner(folder)
        # The members' own folders come into the last one, at the same time.
        for folder in (self.conf, self.logs, store):
            self.make(folder)

    def _check_owner(self, folder: Path) -> None:
        """Whoever owns it could have laid links there to files of ours, and settings that say where stores and keys
        are. Root may use anybody's."""
        try:
            owner = folder.stat().st_uid
        except FileNotFoundError:
            return
        if os.geteuid() not in (0, owner) and owner != 0:
            raise Refused(
                f"the folder {folder} belongs to another user (id {owner})",
                cause="its owner could have your files overwritten, and say where stores and keys are",
                remedy="choose a folder of your own: --data DIR",
            )

    def lock(self) -> None:
        """Takes the folder until this process ends; refuses when another `tandemmq up` has it."""
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            if self.read_record() is None:
                raise Refused(
                    f"another `tandemmq up` is at work in {self.root}",
                    cause=f"process {owner} holds {self._lock_path}; it checks the configuration, and nothing runs yet",
                    remedy="wait until it is done, or choose another folder: tandemmq up --data DIR --free-ports",
                ) from None
            raise Refused(
                f"a cluster already runs in {self.root}",
                cause=f"process {owner} holds {self._lock_path}",
                remedy=f"look at it with `tandemmq status{data_option(self.root)}`, stop it with "
                f"`tandemmq down{data_option(self.root)}`, or start another one: tandemmq up --data DIR --free-ports",
            ) from None
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())

    def make(self, folder: Path) -> None:
        """A folder and those above it, as far as they are missing. Messages lie in the clear: what is made of the data
        folder is its owner's alone."""
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                is_data = each == self.root or self.root in each.parents
                each.mkdir(mode=0o700 if is_data else 0o777, exist_ok=True)
                self._made.append(each)

    def _discard(self) -> None:
        if self.is_new:
            for folder in (self.conf, self.logs, self.certs):
                if folder in self._made:
                    shutil.rmtree(folder, ignore_errors=True)
            if self._lock_fd >= 0:
                self._lock_path.unlink(missing_ok=True)
        # The others only if nothing else has come into them.
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def log_path(self, member: str) -> Path:
        """Where a member's output goes."""
        return self.logs / f"{member}.log"

    def read_record(self) -> ClusterRecord | None:
        """cluster.json, or None when there is none. CommandError when it is none that we wrote."""
        try:
            text = self._record_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise Refused(f"{self.root} is no folder", remedy="name a cluster's data folder") from error
        except PermissionError as error:
            raise Refused(
                f"{self._record_path} cannot be read",
                cause=f"{error.strerror}: another user has started that cluster",
                remedy="run this command as that user, or as root; or name a cluster with --namesrv host:port",
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(getattr(error, "strerror", "") or "it is no text in UTF-8") from error
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._unreadable(f"it is damaged: {error}") from error
        try:
            return _cluster_record(fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            wrong = f"{error.args[0]} is wrong in it: " if isinstance(error, _WrongField) else ""
            raise self._unreadable(f"{wrong}it was written by another version, or by nobody of ours") from error

    def _unreadable(self, cause: str) -> CommandError:
        return Refused(
            f"{self._record_path} cannot be read",
            cause=cause,
            remedy="stop that cluster with the version that started it, or remove the file if nothing runs",
        )

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

    def bound_log(self, member: str) -> None:
        """What a member writes, gRPC's lines about strangers among it, must not fill the disk that its messages are on:
        the latest `_LOG_BYTES_MAX` to twice as many are kept. A line that is written meanwhile may be lost."""
        path = self.log_path(member)
        try:
            if path.stat().st_size < _LOG_BYTES_MAX:
                return
            before = path.with_name(f"{path.name}.1")
            before.unlink(missing_ok=True)
            shutil.copyfile(path, before)
            # The member appends, wherever the end is.
            os.truncate(path, 0)
        except OSError:
            return  # The disk is full, or the folder is not ours any more: it is tried again.

    def log_tail(self, member: str, *, lines: int, since: int = 0) -> list[str]:
        """The last lines a member wrote after byte `since` of its log, each cut to what a reader takes in."""
        limit = lines * _LOG_LINE_BYTES
        try:
            with self.log_path(member).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(since if since <= size else 0, size - limit))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line[:_SHOWN_LINE_CHARACTERS] for line in text.splitlines()[-lines:]]


class _WrongField(ValueError):
    """Its argument is the field's name."""


# By how the records write a field's type. A wrong pid could be that of everybody's processes (-1).
_HOLDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and 0 <= value < 1 << 31,
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
    "Mapping[str, int]": lambda value: isinstance(value, dict) and all(type(each) is int for each in value.values()),
}


def _cluster_record(document: Mapping[str, object]) -> ClusterRecord:
    """Any of the errors that wrong documents cause; what it returns has the types that it says."""
    lists = {name: document[name] for name in ("name_servers", "client_endpoints", "members")}
    for name, value in lists.items():
        if not isinstance(value, list) or not (value or name != "name_servers"):
            raise _WrongField(name)
    members: Any = lists.pop("members")
    texts: Any = {name: tuple(value) for name, value in lists.items()}  # type: ignore[arg-type]
    return _typed(ClusterRecord(**{**document, **texts, "members": tuple(map(_member_record, members))}))


def _member_record(fields: Mapping[str, Any]) -> MemberRecord:
    from tandemmq.admin.cluster_state import ExpectedBroker

    broker = fields["broker"]
    return _typed(MemberRecord(**{**fields, "broker": None if broker is None else _typed(ExpectedBroker(**broker))}))


def _typed(record: RecordT) -> RecordT:
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        holds = _HOLDS.get(str(field.type))
        if holds is not None and not holds(getattr(record, field.name)):
            raise _WrongField(field.name)
    return record


def data_option(root: Path) -> str:
    """What a command needs to find this cluster, with a space before it; nothing from where it looks by itself."""
    return "" if root == DEFAULT_FOLDER.absolute() else f" --data {shlex.quote(str(root))}"


def join_addresses(addresses: Iterable[str]) -> str:
    """Addresses the way RocketMQ's settings and clients write them."""
    return ";".join(addresses)


# The presets: RocketMQ's sample configurations for two broker groups, with every port written out.

# Name and what is said about it in the help text.
PRESETS: Final = {
    "2m-2s-sync": "two groups of a master and a slave; a send is acknowledged when both hold it",
    "2m-2s-async": "two groups of a master and a slave; the slave follows",
    "2m-noslave": "two masters without copies",
}
DEFAULT_PRESET: Final = "2m-2s-sync"


def preset_files(name: str) -> dict[str, str]:
    """Member name to the text of its configuration, NameServers first, then masters, then slaves."""
    folder = resources.files(__package__) / "presets" / name
    texts = {
        entry.name.removesuffix(".properties"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".properties")
    }
    return {member: texts[member] for member in sorted(texts, key=_start_order)}


def admin_file() -> str:
    """The configuration of an admin service beside any preset."""
    return (resources.files(__package__) / "presets" / "admin.properties").read_text(encoding="utf-8")


def _start_order(member: str) -> tuple[bool, bool, str]:
    return (not member.startswith("namesrv-"), member.endswith("-s"), member)


# RocketMQ-style `key=value` files, read for what the CLI needs and changed without losing a comment.
#
# Whether the values are right is not judged here: each service checks its own file (`--check`).

_ASSIGNMENT = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$")


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values; of a key written twice the last one counts. Lines that are no assignment are left out."""
    return {match[1]: match[2] for line in text.splitlines() if (match := _ASSIGNMENT.match(line))}


def with_values(text: str, values: Mapping[str, str]) -> str:
    """`text` with these keys set: in their line where they have one, else in a new line at the end."""
    missing = dict(values)
    lines = []
    for line in text.splitlines():
        match = _ASSIGNMENT.match(line)
        if match and match[1] in values:
            missing.pop(match[1], None)
            lines.append(f"{match[1]}={values[match[1]]}")
        else:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in missing.items()]
    return "\n".join(lines) + "\n"


# Puts a preset's files into a data folder, gives them ports, and reads them back as members.

_PRESET_NOTE: Final = "PRESET"
_NAME_SHOWN: Final = 40
# Below 32768, where Linux begins with ports for outgoing connections; others begin higher.
_FREE_PORTS: Final = range(20_000, 32_000)


def text_of(path: Path) -> str:
    """CommandError when it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            f"{path} is no text in UTF-8", remedy="mend it, or move it away to get the preset's back"
        ) from error


def replace_text(path: Path, text: str) -> None:
    """The old file or the new one, never half of it: a full disk leaves what an operator has written."""
    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def lay_out(folder: ClusterFolder, preset: str | None) -> str:
    """Copies the files of the preset that are not there yet; returns its name.

    A folder keeps its preset: mixing two would leave stores that no longer fit their roles.
    """
    note = folder.conf / _PRESET_NOTE
    kept = text_of(note).strip() if note.exists() else None
    if kept is not None and kept not in PRESETS:
        raise Refused(
            f"{note} names no preset: {kept[:_NAME_SHOWN]!r}",
            cause="another version has made this folder, or somebody has changed the file",
            remedy=f"write into it the preset of the files beside it, {', '.join(PRESETS)}; or name another --data",
        )
    if kept is not None and preset is not None and kept != preset:
        raise Refused(
            f"{folder.root} holds a cluster of preset {kept}, not {preset}",
            remedy=f"leave --preset out to start it, or choose another --data for {preset}",
        )
    name = kept or preset or DEFAULT_PRESET
    if kept is None:
        # First: what is killed in between must not leave files of one preset for another one to begin with.
        replace_text(note, name + "\n")
    for member, text in preset_files(name).items():
        path = folder.conf / f"{member}.properties"
        if not os.path.lexists(path):
            replace_text(path, text)
    return name


def read_members(folder: ClusterFolder, preset: str, overrides: dict[str, list[str]]) -> list[Member]:
    """The members of the folder in start order, with the overrides of this run (from `split_overrides`)."""
    return [read_member(folder, name, overrides) for name in preset_files(preset)]


def read_member(folder: ClusterFolder, name: str, overrides: dict[str, list[str]]) -> Member:
    """One member, as its file is, with the overrides of this run."""
    text = text_of(folder.conf / f"{name}.properties")
    filed = Member(name=name, settings=parse_properties(text))
    for_all = overrides.get("", []) if filed.kind is MemberKind.BROKER else []
    own = (*for_all, *overrides.get(name, []))
    settings = {**filed.settings, **parse_properties("\n".join(own))}
    # Of this run only: a folder that is copied must not share the record of the one it was copied from.
    kind, _, place = settings.get(_AUTHORITY_KEY, "").partition(":")
    if kind == "file" and place and not Path(place).is_absolute():
        settings[_AUTHORITY_KEY] = f"file:{folder.root / place}"
        own = (*own, f"{_AUTHORITY_KEY}={settings[_AUTHORITY_KEY]}")
    return replace(filed, settings=settings, overrides=own)


def make_authority_folders(folder: ClusterFolder, members: Iterable[Member]) -> None:
    """Those below the data folder that keep the records of groups that fail over."""
    for member in members:
        kind, _, place = member.authority.partition(":")
        if kind == "file" and Path(place).is_relative_to(folder.root):
            folder.make(Path(place))


_SECRET_KEYS: Final = frozenset({"admintoken", "viewertoken", "secretkey"})
"""Of all services, without underscores and in lower case."""


def split_overrides(values: Sequence[str], members: Sequence[str]) -> dict[str, list[str]]:
    """`key=value` for all brokers (under "") and `member:key=value` for one, by member."""
    overrides: dict[str, list[str]] = {}
    for value in values:
        target, colon, assignment = value.partition(":")
        # A value may hold colons (namesrvAddr=host:port); a member's name stands before the key.
        if not colon or "=" in target:
            target, assignment = "", value
        if "=" not in assignment or (target and target not in members):
            raise Refused(
                f"--set {value} cannot be understood",
                cause=f"there is no member {target}" if "=" in assignment else "it has no '='",
                remedy=f"write key=value for all brokers, or member:key=value with one of {', '.join(members)}",
            )
        key = assignment.partition("=")[0].strip()
        if key.replace("_", "").lower() in _SECRET_KEYS:
            raise Refused(
                f"--set {target}:{key} is not taken",
                cause="it is a secret, and every user of this machine may see command lines in `ps`",
                remedy=f"write {key}=… into the member's file in DIR/conf",
            )
        overrides.setdefault(target, []).append(assignment)
    return overrides


def renumber(folder: ClusterFolder, preset: str, ports: Sequence[int]) -> None:
    """Writes these ports into the files, in start order, and the NameServers' into every namesrvAddr."""
    remaining = iter(ports)
    members = read_members(folder, preset, {})
    chosen = {member.name: {key: str(next(remaining)) for key in PORT_KEYS[member.kind]} for member in members}
    name_servers = join_addresses(
        f"{member.host}:{chosen[member.name]['listenPort']}"
        for member in members
        if member.kind is MemberKind.NAME_SERVER
    )
    for member in members:
        values = chosen[member.name]
        if member.kind is MemberKind.BROKER:
            values["namesrvAddr"] = name_servers
        path = folder.conf / f"{member.name}.properties"
        replace_text(path, with_values(text_of(path), values))


def port_count(preset: str) -> int:
    """How many ports the preset's members listen on."""
    return sum(len(PORT_KEYS[Member(name=name, settings={}).kind]) for name in preset_files(preset))


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, below the range systems take for outgoing connections.

    A broker that restarts must find its port free again, and in that range any connection may have it by then.
    """
    first = _FREE_PORTS.start + os.getpid() * count % len(_FREE_PORTS)
    candidates = itertools.chain(range(first, _FREE_PORTS.stop), range(_FREE_PORTS.start, first))
    return list(itertools.islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """True when nobody listens on this port of loopback."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""Who keeps a group's record: three places, one interface. None of them is asked for more than compare-and-swap.

| `failoverAuthority`                 | where                                                               |
|-------------------------------------|---------------------------------------------------------------------|
| `file:FOLDER`                       | a file a group in a folder that all members share, under a lock     |
| `etcd:host:port,host:port[/PREFIX]` | etcd v3, the key /PREFIX/CLUSTER/GROUP (`etcd.py`)                  |
| `kubernetes:LEASE`                  | a Lease of this name in the pod's namespace (`kubernetes_lease.py`) |

Here are the interface, the file, and what reads the setting.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from tandemmq.core.replication.group_record import GroupRecord
from tandemmq.service.certificates import FileMarks, file_marks

__all__ = [
    "CALL_LIMIT_S",
    "Authority",
    "AuthorityUnavailable",
    "BlockingCalls",
    "EtcdTls",
    "FileAuthority",
    "Held",
    "SwapLost",
    "check_authority",
    "open_authority",
]

T = TypeVar("T")

CALL_LIMIT_S: Final = 1.0
"""A renewal comes each 1.5 s, and the next one must find the last one over."""


class AuthorityUnavailable(Exception):
    """No answer, or one that cannot be understood. Of a swap nobody knows whether it was applied: read again."""


class SwapLost(Exception):
    """The record is not the one that was read: somebody else changed it. Nothing was written."""


class Held(NamedTuple):
    """A record as the authority has it."""

    record: GroupRecord
    version: str
    """Changes with each write, and never comes back."""


class Authority(Protocol):
    """One group's record. Every call ends within its time limit of a second. From the event loop only."""

    async def read(self) -> Held | None:
        """The newest version, not an older one; None: there is no record. AuthorityUnavailable."""

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        """Writes `record` in place of exactly `before`; None: where there was no record. SwapLost,
        AuthorityUnavailable."""

    async def close(self) -> None:
        """Gives its connection back."""


class BlockingCalls:
    """Calls that block, one at a time on a thread of their own. Who waits for one waits a second at most.

    A call that takes longer runs on, unheard; the next ones wait for its end, within their own second.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="authority")
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises; AuthorityUnavailable after a second."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S), self._turn:
                if self._running is not None:
                    await asyncio.wait([self._running])
                running = asyncio.get_running_loop().run_in_executor(self._executor, call)
                self._running = running
                running.add_done_callback(_hear)
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise AuthorityUnavailable(f"{self._place} does not answer within {CALL_LIMIT_S:g} s") from error

    def close(self) -> None:
        """Starts nothing more. Does not wait for what runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _hear(ended: asyncio.Future[Any]) -> None:
    """An outcome that nobody waited for is no mistake."""
    if not ended.cancelled():
        ended.exception()


# The file.

_LOCK_LIMIT_S: Final = CALL_LIMIT_S / 2
"""So that who waits for a lock is told so, before the call's own limit tells less."""
_LOCK_RETRY_S: Final = 0.01


def _takes(fd: int) -> bool:
    """The lock, if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileAuthority:
    """One group's record in a file of a folder that all its members share: `<cluster>@<group>.json`.

    {"version": "COUNT-TOKEN", "record": {...}}. The token is drawn anew for each write, so that a count that comes a
    second time, behind a backup that was put back, is another version.

    Who writes prepares a file of its own and syncs it; the lock spans only the comparison and the rename. A process
    that is stopped at any other place keeps nobody from writing. Who reads takes no lock, but syncs the folder before
    it believes what it sees first: after a power cut nobody has acted on a version that is gone.
    """

    def __init__(self, folder: Path, *, cluster: str, broker_name: str) -> None:
        # Quoted, so that no two groups have one file.
        name = f"{quote(cluster, safe='')}@{quote(broker_name, safe='')}"
        self._folder = folder
        self._path = folder / f"{name}.json"
        self._lock_path = folder / f"{name}.lock"
        self._durable_version = ""
        self._calls = BlockingCalls(str(self._path))

    async def read(self) -> Held | None:
        """See `Authority`."""
        return await self._calls.run(self._read)

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        """See `Authority`."""
        return await self._calls.run(lambda: self._swap(before, record))

    async def close(self) -> None:
        """See `Authority`."""
        self._calls.close()

    def _read(self) -> Held | None:
        with self._asking():
            held = self._load()
            # Also where there is no file: a folder that is not there holds no proof that nobody is master.
            if held is None or held.version != self._durable_version:
                _sync_folder(self._folder)
                self._durable_version = held.version if held is not None else ""
            return held

    def _swap(self, before: Held | None, record: GroupRecord) -> Held:
        token = secrets.token_hex(8)
        count = int(before.version.partition("-")[0]) if before is not None else 0
        after = Held(record, f"{count + 1}-{token}")
        unfinished = self._path.with_name(f"{self._path.name}.{token}.new")
        with self._asking():
            try:
                _write_durably(unfinished, {"version": after.version, "record": json.loads(record.to_text())})
                with self._locked():
                    self._check_is_newest(before)
                    self._remove_unfinished(unfinished)
                    unfinished.replace(self._path)
            finally:
                unfinished.unlink(missing_ok=True)
            _sync_folder(self._folder)
        self._durable_version = after.version
        return after

    def _load(self) -> Held | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = json.loads(data)
            version = str(document["version"])
            int(version.partition("-")[0])
            return Held(GroupRecord.from_text(json.dumps(document["record"])), version)
        except (ValueError, KeyError, TypeError) as error:
            raise AuthorityUnavailable(
                f"failoverAuthority: {self._path} cannot be read ({error}); put back a copy of it, or remove it while "
                "all members of the group are stopped"
            ) from error

    def _check_is_newest(self, before: Held | None) -> None:
        found = self._load()
        if (found.version if found is not None else "") != (before.version if before is not None else ""):
            raise SwapLost(f"{self._path} is another version")

    def _remove_unfinished(self, ours: Path) -> None:
        """What a killed process left. Under the lock: who else has a file ready now has lost already, as this swap
        comes first."""
        for name in os.listdir(self._folder):
            if name.startswith(f"{self._path.name}.") and name.endswith(".new") and name != ours.name:
                (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline_s = time.monotonic() + _LOCK_LIMIT_S
            while not _takes(fd):
                if time.monotonic() >= deadline_s:
                    raise AuthorityUnavailable(f"another process holds {self._lock_path}")
                time.sleep(_LOCK_RETRY_S)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AuthorityUnavailable(
                f"failoverAuthority: {self._path} cannot be used ({error.strerror}: {error.filename}); the folder must "
                "exist, and all members must be able to write to it"
            ) from error


def _write_durably(path: Path, document: dict[str, object]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# The setting.


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files: who signs etcd's certificates and, where etcd asks for one (`--client-cert-auth`), our own."""

    ca_path: str
    cert_path: str = ""
    key_path: str = ""

    @property
    def paths(self) -> tuple[str, str, str]:
        """Of the signer, the certificate and the key; "" is none."""
        return self.ca_path, self.cert_path, self.key_path

    def marks(self) -> FileMarks:
        """See `file_marks`."""
        return file_marks(path for path in self.paths if path)


_SYNTAX: Final = "`file:FOLDER`, `etcd:HOST:PORT,HOST:PORT[/PREFIX]` or `kubernetes:LEASE`"
_PREFIX_DEFAULT: Final = "tandemmq"
_ENDPOINT: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_LEASE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LEASE_CHARACTERS_MAX: Final = 253


def check_authority(text: str) -> str:
    """What is wrong with a `failoverAuthority`, with the remedy; "" if nothing is. Looks at the text alone."""
    kind, _, place = text.partition(":")
    if kind == "file":
        if not Path(place).is_absolute():
            return f"failoverAuthority={text}: give the folder's absolute path, which is the same for all members"
    elif kind == "etcd":
        endpoints, slash, prefix = place.partition("/")
        for endpoint in endpoints.split(","):
            match = _ENDPOINT.fullmatch(endpoint)
            if match is None or not 0 < int(match[1]) < 65_536:
                return (
                    f"failoverAuthority={text}: '{endpoint}' is no HOST:PORT; give etcd's client port, as 10.0.0.5:2379"
                )
        if slash and _PREFIX.fullmatch(prefix) is None:
            return (
                f"failoverAuthority={text}: '{prefix}' is no prefix; use letters, digits, '.', '_', '-' and single '/'"
            )
    elif kind == "kubernetes":
        if len(place) > _LEASE_CHARACTERS_MAX or _LEASE.fullmatch(place) is None:
            return f"failoverAuthority={text}: '{place}' is no Lease's name; use lower-case letters, digits, '-', '.'"
    else:
        return f"failoverAuthority={text}: there is no such authority; use {_SYNTAX}"
    return ""


def open_authority(text: str, *, cluster: str, broker_name: str, tls: EtcdTls | None = None) -> Authority:
    """Keeps the record of the group `broker_name` where `failoverAuthority` says. Dials nobody yet. `tls` is for etcd.

    ValueError, with the field and the remedy: the text names no authority, or a Lease outside a pod.
    """
    if problem := check_authority(text):
        raise ValueError(problem)
    kind, _, place = text.partition(":")
    if kind == "file":
        return FileAuthority(Path(place), cluster=cluster, broker_name=broker_name)
    # Each brings the client of its server, which the others do not need.
    if kind == "etcd":
        from tandemmq.broker.failover.etcd import EtcdAuthority

        endpoints, _, prefix = place.partition("/")
        key = "/".join(("", prefix or _PREFIX_DEFAULT, quote(cluster, safe=""), quote(broker_name, safe="")))
        return EtcdAuthority(endpoints.split(","), key, tls=tls)
    from tandemmq.broker.failover.kubernetes_lease import lease_of_pod

    return lease_of_pod(place, cluster=cluster, broker_name=broker_name)

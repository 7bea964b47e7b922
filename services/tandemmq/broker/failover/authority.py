"""Who keeps a group's record: three places, one interface. None of them is asked for more than compare-and-swap.

| `failoverAuthority`                 | where                                                               |
|-------------------------------------|---------------------------------------------------------------------|
| `file:FOLDER`                       | a folder a group in a folder that all members share                 |
| `etcd:host:port,host:port[/PREFIX]` | etcd v3, the key /PREFIX/CLUSTER/GROUP (`EtcdAuthority`)            |
| `kubernetes:LEASE`                  | a Lease of this name in the pod's namespace (`LeaseAuthority`)      |

Here are the interface, its three places, and what reads the setting.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import grpc

from tandemmq.core.clock import Clock
from tandemmq.core.replication.mastership import GroupRecord, RecordUnreadable
from tandemmq.proto.etcdserverpb import kv_pb2 as pb
from tandemmq.proto.etcdserverpb import kv_pb2_grpc
from tandemmq.service.certificates import FileMarks, file_marks
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.kubernetes_api import (
    AccessDenied,
    Document,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectConflict,
    ObjectMissing,
    annotations_of,
    api_of_pod,
)
from tandemmq.service.rpc import cancellation_wins

T = TypeVar("T")

CALL_LIMIT_S: Final = 1.0
"""A renewal comes each 1.5 s, and the next one must find the last one over."""


_REMEDY: Final = (
    "put back a copy of it; if there is none, remove it, and name the master, by the group's name and a brokerId: "
    "tandemmq failover GROUP --to N --unclean"
)


class AuthorityUnavailable(Exception):
    """No answer, or one that cannot be understood. Of a swap nobody knows whether it was applied: read again."""


class RecordSpoilt(AuthorityUnavailable):
    """The authority answers, and what it keeps is no record: an operator has to look."""


class SwapLost(Exception):
    """The record is not the one that was read: somebody else changed it. Nothing was written."""


class Held(NamedTuple):
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
_LOOKS: Final = 100
"""Who reads beside a rename may see no version, or two, and looks again."""
_VERSION: Final = re.compile(r"([0-9]+)-[0-9a-f]+")


def _takes(fd: int) -> bool:
    """The lock, if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileAuthority:
    """One group's record in a folder that all its members share, without a lock:

        <cluster>@<group>.json/VERSION/VERSION.json        {"version": "COUNT-TOKEN", "record": {...}}

    The inner folder has the name of the version in force, and a swap is one rename of it to the name of the next one,
    whose file has been laid into it before. Of many renames from one name the kernel lets one succeed, and a name never
    comes back, as its token is drawn anew: who finds it gone has lost, also after an hour of standing still. So a
    process that is stopped or killed anywhere keeps nobody, and who opens a version's file by its path sees what is in
    force at that moment. What those laid there that lost goes with the next swap. Who reads syncs the folders before
    it believes what it sees first: after a power cut nobody has acted on a version that is gone.

    Older releases kept a plain file of the same name, and changed it under a lock. It is read as it is. The first swap
    takes that lock, once, and puts a link to a folder in the file's place. A member of such a release finds "Is a
    directory" from then on: it can neither read nor change the record.
    """

    def __init__(self, folder: Path, *, cluster: str, broker_name: str) -> None:
        # Quoted, so that no two groups have one folder.
        self._name = f"{quote(cluster, safe='')}@{quote(broker_name, safe='')}"
        self._folder = folder
        self._path = folder / f"{self._name}.json"
        self._durable_version = ""
        self._calls = BlockingCalls(str(self._path))

    async def read(self) -> Held | None:
        return await self._calls.run(self._read)

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        return await self._calls.run(lambda: self._swap(before, record))

    async def close(self) -> None:
        self._calls.close()

    def _read(self) -> Held | None:
        with self._asking():
            held = self._load()
            # Also where there is none: a folder that is not there holds no proof that nobody is master.
            if held is None or held.version != self._durable_version:
                self._sync()
                self._durable_version = held.version if held is not None else ""
            return held

    def _swap(self, before: Held | None, record: GroupRecord) -> Held:
        count = _count(before.version) if before is not None else 0
        after = Held(record, f"{count + 1}-{secrets.token_hex(8)}")
        with self._asking():
            if self._is_of_older_release():
                self._replace_file(before, after)
            elif before is None:
                self._lay(after, lambda made: os.rename(made, self._path))
            else:
                self._replace(before.version, after)
            self._sync()
            self._remove_lost(after.version)
        self._durable_version = after.version
        return after

    def _load(self) -> Held | None:
        versions: list[str] = []
        for _ in range(_LOOKS):
            try:
                versions = [name for name in os.listdir(self._path) if _VERSION.fullmatch(name)]
            except NotADirectoryError:
                if (held := self._load_file(self._path)) is not None:
                    return held
            except FileNotFoundError:
                if self._path.is_symlink():
                    raise self._spoilt(self._path, "it leads to nothing") from None
                return None
            if len(versions) == 1 and (held := self._load_version(versions[0])) is not None:
                return held
        if not versions:
            return None
        if len(versions) > 1:
            raise self._spoilt(self._path, f"one version is in force, and there are {', '.join(sorted(versions))}")
        raise AuthorityUnavailable(f"failoverAuthority: {self._path} changes as often as it is read")

    def _load_version(self, version: str) -> Held | None:
        """None: it is in force no more."""
        path = self._file_of(version, version)
        held = self._load_file(path)
        if held is None and path.parent.is_dir():
            # In force before and after, and so in between.
            raise self._spoilt(path, "it is missing")
        if held is not None and held.version != version:
            raise self._spoilt(path, f"it is version {held.version}")
        return held

    def _load_file(self, path: Path) -> Held | None:
        try:
            data = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return None
        try:
            document = json.loads(data)
            version = str(document["version"])
            _count(version)
            return Held(GroupRecord.from_text(json.dumps(document["record"])), version)
        except (ValueError, KeyError, TypeError) as error:
            raise self._spoilt(path, str(error)) from error

    def _file_of(self, in_force: str, version: str) -> Path:
        return self._path / in_force / f"{version}.json"

    def _replace(self, before: str, after: Held) -> None:
        laid = self._file_of(before, after.version)
        try:
            _write_durably(laid, after)
            os.rename(self._path / before, self._path / after.version)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._lost() from error
        except OSError:
            with suppress(OSError):
                os.unlink(laid)
            raise

    def _lay(self, after: Held, place: Callable[[Path], None]) -> None:
        """Makes a whole folder beside the record, has it placed, and removes those that were never placed: whoever
        makes one now has lost."""
        made = self._folder / f"{self._name}.{secrets.token_hex(8)}.records"
        try:
            os.mkdir(made)
            os.mkdir(made / after.version)
            _write_durably(made / after.version / f"{after.version}.json", after)
            _sync_folder(made)
            place(made)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
                raise self._lost() from error
            raise
        # Whoever was stopped here may find another one in force.
        in_force = self._path.resolve().name
        for other in self._others(r"\.[0-9a-f]+\.records"):
            if other.name != in_force:
                shutil.rmtree(other, ignore_errors=True)

    def _others(self, suffix: str) -> Iterator[Path]:
        """Of this group beside its record."""
        for name in os.listdir(self._folder):
            if re.fullmatch(re.escape(self._name) + suffix, name):
                yield self._folder / name

    def _remove_lost(self, version: str) -> None:
        """What can win no more: files of this count, and before. Of the next count one may."""
        with suppress(OSError):
            for name in os.listdir(self._path / version):
                other = name.removesuffix(".json")
                if _VERSION.fullmatch(other) and _count(other) <= _count(version) and other != version:
                    os.unlink(self._path / version / name)

    def _sync(self) -> None:
        """Which version is in force."""
        with suppress(NotADirectoryError, FileNotFoundError):
            _sync_folder(self._path)
        _sync_folder(self._folder)

    def _lost(self) -> SwapLost:
        # A folder that is not there has told nothing.
        os.stat(self._folder)
        return SwapLost(f"{self._path} is another version")

    def _spoilt(self, path: Path, why: str) -> RecordSpoilt:
        return RecordSpoilt(f"failoverAuthority: {path} cannot be read ({why}); {_REMEDY}")

    # What older releases kept: a file, changed under a lock.

    def _is_of_older_release(self) -> bool:
        return self._path.is_file()

    def _replace_file(self, before: Held | None, after: Held) -> None:
        def place(made: Path) -> None:
            link = made / "link"
            os.symlink(made.name, link)
            os.replace(link, self._path)

        # Nobody of an older release is between a look and a rename; behind this one their look fails.
        with self._locked() as lock:
            found = self._load_file(self._path)
            if before is None or found is None or found.version != before.version:
                raise self._lost()
            self._lay(after, place)
            for unfinished in self._others(r"\.json\.[0-9a-f]+\.new"):
                unfinished.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        path = self._folder / f"{self._name}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline_s = time.monotonic() + _LOCK_LIMIT_S
            while not _takes(fd):
                if time.monotonic() >= deadline_s:
                    raise AuthorityUnavailable(
                        f"another process holds {path}, as older releases do for each change and this one for its "
                        "first; if that lasts, a member is stopped (SIGSTOP, a frozen container) in the middle of "
                        "a change: let it go on, or end it"
                    )
                time.sleep(_LOCK_RETRY_S)
            yield path
        finally:
            os.close(fd)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A write to a full disk names no file.
            place = f": {error.filename}" if error.filename else ""
            raise AuthorityUnavailable(
                f"failoverAuthority: {self._path} cannot be used ({error.strerror}{place}); the folder must exist, "
                "have room, and all members must be able to write to it"
            ) from error


def _count(version: str) -> int:
    return int(version.partition("-")[0])


def _write_durably(path: Path, held: Held) -> None:
    """A new file, and its name."""
    data = json.dumps({"version": held.version, "record": json.loads(held.record.to_text())}).encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    _sync_folder(path.parent)


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
    if kind == "etcd":
        endpoints, _, prefix = place.partition("/")
        key = "/".join(("", prefix or _PREFIX_DEFAULT, quote(cluster, safe=""), quote(broker_name, safe="")))
        return EtcdAuthority(endpoints.split(","), key, tls=tls)

    return lease_of_pod(place, cluster=cluster, broker_name=broker_name)


# A group's record in etcd v3: one key, replaced by a transaction that compares its mod_revision.
#
# A read is linearizable, and asks the next endpoint when one does not answer. A swap is sent once, to the endpoint that
# has just answered a read: sent again it could find its own first copy, and call a swap lost that was applied.
#
# With `EtcdTls` calls are encrypted. Its files are looked at before each call, and channels are made anew once they are
# others: a renewed certificate needs no restart.

_CHANNEL_OPTIONS: Final = (
    # gRPC must not send a swap twice either.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Without calls as well etcd allows a ping each 5 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
    # Two authorities of one process share no connection: each has its own view of who is away.
    ("grpc.use_local_subchannel_pool", 1),
)
# Of a swap's second, for finding the endpoint that it is sent to.
_SEARCH_LIMIT_S: Final = CALL_LIMIT_S / 2


class EtcdAuthority:
    """One key. Its version is its mod_revision, in decimal. `tls` None: calls are plain."""

    def __init__(self, endpoints: Sequence[str], key: str, *, tls: EtcdTls | None = None) -> None:
        self._endpoints = tuple(endpoints)
        self._key = key
        self._tls = tls
        self._marks: FileMarks = ()
        self._credentials: grpc.ChannelCredentials | None = None
        # Who answered last is asked first.
        self._first = 0
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def read(self) -> Held | None:
        return _held(self._key, await self._range(CALL_LIMIT_S))

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        deadline_s = asyncio.get_running_loop().time() + CALL_LIMIT_S
        # The read looks at the certificates: the swap goes where it went, by the same channel.
        revision = int(before.version) if before is not None else 0
        found = await self._range(_SEARCH_LIMIT_S)
        if _revision(found) != revision or not _is_same(_held(self._key, found), before):
            raise SwapLost(f"{self._key} in etcd is another version")
        key = self._key.encode()
        put = pb.PutRequest(key=key, value=record.to_text().encode())
        request = pb.TxnRequest(
            compare=[pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)],
            success=[pb.RequestOp(request_put=put)],
        )
        chosen = self._first
        try:
            with cancellation_wins():
                left_s = deadline_s - asyncio.get_running_loop().time()
                answer = await self._stub(self._endpoints[chosen]).Txn(request, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            self._first = (chosen + 1) % len(self._endpoints)
            raise AuthorityUnavailable(
                f"etcd, {self._endpoints[chosen]} ({_reason(error)}): whether the swap was applied is not known"
            ) from error
        if not answer.succeeded:
            raise SwapLost(f"{self._key} in etcd is another version")
        return Held(record, str(answer.header.revision))

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(grace=None)
        self._channels.clear()

    async def _range(self, limit_s: float) -> pb.RangeResponse:
        """From the first endpoint that answers, which is `self._first` then. AuthorityUnavailable: none within the
        limit."""
        await self._renew_credentials()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        request = pb.RangeRequest(key=self._key.encode())
        count, first, failures = len(self._endpoints), self._first, list[str]()
        for tried in range(count):
            endpoint = self._endpoints[(first + tried) % count]
            # Those behind it need their share of what is left.
            share_s = (deadline_s - loop.time()) / (count - tried)
            try:
                with cancellation_wins():
                    answer: pb.RangeResponse = await self._stub(endpoint).Range(request, timeout=share_s)
            except grpc.aio.AioRpcError as error:
                failures.append(f"{endpoint} ({_reason(error)})")
                continue
            self._first = (first + tried) % count
            return answer
        raise AuthorityUnavailable(f"failoverAuthority: no endpoint of etcd answers: {', '.join(failures)}")

    async def _renew_credentials(self) -> None:
        """Channels with other files than there are now make way. Those in use stay while the files cannot be read."""
        if self._tls is None:
            return
        try:
            marks = self._tls.marks()
            if marks == self._marks:
                return
            ca, cert, key = (Path(path).read_bytes() if path else None for path in self._tls.paths)
        except OSError as error:
            if self._credentials is not None:
                return
            raise AuthorityUnavailable(
                f"failoverAuthority: {error.filename} cannot be read ({error.strerror}); it is named by "
                "failoverAuthorityCaPath, failoverAuthorityCertPath or failoverAuthorityKeyPath"
            ) from error
        await self.close()
        self._marks, self._credentials = marks, grpc.ssl_channel_credentials(ca, key, cert)

    def _stub(self, endpoint: str) -> kv_pb2_grpc.KVStub:
        """Made at the first call, which is on the event loop."""
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=_CHANNEL_OPTIONS)
            self._channels[endpoint] = channel
        return kv_pb2_grpc.KVStub(channel)


def _is_same(held: Held | None, before: Held | None) -> bool:
    """Of one revision: behind a backup that was put back, a revision comes a second time, with another record."""
    if held is None or before is None:
        return held is before
    return held.record.to_text() == before.record.to_text()


def _revision(found: pb.RangeResponse) -> int:
    return found.kvs[0].mod_revision if found.kvs else 0


def _held(key: str, found: pb.RangeResponse) -> Held | None:
    if not found.kvs:
        return None
    try:
        record = GroupRecord.from_text(found.kvs[0].value.decode())
    except (RecordUnreadable, UnicodeDecodeError) as error:
        raise RecordSpoilt(
            f"failoverAuthority: the value of {key} in etcd cannot be read ({error}); {_REMEDY}"
        ) from error
    return Held(record, str(_revision(found)))


def _reason(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {' '.join((error.details() or '').split())[:200]}"


# A group's record in an annotation of a Lease, replaced under its resourceVersion.
#
# The Lease's own fields are filled for people (`kubectl get lease`); nothing here reads them. The chart may make the
# Lease without a record, so that the Role can name it and needs no right to create any.

RECORD_ANNOTATION: Final = "tandemmq.io/broker-group-record"
# A call ends by itself before who waits for it gives up.
_STEP_LIMIT_S: Final = 0.9 * CALL_LIMIT_S
# Two groups that were given one Lease must not take each other's record for theirs.
_OWNER_ANNOTATION: Final = "tandemmq.io/broker-group-record-of"
# An update that changes nothing keeps the resourceVersion. With this none changes nothing.
_WRITE_ANNOTATION: Final = "tandemmq.io/broker-group-record-write"


class LeaseAuthority:
    """One Lease. Its version is its resourceVersion, so a change of anything else in it is a new version, too."""

    def __init__(self, api: KubernetesApi, lease: str, *, cluster: str, broker_name: str, clock: Clock) -> None:
        self._api = api
        self._lease = lease
        self._group = broker_name
        self._owner = f"{cluster}@{broker_name}"
        self._clock = clock
        # As last read or written: a replacement must bring the whole object. Only the thread of `_calls` has it.
        self._known: Document = {}
        self._calls = BlockingCalls(f"Lease {lease}, namespace {api.namespace}")

    async def read(self) -> Held | None:
        return await self._calls.run(self._read)

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        return await self._calls.run(lambda: self._swap(before, record))

    async def close(self) -> None:
        self._calls.close()
        self._api.close()

    def _read(self) -> Held | None:
        found = self._get()
        text = annotations_of(found).get(RECORD_ANNOTATION) if found is not None else None
        if found is None or text is None:
            return None
        self._check_owner(found)
        try:
            return Held(GroupRecord.from_text(text), _version(found))
        except RecordUnreadable as error:
            raise RecordSpoilt(
                f"failoverAuthority: annotation {RECORD_ANNOTATION} of Lease {self._lease} cannot be read ({error}); "
                f"{_REMEDY}"
            ) from error

    def _swap(self, before: Held | None, record: GroupRecord) -> Held:
        replaced = self._object_of(before)
        document = self._document(replaced or {}, record)
        verb = "create" if replaced is None else "update"
        try:
            with self._asking(verb):
                if replaced is None:
                    written = self._api.create(Kind.LEASE, document)
                else:
                    written = self._api.replace(Kind.LEASE, self._lease, document)
        except (ObjectConflict, ObjectMissing) as error:
            raise SwapLost(f"Lease {self._lease} is another version: {error}") from error
        self._known = written
        return Held(record, _version(written))

    def _object_of(self, before: Held | None) -> Document | None:
        """The whole object that `before` was read from; None: there must be none. SwapLost."""
        if before is not None and _version(self._known) == before.version:
            return self._known
        found = self._get()
        if before is None:
            if found is None or RECORD_ANNOTATION not in annotations_of(found):
                return found
            self._check_owner(found)
        elif found is not None and _version(found) == before.version:
            return found
        raise SwapLost(f"Lease {self._lease} is another version")

    def _get(self) -> Document | None:
        # Without a resourceVersion the API server asks its store, not its memory.
        try:
            with self._asking("get"):
                self._known = self._api.read(Kind.LEASE, self._lease)
        except ObjectMissing:
            self._known = {}
            return None
        return self._known

    def _document(self, replaced: Document, record: GroupRecord) -> Document:
        # With the uid of what is replaced, so that one of the same name that was made since is left alone.
        spec = replaced.get("spec") or {}
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        holder, transitions = f"{self._group}-{record.master.broker_id}", record.epoch - 1
        is_renewal = (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (holder, transitions)
        fields = {
            "holderIdentity": holder,
            "leaseDurationSeconds": -(-record.lease_ms // 1_000),
            "acquireTime": spec.get("acquireTime", now) if is_renewal else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        annotations = {
            RECORD_ANNOTATION: record.to_text(),
            _OWNER_ANNOTATION: self._owner,
            _WRITE_ANNOTATION: secrets.token_hex(8),
        }
        metadata = replaced.get("metadata") or {"name": self._lease}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "annotations": {**annotations_of(replaced), **annotations}},
            "spec": {**spec, **fields},
        }

    def _check_owner(self, found: Document) -> None:
        owner = annotations_of(found).get(_OWNER_ANNOTATION, self._owner)
        if owner != self._owner:
            raise AuthorityUnavailable(
                f"failoverAuthority: Lease {self._lease} keeps the record of {owner}, not of {self._owner}; give each "
                "group a Lease of its own"
            )

    @contextmanager
    def _asking(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (ObjectConflict, ObjectMissing):
            raise
        except AccessDenied as error:
            raise AuthorityUnavailable(
                f"failoverAuthority: may not {verb} leases.coordination.k8s.io {self._lease} in namespace "
                f"{self._api.namespace}; allow it in the Role of the broker's ServiceAccount ({error})"
            ) from error
        except KubernetesUnavailable as error:
            raise AuthorityUnavailable(f"Lease {self._lease}, {verb}: {error}") from error


def lease_of_pod(lease: str, *, cluster: str, broker_name: str) -> LeaseAuthority:
    """In this pod's namespace, by its ServiceAccount. ValueError: this is no pod."""
    try:
        api = api_of_pod(time_limit_s=_STEP_LIMIT_S)
    except KubernetesUnavailable as error:
        raise ValueError(
            f"failoverAuthority=kubernetes:{lease} needs a pod with a ServiceAccount's token ({error}); mount it, or "
            "use `file:` or `etcd:`"
        ) from error
    return LeaseAuthority(api, lease, cluster=cluster, broker_name=broker_name, clock=SystemClock())


def _version(document: Document) -> str:
    return str((document.get("metadata") or {}).get("resourceVersion", ""))

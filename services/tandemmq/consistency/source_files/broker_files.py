"""A replica read through its running broker: ReplicaReaderService. And which brokers NameServers know. Here
protobuf ends.

Digests and checks are made beside the broker, so that a few bytes travel for each extent; raw bytes travel only where
replicas differ. The broker limits how fast it reads, and says so when too many ask at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

import grpc

from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.settings import NothingFound
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.queue_check import QueueSpan
from tandemmq.core.audit.record_check import RecordCheck
from tandemmq.core.audit.replica_store import (
    ExtentDigest,
    NotShown,
    ReplicaFacts,
    ReplicaUnreadable,
    StoreEntry,
    disk_id,
    holes_of,
)
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.route_table import merge_snapshots
from tandemmq.core.routing.values import RegisteredBroker, RouteSnapshot
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as reader_pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.proto.broker.v1.replica_reader_service_pb2_grpc import ReplicaReaderServiceStub
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb
from tandemmq.proto.nameserver.v1.name_server_service_pb2_grpc import NameServerServiceStub
from tandemmq.service.route_messages import broker_value
from tandemmq.service.service_channels import sync_channel

AnswerT = TypeVar("AnswerT")

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    # Else a broker whose machine lost its power is waited for until the deadline of a whole range.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_DESCRIBE_TIMEOUT_S: Final = 3.0
_LIST_TIMEOUT_S: Final = 10.0
_BASE_TIMEOUT_S: Final = 60.0
_SLOWEST_BYTES_PER_SECOND: Final = 1 << 20
"""At which a broker is still waited for, its other callers included. One that is gone is noticed by keepalive."""
_READ_BYTES_MAX: Final = 256 << 20
"""That ReadFile gives in one call."""
_TRIES: Final = 4
_BUSY_TRIES: Final = 60
_BUSY_PAUSE_S: Final = 2.0
_RETRY_PAUSE_S: Final = 0.5
_REFUSALS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
_ALGORITHMS: Final = {
    "xxh3_128": reader_pb.DIGEST_ALGORITHM_XXH3_128,
    "blake3": reader_pb.DIGEST_ALGORITHM_BLAKE3,
}


class BrokerFiles:
    """`ReplicaFiles` of a running broker."""

    def __init__(self, stub: ReplicaReaderServiceStub, location: str) -> None:
        self._stub = stub
        self._location = location

    def list_folder(self, path: str) -> list[StoreEntry]:
        request = reader_pb.ListFolderRequest(path=path)
        reply = _ask(self._location, lambda: self._stub.ListFolder(request, timeout=_LIST_TIMEOUT_S))
        return [StoreEntry(entry.name, entry.size_bytes) for entry in reply.entries]

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        found = bytearray()
        while len(found) < length:
            wanted = min(length - len(found), _READ_BYTES_MAX)
            request = reader_pb.ReadFileRequest(path=path, offset=offset + len(found), length_bytes=wanted)
            timeout_s = _timeout_s(wanted)
            pieces = _ask(self._location, lambda: _all(self._stub.ReadFile(request, timeout=timeout_s)))  # noqa: B023
            data = b"".join(piece.data for piece in pieces)
            found += data
            if len(data) < wanted:
                break
        return memoryview(found)


class BrokerSource:
    def __init__(self, spec: SourceSpec, stub: ReplicaReaderServiceStub) -> None:
        self._spec = spec
        self._stub = stub
        self.files = BrokerFiles(stub, spec.location)

    @classmethod
    @contextmanager
    def connect(cls, spec: SourceSpec) -> Iterator[Self]:
        """For the length of the block. The first call finds out whether anybody is there."""
        with sync_channel(spec.location, CHANNEL_OPTIONS) as channel:
            yield cls(spec, ReplicaReaderServiceStub(channel))

    def facts(self) -> ReplicaFacts:
        """See Source. A broker that is called otherwise than expected is another one."""
        request = reader_pb.DescribeReplicaRequest()
        reply = _ask(self._spec.location, lambda: self._stub.DescribeReplica(request, timeout=_DESCRIBE_TIMEOUT_S))
        if (reply.broker_name, reply.broker_id) != (self._spec.group, self._spec.broker_id):
            raise ReplicaUnreadable(
                f"{self._spec.location} is {reply.broker_name}:{reply.broker_id} by now, not "
                f"{self._spec.group}:{self._spec.broker_id}"
            )
        if not reply.serving:
            raise ReplicaUnreadable(f"{self._spec.location} is recovering or does not follow its master")
        facts = ReplicaFacts(
            group=reply.broker_name,
            broker_id=reply.broker_id,
            min_offset=reply.min_offset,
            end_offset=reply.end_offset,
            segment_bytes=reply.segment_bytes,
            is_running=True,
            queues_offset=reply.queues_offset,
            index_offset=reply.index_offset,
            lag_bytes=reply.lag_bytes,
            disk_id=self._disk_id(),
        )
        # The broker does not look whether its files are still there.
        return replace(facts, holes=holes_of(self.files, facts))

    def _disk_id(self) -> str:
        try:
            return disk_id(self.files)
        except NotShown:
            return ""  # Of a version that does not give the file away.

    def digests(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> list[ExtentDigest]:
        request = reader_pb.DigestExtentsRequest(
            range=_range(log_range), extent_bytes=extent_bytes, algorithm=_ALGORITHMS[algorithm]
        )
        timeout_s = _timeout_s(log_range.end_offset - log_range.start_offset)
        replies = _ask(self._spec.location, lambda: _all(self._stub.DigestExtents(request, timeout=timeout_s)))
        return [_extent(extent) for reply in replies for extent in reply.extents]

    def check(self, facts: ReplicaFacts, log_range: LogRange) -> RecordCheck:
        return self._check(reader_pb.CheckRecordsRequest(range=_range(log_range), with_queues=True, with_index=True))[0]

    def check_and_digest(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> tuple[RecordCheck, list[ExtentDigest]]:
        """See Source; the broker reads the range once, or one of an earlier version twice."""
        request = reader_pb.CheckRecordsRequest(
            range=_range(log_range),
            with_queues=True,
            with_index=True,
            digest_extent_bytes=extent_bytes,
            algorithm=_ALGORITHMS[algorithm],
        )
        check, digests = self._check(request)
        if not digests:
            digests = self.digests(facts, log_range, extent_bytes=extent_bytes, algorithm=algorithm)
        return check, digests

    def _check(self, request: reader_pb.CheckRecordsRequest) -> tuple[RecordCheck, list[ExtentDigest]]:
        timeout_s = _timeout_s(request.range.end_offset - request.range.start_offset)
        replies = _ask(self._spec.location, lambda: _all(self._stub.CheckRecords(request, timeout=timeout_s)))
        if not replies or not replies[-1].HasField("totals"):
            raise ReplicaUnreadable(f"{self._spec.location} ended a check without its totals")
        check = RecordCheck(
            findings=tuple(_finding(reply.finding) for reply in replies if reply.HasField("finding")),
            queue_spans=tuple(_span(reply.queue_span) for reply in replies if reply.HasField("queue_span")),
            records=replies[-1].totals.record_count,
            bytes_read=replies[-1].totals.read_bytes,
        )
        return check, [_extent(reply.extent) for reply in replies if reply.HasField("extent")]


def _all(stream: Iterable[AnswerT]) -> list[AnswerT]:
    return list(stream)


def _ask(location: str, call: Callable[[], AnswerT]) -> AnswerT:
    """The answer, asked for again where the contract says that it helps. Raises ReplicaUnreadable."""
    tries = busy_tries = 0
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            code = error.code()
            tries += code is grpc.StatusCode.UNAVAILABLE
            busy_tries += code is grpc.StatusCode.RESOURCE_EXHAUSTED
            is_hopeless = code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
            if is_hopeless or tries >= _TRIES or busy_tries >= _BUSY_TRIES:
                problem = NotShown if code in _REFUSALS else ReplicaUnreadable
                raise problem(f"{location}: {code.name}: {error.details()}") from error
            time.sleep(_BUSY_PAUSE_S if code is grpc.StatusCode.RESOURCE_EXHAUSTED else _RETRY_PAUSE_S)


def _timeout_s(length: int) -> float:
    return _BASE_TIMEOUT_S + length / _SLOWEST_BYTES_PER_SECOND


def _range(log_range: LogRange) -> replica_pb.LogRange:
    return replica_pb.LogRange(start_offset=log_range.start_offset, end_offset=log_range.end_offset)


def _extent(reply: reader_pb.ExtentDigest) -> ExtentDigest:
    return ExtentDigest(reply.range.start_offset, reply.range.end_offset, reply.digest)


def _finding(reply: reader_pb.RecordFinding) -> Finding:
    values: dict[str, Any] = {field.name: value for field, value in reply.ListFields()}
    return Finding.from_json({"detail": "", "messages": 1} | values)


def _span(reply: reader_pb.QueueSpan) -> QueueSpan:
    return QueueSpan(
        topic=reply.topic,
        queue_id=reply.queue_id,
        first_queue_offset=reply.first_queue_offset,
        next_queue_offset=reply.next_queue_offset,
        first_offset=reply.first_offset,
        last_offset=reply.last_offset,
    )


# The brokers of a cluster as its NameServers know them. Here protobuf ends.

_TIMEOUT_S: Final = 3.0
_PAUSE_S: Final = 0.1
_MAY_COME: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_WAIT_FOR_READY_S: Final = 10.0
"""A NameServer pod that is being moved comes back within seconds, and the next run is an hour away."""
_START_ONE: Final = (
    "start a cluster with `tandemmq up`, or name its NameServers (--namesrv, or the setting namesrvAddr)"
)
_HANGS_UP: Final = (
    "it is there and hangs up: where services know each other by certificates, name the job's own folder of them "
    "(serviceTlsPath with serviceTlsMode=enforcing, $TANDEMMQ_SERVICE_TLS_PATH, or --data of the cluster)"
)
_PERSON_WAIT_S: Final = 1.5
"""Who looks on knows whether it should be there, and runs it again."""


def registered_brokers(name_servers: Sequence[str], *, cluster: str, is_watched: bool = False) -> Discovery:
    """All live brokers that any of the NameServers knows, of one cluster if it is named. Raises NothingFound.

    Those that are away are waited for together, and shortly if a person looks on (`is_watched`).
    """
    answers = []
    notes = []
    until_s = time.monotonic() + (_PERSON_WAIT_S if is_watched else _WAIT_FOR_READY_S)
    for address in name_servers:
        try:
            answers.append(RouteSnapshot(0, {}, _registered_at(address, until_s=until_s)))
        except grpc.RpcError as error:
            notes.append(f"NameServer {address} does not answer: {error.code().name} {error.details()}")
    if len(notes) == len(name_servers):
        hangs_up = any("Socket closed" in note for note in notes)
        remedy = _HANGS_UP if hangs_up else _START_ONE
        raise NothingFound(f"{'; '.join(notes)}; {remedy}")
    brokers = merge_snapshots(answers, revision=0).brokers
    wanted = [broker for broker in brokers if not cluster or broker.identity.cluster == cluster]
    names = sorted({broker.identity.cluster for broker in wanted})
    if len(names) > 1:
        raise NothingFound(f"the NameServers know the clusters {', '.join(names)}; choose one by clusterName")
    return Discovery(cluster=", ".join(names), replicas=tuple(_specs(wanted)), notes=tuple(notes))


def _registered_at(address: str, *, until_s: float) -> tuple[RegisteredBroker, ...]:
    with sync_channel(address, CHANNEL_OPTIONS) as channel:
        ask = NameServerServiceStub(channel).ListBrokers
        while True:
            try:
                reply: nameserver_pb.ListBrokersResponse = ask(nameserver_pb.ListBrokersRequest(), timeout=_TIMEOUT_S)
                return tuple(broker_value(broker) for broker in reply.brokers)
            except grpc.RpcError as error:
                if error.code() not in _MAY_COME or time.monotonic() >= until_s:
                    raise
            time.sleep(_PAUSE_S)


def _specs(brokers: Iterable[RegisteredBroker]) -> Iterable[SourceSpec]:
    for broker in brokers:
        identity = broker.identity
        yield SourceSpec(
            group=identity.broker_name,
            broker_id=identity.broker_id,
            kind=SourceKind.BROKER,
            location=broker.endpoints.metadata,
            is_master=broker.is_master,
        )

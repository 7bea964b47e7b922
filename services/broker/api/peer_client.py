"""What one member of a broker group asks another over the metadata plane, as plain values.

The edge where protobuf ends: callers see extents, digests and JSON. Every call has a time limit; a failure is
`PeerUnavailable` with the cause, and the caller decides when to ask again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

import grpc
from tandemmq.broker.v1 import (
    metadata_service_pb2,
    metadata_service_pb2_grpc,
    replica_service_pb2,
    replica_service_pb2_grpc,
)

from broker.lease_copy import LeaseChange, LeasePosition
from broker.tracing.traced_puts import TracedPutsPage
from mqcore.metadata.metadata_store import DataVersion, MetadataFile
from mqcore.replication.frames import RemoteProtocolError
from mqcore.replication.log_history import HistoryCorrupt, LogExtent, LogHistory, LogRange
from mqcore.routing.values import BrokerIdentity, ReplicaMemory
from mqcore.tracing.replica_spans import TracedPut
from mqcore.tracing.trace_context import parse_traceparent
from mqservice.cancellation import cancellation_wins

_TABLES: Final = {
    MetadataFile.TOPICS: metadata_service_pb2.METADATA_TABLE_TOPICS,
    MetadataFile.SUBSCRIPTION_GROUPS: metadata_service_pb2.METADATA_TABLE_SUBSCRIPTION_GROUPS,
    MetadataFile.CONSUMER_OFFSETS: metadata_service_pb2.METADATA_TABLE_CONSUMER_OFFSETS,
    MetadataFile.DELAY_OFFSETS: metadata_service_pb2.METADATA_TABLE_DELAY_OFFSETS,
}

__all__ = ["EpochPromise", "PeerClient", "PeerLog", "PeerUnavailable", "ReplicaClaim", "history_messages"]

CALL_TIMEOUT_S: Final = 3.0
VERIFY_TIMEOUT_S: Final = 10.0
DIGEST_TIMEOUT_S: Final = 30.0
LEASES_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 3_600.0

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A pod that returns has a new address. By default the old name's answer is believed for 30 s, an attempt at an
    # address that nobody has any more gets 20 s, and a connection to a machine without power is never missed.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)


class PeerUnavailable(Exception):
    """The peer did not answer in time, or refused. The caller waits and asks again."""

    def __init__(self, endpoint: str, call: str, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{call} at {endpoint}: {error.code().name} {error.details() or ''}".rstrip())
        self.endpoint = endpoint


class PeerLog:
    """A peer's CommitLog as it describes it, and what it remembers of its group."""

    __slots__ = (
        "broker_id",
        "broker_name",
        "cluster",
        "disk_id",
        "extent",
        "flushed_offset",
        "history",
        "promised_epoch",
        "replicas",
        "run",
        "segment_bytes",
        "serving",
    )

    def __init__(self, answer: replica_service_pb2.GetLogExtentResponse) -> None:
        self.extent = LogExtent(min_offset=answer.min_offset, end_offset=answer.end_offset)
        self.segment_bytes = answer.segment_bytes
        self.serving = answer.serving
        self.broker_id = answer.broker_id
        self.flushed_offset = answer.flushed_offset
        self.disk_id = answer.disk_id
        self.run = answer.run
        self.history = _history(answer.history)
        self.promised_epoch = answer.promised_epoch
        self.cluster = answer.cluster
        self.broker_name = answer.broker_name
        self.replicas = tuple(
            ReplicaMemory(
                broker_id=replica.broker_id,
                disk_id=replica.disk_id,
                run=replica.run,
                epoch=replica.epoch,
                end_offset=replica.end_offset,
                metadata_endpoint=replica.metadata_endpoint,
            )
            for replica in answer.replicas
        )


@dataclass(frozen=True, slots=True)
class ReplicaClaim:
    """Who a slave says it is when it proves its log."""

    identity: BrokerIdentity
    disk_id: str
    run: int
    # The greatest that it has followed.
    epoch: int
    # Where it is asked when its master starts again, host:port.
    metadata_endpoint: str


class EpochPromise(NamedTuple):
    """What a replica answers a master that is about to begin an epoch."""

    is_promised: bool
    # The greatest that it knows of.
    epoch: int
    # Of its log, to which nothing of an earlier epoch comes any more.
    end_offset: int


class PeerClient:
    """One channel to one member of the group. Use as an async context manager."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._replica = replica_service_pb2_grpc.ReplicaServiceStub(self._channel)
        self._metadata = metadata_service_pb2_grpc.MetadataServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(grace=None)

    async def log(self) -> PeerLog:
        """Which part of the log the peer holds."""
        with self._asking("GetLogExtent"):
            return PeerLog(
                await self._replica.GetLogExtent(replica_service_pb2.GetLogExtentRequest(), timeout=CALL_TIMEOUT_S)
            )

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        """SHA-256 of the peer's bytes in each range, in order."""
        request = replica_service_pb2.GetRangeDigestsRequest(ranges=[_range(item) for item in ranges])
        with self._asking("GetRangeDigests"):
            answer = await self._replica.GetRangeDigests(request, timeout=DIGEST_TIMEOUT_S)
        return list(answer.digests)

    async def verify(self, claim: ReplicaClaim, *, tail: LogRange, digest: bytes, connection: str) -> LogHistory | None:
        """States our tail to the master; its history when it holds the same, None when it does not. `connection` is our
        end of the replication connection that will report the tail's end."""
        request = replica_service_pb2.VerifyReplicaRequest(
            broker_id=claim.identity.broker_id,
            range=_range(tail),
            digest=digest,
            connection=connection,
            cluster=claim.identity.cluster,
            broker_name=claim.identity.broker_name,
            disk_id=claim.disk_id,
            run=claim.run,
            epoch=claim.epoch,
            metadata_endpoint=claim.metadata_endpoint,
        )
        with self._asking("VerifyReplica"):
            answer = await self._replica.VerifyReplica(request, timeout=VERIFY_TIMEOUT_S)
        return _history(answer.history) if answer.equal else None

    async def promise_epoch(self, epoch: int, *, disk_id: str, identity: BrokerIdentity) -> EpochPromise | None:
        """Has the peer take no byte of an earlier epoch from now on. None: a version that knows no epochs."""
        request = replica_service_pb2.PromiseEpochRequest(
            epoch=epoch, disk_id=disk_id, cluster=identity.cluster, broker_name=identity.broker_name
        )
        with self._asking("PromiseEpoch"):
            try:
                answer = await self._replica.PromiseEpoch(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return None
                raise
        return EpochPromise(answer.promised, answer.epoch, answer.end_offset)

    async def read_log(self, wanted: LogRange) -> AsyncIterator[tuple[int, bytes]]:
        """The peer's bytes in pieces of at most 1 MiB: (start offset, bytes), in order."""
        request = replica_service_pb2.ReadLogRequest(range=_range(wanted))
        with self._asking("ReadLog"):
            async for piece in self._replica.ReadLog(request, timeout=READ_TIMEOUT_S):
                yield piece.start_offset, piece.data

    async def traced_puts(self, *, incarnation: int, after_sequence: int) -> TracedPutsPage:
        """Sends that the master traced, oldest first; what is no trace context is left out."""
        request = replica_service_pb2.ListTracedPutsRequest(incarnation=incarnation, after_sequence=after_sequence)
        with self._asking("ListTracedPuts"):
            answer = await self._replica.ListTracedPuts(request, timeout=CALL_TIMEOUT_S)
        return TracedPutsPage(
            answer.incarnation,
            [
                TracedPut(
                    sequence=put.sequence,
                    context=context,
                    topic=put.topic,
                    queue_id=put.queue_id,
                    message_ids=tuple(put.message_ids),
                    start_offset=put.range.start_offset,
                    end_offset=put.range.end_offset,
                    retained_for=put.retained_for,
                )
                for put in answer.puts
                if (context := parse_traceparent(put.traceparent)) is not None
            ],
        )

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool = False
    ) -> tuple[DataVersion, str | None]:
        """One table of the master, or with `accept_copy` of whoever it is. The text is None when its version is the
        known one, or when the peer cannot read its own file."""
        request = metadata_service_pb2.GetMetadataTableRequest(table=_TABLES[file], accept_copy=accept_copy)
        if known is not None:
            request.known_version.state_version = known.state_version
            request.known_version.timestamp_ms = known.timestamp_ms
            request.known_version.counter = known.counter
        with self._asking("GetMetadataTable"):
            answer = await self._metadata.GetMetadataTable(request, timeout=CALL_TIMEOUT_S)
        version = DataVersion(
            state_version=answer.version.state_version,
            timestamp_ms=answer.version.timestamp_ms,
            counter=answer.version.counter,
        )
        return version, answer.json or None

    async def leases(self, known: LeasePosition, *, accept_copy: bool = False) -> LeaseChange:
        """What leads a copy of the master's leases, or with `accept_copy` of whoever it is, from `known` to now."""
        request = metadata_service_pb2.GetLeasesRequest(accept_copy=accept_copy)
        request.known.source = known.source
        request.known.generation = known.generation
        request.known.journal_bytes = known.journal_bytes
        position, starts_anew = known, False
        snapshot, journal = bytearray(), bytearray()
        with self._asking("GetLeases"):
            async for piece in self._metadata.GetLeases(request, timeout=LEASES_TIMEOUT_S):
                if piece.HasField("position"):
                    position = LeasePosition(
                        piece.position.source, piece.position.generation, piece.position.journal_bytes
                    )
                    starts_anew = piece.starts_anew
                snapshot += piece.snapshot
                journal += piece.journal
        return LeaseChange(position, bytes(snapshot) if starts_anew else None, bytes(journal))

    async def metadata_changes(self) -> AsyncIterator[None]:
        """Yields at once and after every change of any table, until the peer goes."""
        with self._asking("WatchMetadata"):
            async for _ in self._metadata.WatchMetadata(metadata_service_pb2.WatchMetadataRequest()):
                yield None

    @contextmanager
    def _asking(self, call: str) -> Iterator[None]:
        """Every call is made in this: its failure is PeerUnavailable, and no pardon for a task told to stop."""
        try:
            with cancellation_wins():
                yield
        except grpc.aio.AioRpcError as error:
            raise PeerUnavailable(self.endpoint, call, error) from error


def history_messages(history: LogHistory) -> list[replica_service_pb2.Epoch]:
    """A history as it is sent."""
    return [replica_service_pb2.Epoch(epoch=epoch, start_offset=start) for epoch, start in history.epochs]


def _history(epochs: Iterable[replica_service_pb2.Epoch]) -> LogHistory:
    """RemoteProtocolError: the peer's epochs do not ascend."""
    try:
        return LogHistory.of((epoch.epoch, epoch.start_offset) for epoch in epochs)
    except HistoryCorrupt as error:
        raise RemoteProtocolError("bad_history", str(error)) from error


def _range(item: LogRange) -> replica_service_pb2.LogRange:
    return replica_service_pb2.LogRange(start_offset=item.start_offset, end_offset=item.end_offset)

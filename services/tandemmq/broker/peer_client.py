"""What one member of a broker group asks another over the metadata plane, as plain values.

The edge where protobuf ends: callers see extents, digests and JSON. Every call has a time limit; a failure is
`PeerUnavailable` with the cause, and the caller decides when to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import grpc

from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeasePosition
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.metadata.metadata_store import ROCKETMQ_FILES, DataVersion, MetadataFile
from tandemmq.core.replication.frames import RemoteProtocolError
from tandemmq.core.replication.log_history import HistoryCorrupt, LogExtent, LogHistory, LogRange
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.tracing.send_spans import TracedPut, TracedPutsPage
from tandemmq.core.tracing.span_data import parse_traceparent
from tandemmq.proto.broker.v1 import (
    failover_service_pb2,
    failover_service_pb2_grpc,
    metadata_service_pb2,
    metadata_service_pb2_grpc,
    replica_reader_service_pb2_grpc,
    replica_service_pb2,
    replica_service_pb2_grpc,
)
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.service.protobuf import as_value
from tandemmq.service.rpc import cancellation_wins
from tandemmq.service.service_channels import LONG_LIVED_CHANNEL, aio_channel

_TABLES: Final = {
    MetadataFile.TOPICS: metadata_service_pb2.METADATA_TABLE_TOPICS,
    MetadataFile.SUBSCRIPTION_GROUPS: metadata_service_pb2.METADATA_TABLE_SUBSCRIPTION_GROUPS,
    MetadataFile.CONSUMER_OFFSETS: metadata_service_pb2.METADATA_TABLE_CONSUMER_OFFSETS,
    MetadataFile.DELAY_OFFSETS: metadata_service_pb2.METADATA_TABLE_DELAY_OFFSETS,
    MetadataFile.USERS: metadata_service_pb2.METADATA_TABLE_USERS,
    MetadataFile.ACLS: metadata_service_pb2.METADATA_TABLE_ACLS,
}


CALL_TIMEOUT_S: Final = 3.0
FAILOVER_TIMEOUT_S: Final = 1.0
APPEND_TIMEOUT_S: Final = 0.5
VERIFY_TIMEOUT_S: Final = 10.0
DIGEST_BYTES_PER_SECOND: Final = 8 << 20
"""A peer that reads its log more slowly than this is as good as none."""
LEASES_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 3_600.0

CHANNEL_OPTIONS: Final = (
    *LONG_LIVED_CHANNEL,
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class PeerUnavailable(Exception):
    """The peer did not answer in time, or refused. The caller waits and asks again."""

    def __init__(self, endpoint: str, call: str, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{call} at {endpoint}: {error.code().name} {error.details() or ''}".rstrip())
        self.endpoint = endpoint


class PeerLog:
    """A peer's CommitLog as it describes it, and what it remembers of its group."""

    def __init__(self, answer: replica_service_pb2.GetLogExtentResponse) -> None:
        self.extent = LogExtent(min_offset=answer.min_offset, end_offset=answer.end_offset)
        self.segment_bytes = answer.segment_bytes
        self.serving = answer.serving
        self.broker_id = answer.broker_id
        self.flushed_offset = answer.flushed_offset
        self.disk_id = answer.disk_id
        self.run = answer.run
        self.nonce = answer.nonce
        self.history = _history(answer.history)
        self.promised_epoch = answer.promised_epoch
        self.record_version = answer.record_epoch, answer.record_renewals
        self.cluster = answer.cluster
        self.broker_name = answer.broker_name
        self.ha_tls = answer.ha_tls
        self.replicas = tuple(as_value(ReplicaMemory, replica) for replica in answer.replicas)


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


def lease_position(message: metadata_service_pb2.LeasePosition) -> LeasePosition:
    return LeasePosition(message.source, message.generation, message.journal_bytes)


def lease_position_message(position: LeasePosition) -> metadata_service_pb2.LeasePosition:
    return metadata_service_pb2.LeasePosition(
        source=position.source, generation=position.generation, journal_bytes=position.journal_bytes
    )


class PeerClient:
    """One channel to one member of the group. Use as an async context manager."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = aio_channel(endpoint, CHANNEL_OPTIONS, own_group=True)
        self._replica = replica_service_pb2_grpc.ReplicaServiceStub(self._channel)
        self._failover = failover_service_pb2_grpc.FailoverServiceStub(self._channel)
        self._metadata = metadata_service_pb2_grpc.MetadataServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Calls under way fail."""
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
        size = sum(item.end_offset - item.start_offset for item in ranges)
        with self._asking("GetRangeDigests"):
            answer = await self._replica.GetRangeDigests(
                request, timeout=CALL_TIMEOUT_S + size / DIGEST_BYTES_PER_SECOND
            )
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

    async def promise_epoch(
        self, epoch: int, *, disk_id: str, nonce: str, identity: BrokerIdentity
    ) -> EpochPromise | None:
        """Has the peer take no byte of an earlier epoch from now on. None: a version that knows no epochs."""
        request = replica_service_pb2.PromiseEpochRequest(
            epoch=epoch, disk_id=disk_id, nonce=nonce, cluster=identity.cluster, broker_name=identity.broker_name
        )
        with self._asking("PromiseEpoch"):
            try:
                answer = await self._replica.PromiseEpoch(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return None
                raise
        return EpochPromise(answer.promised, answer.epoch, answer.end_offset)

    async def withhold_claim(self, identity: BrokerIdentity, *, epoch: int, duration_ms: int) -> bool:
        """Whether the peer promises the master of `epoch` not to claim for so long."""
        request = failover_service_pb2.WithholdClaimRequest(
            cluster=identity.cluster, broker_name=identity.broker_name, epoch=epoch
        )
        request.duration.FromMilliseconds(duration_ms)
        with self._asking("WithholdClaim"):
            answer = await self._failover.WithholdClaim(request, timeout=FAILOVER_TIMEOUT_S)
        return bool(answer.withheld)

    async def copy_progress(self, identity: BrokerIdentity) -> bool:
        """Has the peer copy what groups have consumed from its master, us."""
        request = failover_service_pb2.CopyProgressRequest(cluster=identity.cluster, broker_name=identity.broker_name)
        with self._asking("CopyProgress"):
            answer = await self._failover.CopyProgress(request, timeout=FAILOVER_TIMEOUT_S)
        return bool(answer.copied)

    async def append_leases(self, identity: BrokerIdentity, change: LeaseChange) -> LeasePosition:
        """Hands the peer what our journal goes on with, unless that is empty; where its copy ends then."""
        request = failover_service_pb2.AppendLeasesRequest(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            position=lease_position_message(change.position),
            journal=change.journal,
        )
        with self._asking("AppendLeases"):
            answer = await self._failover.AppendLeases(request, timeout=APPEND_TIMEOUT_S)
        return lease_position(answer.position)

    async def record_changed(self, identity: BrokerIdentity) -> None:
        """Has the peer read the group's record at once."""
        request = failover_service_pb2.NoteRecordChangeRequest(
            cluster=identity.cluster, broker_name=identity.broker_name
        )
        with self._asking("NoteRecordChange"):
            await self._failover.NoteRecordChange(request, timeout=FAILOVER_TIMEOUT_S)

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
        known one, or when the peer cannot read its own file; and empty when the peer's version has no such table."""
        request = metadata_service_pb2.GetMetadataTableRequest(table=_TABLES[file], accept_copy=accept_copy)
        if known is not None:
            request.known_version.state_version = known.state_version
            request.known_version.timestamp_ms = known.timestamp_ms
            request.known_version.counter = known.counter
        with self._asking("GetMetadataTable"):
            try:
                answer = await self._metadata.GetMetadataTable(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT and file not in ROCKETMQ_FILES:
                    return DataVersion(), ""
                raise
        version = DataVersion(
            state_version=answer.version.state_version,
            timestamp_ms=answer.version.timestamp_ms,
            counter=answer.version.counter,
        )
        return version, answer.json or None

    async def leases(self, known: LeasePosition, *, accept_copy: bool = False) -> LeaseChange:
        """What leads a copy of the master's leases, or with `accept_copy` of whoever it is, from `known` to now."""
        change, _ = await self._leases(known, metadata_service_pb2.GetLeasesRequest(accept_copy=accept_copy))
        return change

    async def leases_ahead(self) -> LeaseChange | None:
        """Those of a slave that served reads, whole; None: they are no more than a copy."""
        request = metadata_service_pb2.GetLeasesRequest(accept_copy=True, only_ahead=True)
        change, is_ahead = await self._leases(NO_LEASES, request)
        return change if is_ahead else None

    async def _leases(
        self, known: LeasePosition, request: metadata_service_pb2.GetLeasesRequest
    ) -> tuple[LeaseChange, bool]:
        request.known.CopyFrom(lease_position_message(known))
        position, starts_anew, is_ahead = known, False, False
        snapshot, journal = bytearray(), bytearray()
        with self._asking("GetLeases"):
            async for piece in self._metadata.GetLeases(request, timeout=LEASES_TIMEOUT_S):
                if piece.HasField("position"):
                    position = lease_position(piece.position)
                    starts_anew, is_ahead = piece.starts_anew, piece.ahead
                snapshot += piece.snapshot
                journal += piece.journal
        return LeaseChange(position, bytes(snapshot) if starts_anew else None, bytes(journal)), is_ahead

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
    return [replica_service_pb2.Epoch(epoch=epoch, start_offset=start) for epoch, start in history.epochs]


def _history(epochs: Iterable[replica_service_pb2.Epoch]) -> LogHistory:
    """RemoteProtocolError: the peer's epochs do not ascend."""
    try:
        return LogHistory.of((epoch.epoch, epoch.start_offset) for epoch in epochs)
    except HistoryCorrupt as error:
        raise RemoteProtocolError("bad_history", str(error)) from error


def _range(item: LogRange) -> replica_service_pb2.LogRange:
    return replica_service_pb2.LogRange(start_offset=item.start_offset, end_offset=item.end_offset)


# Another member's log, read for a repair through its ReplicaReaderService: threads and a rate limit stand between a
# repair and that member's clients. Nobody can name an address: a member is dialled where its registration says.

_CALL_BYTES_MAX: Final = 64 << 20
_PIECE_LIMIT_S: Final = 20.0
_SLOWEST_BYTES_PER_SECOND: Final = 64 << 10
"""A source that reads more slowly than this is as good as none."""


class MemberLogs:
    """A part of the log as whichever other member holds it. `endpoints` are their metadata planes. Event loop only."""

    def __init__(self, endpoints: Callable[[], Sequence[str]], *, are_expected: bool) -> None:
        """`are_expected`: the group has other members, registered or not."""
        self._endpoints = endpoints
        self._are_expected = are_expected

    async def read(self, wanted: LogRange) -> bytes | None:
        """Bytes from the start of the range on, perhaps fewer; None: there is no other member. ConnectionError: none
        of them gave any, now."""
        endpoints = self._endpoints()
        if not endpoints and not self._are_expected:
            return None
        reason = "no other member of this group is registered"
        for endpoint in endpoints:
            try:
                async with asyncio.timeout(_PIECE_LIMIT_S), PeerClient(endpoint) as peer:
                    extent = (await peer.log()).extent
                    held = LogRange(wanted.start_offset, min(wanted.end_offset, extent.end_offset))
                    if extent.min_offset <= held.start_offset < held.end_offset:
                        return b"".join([piece async for _, piece in peer.read_log(held)])
                    reason = f"{endpoint} holds [{extent.min_offset}, {extent.end_offset})"
            except (PeerUnavailable, TimeoutError) as error:
                reason = str(error) or f"{endpoint} took longer than {_PIECE_LIMIT_S} s"
        raise ConnectionError(f"[{wanted.start_offset}, {wanted.end_offset}) from another member: {reason}")


class SourceLog:
    """Reads from members of `identity`'s group. `endpoint` knows their metadata planes by broker id, None if it does
    not. Event loop only."""

    def __init__(self, identity: BrokerIdentity, *, endpoint: Callable[[int], str | None]) -> None:
        self._identity = identity
        self._endpoint = endpoint

    async def read(self, source_broker_id: int, wanted: LogRange) -> AsyncGenerator[bytes, None]:
        endpoint = self._endpoint(source_broker_id) if source_broker_id != self._identity.broker_id else None
        name = f"broker {self._identity.broker_name}:{source_broker_id}"
        if endpoint is None:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"{name} is no other member of this group that is registered now; start it"
            )
        async with aio_channel(endpoint, CHANNEL_OPTIONS, own_group=True) as channel:
            stub = replica_reader_service_pb2_grpc.ReplicaReaderServiceStub(channel)
            try:
                with cancellation_wins():
                    source = await stub.DescribeReplica(pb.DescribeReplicaRequest(), timeout=CALL_TIMEOUT_S)
                    self._check(source, source_broker_id, wanted)
                    offset = wanted.start_offset
                    while offset < wanted.end_offset:
                        within = offset % source.segment_bytes
                        length = min(wanted.end_offset - offset, source.segment_bytes - within, _CALL_BYTES_MAX)
                        request = pb.ReadFileRequest(
                            path=f"commitlog/{offset - within:020d}", offset=within, length_bytes=length
                        )
                        call_end = offset + length
                        async for piece in stub.ReadFile(
                            request, timeout=CALL_TIMEOUT_S + length / _SLOWEST_BYTES_PER_SECOND
                        ):
                            offset += len(piece.data)
                            yield piece.data
                        if offset != call_end:
                            raise RepairRefused(Refusal.SOURCE_UNAVAILABLE, f"{name} holds nothing at {offset}")
            except grpc.aio.AioRpcError as error:
                raise RepairRefused(
                    Refusal.SOURCE_UNAVAILABLE, f"{name}: {error.code().name} {error.details() or ''}".rstrip()
                ) from error

    def _check(self, source: pb.DescribeReplicaResponse, source_broker_id: int, wanted: LogRange) -> None:
        """An address may have been given to somebody else since it was registered."""
        found = BrokerIdentity(source.cluster, source.broker_name, source.broker_id)
        expected = BrokerIdentity(self._identity.cluster, self._identity.broker_name, source_broker_id)
        if found != expected:
            raise RepairRefused(
                Refusal.SOURCE_UNAVAILABLE, f"{expected} is registered where {found} answers; wait for its registration"
            )
        if not source.min_offset <= wanted.start_offset <= wanted.end_offset <= source.flushed_offset:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"broker {source_broker_id} holds [{source.min_offset}, {source.flushed_offset}), and not "
                f"[{wanted.start_offset}, {wanted.end_offset})",
            )

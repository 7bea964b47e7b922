"""What members of a broker group ask each other: logs, mastership, tables. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

import grpc

from tandemmq.broker.failover.controller import ClaimRefused, Failover, HandOverRefused
from tandemmq.broker.ha_transport import ConnectionBearers
from tandemmq.broker.leases import LeaseChange
from tandemmq.broker.master.group_recovery import GroupRecovery
from tandemmq.broker.metadata_tables import ChangeSignal, KeptTable
from tandemmq.broker.peer_client import history_messages, lease_position, lease_position_message
from tandemmq.broker.queries.stored_records import Pages
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.replication.mastership import Replica
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.proto.broker.v1 import failover_service_pb2 as failover_pb
from tandemmq.proto.broker.v1 import failover_service_pb2_grpc, metadata_service_pb2_grpc, replica_service_pb2_grpc
from tandemmq.proto.broker.v1 import metadata_service_pb2 as metadata_pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as pb
from tandemmq.service.grpc_server import Context, Invalid, Refused, by_kind, refusing
from tandemmq.service.protobuf import as_message
from tandemmq.service.service_tls import certificate_of, claim_problem_of

if TYPE_CHECKING:
    from tandemmq.broker.parts import Role
    from tandemmq.broker.tracing.send_tracer import TracedPuts
    from tandemmq.core.storage.message_store import MessageStore

RANGES_MAX: Final = 1_024
DIGEST_BYTES_MAX: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20


# ReplicaService: what this broker tells of its CommitLog.


@refusing(by_kind())
class ReplicaServicer(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Answers from the local log."""

    def __init__(
        self,
        *,
        log: MessageStore,
        identity: BrokerIdentity,
        replica: ReplicaIdentity,
        proof: ReplicaProof,
        role: Callable[[], Role],
        traced_puts: TracedPuts | None = None,
        pages: Pages | None = None,
        ha_tls: bool = False,
        bearers: ConnectionBearers | None = None,
    ) -> None:
        """`pages` brings what is read into memory, so that no disk stops the loop; None: all of it is there. `ha_tls`:
        the replication port takes TLS. `bearers`: is told whose connections there are."""
        self._log = log
        self._identity = identity
        self._replica = replica
        self._role = role
        self._proof = proof
        self._traced_puts = traced_puts
        self._pages = pages
        self._ha_tls = ha_tls
        self._bearers = bearers

    async def GetLogExtent(self, request: pb.GetLogExtentRequest, context: Context) -> pb.GetLogExtentResponse:
        return pb.GetLogExtentResponse(
            min_offset=self._log.min_offset,
            end_offset=self._log.end_offset,
            segment_bytes=self._log.segment_bytes,
            serving=self._role().is_serving,
            broker_id=self._identity.broker_id,
            flushed_offset=self._log.flushed_offset,
            disk_id=self._replica.disk_id,
            run=self._replica.run,
            history=history_messages(self._replica.history),
            cluster=self._identity.cluster,
            broker_name=self._identity.broker_name,
            replicas=[_remembered(memory) for memory in self._replica.replicas],
            promised_epoch=self._replica.greatest_epoch,
            record_epoch=self._replica.record_version[0],
            record_renewals=self._replica.record_version[1],
            nonce=self._replica.nonce,
            ha_tls=self._ha_tls,
        )

    async def GetRangeDigests(self, request: pb.GetRangeDigestsRequest, context: Context) -> pb.GetRangeDigestsResponse:
        ranges = [self._checked(item) for item in request.ranges]
        total = sum(item.end_offset - item.start_offset for item in ranges)
        if len(ranges) > RANGES_MAX or total > DIGEST_BYTES_MAX:
            raise Invalid(
                f"ranges: {len(ranges)} of {total} bytes; ask for at most {RANGES_MAX} of {DIGEST_BYTES_MAX} bytes"
            )
        return pb.GetRangeDigestsResponse(digests=[await self._proof.digest(item) for item in ranges])

    async def VerifyReplica(self, request: pb.VerifyReplicaRequest, context: Context) -> pb.VerifyReplicaResponse:
        self._check_group(request.cluster, request.broker_name)
        # Its reports will count as that member's.
        if problem := claim_problem_of(context, self._identity.cluster, self._identity.broker_name, request.broker_id):
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"broker_id: {problem}")
        leaf = certificate_of(context)
        equal = await self._proof.verify(
            ReplicaMemory(
                broker_id=request.broker_id,
                disk_id=request.disk_id,
                run=request.run,
                epoch=request.epoch,
                end_offset=request.range.end_offset,
                metadata_endpoint=request.metadata_endpoint,
                # It follows us. What it was before others know.
                master_epoch=0,
            ),
            tail=LogRange(request.range.start_offset, request.range.end_offset),
            digest=request.digest,
            connection=request.connection,
        )
        if equal and leaf and self._bearers is not None:
            self._bearers.note(request.connection, leaf)
        return pb.VerifyReplicaResponse(equal=equal, history=history_messages(self._proof.history))

    async def PromiseEpoch(self, request: pb.PromiseEpochRequest, context: Context) -> pb.PromiseEpochResponse:
        self._check_group(request.cluster, request.broker_name)
        if (refusal := self._role().epoch_refusal) is not None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"disk_id: {refusal}")
        promised = await self._proof.promise(request.epoch, request.disk_id, request.nonce)
        return pb.PromiseEpochResponse(
            promised=promised, epoch=self._replica.greatest_epoch, end_offset=self._log.end_offset
        )

    async def AcceptLoss(self, request: pb.AcceptLossRequest, context: Context) -> pb.AcceptLossResponse:
        recovery = self._role().recovery
        response = pb.AcceptLossResponse(end_offset=self._log.end_offset)
        if recovery is None:
            return response
        waiting = recovery.waiting
        if waiting is None:
            return await self._forget_away(recovery, request, response)
        response.waits_for = waiting.reason
        response.lost_bytes = waiting.lost_bytes
        response.end_offset = waiting.end_offset or self._log.end_offset
        response.missing.extend(_remembered(memory) for memory in waiting.missing)
        for one in waiting.witnesses:
            response.witnesses.add(
                source=one.source,
                broker_id=one.memory.broker_id,
                disk_id=one.memory.disk_id,
                epoch=one.memory.epoch,
                end_offset=one.memory.end_offset,
                lost_bytes=one.lost_bytes,
            )
        for file, problem in waiting.damaged_tables:
            response.damaged_tables.add(file=file, problem=problem)
        if request.dry_run:
            return response
        if refusal := recovery.accept_loss(request.disk_ids, request.damaged_tables):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        response.accepted = True
        return response

    async def _forget_away(
        self, recovery: GroupRecovery, request: pb.AcceptLossRequest, response: pb.AcceptLossResponse
    ) -> pb.AcceptLossResponse:
        if not self._role().is_serving:
            response.waits_for = "the replicas of its group: it asks them"
            return response
        response.serving = True
        away = recovery.away()
        response.missing.extend(_remembered(memory) for memory in away)
        if not away or request.dry_run:
            return response
        if refusal := await recovery.forget_away(request.disk_ids):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        response.accepted = True
        return response

    async def ReadLog(self, request: pb.ReadLogRequest, context: Context) -> AsyncIterator[pb.ReadLogResponse]:
        wanted = self._checked(request.range)
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            if self._pages is not None:
                await self._pages.fetch([(offset, min(wanted.end_offset, offset + PIECE_BYTES))])
            piece = self._log.read_log(offset, min(PIECE_BYTES, wanted.end_offset - offset))
            if not piece:
                raise Refused(grpc.StatusCode.OUT_OF_RANGE, f"range: offset {offset} is no longer held")
            yield pb.ReadLogResponse(start_offset=offset, data=bytes(piece))
            offset += len(piece)

    async def ListTracedPuts(self, request: pb.ListTracedPutsRequest, context: Context) -> pb.ListTracedPutsResponse:
        if self._traced_puts is None:
            return pb.ListTracedPutsResponse()
        page = self._traced_puts.after(incarnation=request.incarnation, sequence=request.after_sequence)
        response = pb.ListTracedPutsResponse(incarnation=page.incarnation)
        for put in page.puts:
            response.puts.add(
                sequence=put.sequence,
                traceparent=put.context.traceparent,
                topic=put.topic,
                queue_id=put.queue_id,
                message_ids=put.message_ids,
                range=pb.LogRange(start_offset=put.start_offset, end_offset=put.end_offset),
                retained_for=put.retained_for,
            )
        return response

    def _check_group(self, cluster: str, broker_name: str) -> None:
        """Of a version that does not tell its group, nothing is asked."""
        group = (self._identity.cluster, self._identity.broker_name)
        if broker_name and (cluster, broker_name) != group:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"broker_name: {broker_name} of {cluster} is no member of {group[1]} of {group[0]}; "
                "set brokerName, or haMasterAddress",
            )

    def _checked(self, item: pb.LogRange) -> LogRange:
        wanted = LogRange(item.start_offset, item.end_offset)
        if not self._proof.holds(wanted):
            raise Refused(
                grpc.StatusCode.OUT_OF_RANGE,
                f"range: [{item.start_offset}, {item.end_offset}) leaves the log "
                f"[{self._log.min_offset}, {self._log.end_offset})",
            )
        return wanted


def _remembered(memory: ReplicaMemory) -> pb.RememberedReplica:
    return as_message(pb.RememberedReplica, memory, last_seen_time=memory.last_seen_wall_ms or None)


# FailoverService: what members of a group that fails over tell each other.


@refusing(
    by_kind((HandOverRefused, grpc.StatusCode.FAILED_PRECONDITION), (ClaimRefused, grpc.StatusCode.FAILED_PRECONDITION))
)
class FailoverServicer(failover_service_pb2_grpc.FailoverServiceServicer):
    """`failover` is None where the group does not fail over."""

    def __init__(self, failover: Failover | None, *, identity: BrokerIdentity, authority: str) -> None:
        self._failover = failover
        self._identity = identity
        self._authority = authority

    async def GetFailoverState(
        self, request: failover_pb.GetFailoverStateRequest, context: Context
    ) -> failover_pb.GetFailoverStateResponse:
        return failover_state(self._required(), authority=self._authority)

    async def WithholdClaim(
        self, request: failover_pb.WithholdClaimRequest, context: Context
    ) -> failover_pb.WithholdClaimResponse:
        failover = self._required(request.cluster, request.broker_name)
        withheld = failover.withhold_claim(request.epoch, request.duration.ToMilliseconds())
        return failover_pb.WithholdClaimResponse(withheld=withheld)

    async def NoteRecordChange(
        self, request: failover_pb.NoteRecordChangeRequest, context: Context
    ) -> failover_pb.NoteRecordChangeResponse:
        self._required(request.cluster, request.broker_name).poke()
        return failover_pb.NoteRecordChangeResponse()

    async def CopyProgress(
        self, request: failover_pb.CopyProgressRequest, context: Context
    ) -> failover_pb.CopyProgressResponse:
        failover = self._required(request.cluster, request.broker_name)
        return failover_pb.CopyProgressResponse(copied=await failover.copy_progress())

    async def AppendLeases(
        self, request: failover_pb.AppendLeasesRequest, context: Context
    ) -> failover_pb.AppendLeasesResponse:
        failover = self._required(request.cluster, request.broker_name)
        change = LeaseChange(lease_position(request.position), None, request.journal)
        held = await failover.append_leases(change)
        return failover_pb.AppendLeasesResponse(position=lease_position_message(held))

    async def HandOver(self, request: failover_pb.HandOverRequest, context: Context) -> failover_pb.HandOverResponse:
        failover = self._required()
        to = request.to_broker_id if request.HasField("to_broker_id") else None
        successor = failover.successor(to) if request.dry_run else await failover.hand_over(to)
        return failover_pb.HandOverResponse(to_broker_id=successor)

    async def ClaimUnclean(
        self, request: failover_pb.ClaimUncleanRequest, context: Context
    ) -> failover_pb.ClaimUncleanResponse:
        failover = self._required()
        claim = await failover.claim_unclean(dry_run=request.dry_run)
        response = failover_pb.ClaimUncleanResponse(end_offset=claim.end_offset, lost_bytes=claim.lost_bytes)
        for memory in claim.missing:
            response.missing.add(broker_id=memory.broker_id, disk_id=memory.disk_id, end_offset=memory.end_offset)
        return response

    def _required(self, cluster: str = "", broker_name: str = "") -> Failover:
        ours = (self._identity.cluster, self._identity.broker_name)
        if broker_name and (cluster, broker_name) != ours:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"broker_name: {broker_name} of {cluster} is not this group, {ours[1]} of {ours[0]}",
            )
        if self._failover is None:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                "failoverAuthority: it is not set, so no other broker of the group takes over",
            )
        return self._failover


def failover_state(failover: Failover, *, authority: str) -> failover_pb.GetFailoverStateResponse:
    """What this member knows; `authority` as it is configured."""
    record = failover.record
    state = failover_pb.GetFailoverStateResponse(
        acts=failover.acts,
        is_electable=failover.is_electable,
        problem=failover.problem,
        authority=authority,
        authority_away=failover.is_authority_away,
    )
    if record is not None:
        state.epoch = record.epoch
        state.master.CopyFrom(_replica(record.master))
        state.in_sync.extend(_replica(replica) for replica in sorted(record.in_sync))
        state.reason = record.reason
        state.changed_time.FromMilliseconds(record.changed_wall_ms)
        state.lease.FromMilliseconds(record.lease_ms)
        for epoch, start_offset in record.past:
            state.past.add(epoch=epoch, start_offset=start_offset)
    for change in failover.last_changes:
        told = state.changes.add(epoch=change.epoch, is_master=change.is_master, reason=change.reason)
        told.time.FromMilliseconds(change.at_wall_ms)
        told.took.FromMilliseconds(change.took_ms)
    return state


def _replica(replica: Replica) -> failover_pb.FailoverReplica:
    return failover_pb.FailoverReplica(broker_id=replica.broker_id, disk_id=replica.disk_id)


# MetadataService: tables for the other replicas of the group, in RocketMQ's JSON.


_FILES: Final = {
    metadata_pb.METADATA_TABLE_TOPICS: MetadataFile.TOPICS,
    metadata_pb.METADATA_TABLE_SUBSCRIPTION_GROUPS: MetadataFile.SUBSCRIPTION_GROUPS,
    metadata_pb.METADATA_TABLE_CONSUMER_OFFSETS: MetadataFile.CONSUMER_OFFSETS,
    metadata_pb.METADATA_TABLE_DELAY_OFFSETS: MetadataFile.DELAY_OFFSETS,
    metadata_pb.METADATA_TABLE_USERS: MetadataFile.USERS,
    metadata_pb.METADATA_TABLE_ACLS: MetadataFile.ACLS,
}

WATCH_PAUSE_S: Final = 0.2
"""Between two words of a change: each makes every slave pull the table whole."""
LEASES_BYTES_MAX: Final = 256 << 20
"""Some million leases; a slave holds them in memory while it takes them."""


@refusing(by_kind())
class MetadataServicer(metadata_service_pb2_grpc.MetadataServiceServicer):
    """Serves the tables of a master, once that serves: until then its disk may be an older copy, or have another
    history. A slave's are copies, and it gives them to who asks for copies: its master, before that serves. `damaged`
    names tables that this broker could not read itself."""

    def __init__(
        self,
        *,
        tables: Mapping[MetadataFile, KeptTable],
        changes: ChangeSignal,
        role: Callable[[], Role],
        damaged: Collection[MetadataFile] = (),
    ) -> None:
        self._tables = tables
        self._damaged = damaged
        self._changes = changes
        self._role = role

    async def GetMetadataTable(
        self, request: metadata_pb.GetMetadataTableRequest, context: Context
    ) -> metadata_pb.GetMetadataTableResponse:
        if not request.accept_copy:
            self._refuse_but_as_master()
        if request.table not in _FILES:
            raise Invalid("table: name one of the METADATA_TABLE_ values")
        file = _FILES[request.table]
        table = self._tables[file]
        answer = metadata_pb.GetMetadataTableResponse(
            version=_version(request.table, table.version),
            is_copy=self._role().holds_copies,
            is_damaged=file in self._damaged,
        )
        is_known = request.HasField("known_version") and _known(request.known_version) == table.version
        if not is_known and not answer.is_damaged:
            answer.json = await asyncio.to_thread(table.copied().to_json)
        return answer

    async def WatchMetadata(
        self, request: metadata_pb.WatchMetadataRequest, context: Context
    ) -> AsyncIterator[metadata_pb.WatchMetadataResponse]:
        self._refuse_but_as_master()
        while True:
            changed = self._changes.next()
            yield metadata_pb.WatchMetadataResponse(
                versions=[_version(kind, self._tables[file].version) for kind, file in _FILES.items()]
            )
            await asyncio.sleep(WATCH_PAUSE_S)
            await changed.wait()

    async def GetLeases(
        self, request: metadata_pb.GetLeasesRequest, context: Context
    ) -> AsyncIterator[metadata_pb.GetLeasesResponse]:
        if not request.accept_copy:
            self._refuse_but_as_master()
        leases = self._role().leases
        is_ahead = await asyncio.to_thread(lambda: leases.is_ahead)
        if request.only_ahead and not is_ahead:
            yield metadata_pb.GetLeasesResponse(position=request.known)
            return
        if not leases.is_open:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "no leases are loaded here; ask again later")
        change = await leases.changes_since(lease_position(request.known))
        if change is None:
            raise Refused(grpc.StatusCode.ABORTED, "a snapshot was made meanwhile; ask again")
        snapshot = change.snapshot or b""
        if len(snapshot) + len(change.journal) > LEASES_BYTES_MAX:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"leases of more than {LEASES_BYTES_MAX} bytes")
        position = lease_position_message(change.position)
        yield metadata_pb.GetLeasesResponse(position=position, starts_anew=change.snapshot is not None, ahead=is_ahead)
        for start in range(0, len(snapshot), PIECE_BYTES):
            yield metadata_pb.GetLeasesResponse(snapshot=snapshot[start : start + PIECE_BYTES])
        for start in range(0, len(change.journal), PIECE_BYTES):
            yield metadata_pb.GetLeasesResponse(journal=change.journal[start : start + PIECE_BYTES])

    def _refuse_but_as_master(self) -> None:
        role = self._role()
        if role.holds_copies:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, "this broker is a slave; ask its master, or set accept_copy"
            )
        if not role.is_serving:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "this master does not serve yet; ask again later")


def _version(kind: metadata_pb.MetadataTable, version: DataVersion) -> metadata_pb.TableVersion:
    return metadata_pb.TableVersion(
        table=kind,
        state_version=version.state_version,
        timestamp_ms=version.timestamp_ms,
        counter=version.counter,
    )


def _known(version: metadata_pb.TableVersion) -> DataVersion:
    """Without the table's name, which a caller may leave out: the request names it already."""
    return DataVersion(version.state_version, version.timestamp_ms, version.counter)

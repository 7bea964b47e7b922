"""ReplicaService: what this broker tells members of its group about its CommitLog. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol, TypeAlias

import grpc

from tandemmq.broker.master.group_recovery import GroupRecovery
from tandemmq.broker.peer_client import history_messages
from tandemmq.broker.queries.stored_records import Pages
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import LocalLog, ReplicaProof
from tandemmq.broker.tracing.send_tracer import TracedPuts
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.proto.broker.v1 import replica_service_pb2 as pb
from tandemmq.proto.broker.v1 import replica_service_pb2_grpc
from tandemmq.service.service_tls import claim_problem_of

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["ReplicaServicer"]

RANGES_MAX: Final = 1_024
DIGEST_BYTES_MAX: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20


class ReplicaRole(Protocol):
    """What the broker is in its group, as far as other members have to know."""

    @property
    def is_serving(self) -> bool:
        """It has begun and has not ended."""

    @property
    def recovery(self) -> GroupRecovery | None:
        """A master's start, which an operator may have to help."""

    @property
    def epoch_refusal(self) -> str | None:
        """Why no other member may begin an epoch now; None: it may."""


class ReplicaServicer(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Answers from the local log."""

    def __init__(
        self,
        *,
        log: LocalLog,
        identity: BrokerIdentity,
        replica: ReplicaIdentity,
        proof: ReplicaProof,
        role: Callable[[], ReplicaRole],
        traced_puts: TracedPuts | None = None,
        pages: Pages | None = None,
        ha_tls: bool = False,
    ) -> None:
        """`pages` brings what is read into memory, so that no disk stops the loop; None: all of it is there. `ha_tls`:
        the replication port takes TLS."""
        self._log = log
        self._identity = identity
        self._replica = replica
        self._role = role
        self._proof = proof
        self._traced_puts = traced_puts
        self._pages = pages
        self._ha_tls = ha_tls

    async def GetLogExtent(  # noqa: N802
        self,
        request: pb.GetLogExtentRequest,
        context: _Context,
    ) -> pb.GetLogExtentResponse:
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

    async def GetRangeDigests(  # noqa: N802
        self,
        request: pb.GetRangeDigestsRequest,
        context: _Context,
    ) -> pb.GetRangeDigestsResponse:
        ranges = [await self._checked(item, context) for item in request.ranges]
        total = sum(item.end_offset - item.start_offset for item in ranges)
        if len(ranges) > RANGES_MAX or total > DIGEST_BYTES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"ranges: {len(ranges)} of {total} bytes; ask for at most {RANGES_MAX} of {DIGEST_BYTES_MAX} bytes",
            )
        return pb.GetRangeDigestsResponse(digests=[await self._proof.digest(item) for item in ranges])

    async def VerifyReplica(  # noqa: N802
        self,
        request: pb.VerifyReplicaRequest,
        context: _Context,
    ) -> pb.VerifyReplicaResponse:
        await self._check_group(request.cluster, request.broker_name, context)
        # Its reports will count as that member's.
        if problem := claim_problem_of(context, self._identity.cluster, self._identity.broker_name, request.broker_id):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"broker_id: {problem}")
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
        return pb.VerifyReplicaResponse(equal=equal, history=history_messages(self._proof.history))

    async def PromiseEpoch(  # noqa: N802
        self, request: pb.PromiseEpochRequest, context: _Context
    ) -> pb.PromiseEpochResponse:
        await self._check_group(request.cluster, request.broker_name, context)
        if (refusal := self._role().epoch_refusal) is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"disk_id: {refusal}")
        promised = await self._proof.promise(request.epoch, request.disk_id, request.nonce)
        return pb.PromiseEpochResponse(
            promised=promised, epoch=self._replica.greatest_epoch, end_offset=self._log.end_offset
        )

    async def AcceptLoss(  # noqa: N802
        self, request: pb.AcceptLossRequest, context: _Context
    ) -> pb.AcceptLossResponse:
        recovery = self._role().recovery
        response = pb.AcceptLossResponse(end_offset=self._log.end_offset)
        if recovery is None:
            return response
        waiting = recovery.waiting
        if waiting is None:
            return await self._forget_away(recovery, request, response, context)
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
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        response.accepted = True
        return response

    async def _forget_away(
        self,
        recovery: GroupRecovery,
        request: pb.AcceptLossRequest,
        response: pb.AcceptLossResponse,
        context: _Context,
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
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        response.accepted = True
        return response

    async def ReadLog(  # noqa: N802
        self, request: pb.ReadLogRequest, context: _Context
    ) -> AsyncIterator[pb.ReadLogResponse]:
        wanted = await self._checked(request.range, context)
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            if self._pages is not None:
                await self._pages.fetch([(offset, min(wanted.end_offset, offset + PIECE_BYTES))])
            piece = self._log.read_log(offset, min(PIECE_BYTES, wanted.end_offset - offset))
            if not piece:
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, f"range: offset {offset} is no longer held")
            yield pb.ReadLogResponse(start_offset=offset, data=bytes(piece))
            offset += len(piece)

    async def ListTracedPuts(  # noqa: N802
        self,
        request: pb.ListTracedPutsRequest,
        context: _Context,
    ) -> pb.ListTracedPutsResponse:
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

    async def _check_group(self, cluster: str, broker_name: str, context: _Context) -> None:
        """Of a version that does not tell its group, nothing is asked."""
        group = (self._identity.cluster, self._identity.broker_name)
        if broker_name and (cluster, broker_name) != group:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"broker_name: {broker_name} of {cluster} is no member of {group[1]} of {group[0]}; "
                "set brokerName, or haMasterAddress",
            )

    async def _checked(self, item: pb.LogRange, context: _Context) -> LogRange:
        wanted = LogRange(item.start_offset, item.end_offset)
        if not self._proof.holds(wanted):
            await context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                f"range: [{item.start_offset}, {item.end_offset}) leaves the log "
                f"[{self._log.min_offset}, {self._log.end_offset})",
            )
        return wanted


def _remembered(memory: ReplicaMemory) -> pb.RememberedReplica:
    message = pb.RememberedReplica(
        broker_id=memory.broker_id,
        disk_id=memory.disk_id,
        run=memory.run,
        epoch=memory.epoch,
        end_offset=memory.end_offset,
        metadata_endpoint=memory.metadata_endpoint,
    )
    if memory.last_seen_wall_ms:
        message.last_seen_time.FromMilliseconds(memory.last_seen_wall_ms)
    return message

"""FailoverService: what members of a group that fails over tell each other. The edge: protobuf stops here."""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias

import grpc

from tandemmq.broker.failover.controller import ClaimRefused, Failover, HandOverRefused
from tandemmq.broker.leases import LeaseChange
from tandemmq.broker.peer_client import lease_position, lease_position_message
from tandemmq.core.replication.mastership import Replica
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.proto.broker.v1 import failover_service_pb2 as pb
from tandemmq.proto.broker.v1 import failover_service_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["FailoverServicer", "failover_state"]


class FailoverServicer(failover_service_pb2_grpc.FailoverServiceServicer):
    """`failover` is None where the group does not fail over."""

    def __init__(self, failover: Failover | None, *, identity: BrokerIdentity, authority: str) -> None:
        self._failover = failover
        self._identity = identity
        self._authority = authority

    async def GetFailoverState(  # noqa: N802
        self, request: pb.GetFailoverStateRequest, context: _Context
    ) -> pb.GetFailoverStateResponse:
        return failover_state(await self._required(context), authority=self._authority)

    async def WithholdClaim(  # noqa: N802
        self, request: pb.WithholdClaimRequest, context: _Context
    ) -> pb.WithholdClaimResponse:
        failover = await self._required(context, request.cluster, request.broker_name)
        withheld = failover.withhold_claim(request.epoch, request.duration.ToMilliseconds())
        return pb.WithholdClaimResponse(withheld=withheld)

    async def NoteRecordChange(  # noqa: N802
        self, request: pb.NoteRecordChangeRequest, context: _Context
    ) -> pb.NoteRecordChangeResponse:
        (await self._required(context, request.cluster, request.broker_name)).poke()
        return pb.NoteRecordChangeResponse()

    async def CopyProgress(  # noqa: N802
        self, request: pb.CopyProgressRequest, context: _Context
    ) -> pb.CopyProgressResponse:
        failover = await self._required(context, request.cluster, request.broker_name)
        return pb.CopyProgressResponse(copied=await failover.copy_progress())

    async def AppendLeases(  # noqa: N802
        self, request: pb.AppendLeasesRequest, context: _Context
    ) -> pb.AppendLeasesResponse:
        failover = await self._required(context, request.cluster, request.broker_name)
        change = LeaseChange(lease_position(request.position), None, request.journal)
        held = await failover.append_leases(change)
        return pb.AppendLeasesResponse(position=lease_position_message(held))

    async def HandOver(self, request: pb.HandOverRequest, context: _Context) -> pb.HandOverResponse:  # noqa: N802
        failover = await self._required(context)
        to = request.to_broker_id if request.HasField("to_broker_id") else None
        try:
            successor = failover.successor(to) if request.dry_run else await failover.hand_over(to)
        except HandOverRefused as error:
            await _refuse(context, str(error))
        return pb.HandOverResponse(to_broker_id=successor)

    async def ClaimUnclean(  # noqa: N802
        self, request: pb.ClaimUncleanRequest, context: _Context
    ) -> pb.ClaimUncleanResponse:
        failover = await self._required(context)
        try:
            claim = await failover.claim_unclean(dry_run=request.dry_run)
        except ClaimRefused as error:
            await _refuse(context, str(error))
        response = pb.ClaimUncleanResponse(end_offset=claim.end_offset, lost_bytes=claim.lost_bytes)
        for memory in claim.missing:
            response.missing.add(broker_id=memory.broker_id, disk_id=memory.disk_id, end_offset=memory.end_offset)
        return response

    async def _required(self, context: _Context, cluster: str = "", broker_name: str = "") -> Failover:
        ours = (self._identity.cluster, self._identity.broker_name)
        if broker_name and (cluster, broker_name) != ours:
            await _refuse(context, f"broker_name: {broker_name} of {cluster} is not this group, {ours[1]} of {ours[0]}")
        if self._failover is None:
            await _refuse(context, "failoverAuthority: it is not set, so no other broker of the group takes over")
        return self._failover


def failover_state(failover: Failover, *, authority: str) -> pb.GetFailoverStateResponse:
    """What this member knows; `authority` as it is configured."""
    record = failover.record
    state = pb.GetFailoverStateResponse(
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


async def _refuse(context: _Context, reason: str) -> NoReturn:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
    raise AssertionError("abort raises")


def _replica(replica: Replica) -> pb.FailoverReplica:
    return pb.FailoverReplica(broker_id=replica.broker_id, disk_id=replica.disk_id)

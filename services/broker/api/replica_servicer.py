"""ReplicaService: what this broker tells members of its group about its CommitLog. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeAlias

import grpc
from tandemmq.broker.v1 import replica_service_pb2 as pb
from tandemmq.broker.v1 import replica_service_pb2_grpc

from broker.replica_proof import LocalLog, ReplicaProof
from broker.tracing.traced_puts import TracedPuts
from mqcore.replication import LogRange

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["ReplicaServicer"]

RANGES_MAX: Final = 1_024
DIGEST_BYTES_MAX: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20


class ReplicaServicer(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Answers from the local log."""

    def __init__(
        self,
        *,
        log: LocalLog,
        broker_id: int,
        serving: Callable[[], bool],
        verified: Callable[[int, int, str], None],
        traced_puts: TracedPuts | None = None,
    ) -> None:
        self._log = log
        self._broker_id = broker_id
        self._serving = serving
        self._proof = ReplicaProof(log=log, serving=serving, verified=verified)
        self._traced_puts = traced_puts

    async def GetLogExtent(  # noqa: N802
        self,
        request: pb.GetLogExtentRequest,
        context: _Context,
    ) -> pb.GetLogExtentResponse:
        return pb.GetLogExtentResponse(
            min_offset=self._log.min_offset,
            end_offset=self._log.end_offset,
            segment_bytes=self._log.segment_bytes,
            serving=self._serving(),
            broker_id=self._broker_id,
            flushed_offset=self._log.flushed_offset,
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
        equal = await self._proof.verify(
            broker_id=request.broker_id,
            tail=LogRange(request.range.start_offset, request.range.end_offset),
            digest=request.digest,
            connection=request.connection,
        )
        return pb.VerifyReplicaResponse(equal=equal)

    async def ReadLog(  # noqa: N802
        self, request: pb.ReadLogRequest, context: _Context
    ) -> AsyncIterator[pb.ReadLogResponse]:
        wanted = await self._checked(request.range, context)
        offset = wanted.start_offset
        while offset < wanted.end_offset:
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

    async def _checked(self, item: pb.LogRange, context: _Context) -> LogRange:
        wanted = LogRange(item.start_offset, item.end_offset)
        if not self._proof.holds(wanted):
            await context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                f"range: [{item.start_offset}, {item.end_offset}) leaves the log "
                f"[{self._log.min_offset}, {self._log.end_offset})",
            )
        return wanted

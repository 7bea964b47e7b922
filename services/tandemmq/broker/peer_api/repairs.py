"""ReplicaRepairService: replaces damaged parts of this replica, on demand. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc

from tandemmq.broker.audit.queue_repair import QueueOrder, QueueRepair
from tandemmq.broker.audit.range_repair import RangeOrder, RangeRepair
from tandemmq.broker.audit.table_repair import TableRepair
from tandemmq.broker.peer_api.replica_reads import AUDIT_ERRORS, status_of
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.consume_queue import QueueEntry
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as pb
from tandemmq.proto.broker.v1 import replica_repair_service_pb2_grpc, replica_service_pb2

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["ReplicaRepairServicer"]

_DIGEST_BYTES: Final = 16


class ReplicaRepairServicer(replica_repair_service_pb2_grpc.ReplicaRepairServiceServicer):
    """One repair at a time; the second is refused, not queued: who plans repairs waits for each step's result.

    `refusal` is asked for each: why this broker repairs nothing, None if it does.
    """

    def __init__(
        self, *, ranges: RangeRepair, queues: QueueRepair, tables: TableRepair, refusal: Callable[[], str | None]
    ) -> None:
        self._ranges = ranges
        self._queues = queues
        self._tables = tables
        self._refusal = refusal
        self._turn = asyncio.Lock()

    async def RepairRange(  # noqa: N802
        self, request: pb.RepairRangeRequest, context: _Context
    ) -> pb.RepairRangeResponse:
        order = RangeOrder(
            range=LogRange(request.range.start_offset, request.range.end_offset),
            source_broker_id=request.source_broker_id,
            target_digest=request.target_digest,
            source_digest=request.source_digest,
            dry_run=request.dry_run,
        )
        async with self._in_turn(context):
            if {len(order.target_digest), len(order.source_digest)} != {_DIGEST_BYTES}:
                raise RepairRefused(Refusal.MALFORMED, f"target_digest, source_digest: {_DIGEST_BYTES} bytes each")
            repaired = await self._ranges.run(order)
        return pb.RepairRangeResponse(
            changed_bytes=repaired.changed_bytes,
            changed_ranges=[
                replica_service_pb2.LogRange(start_offset=start, end_offset=end)
                for start, end in repaired.changed_ranges
            ],
            record_count=repaired.record_count,
        )

    async def RewriteQueueEntries(  # noqa: N802
        self, request: pb.RewriteQueueEntriesRequest, context: _Context
    ) -> pb.RewriteQueueEntriesResponse:
        order = QueueOrder(
            topic=request.topic,
            queue_id=request.queue_id,
            first_queue_offset=request.first_queue_offset,
            end_queue_offset=request.end_queue_offset,
            dry_run=request.dry_run,
            undo=request.undo,
        )
        async with self._in_turn(context):
            repaired = await self._queues.run(order)
        return pb.RewriteQueueEntriesResponse(
            sound_count=repaired.sound_count,
            changed_count=repaired.changed_count,
            changes=[
                pb.QueueEntryChange(
                    queue_offset=change.queue_offset, old_entry=_entry(change.old), new_entry=_entry(change.new)
                )
                for change in repaired.changes
            ],
        )

    async def RewriteTable(  # noqa: N802
        self, request: pb.RewriteTableRequest, context: _Context
    ) -> pb.RewriteTableResponse:
        async with self._in_turn(context):
            repaired = await self._tables.run(request.table, dry_run=request.dry_run, undo=request.undo)
        return pb.RewriteTableResponse(changed=repaired.changed, kept_path=repaired.kept_path)

    async def idle(self) -> None:
        """Returns when no repair runs. Once the server takes no calls none begins any more: the store may be closed."""
        async with self._turn:
            return

    @asynccontextmanager
    async def _in_turn(self, context: _Context) -> AsyncIterator[None]:
        """Refuses all but the first; what goes wrong inside ends the call."""
        try:
            refusal = self._refusal()
            if refusal is not None:
                raise RepairRefused(Refusal.DISABLED, refusal)
            if self._turn.locked():
                raise RepairRefused(Refusal.BUSY, "another repair is running here; wait for its end")
            async with self._turn:
                yield
        except AUDIT_ERRORS as error:
            await context.abort(*status_of(error))


def _entry(entry: QueueEntry) -> pb.QueueEntry:
    return pb.QueueEntry(physical_offset=entry.physical_offset, size_bytes=entry.size, tags_code=entry.tags_code)

"""The gRPC half of the admin's port, on connections that `shared_port` accepts."""

from __future__ import annotations

import asyncio
from typing import Final

from admin.api.access import Access
from admin.api.acting_operations import OperationsDesk
from admin.api.cluster_servicer import ClusterServicer, guarded
from admin.api.consistency_servicer import ConsistencyServicer
from admin.api.operations_servicer import OperationsServicer
from mqcore.clock import Clock
from mqgrpc.errors import Limits
from mqservice.http2_front import Http2Front
from mqservice.reflection import reflection_table

__all__ = ["GrpcSide"]

# The longest request is a test message of 4 MiB; answers are a cluster's state or pages of messages.
_LIMITS: Final = Limits(
    message_bytes=5 << 20,
    concurrent_streams=32,
    server_streams=1_000,
    stream_window_bytes=64 << 10,
    connection_window_bytes=256 << 10,
    connection_buffer_bytes=16 << 20,
    server_buffer_bytes=128 << 20,
    idle_burst=200,
    idle_per_s=50,
)


class GrpcSide:
    """Our services, health and reflection, on a front that never listens: it is given connections."""

    def __init__(
        self,
        servicer: ClusterServicer,
        consistency: ConsistencyServicer,
        *,
        access: Access,
        clock: Clock,
        desk: OperationsDesk,
    ) -> None:
        self._servicer = servicer
        self._operations = OperationsServicer(desk, access=access)
        self._front = Http2Front("", 0, clock=clock, limits=_LIMITS)
        tables = [servicer.method_table(), consistency.method_table()]
        for table in tables:
            self._front.add(guarded(table, access))
        # It finds out itself who calls.
        operations = self._operations.method_table()
        self._front.add(operations)
        names = [*(table.service_name for table in (*tables, operations)), "grpc.health.v1.Health"]
        self._front.add(guarded(reflection_table(names), access))

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return self._front.connection_count

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serves a connection, of which `received` was read already."""
        self._front.adopt(transport, received)

    async def set_serving(self, is_serving: bool) -> None:
        """What grpc.health.v1 answers."""
        await self._front.set_serving(is_serving)

    async def stop(self, *, limit_ms: int) -> None:
        """Ends watches, tells callers to go elsewhere, and cuts off who has not gone within `limit_ms`."""
        self._servicer.end_watches()
        await self._operations.stop()
        await self._front.stop(limit_ms=limit_ms)

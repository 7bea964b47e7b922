"""A `BrokerAssembly` on a loopback port, behind any front that can run its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Final

from support.broker_assembly import BrokerAssembly
from support.grpc_oracle import GrpcOracle
from tandemmq.core.clock import Clock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import MethodTable

# Serves a table on a free port of 127.0.0.1 and gives the port.
Front = Callable[[MethodTable, Clock], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def _grpc_aio(table: MethodTable, clock: Clock) -> AsyncIterator[int]:
    server = GrpcOracle("127.0.0.1", 0, clock=clock)
    server.add(table)
    yield await server.start()
    await server.stop(limit_ms=500)


@asynccontextmanager
async def _mqgrpc(table: MethodTable, clock: Clock) -> AsyncIterator[int]:
    server = Http2Front("127.0.0.1", 0, clock=clock)
    server.add(table)
    yield await server.start()
    await server.stop(limit_ms=500)


FRONTS: Final[Mapping[str, Front]] = MappingProxyType({"mqgrpc": _mqgrpc, "grpc.aio": _grpc_aio})


@asynccontextmanager
async def serving(broker: BrokerAssembly, front: Front = _grpc_aio) -> AsyncIterator[str]:
    """Serves the broker and gives its address; closes it at the end."""
    async with front(broker.api.method_table(), broker.clock) as port:
        broker.client_endpoint = f"127.0.0.1:{port}"
        yield broker.client_endpoint
        broker.close()

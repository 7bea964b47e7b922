"""One NameServer: the registry, its planes on one port, and its watch over silent brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from tandemmq.core.clock import Clock
from tandemmq.nameserver.route_registry import GroupMemoryFile, RouteRegistry
from tandemmq.nameserver.servicers import NameServerServicer, client_api
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.service.grpc_server import PROBE_LIVE, PROBE_READY, PROBE_STARTED, GrpcServer
from tandemmq.service.service_tls import server_tls_of

__all__ = ["SERVICE_NAME", "serving"]

SERVICE_NAME: Final = "tandemmq.nameserver.v1.NameServerService"


@asynccontextmanager
async def serving(
    settings: NameServerSettings, *, clock: Clock, log: FilteringBoundLogger
) -> AsyncIterator[tuple[RouteRegistry, int]]:
    """Serves while the block runs; gives the registry and the port, which differs from the setting when that is 0.

    Serves as soon as it listens: the group memory is a small file, and brokers notice a new NameServer within seconds.
    The ready probe gives them these seconds (`warmUpTime`), so that of several NameServers that are restarted one by
    one the next is not stopped before this one knows who is alive.

    `StoreFolderError` when storePathRootDir cannot be used.
    """
    folder = settings.store_path_root_dir
    memory_file = GroupMemoryFile(Path(folder), clock=clock, log=log) if folder else None
    try:
        async with _serving(settings, clock=clock, log=log, memory_file=memory_file) as served:
            yield served
    finally:
        if memory_file is not None:
            memory_file.close()


@asynccontextmanager
async def _serving(
    settings: NameServerSettings, *, clock: Clock, log: FilteringBoundLogger, memory_file: GroupMemoryFile | None
) -> AsyncIterator[tuple[RouteRegistry, int]]:
    registry = RouteRegistry(clock=clock, log=log, memory=memory_file.load() if memory_file is not None else None)
    warm_from_ms = clock.monotonic_ms() + settings.warm_up_time
    is_stopping = False
    server = GrpcServer(
        settings.bind_address,
        settings.listen_port,
        clock=clock,
        tls=server_tls_of(settings, clock=clock),
        open_port=settings.open_listen_port,
        probes={
            PROBE_STARTED: lambda: True,
            PROBE_LIVE: lambda: True,
            PROBE_READY: lambda: not is_stopping and clock.monotonic_ms() >= warm_from_ms,
        },
    )
    registry.activity.access_refused = server.refused
    add_servicer = name_server_service_pb2_grpc.add_NameServerServiceServicer_to_server
    add_servicer(NameServerServicer(registry), server.aio_server)  # type: ignore[no-untyped-call]  # generated
    server.add(client_api(registry.route), for_anybody=True)
    port = await server.start(service_names=(SERVICE_NAME,))
    try:
        async with asyncio.TaskGroup() as tasks:
            expiry = tasks.create_task(
                registry.expire_silent_brokers(interval_ms=settings.scan_not_active_broker_interval)
            )
            if memory_file is not None:
                tasks.create_task(memory_file.keep(registry.table.memory))
            await server.set_serving(True)
            try:
                yield registry, port
            finally:
                expiry.cancel()
                if memory_file is not None:
                    memory_file.stop()
    finally:
        is_stopping = True
        registry.close()
        await server.stop(limit_ms=settings.shutdown_timeout)

"""One NameServer: the registry, its planes on one port, its watch over silent brokers, and its metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
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
from tandemmq.service.command_line import VERSION
from tandemmq.service.event_loop import LoopMeter
from tandemmq.service.grpc_server import PROBE_LIVE, PROBE_READY, PROBE_STARTED, GrpcServer
from tandemmq.service.metrics.exposition import MetricFamily, MetricInfo, MetricKind, MetricSamples
from tandemmq.service.service_tls import server_tls_of

__all__ = ["NAME_SERVER_METRICS", "SERVICE_NAME", "NameServerMetrics", "serving"]


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


# Every metric a NameServer tells of itself, read when somebody asks. docs/operations/metrics.md is made from this
# table.
#
# The admin service compares all NameServers and has metrics for that (`rocketmq_nameserver_up`, `_brokers`, `_agrees`).
# Here is what each one sees and does.

# The catalogue.

_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE

NAME_SERVER_METRICS: Final = (
    MetricInfo("rocketmq_nameserver_info", _GAUGE, "1", "1; the version of the NameServer.", ("version",)),
    MetricInfo("rocketmq_nameserver_uptime_seconds", _GAUGE, "s", "Time since the process started."),
    MetricInfo(
        "rocketmq_nameserver_registered_brokers",
        _GAUGE,
        "{broker}",
        "Live brokers that are registered here, by cluster.",
        ("cluster",),
    ),
    MetricInfo("rocketmq_nameserver_topics", _GAUGE, "{topic}", "Topics with a route."),
    MetricInfo("rocketmq_nameserver_route_watchers", _GAUGE, "{stream}", "Streams of routes that are open."),
    MetricInfo(
        "rocketmq_nameserver_heartbeat_age_seconds",
        _GAUGE,
        "s",
        "Time since the broker's last sign of life.",
        ("cluster", "broker_group", "broker_id"),
    ),
    MetricInfo(
        "rocketmq_nameserver_registrations_total",
        _COUNTER,
        "{registration}",
        "Registrations by what came of them: `new`, `change`, `unchanged`, `refused`.",
        ("outcome",),
    ),
    MetricInfo("rocketmq_nameserver_heartbeats_total", _COUNTER, "{heartbeat}", "Heartbeats taken."),
    MetricInfo(
        "rocketmq_nameserver_brokers_lost_total",
        _COUNTER,
        "{broker}",
        "Brokers dropped without a goodbye, by cause: `heartbeat_stream_ended`, `silent`.",
        ("cause",),
    ),
    MetricInfo(
        "rocketmq_nameserver_route_queries_total",
        _COUNTER,
        "{query}",
        "Routes asked for one by one, by brokers' tools and by clients, and whether there was one: `found`, `missing`.",
        ("outcome",),
    ),
    MetricInfo(
        "rocketmq_nameserver_access_refused_total",
        _COUNTER,
        "{call}",
        "Calls refused for who made them, by reason: `no_certificate`, `unusable_certificate`, `not_permitted`, and "
        "`others_identity`, a broker that spoke for another one.",
        ("reason",),
    ),
    MetricInfo(
        "rocketmq_nameserver_event_loop_stalls_total", _COUNTER, "{stall}", "Turns of the event loop above 20 ms."
    ),
    MetricInfo("rocketmq_nameserver_event_loop_stalled_seconds_total", _COUNTER, "s", "Their sum."),
)


class NameServerMetrics:
    """Collects what is in the catalogue above. Event loop only."""

    def __init__(self, registry: RouteRegistry, *, clock: Clock, loop_meter: LoopMeter) -> None:
        self._registry = registry
        self._clock = clock
        self._loop_meter = loop_meter
        self._started_ms = clock.monotonic_ms()

    async def collect(self) -> list[MetricFamily]:
        """All metrics as of now: there are as many brokers as a cluster has, so nothing here takes long."""
        samples = MetricSamples(NAME_SERVER_METRICS)
        activity, table = self._registry.activity, self._registry.table
        now_ms = self._clock.monotonic_ms()
        samples.add("rocketmq_nameserver_info", 1, VERSION)
        samples.add("rocketmq_nameserver_uptime_seconds", (now_ms - self._started_ms) / 1_000)
        brokers = [broker.identity for broker in table.brokers()]
        samples.add_counts("rocketmq_nameserver_registered_brokers", Counter(broker.cluster for broker in brokers))
        samples.add("rocketmq_nameserver_topics", table.topic_count)
        samples.add("rocketmq_nameserver_route_watchers", activity.watchers)
        for broker in brokers:
            last_seen_ms = table.last_seen_ms(broker)
            if last_seen_ms is not None:
                labels = (broker.cluster, broker.broker_name, str(broker.broker_id))
                samples.add("rocketmq_nameserver_heartbeat_age_seconds", (now_ms - last_seen_ms) / 1_000, *labels)
        samples.add_counts("rocketmq_nameserver_registrations_total", activity.registrations)
        samples.add("rocketmq_nameserver_heartbeats_total", activity.heartbeats)
        samples.add_counts("rocketmq_nameserver_brokers_lost_total", activity.brokers_lost)
        samples.add_counts("rocketmq_nameserver_route_queries_total", activity.route_queries)
        samples.add_counts("rocketmq_nameserver_access_refused_total", activity.access_refused)
        samples.add("rocketmq_nameserver_event_loop_stalls_total", self._loop_meter.stall_count)
        samples.add("rocketmq_nameserver_event_loop_stalled_seconds_total", self._loop_meter.stalled_s)
        return samples.families()

"""The admin service: one cluster, read again and again, and shown on one port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.api.access import Access, AccessRules, SessionTable, TokenGuesses
from tandemmq.admin.api.cluster_grpc import ClusterServicer, ConsistencyServicer
from tandemmq.admin.api.shared_port import ALPN, GrpcSide, SharedPort
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.cluster_reader import CachedCluster, ClusterReader, ClusterReading
from tandemmq.admin.consistency_runs import ConsistencyRuns, results_place, starter_of
from tandemmq.admin.console.frame import PageTemplates
from tandemmq.admin.history import USAGE_INTERVAL_MS, USAGE_NAMES_MAX, ClusterHistory, UsageHistory
from tandemmq.admin.http_api import CONSOLE_PAGES, http_app
from tandemmq.admin.metrics import ClusterMetrics
from tandemmq.admin.operations.operations import Operations, OperationsDesk
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.topics import ORDINARY
from tandemmq.admin.operations.values import PageRequest
from tandemmq.admin.role_labels import KubernetesPods, RoleLabels
from tandemmq.admin.rpc import Channels
from tandemmq.admin.settings import AdminSettings
from tandemmq.admin.trace_reader import ClusterTraces
from tandemmq.client import ClientOptions, Credentials, Producer
from tandemmq.core.clock import Clock
from tandemmq.service.certificates import TlsFiles


@asynccontextmanager
async def serving(settings: AdminSettings, *, clock: Clock, log: FilteringBoundLogger) -> AsyncIterator[int]:
    """Reads the cluster and serves while the block runs; gives the port."""
    channels = Channels()
    consistency = ConsistencyRuns(
        results_place(settings.consistency_results, namespace=settings.kubernetes_namespace),
        clock=clock,
        log=log,
        overdue_after_ms=settings.consistency_overdue_after,
    )
    cluster = CachedCluster(
        ClusterReader(channels, settings.name_servers),
        clock=clock,
        log=log,
        forget_after_ms=settings.forget_brokers_after,
        more_findings=consistency.findings,
    )
    history = ClusterHistory()
    cluster.on_reading(history.observe)
    usage = UsageHistory()
    audit_log = AuditLog(clock=clock, log=log)
    access = Access(
        settings.admin_token,
        AccessRules.of(settings),
        SessionTable(clock=clock),
        guesses=TokenGuesses(clock=clock),
        audit_log=audit_log,
    )
    secret_key = settings.secret_key.get_secret_value()
    credentials = Credentials(settings.access_key, secret_key) if settings.access_key else None
    starter = starter_of(settings, clock=clock, log=log)
    operations = Operations(
        channels,
        members=lambda: cluster.latest.state if cluster.latest is not None else None,
        send_client=lambda access_points: Producer(
            ClientOptions(access_points=access_points, credentials=credentials), clock
        ),
        clock=clock,
        verifier=starter,
    )
    desk = OperationsDesk(operations, audit_log)
    metrics = ClusterMetrics(cluster, consistency, clock=clock)
    grpc_side = GrpcSide(
        ClusterServicer(cluster, clock=clock),
        ConsistencyServicer(consistency),
        access=access,
        clock=clock,
        desk=desk,
    )
    port = SharedPort(
        http_app(
            cluster,
            consistency,
            ClusterTraces(cluster, channels),
            access=access,
            metrics=metrics,
            templates=PageTemplates(),
            clock=clock,
            desk=desk,
            add_pages=CONSOLE_PAGES,
            history=history,
            usage=usage,
            refresh_ms=settings.refresh_interval,
        ),
        grpc_side,
        bind_address=settings.bind_address,
        port=settings.http_port,
        max_connections=settings.max_connections,
        stop_limit_ms=settings.shutdown_timeout,
        tls=TlsFiles(settings.tls_cert_path, settings.tls_key_path, protocols=ALPN, clock=clock).context
        if settings.tls_cert_path
        else None,
    )
    try:
        number = port.listen()
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(cluster.keep_reading(interval_ms=settings.refresh_interval))]
            work.append(tasks.create_task(_tell_ready(cluster, grpc_side)))
            work.append(tasks.create_task(consistency.keep_reading()))
            work.append(tasks.create_task(_keep_usage(usage, operations, clock)))
            if starter is not None:
                work.append(tasks.create_task(starter.keep()))
            if settings.kubernetes_role_labels:
                pods = KubernetesPods(instance=settings.kubernetes_instance, namespace=settings.kubernetes_namespace)
                work.append(tasks.create_task(RoleLabels(pods, log=log).keep(cluster)))
            serving = tasks.create_task(port.serve())
            try:
                yield number
            finally:
                port.stop()
                await serving
                for task in work:
                    task.cancel()
    finally:
        await channels.close()


async def _keep_usage(usage: UsageHistory, operations: Operations, clock: Clock) -> None:
    """Samples topics and groups for their plots; until it is cancelled."""
    asked = PageRequest(size=USAGE_NAMES_MAX)
    while True:
        await asyncio.sleep(USAGE_INTERVAL_MS / 1_000)
        try:
            topics = await operations.topics(search="", categories=(ORDINARY,), page=asked)
            groups = await operations.groups(search="", page=asked)
        except OperationFailed:
            # Nobody who knows answers now: a gap.
            continue
        # A sum that lacks a broker would be a dip that never was.
        stored = {topic.name: -1 if topics.unseen else topic.stored for topic in topics.items}
        standing = {group.name: (-1, -1) if groups.unseen else (group.lag, group.inflight) for group in groups.items}
        usage.observe_topics(stored, at_ms=clock.monotonic_ms(), at_wall_ms=clock.wall_ms())
        usage.observe_groups(standing, at_wall_ms=clock.wall_ms())


async def _tell_ready(cluster: CachedCluster, grpc_side: GrpcSide) -> None:
    """gRPC's health says what /readyz says: ready once the cluster has been read."""
    read = asyncio.Event()

    def first(_: ClusterReading) -> None:
        read.set()

    forget = cluster.on_reading(first)
    await read.wait()
    forget()
    await grpc_side.set_serving(True)

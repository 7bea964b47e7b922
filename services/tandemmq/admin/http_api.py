"""Everything that is asked for over HTTP/1.1: pages, JSON, health, metrics, and who may have them.

Health, metrics and the cluster's state ask nobody: they are the newest reading and say how old it is. Topics, groups,
messages, settings and traces are asked of the cluster when somebody wants them. `serve` is the service around it: one
cluster, read again and again, and shown on one port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from structlog.typing import FilteringBoundLogger

from tandemmq.admin.api.access import (
    Access,
    AccessRules,
    App,
    Guard,
    Problem,
    SessionTable,
    TokenGuesses,
    plain_problem,
    problem_of,
    problem_response,
)
from tandemmq.admin.api.cluster_grpc import ClusterServicer, ConsistencyServicer
from tandemmq.admin.api.rest import add_rest, add_traces
from tandemmq.admin.api.shared_port import ALPN, GrpcSide, SharedPort
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.cluster_reader import CachedCluster, ClusterReader, ClusterReading
from tandemmq.admin.cluster_state import BrokerState, Finding, NameServerState
from tandemmq.admin.consistency_runs import ConsistencyRuns, results_place, starter_of
from tandemmq.admin.console.answers import AddPages, Pages, problem_page
from tandemmq.admin.console.brokers import add_broker_pages, add_event_pages
from tandemmq.admin.console.consistency import add_consistency_pages
from tandemmq.admin.console.dead_letters import add_dead_letter_pages
from tandemmq.admin.console.frame import PageTemplates, StaticFile, use_zone
from tandemmq.admin.console.groups import add_group_pages
from tandemmq.admin.console.login import add_login
from tandemmq.admin.console.messages import add_message_pages, add_transaction_pages
from tandemmq.admin.console.overview import add_overview_pages
from tandemmq.admin.console.replication import add_replication_pages
from tandemmq.admin.console.settings import add_settings_pages
from tandemmq.admin.console.topics import add_topic_pages
from tandemmq.admin.console.traces import add_trace_pages
from tandemmq.admin.console.users import add_user_pages
from tandemmq.admin.history import USAGE_INTERVAL_MS, USAGE_NAMES_MAX, ClusterHistory, UsageHistory
from tandemmq.admin.metrics import CONTENT_TYPE, ClusterMetrics
from tandemmq.admin.operations.operations import NotPermitted, Operations, OperationsDesk
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.topics import ORDINARY
from tandemmq.admin.operations.values import PageRequest
from tandemmq.admin.role_labels import KubernetesPods, RoleLabels
from tandemmq.admin.rpc import Channels
from tandemmq.admin.settings import AdminSettings
from tandemmq.admin.trace_reader import ClusterTraces
from tandemmq.client import ClientOptions, Credentials, Producer
from tandemmq.core.audit.run_summary import RunSummary
from tandemmq.core.clock import Clock
from tandemmq.service.certificates import TlsFiles
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.logging import get_logger
from tandemmq.service.service_channels import use_service_tls
from tandemmq.service.service_tls import service_tls_of
from tandemmq.service.settings import VERSION, effective_settings, stop_requested
from tandemmq.service.texts import iso_text

_STATIC_MAX_AGE_S: Final = 3_600
_PROBLEMS_SHOWN: Final = 10


@dataclass(frozen=True)
class ClusterDocument:
    """What `tandemmq status --json` prints, and how old it is."""

    # True when no finding is a problem.
    healthy: bool
    # Number of this reading since the service started.
    revision: int
    # When it was read, RFC 3339.
    read_time: str
    # How old it was when it was sent.
    age_ms: int
    read_duration_ms: int
    findings: tuple[Finding, ...]
    name_servers: tuple[NameServerState, ...]
    brokers: tuple[BrokerState, ...]


@dataclass(frozen=True)
class FindingsDocument:
    """What an operator should know, problems first."""

    healthy: bool
    revision: int
    read_time: str
    age_ms: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class ConsistencyRunDocument:
    """A run of the consistency job by its figures."""

    run_id: str
    tier: str
    cluster: str
    outcome: str
    started_at: str
    finished_at: str
    duration_seconds: float
    groups: int
    bytes_read: int
    findings_total: int
    findings_by_kind: dict[str, int]


@dataclass(frozen=True)
class ConsistencyRunsDocument:
    """The last runs of the consistency job, newest first."""

    # False: consistencyResults is not set, so nothing is known.
    watched: bool
    # Why the runs could not be read just now; those here were read before.
    error: str
    runs: tuple[ConsistencyRunDocument, ...]


def http_app(
    cluster: CachedCluster,
    consistency: ConsistencyRuns,
    traces: ClusterTraces,
    *,
    access: Access,
    metrics: ClusterMetrics,
    templates: PageTemplates,
    clock: Clock,
    desk: OperationsDesk,
    add_pages: Sequence[AddPages] = (),
    history: ClusterHistory | None = None,
    usage: UsageHistory | None = None,
    refresh_ms: int = 2_000,
) -> App:
    """The ASGI application. `add_pages` add the console's pages; without `history` their plots are empty."""
    app = FastAPI(
        title="TandemMQ admin service",
        version=VERSION,
        description="A cluster's state, read in the background, and all an operator can ask of it and do to it.",
        openapi_url="/api/openapi.json",
        # The usual documentation pages load their scripts from elsewhere; /api/docs is our own.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(use_zone)],
    )
    app.state.audit_log = desk.audit_log
    pages = Pages(
        templates=templates,
        desk=desk,
        cluster=cluster,
        consistency=consistency,
        traces=traces,
        clock=clock,
        refresh_ms=refresh_ms,
        history=history or ClusterHistory(),
        usage=usage or UsageHistory(),
    )
    if access.sessions is not None:
        add_login(app, access, access.sessions, templates, audit_log=desk.audit_log)
    for add in add_pages:
        add(app, pages)
    _add_problems(app, pages)
    _add_health(app, cluster)
    _add_json(app, cluster, clock)
    _add_consistency(app, consistency)
    add_rest(app, desk, clock=clock)
    add_traces(app, traces)
    _add_files(app, metrics, templates)
    return Guard(app, access, desk.audit_log)


def _add_problems(app: FastAPI, pages: Pages) -> None:
    """Whatever goes wrong is told in one form: a page for a browser that asked for one, else problem+json."""

    def answer(request: Request, problem: Problem, headers: dict[str, str] | None = None) -> Response:
        if _wants_page(request):
            return problem_page(pages, request, problem)
        return problem_response(problem, headers)

    @app.exception_handler(OperationFailed)
    async def failed(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, OperationFailed)
        status = HTTPStatus.FORBIDDEN if isinstance(failure, NotPermitted) else None
        return answer(request, problem_of(failure, status=status))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = str(error.detail)
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            where = request.url.path
            detail = f"there is no page {where}" if _wants_page(request) else f"nothing is at {where}; see /api/docs"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and _wants_page(request):
            # An address that a form was sent to, kept or reloaded.
            detail = f"{request.url.path} only takes what a form sends: nothing was done; fill in the form again"
        headers = dict(error.headers) if error.headers else None
        return answer(request, plain_problem(HTTPStatus(error.status_code), detail), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        wrong = [f"{'.'.join(map(str, each['loc'][1:])) or each['loc'][0]}: {each['msg']}" for each in error.errors()]
        return answer(request, plain_problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(wrong[:_PROBLEMS_SHOWN])))

    @app.exception_handler(Exception)
    async def broken(request: Request, _defect: Exception) -> Response:
        # The server logs it.
        detail = "this service made a mistake; its log has the cause"
        return answer(request, plain_problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail))


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


def _add_health(app: FastAPI, cluster: CachedCluster) -> None:
    @app.get("/healthz", tags=["health"], response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        """200 while the process makes progress; 503 when it is to be restarted. No token."""
        if cluster.is_stuck():
            return PlainTextResponse("reading the cluster is stuck\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")

    @app.get("/readyz", tags=["health"], response_class=PlainTextResponse)
    async def readyz() -> PlainTextResponse:
        """200 once the cluster has been read, however it is: a degraded one needs this page most. No token."""
        if cluster.latest is None:
            return PlainTextResponse("the cluster has not been read yet\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")


def _add_json(app: FastAPI, cluster: CachedCluster, clock: Clock) -> None:
    def newest() -> ClusterReading:
        if cluster.latest is None:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the cluster has not been read yet; try again in a second",
                headers={"retry-after": "1"},
            )
        return cluster.latest

    @app.get("/api/v1/cluster", tags=["cluster"], responses={503: {"description": "Not read yet."}})
    async def cluster_state() -> ClusterDocument:
        """NameServers, brokers with their offsets and slaves, and findings: what `tandemmq status --json` prints."""
        reading = newest()
        return ClusterDocument(
            healthy=reading.healthy,
            revision=reading.revision,
            read_time=iso_text(reading.read_at_wall_ms),
            age_ms=reading.age_ms(clock.monotonic_ms()),
            read_duration_ms=reading.duration_ms,
            findings=reading.findings,
            name_servers=reading.state.name_servers,
            brokers=reading.state.brokers,
        )

    @app.get("/api/v1/findings", tags=["cluster"], responses={503: {"description": "Not read yet."}})
    async def findings() -> FindingsDocument:
        """What is wrong and what to do about it, problems first."""
        reading = newest()
        return FindingsDocument(
            healthy=reading.healthy,
            revision=reading.revision,
            read_time=iso_text(reading.read_at_wall_ms),
            age_ms=reading.age_ms(clock.monotonic_ms()),
            findings=reading.findings,
        )


def _add_consistency(app: FastAPI, consistency: ConsistencyRuns) -> None:
    @app.get("/api/v1/consistency/runs", tags=["consistency"])
    async def consistency_runs() -> ConsistencyRunsDocument:
        """The last runs of the consistency job, newest first, by their figures."""
        reading = consistency.latest
        return ConsistencyRunsDocument(
            watched=consistency.is_watched,
            error=reading.error if reading is not None else "",
            runs=tuple(_run_document(run) for run in (reading.runs if reading is not None else ())),
        )

    @app.get("/api/v1/consistency/runs/{run_id}", tags=["consistency"], responses={404: {"description": "Not known."}})
    async def consistency_run(run_id: str) -> JSONResponse:
        """A run with its groups and findings, as in its summary.json; `latest` is the newest."""
        reading = consistency.latest
        run = reading.find(run_id) if reading is not None else None
        if run is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such run")
        return JSONResponse(run.to_json())


def _run_document(run: RunSummary) -> ConsistencyRunDocument:
    return ConsistencyRunDocument(
        run_id=run.run_id,
        tier=run.tier.value,
        cluster=run.cluster,
        outcome=run.outcome.value,
        started_at=run.started_at,
        finished_at=run.finished_at,
        duration_seconds=run.duration_seconds,
        groups=len(run.groups),
        bytes_read=run.bytes_read,
        findings_total=run.findings_total,
        findings_by_kind=run.findings_by_kind,
    )


def _add_files(app: FastAPI, metrics: ClusterMetrics, templates: PageTemplates) -> None:
    @app.get("/metrics", tags=["metrics"], response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Prometheus' text format; only the service's own figures until the cluster has been read."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        found: StaticFile | None = templates.static_files.get(name)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such file")
        headers = {"cache-control": f"public, max-age={_STATIC_MAX_AGE_S}, immutable"}
        return Response(found.content, media_type=found.media_type, headers=headers)


# The console's pages: routes, and what each shows.

CONSOLE_PAGES: Final[tuple[AddPages, ...]] = (
    add_overview_pages,
    add_replication_pages,
    add_broker_pages,
    add_consistency_pages,
    add_event_pages,
    add_settings_pages,
    add_topic_pages,
    add_group_pages,
    add_message_pages,
    add_dead_letter_pages,
    add_transaction_pages,
    add_trace_pages,
    add_user_pages,
)


# The service.


async def serve(settings: AdminSettings) -> None:
    """Serves until SIGTERM or SIGINT. Raises ListenError."""
    log = get_logger()
    log.info("admin_starting", version=VERSION, pid=os.getpid(), settings=effective_settings(settings))
    _warn_if_open(settings, log)
    clock = SystemClock()
    with stop_requested() as stop, use_service_tls(service_tls_of(settings, clock=clock)):
        async with _serving(settings, clock=clock, log=log) as port:
            log.info("admin_serving", bindAddress=settings.bind_address, httpPort=port)
            await stop.wait()
            log.info("admin_stopping")
    log.info("admin_stopped")


def _warn_if_open(settings: AdminSettings, log: FilteringBoundLogger) -> None:
    has_token = settings.admin_token.get_secret_value() or settings.viewer_token.get_secret_value()
    if has_token or _is_loopback(settings.bind_address):
        return
    log.warning(
        "admin_open_to_the_network",
        bindAddress=settings.bind_address,
        anonymousRole=settings.anonymous_role,
        remedy="set adminToken or viewerToken, or let a NetworkPolicy say who reaches this port",
    )


def _is_loopback(bind_address: str) -> bool:
    if bind_address == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind_address).is_loopback
    except ValueError:
        return False


@asynccontextmanager
async def _serving(settings: AdminSettings, *, clock: Clock, log: FilteringBoundLogger) -> AsyncIterator[int]:
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

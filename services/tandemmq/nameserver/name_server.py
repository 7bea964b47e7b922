"""One NameServer: the registry, its planes on one port, its watch over silent brokers, and its metrics."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import structlog
from structlog.typing import FilteringBoundLogger

from tandemmq.core.access.identity import Role
from tandemmq.core.clock import Clock
from tandemmq.core.routing.route_table import HeartbeatStatus, RegistrationRefused
from tandemmq.core.routing.values import BrokerIdentity, RegisteredBroker, Registration, TopicRoute, parse_address
from tandemmq.nameserver.route_registry import GroupMemoryFile, RouteRegistry
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.event_loop import LoopMeter, SystemClock
from tandemmq.service.grpc_server import (
    PROBE_LIVE,
    PROBE_READY,
    PROBE_STARTED,
    Context,
    GrpcServer,
    Invalid,
    Refused,
    by_kind,
    refusing,
)
from tandemmq.service.logging import get_logger
from tandemmq.service.metrics import MetricExports, MetricFamily, MetricInfo, MetricKind, MetricSamples
from tandemmq.service.route_messages import (
    AssignmentHandler,
    RouteQueryHandler,
    broker_message,
    heartbeat_value,
    identity_value,
    memory_message,
    refusal_text,
    registration_value,
    replica_message,
    route_message,
    snapshot_message,
)
from tandemmq.service.rpc import MethodTable, ShortRequests, UnaryMethod
from tandemmq.service.service_tls import caller_of, claim_problem_of, peer_of, server_tls_of
from tandemmq.service.settings import VERSION, effective_settings, stop_requested
from tandemmq.service.telemetry.span_export import resource_attributes

SERVICE_NAME: Final = "tandemmq.nameserver.v1.NameServerService"


async def serve(settings: NameServerSettings, meter: LoopMeter) -> None:
    """Serves until SIGTERM or SIGINT. Raises as `serving`, ListenError when a port is taken."""
    log = get_logger()
    clock = SystemClock()
    log.info("name_server_starting", version=VERSION, pid=os.getpid(), settings=effective_settings(settings))
    with stop_requested() as stop:
        async with (
            serving(settings, clock=clock, log=log) as (registry, port),
            _metrics(settings, registry, clock=clock, meter=meter) as metrics_port,
        ):
            ports = {"listenPort": port, "metricsPromExporterPort": metrics_port}
            log.info("name_server_serving", bindAddress=settings.bind_address, **ports)
            await stop.wait()
            log.info("name_server_stopping")
    log.info("name_server_stopped")


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
        records_changes=True,
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


@asynccontextmanager
async def _metrics(
    settings: NameServerSettings, registry: RouteRegistry, *, clock: Clock, meter: LoopMeter
) -> AsyncIterator[int]:
    """Gives metrics away while the block runs, as the settings say; gives the port of /metrics, 0 without one."""
    instance_id = f"{socket.gethostname()}:{settings.listen_port}"
    exports = MetricExports(
        settings.metrics_options(),
        collect=NameServerMetrics(registry, clock=clock, loop_meter=meter).collect,
        resource=resource_attributes(service="nameserver", instance_id=instance_id),
    )
    await exports.start()
    try:
        yield exports.port
    finally:
        await exports.close()


# What a NameServer answers. The edge: protobuf stops here.
#
# NameServerService is for brokers, which announce themselves, and for everyone who asks for routes. An official client
# may also take a NameServer for its access point; it is told where a topic is, and asks everything else of the brokers
# that the answer names.


# 32 hexadecimal digits of a uuid, and room for other forms.
_DISK_ID_CHARACTERS_MAX: Final = 64
_NAME_CHARACTERS_MAX: Final = 255
_TOLD_CHARACTERS_MAX: Final = 1_000
"""Of a refusal, which repeats what the caller said."""
_KNOWN_REPLICAS_MAX: Final = 256

log = structlog.get_logger(__name__)


@refusing(by_kind())
class NameServerServicer(name_server_service_pb2_grpc.NameServerServiceServicer):
    """Translates request, call and response; all decisions are the registry's."""

    def __init__(self, registry: RouteRegistry) -> None:
        self._registry = registry
        self._snapshot = pb.WatchRoutesResponse(revision=-1)

    async def RegisterBroker(self, request: pb.RegisterBrokerRequest, context: Context) -> pb.RegisterBrokerResponse:
        registration = registration_value(request)
        problems = _registration_problems(registration)
        if problems:
            raise Invalid("; ".join(problems)[:_TOLD_CHARACTERS_MAX])
        self._check_claim(registration.identity, context)
        answer = self._registry.register(registration, peer=peer_of(context))
        if isinstance(answer, RegistrationRefused):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, refusal_text(answer))
        return pb.RegisterBrokerResponse(master=self._optional_broker(answer.master), order_topics=answer.order_topics)

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        self._check_claim(identity_value(request.identity), context)
        self._registry.unregister(
            identity_value(request.identity),
            incarnation=request.incarnation,
            disk_id=request.disk_id,
            run=request.run,
            end_offset=request.end_offset if request.HasField("end_offset") else None,
        )
        return pb.UnregisterBrokerResponse()

    async def Heartbeat(
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        """Reads signs of life. However the stream ends, members that were alive on it no longer are."""
        connection = self._registry.open_connection()
        try:
            async for request in requests:
                beat = heartbeat_value(request)
                self._check_claim(beat.identity, context)
                answer = self._registry.heartbeat(beat, connection=connection)
                if answer.status is HeartbeatStatus.BROKER_UNKNOWN:
                    raise Refused(grpc.StatusCode.NOT_FOUND, "this broker is not registered: register again")
                yield pb.HeartbeatResponse(
                    registration_needed=answer.status is HeartbeatStatus.TABLE_UNKNOWN,
                    master=self._optional_broker(answer.master),
                    superseded=answer.superseded,
                )
        finally:
            self._registry.connection_lost(connection)

    async def GetTopicRoute(self, request: pb.GetTopicRouteRequest, context: Context) -> pb.GetTopicRouteResponse:
        route = self._registry.route(request.topic)
        if route is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"no live broker has topic {request.topic}")
        return pb.GetTopicRouteResponse(route=route_message(route))

    async def WatchRoutes(
        self, _request: pb.WatchRoutesRequest, _context: Context
    ) -> AsyncIterator[pb.WatchRoutesResponse]:
        """All routes, at once and after changes.

        The next snapshot is taken only when the former one is on its way, so a slow reader skips revisions instead of
        making us keep them. All watchers share one message per revision.
        """
        self._registry.activity.watchers += 1
        try:
            while True:
                snapshot = self._current_snapshot()
                yield snapshot
                await self._registry.revision_other_than(snapshot.revision)
        finally:
            self._registry.activity.watchers -= 1

    async def ListBrokers(self, _request: pb.ListBrokersRequest, _context: Context) -> pb.ListBrokersResponse:
        return pb.ListBrokersResponse(brokers=[self._broker(broker) for broker in self._registry.table.brokers()])

    async def WipeWritePermission(
        self, request: pb.WipeWritePermissionRequest, _context: Context
    ) -> pb.WipeWritePermissionResponse:
        return pb.WipeWritePermissionResponse(topic_count=self._registry.wipe_write_permission(request.broker_name))

    async def AddWritePermission(
        self, request: pb.AddWritePermissionRequest, _context: Context
    ) -> pb.AddWritePermissionResponse:
        return pb.AddWritePermissionResponse(topic_count=self._registry.add_write_permission(request.broker_name))

    async def PutKvConfig(self, request: pb.PutKvConfigRequest, _context: Context) -> pb.PutKvConfigResponse:
        self._registry.put_kv(request.namespace, request.key, request.value)
        return pb.PutKvConfigResponse()

    async def GetKvConfig(self, request: pb.GetKvConfigRequest, context: Context) -> pb.GetKvConfigResponse:
        value = self._registry.table.get_kv(request.namespace, request.key)
        if value is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"{request.key} is not set in {request.namespace}")
        return pb.GetKvConfigResponse(value=value)

    async def DeleteKvConfig(self, request: pb.DeleteKvConfigRequest, _context: Context) -> pb.DeleteKvConfigResponse:
        self._registry.delete_kv(request.namespace, request.key)
        return pb.DeleteKvConfigResponse()

    async def ListKvConfigs(self, request: pb.ListKvConfigsRequest, _context: Context) -> pb.ListKvConfigsResponse:
        return pb.ListKvConfigsResponse(entries=self._registry.table.list_kv(request.namespace))

    async def GetGroupMemory(self, request: pb.GetGroupMemoryRequest, _context: Context) -> pb.GetGroupMemoryResponse:
        """All replicas a group ever had."""
        return memory_message(self._registry.group_memory(request.cluster, request.broker_name))

    async def ForgetReplicas(self, request: pb.ForgetReplicasRequest, context: Context) -> pb.ForgetReplicasResponse:
        if not request.cluster or not request.broker_name:
            raise Invalid("cluster or broker_name is empty: name the group to forget replicas of")
        caller = caller_of(context)
        if (
            caller is not None
            and caller.role is Role.BROKER
            and not caller.is_member_of(request.cluster, request.broker_name)
        ):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"broker_name: a broker of {caller.group} does not decide which replicas {request.broker_name} has",
            )
        forgotten = self._registry.forget_replicas(
            request.cluster,
            request.broker_name,
            broker_id=request.broker_id if request.HasField("broker_id") else None,
            disk_id=request.disk_id,
        )
        return pb.ForgetReplicasResponse(forgotten=[replica_message(replica) for replica in forgotten])

    def _check_claim(self, identity: BrokerIdentity, context: Context) -> None:
        """A broker speaks for itself alone, if callers are known here."""
        if problem := claim_problem_of(context, identity.cluster, identity.broker_name, identity.broker_id):
            self._registry.activity.access_refused["others_identity"] += 1
            self._registry.tell_refused(identity, problem, peer=peer_of(context))
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"identity: {problem[:_TOLD_CHARACTERS_MAX]}")

    def _current_snapshot(self) -> pb.WatchRoutesResponse:
        snapshot = self._registry.table.snapshot()
        if self._snapshot.revision != snapshot.revision:
            self._snapshot = snapshot_message(snapshot, [self._broker(broker) for broker in snapshot.brokers])
        return self._snapshot

    def _broker(self, broker: RegisteredBroker) -> pb.RegisteredBroker:
        return broker_message(broker, last_seen_wall_ms=self._registry.last_seen_wall_ms(broker.identity))

    def _optional_broker(self, broker: RegisteredBroker | None) -> pb.RegisteredBroker | None:
        return self._broker(broker) if broker is not None else None


def _registration_problems(registration: Registration) -> list[str]:
    """What is missing or makes no sense, a clause each."""
    identity, endpoints = registration.identity, registration.endpoints
    optional_endpoints = {
        "metadata": endpoints.metadata,
        "ha": endpoints.ha,
        "client_external": endpoints.client_external,
        "client_group": endpoints.client_group,
    }
    checks = {
        "identity.cluster is empty": not identity.cluster,
        "identity.broker_name is empty": not identity.broker_name,
        f"identity.cluster or identity.broker_name has more than {_NAME_CHARACTERS_MAX} characters": max(
            len(identity.cluster), len(identity.broker_name)
        )
        > _NAME_CHARACTERS_MAX,
        "identity.broker_id is negative": identity.broker_id < 0,
        # While it recovers it may have no door for clients yet.
        f"endpoints.client '{endpoints.client}' is no host:port": parse_address(endpoints.client) is None
        and not (registration.recovering and not endpoints.client),
        "incarnation is not above 0": registration.incarnation <= 0,
        "liveness_timeout is not above 0": registration.liveness_timeout_ms <= 0,
        "a topic has no name": any(not queues.topic for queues in registration.topics),
        "a queue count is negative": any(
            queues.read_queue_count < 0 or queues.write_queue_count < 0 for queues in registration.topics
        ),
        f"disk_id has more than {_DISK_ID_CHARACTERS_MAX} characters": len(registration.disk_id)
        > _DISK_ID_CHARACTERS_MAX,
        "run, epoch, end_offset, record_epoch or record_renewals is negative": min(
            registration.run, registration.epoch, registration.end_offset, *registration.record_version
        )
        < 0,
        f"known_replicas has more than {_KNOWN_REPLICAS_MAX} entries": len(registration.known_replicas)
        > _KNOWN_REPLICAS_MAX,
        "an entry of known_replicas has no disk_id, a longer one than allowed, or a negative number": any(
            not 0 < len(replica.disk_id) <= _DISK_ID_CHARACTERS_MAX
            or min(replica.broker_id, replica.run, replica.epoch, replica.end_offset, *replica.record_version) < 0
            for replica in registration.known_replicas
        ),
    }
    problems = [problem for problem, is_so in checks.items() if is_so]
    problems += [
        f"endpoints.{plane} '{text}' is no host:port"
        for plane, text in optional_endpoints.items()
        if text and parse_address(text) is None
    ]
    return problems


# For official clients.

_QUESTION_BYTES_MAX: Final = 64 << 10
"""Names of a topic and a group, and an access point, from anybody."""


def client_api(route: Callable[[str], TopicRoute | None]) -> MethodTable:
    """The part of MessagingService that needs nothing but routes."""
    return MethodTable(
        "apache.rocketmq.v2.MessagingService",
        {
            "QueryRoute": UnaryMethod(
                RouteQueryHandler(route).query_route, ShortRequests(service.QueryRouteRequest, _QUESTION_BYTES_MAX)
            ),
            "QueryAssignment": UnaryMethod(
                AssignmentHandler(route).query_assignment,
                ShortRequests(service.QueryAssignmentRequest, _QUESTION_BYTES_MAX),
            ),
        },
        otherwise="a NameServer answers QueryRoute and QueryAssignment only; send this call to a broker of the "
        "route, or use a broker's client port as access point",
    )

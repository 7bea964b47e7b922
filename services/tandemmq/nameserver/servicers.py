"""What a NameServer answers. The edge: protobuf stops here.

NameServerService is for brokers, which announce themselves, and for everyone who asks for routes. An official client
may also take a NameServer for its access point; it is told where a topic is, and asks everything else of the brokers
that the answer names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
import structlog

from tandemmq.core.access.identity import Role
from tandemmq.core.metadata.topic_table import group_name_problem
from tandemmq.core.routing.route_table import HeartbeatStatus, RegistrationRefused
from tandemmq.core.routing.values import BrokerIdentity, RegisteredBroker, Registration, TopicRoute, parse_address
from tandemmq.nameserver.route_registry import RouteRegistry
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.route_messages import (
    RouteQueryHandler,
    broker_message,
    client_id_problem,
    identity_value,
    memory_message,
    message_queue,
    refusal_text,
    registration_value,
    replica_message,
    route_message,
    rows_or_problem,
    snapshot_message,
    takes_one_address,
    version_value,
)
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod
from tandemmq.service.service_tls import caller_of, claim_problem_of

__all__ = ["NameServerServicer", "client_api"]

# 32 hexadecimal digits of a uuid, and room for other forms.
_DISK_ID_CHARACTERS_MAX: Final = 64
_KNOWN_REPLICAS_MAX: Final = 256

log = structlog.get_logger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class NameServerServicer(name_server_service_pb2_grpc.NameServerServiceServicer):
    """Translates request, call and response; all decisions are the registry's."""

    def __init__(self, registry: RouteRegistry) -> None:
        self._registry = registry
        self._snapshot = pb.WatchRoutesResponse(revision=-1)

    async def RegisterBroker(  # noqa: N802
        self, request: pb.RegisterBrokerRequest, context: _Context
    ) -> pb.RegisterBrokerResponse:
        registration = registration_value(request)
        problems = _registration_problems(registration)
        if problems:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "; ".join(problems))
        await self._check_claim(registration.identity, context)
        answer = self._registry.register(registration)
        if isinstance(answer, RegistrationRefused):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal_text(answer))
        return pb.RegisterBrokerResponse(master=self._optional_broker(answer.master), order_topics=answer.order_topics)

    async def UnregisterBroker(  # noqa: N802
        self, request: pb.UnregisterBrokerRequest, context: _Context
    ) -> pb.UnregisterBrokerResponse:
        await self._check_claim(identity_value(request.identity), context)
        self._registry.unregister(
            identity_value(request.identity),
            incarnation=request.incarnation,
            disk_id=request.disk_id,
            run=request.run,
            end_offset=request.end_offset if request.HasField("end_offset") else None,
        )
        return pb.UnregisterBrokerResponse()

    async def Heartbeat(  # noqa: N802
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: _Context
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        """Reads signs of life. However the stream ends, members that were alive on it no longer are."""
        connection = self._registry.open_connection()
        try:
            async for request in requests:
                await self._check_claim(identity_value(request.identity), context)
                answer = self._registry.heartbeat(
                    identity_value(request.identity),
                    incarnation=request.incarnation,
                    data_version=version_value(request.data_version),
                    connection=connection,
                    epoch=request.epoch,
                    end_offset=request.end_offset,
                    unproven=request.unproven,
                    record_version=(request.record_epoch, request.record_renewals),
                )
                if answer.status is HeartbeatStatus.BROKER_UNKNOWN:
                    await context.abort(grpc.StatusCode.NOT_FOUND, "this broker is not registered: register again")
                yield pb.HeartbeatResponse(
                    registration_needed=answer.status is HeartbeatStatus.TABLE_UNKNOWN,
                    master=self._optional_broker(answer.master),
                    superseded=answer.superseded,
                )
        finally:
            self._registry.connection_lost(connection)

    async def GetTopicRoute(  # noqa: N802
        self, request: pb.GetTopicRouteRequest, context: _Context
    ) -> pb.GetTopicRouteResponse:
        route = self._registry.route(request.topic)
        if route is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no live broker has topic {request.topic}")
        return pb.GetTopicRouteResponse(route=route_message(route))

    async def WatchRoutes(  # noqa: N802
        self, _request: pb.WatchRoutesRequest, _context: _Context
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

    async def ListBrokers(  # noqa: N802
        self, _request: pb.ListBrokersRequest, _context: _Context
    ) -> pb.ListBrokersResponse:
        return pb.ListBrokersResponse(brokers=[self._broker(broker) for broker in self._registry.table.brokers()])

    async def WipeWritePermission(  # noqa: N802
        self, request: pb.WipeWritePermissionRequest, _context: _Context
    ) -> pb.WipeWritePermissionResponse:
        """Begins a drain."""
        return pb.WipeWritePermissionResponse(topic_count=self._registry.wipe_write_permission(request.broker_name))

    async def AddWritePermission(  # noqa: N802
        self, request: pb.AddWritePermissionRequest, _context: _Context
    ) -> pb.AddWritePermissionResponse:
        """Ends a drain."""
        return pb.AddWritePermissionResponse(topic_count=self._registry.add_write_permission(request.broker_name))

    async def PutKvConfig(  # noqa: N802
        self, request: pb.PutKvConfigRequest, _context: _Context
    ) -> pb.PutKvConfigResponse:
        self._registry.put_kv(request.namespace, request.key, request.value)
        return pb.PutKvConfigResponse()

    async def GetKvConfig(  # noqa: N802
        self, request: pb.GetKvConfigRequest, context: _Context
    ) -> pb.GetKvConfigResponse:
        value = self._registry.table.get_kv(request.namespace, request.key)
        if value is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{request.key} is not set in {request.namespace}")
        return pb.GetKvConfigResponse(value=value)

    async def DeleteKvConfig(  # noqa: N802
        self, request: pb.DeleteKvConfigRequest, _context: _Context
    ) -> pb.DeleteKvConfigResponse:
        self._registry.delete_kv(request.namespace, request.key)
        return pb.DeleteKvConfigResponse()

    async def ListKvConfigs(  # noqa: N802
        self, request: pb.ListKvConfigsRequest, _context: _Context
    ) -> pb.ListKvConfigsResponse:
        return pb.ListKvConfigsResponse(entries=self._registry.table.list_kv(request.namespace))

    async def GetGroupMemory(  # noqa: N802
        self, request: pb.GetGroupMemoryRequest, _context: _Context
    ) -> pb.GetGroupMemoryResponse:
        """All replicas a group ever had."""
        return memory_message(self._registry.group_memory(request.cluster, request.broker_name))

    async def ForgetReplicas(  # noqa: N802
        self, request: pb.ForgetReplicasRequest, context: _Context
    ) -> pb.ForgetReplicasResponse:
        if not request.cluster or not request.broker_name:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "cluster or broker_name is empty: name the group to forget replicas of",
            )
        caller = caller_of(context)
        if (
            caller is not None
            and caller.role is Role.BROKER
            and not caller.is_member_of(request.cluster, request.broker_name)
        ):
            await context.abort(
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

    async def _check_claim(self, identity: BrokerIdentity, context: _Context) -> None:
        """A broker speaks for itself alone, if callers are known here."""
        if problem := claim_problem_of(context, identity.cluster, identity.broker_name, identity.broker_id):
            self._registry.activity.access_refused["others_identity"] += 1
            log.warning("registration_refused", identity=str(identity), peer=context.peer(), reason=problem)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"identity: {problem}")

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

_Code = definition.Code

# In an assignment: any queue of that broker.
_ANY_QUEUE: Final = -1


def client_api(route: Callable[[str], TopicRoute | None]) -> MethodTable:
    """The part of MessagingService that needs nothing but routes."""
    return MethodTable(
        "apache.rocketmq.v2.MessagingService",
        {
            "QueryRoute": UnaryMethod(RouteQueryHandler(route).query_route, service.QueryRouteRequest),
            "QueryAssignment": UnaryMethod(AssignmentHandler(route).query_assignment, service.QueryAssignmentRequest),
        },
        otherwise="a NameServer answers QueryRoute and QueryAssignment only; send this call to a broker of the "
        "route, or use a broker's client port as access point",
    )


class AssignmentHandler:
    """QueryAssignment without knowledge of consumer groups: every group gets the answer for an ordinary one.

    A NameServer cannot tell groups with ordered delivery apart. They are served in order all the same, as the broker
    decides what "any queue" gives out; only the spreading over queues is left to it.
    """

    def __init__(self, route: Callable[[str], TopicRoute | None]) -> None:
        self._route = route

    def query_assignment(self, request: service.QueryAssignmentRequest, call: Call) -> None:
        """One row for each broker group that has a readable queue; the same for every member of the group."""
        call.send(self._answer(request, call.metadata))
        call.finish()

    def _answer(
        self, request: service.QueryAssignmentRequest, metadata: Mapping[str, str]
    ) -> service.QueryAssignmentResponse:
        rows = client_id_problem(metadata) or rows_or_problem(self._route, request.topic.name)
        if isinstance(rows, definition.Status):
            return service.QueryAssignmentResponse(status=rows)
        group_problem = group_name_problem(request.group.name)
        if group_problem is not None:
            return _refusal(_Code.ILLEGAL_CONSUMER_GROUP, group_problem)
        first_readable = {row.broker_name: row for row in reversed(rows) if row.permission.is_readable}
        if not first_readable:
            return _refusal(_Code.FORBIDDEN, f"topic {request.topic.name} permits no reading")
        response = service.QueryAssignmentResponse(status=definition.Status(code=_Code.OK, message="OK"))
        for broker_name in sorted(first_readable):
            row = first_readable[broker_name]
            queue = message_queue(row, request.topic, one_address=takes_one_address(metadata))
            queue.id = _ANY_QUEUE
            response.assignments.add(message_queue=queue)
        return response


def _refusal(code: definition.Code, message: str) -> service.QueryAssignmentResponse:
    return service.QueryAssignmentResponse(status=definition.Status(code=code, message=message))

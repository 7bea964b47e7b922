"""Values of `tandemmq.core.routing` as messages of the NameServer plane, and back. NameServer and its callers share
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.metadata.topic_table import group_name_problem, topic_name_problem
from tandemmq.core.routing.route_table import QueuePermission, QueueRow, RegistrationRefused, queue_rows
from tandemmq.core.routing.values import (
    MASTER_ID,
    AddressScheme,
    BrokerData,
    BrokerEndpoints,
    BrokerIdentity,
    GroupMemoryAnswer,
    Heartbeat,
    QueueData,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    RouteSnapshot,
    TopicQueues,
    TopicRoute,
)
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.protobuf import as_message, as_value
from tandemmq.service.rpc import CLIENT_ID_CHARACTERS_MAX, CLIENT_ID_HEADER, Call

# How the message of a refused registration begins; see the contract of RegisterBroker.
_SUPERSEDED: Final = "superseded: "
# What a broker waits for is a sentence.
_RECOVERING_CHARACTERS_MAX: Final = 400
_ENDPOINT_CHARACTERS_MAX: Final = 300
# A group's master_id while it has none.
_NO_MASTER: Final = -1
# The end of the year 9999, the last that a Timestamp takes.
_TIMESTAMP_MS_MAX: Final = 253_402_300_799_999


def identity_message(identity: BrokerIdentity) -> pb.BrokerIdentity:
    return as_message(pb.BrokerIdentity, identity)


def identity_value(message: pb.BrokerIdentity) -> BrokerIdentity:
    return BrokerIdentity(message.cluster, message.broker_name, message.broker_id)


def version_message(version: DataVersion) -> pb.DataVersion:
    return as_message(pb.DataVersion, version)


def version_value(message: pb.DataVersion) -> DataVersion:
    return DataVersion(state_version=message.state_version, timestamp_ms=message.timestamp_ms, counter=message.counter)


def registration_message(registration: Registration) -> pb.RegisterBrokerRequest:
    epoch, renewals = registration.record_version
    return as_message(
        pb.RegisterBrokerRequest,
        registration,
        known_replicas=[replica_message(replica) for replica in registration.known_replicas],
        recovering=registration.recovering[:_RECOVERING_CHARACTERS_MAX],
        role="master" if registration.is_master else "slave",
        record_epoch=epoch,
        record_renewals=renewals,
    )


def registration_value(message: pb.RegisterBrokerRequest) -> Registration:
    """An announcement as it came; whether it makes sense is the NameServer's to judge."""
    return Registration(
        identity=identity_value(message.identity),
        endpoints=_endpoints_value(message.endpoints),
        incarnation=message.incarnation,
        liveness_timeout_ms=message.liveness_timeout.ToMilliseconds(),
        data_version=version_value(message.data_version),
        topics=tuple(
            TopicQueues(
                topic=queues.topic,
                read_queue_count=queues.read_queue_count,
                write_queue_count=queues.write_queue_count,
                permission=queues.permission,
                topic_system_flag=queues.topic_system_flag,
                message_type=queues.message_type,
            )
            for queues in message.topics
        ),
        disk_id=message.disk_id,
        run=message.run,
        epoch=message.epoch,
        end_offset=message.end_offset,
        known_replicas=tuple(_replica_value(replica) for replica in message.known_replicas),
        recovering=message.recovering[:_RECOVERING_CHARACTERS_MAX],
        is_master=is_master_value(message),
        unproven=message.unproven,
        record_version=(message.record_epoch, message.record_renewals),
    )


def heartbeat_value(message: pb.HeartbeatRequest) -> Heartbeat:
    return Heartbeat(
        identity=identity_value(message.identity),
        incarnation=message.incarnation,
        data_version=version_value(message.data_version),
        epoch=message.epoch,
        end_offset=message.end_offset,
        unproven=message.unproven,
        record_version=(message.record_epoch, message.record_renewals),
    )


def is_master_value(message: pb.RegisterBrokerRequest | pb.RegisteredBroker) -> bool:
    """Its role; by the id where an older version does not tell it, or a newer one tells what we do not know."""
    if message.role in (pb.BROKER_ROLE_MASTER, pb.BROKER_ROLE_SLAVE):
        return message.role == pb.BROKER_ROLE_MASTER
    return message.identity.broker_id == MASTER_ID


def refusal_text(refused: RegistrationRefused) -> str:
    """Why a registration is refused, as the message of a status."""
    return _SUPERSEDED + refused.reason if refused.is_superseded else refused.reason


def superseded_reason(text: str | None) -> str | None:
    """Why a registration was refused, if it was because a later master is known; the other half of `refusal_text`."""
    return text.removeprefix(_SUPERSEDED) if text is not None and text.startswith(_SUPERSEDED) else None


def replica_message(replica: ReplicaMemory) -> pb.ReplicaMemory:
    epoch, renewals = replica.record_version
    return as_message(
        pb.ReplicaMemory,
        replica,
        last_seen_time=replica.last_seen_wall_ms,
        record_epoch=epoch,
        record_renewals=renewals,
    )


def memory_message(answer: GroupMemoryAnswer) -> pb.GetGroupMemoryResponse:
    """What a NameServer remembers of a group."""
    message = pb.GetGroupMemoryResponse(replicas=[replica_message(replica) for replica in answer.replicas])
    message.memory_age.FromMilliseconds(answer.memory_age_ms)
    return message


def memory_value(message: pb.GetGroupMemoryResponse) -> GroupMemoryAnswer:
    """What a NameServer remembers of a group."""
    return GroupMemoryAnswer(
        tuple(_replica_value(replica) for replica in message.replicas), message.memory_age.ToMilliseconds()
    )


def broker_message(broker: RegisteredBroker, *, last_seen_wall_ms: int) -> pb.RegisteredBroker:
    """A live broker, with the wall clock of its last sign of life."""
    role = "master" if broker.is_master else "slave"
    return as_message(pb.RegisteredBroker, broker, last_seen_time=last_seen_wall_ms, role=role)


def broker_value(message: pb.RegisteredBroker) -> RegisteredBroker:
    return RegisteredBroker(
        identity_value(message.identity),
        _endpoints_value(message.endpoints),
        message.incarnation,
        version_value(message.data_version),
        message.disk_id,
        message.run,
        message.epoch,
        message.end_offset,
        message.recovering,
        is_master_value(message),
        message.role_epoch if message.HasField("role_epoch") else message.epoch,
    )


def route_message(route: TopicRoute) -> pb.TopicRoute:
    return _route_message(route, {})


def snapshot_message(snapshot: RouteSnapshot, brokers: Iterable[pb.RegisteredBroker]) -> pb.WatchRoutesResponse:
    """All a NameServer knows; `brokers` are the snapshot's, as messages."""
    groups: dict[int, pb.BrokerData] = {}
    return pb.WatchRoutesResponse(
        revision=snapshot.revision,
        routes=[_route_message(route, groups) for route in snapshot.routes.values()],
        brokers=brokers,
    )


def route_value(message: pb.TopicRoute) -> TopicRoute:
    return TopicRoute(
        topic=message.topic,
        queues=tuple(
            QueueData(
                broker_name=queues.broker_name,
                read_queue_count=queues.read_queue_count,
                write_queue_count=queues.write_queue_count,
                permission=queues.permission,
                topic_system_flag=queues.topic_system_flag,
                message_type=queues.message_type,
            )
            for queues in message.queues
        ),
        brokers=tuple(
            BrokerData(
                group.cluster,
                group.broker_name,
                # Maps have no order on the wire.
                {broker_id: _endpoints_value(group.endpoints[broker_id]) for broker_id in sorted(group.endpoints)},
                _master_id_value(group),
                group.epoch,
            )
            for group in message.brokers
        ),
        order_topic_conf=message.order_topic_conf,
    )


def _route_message(route: TopicRoute, groups: dict[int, pb.BrokerData]) -> pb.TopicRoute:
    """`groups` holds messages of groups by the value's identity: all topics of a snapshot share a few values."""
    brokers = []
    for group in route.brokers:
        message = groups.get(id(group))
        if message is None:
            message = groups[id(group)] = _group_message(group)
        brokers.append(message)
    return pb.TopicRoute(
        topic=route.topic,
        queues=[
            pb.QueueData(
                broker_name=queues.broker_name,
                read_queue_count=queues.read_queue_count,
                write_queue_count=queues.write_queue_count,
                permission=queues.permission,
                topic_system_flag=queues.topic_system_flag,
                message_type=queues.message_type,
            )
            for queues in route.queues
        ],
        brokers=brokers,
        order_topic_conf=route.order_topic_conf,
    )


def _group_message(group: BrokerData) -> pb.BrokerData:
    return pb.BrokerData(
        cluster=group.cluster,
        broker_name=group.broker_name,
        endpoints={broker_id: as_message(pb.BrokerEndpoints, where) for broker_id, where in group.endpoints.items()},
        master_id=_NO_MASTER if group.master_id is None else group.master_id,
        epoch=group.epoch,
    )


def _master_id_value(group: pb.BrokerData) -> int | None:
    master_id = group.master_id if group.HasField("master_id") else MASTER_ID
    return master_id if master_id in group.endpoints else None


def _replica_value(message: pb.ReplicaMemory) -> ReplicaMemory:
    return as_value(
        ReplicaMemory,
        message,
        metadata_endpoint=message.metadata_endpoint[:_ENDPOINT_CHARACTERS_MAX],
        # Others tell of it: nonsense is not passed on, where it would make an answer that cannot be written.
        last_seen_wall_ms=_wall_ms(message.last_seen_time),
        record_version=(message.record_epoch, message.record_renewals),
    )


def _wall_ms(moment: Timestamp) -> int:
    """0 for what is no time, such as one with 2,000,000,000 nanoseconds."""
    try:
        return min(max(moment.ToMilliseconds(), 0), _TIMESTAMP_MS_MAX)
    except ValueError:
        return 0


def _endpoints_value(message: pb.BrokerEndpoints) -> BrokerEndpoints:
    return BrokerEndpoints(
        client=message.client,
        metadata=message.metadata,
        ha=message.ha,
        client_external=message.client_external,
        forwards=message.forwards,
        client_group=message.client_group,
        reads=message.reads,
    )


# QueryRoute of RocketMQ's client API, served by NameServer and broker: either may be a client's access point.

_LANGUAGE_HEADER: Final = "x-mq-language"
_ONE_ADDRESS_LANGUAGE: Final = "HTTP"
_ECHOED_BYTES_MAX: Final = 512
_ADDRESSES_MAX: Final = 1_024

# In an assignment: any queue of that broker.
_ANY_QUEUE: Final = -1

_Code = definition.Code

_PERMISSIONS: Final[Mapping[QueuePermission, definition.Permission]] = MappingProxyType(
    {
        QueuePermission.READ: definition.READ,
        QueuePermission.WRITE: definition.WRITE,
        QueuePermission.READ_WRITE: definition.READ_WRITE,
    }
)
_SCHEMES: Final[Mapping[AddressScheme, definition.AddressScheme]] = MappingProxyType(
    {
        AddressScheme.IPV4: definition.IPv4,
        AddressScheme.IPV6: definition.IPv6,
        AddressScheme.DOMAIN_NAME: definition.DOMAIN_NAME,
    }
)


class RouteQueryHandler:
    """Serves QueryRoute over whatever knows the routes. Stateless; answers in place."""

    def __init__(self, route: Callable[[str], TopicRoute | None]) -> None:
        self._route = route

    def query_route(self, request: service.QueryRouteRequest, call: Call) -> None:
        """One row per queue that can be used now. Never OK without a row: Rust divides by their number."""
        call.send(self._answer(request, call.metadata))
        call.finish()

    def _answer(self, request: service.QueryRouteRequest, metadata: Mapping[str, str]) -> service.QueryRouteResponse:
        rows = (
            client_id_problem(metadata)
            or _endpoints_problem(request.endpoints)
            or rows_or_problem(self._route, request.topic)
        )
        if isinstance(rows, definition.Status):
            return service.QueryRouteResponse(status=rows)
        return service.QueryRouteResponse(
            status=definition.Status(code=_Code.OK, message="OK"),
            message_queues=[message_queue(row, request.topic, one_address=takes_one_address(metadata)) for row in rows],
        )


class AssignmentHandler:
    """Serves QueryAssignment: what the members of a push consumer group poll.

    Every member gets the same answer, because members share messages and not queues: one row with queue id -1 for each
    broker group with a readable queue, which stands for all of those. Groups with ordered delivery get every queue by
    its id, from who can tell them apart by `is_ordered`. A NameServer cannot; they are served in order all the same, as
    the broker decides what "any queue" gives out, and only the spreading over queues is left to it.
    """

    def __init__(
        self, route: Callable[[str], TopicRoute | None], *, is_ordered: Callable[[str], bool] = lambda _group: False
    ) -> None:
        self._route = route
        self._is_ordered = is_ordered

    def query_assignment(self, request: service.QueryAssignmentRequest, call: Call) -> None:
        """The readable queues of all masters that serve the topic now."""
        call.send(self._answer(request, call.metadata))
        call.finish()

    def _answer(
        self, request: service.QueryAssignmentRequest, metadata: Mapping[str, str]
    ) -> service.QueryAssignmentResponse:
        topic, group = request.topic, request.group.name
        rows = client_id_problem(metadata) or rows_or_problem(self._route, topic)
        if isinstance(rows, definition.Status):
            return service.QueryAssignmentResponse(status=rows)
        readable = [row for row in rows if row.permission.is_readable]
        if (problem := group_name_problem(group)) is not None:
            status = definition.Status(code=_Code.ILLEGAL_CONSUMER_GROUP, message=problem)
        elif not readable:
            status = definition.Status(code=_Code.FORBIDDEN, message=f"topic {topic.name} has no readable queue")
        else:
            status = definition.Status(code=_Code.OK, message="OK")
        response = service.QueryAssignmentResponse(status=status)
        if status.code != _Code.OK:
            return response
        is_ordered = self._is_ordered(group)
        first = {row.broker_name: row for row in reversed(readable)}
        for row in readable if is_ordered else [first[name] for name in sorted(first)]:
            queue = message_queue(row, topic, one_address=takes_one_address(metadata))
            if not is_ordered:
                queue.id = _ANY_QUEUE
            response.assignments.add(message_queue=queue)
        return response


def client_id_problem(metadata: Mapping[str, str]) -> definition.Status | None:
    """Every client names itself; the id is opaque."""
    client_id = metadata.get(CLIENT_ID_HEADER, "")
    if not client_id.strip():
        return definition.Status(code=_Code.CLIENT_ID_REQUIRED, message=f"the request has no {CLIENT_ID_HEADER} header")
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        reason = f"{CLIENT_ID_HEADER}: {len(client_id)} characters; use {CLIENT_ID_CHARACTERS_MAX} at most"
        return definition.Status(code=_Code.BAD_REQUEST, message=reason)
    return None


def echo_problem(topic: definition.Resource) -> str | None:
    """Why a topic, as it is written in a request, cannot be told again with each of its queues: it would be an answer
    of gigabytes to a request of megabytes, from anybody. What it holds besides its name nobody has looked at."""
    size = topic.ByteSize()
    if size <= _ECHOED_BYTES_MAX:
        return None
    return f"topic: with its namespace it has {size} bytes, the limit is {_ECHOED_BYTES_MAX}"


def rows_or_problem(
    route: Callable[[str], TopicRoute | None], wanted: definition.Resource
) -> list[QueueRow] | definition.Status:
    """Rows of a topic, at least one; or why there are none."""
    topic = wanted.name
    problem = topic_name_problem(topic) or echo_problem(wanted)
    if problem is not None:
        return definition.Status(code=_Code.ILLEGAL_TOPIC, message=problem)
    found = route(topic)
    if found is None:
        return definition.Status(code=_Code.TOPIC_NOT_FOUND, message=f"no live broker has topic {topic}")
    rows = queue_rows(found)
    if not rows:
        # The two causes have different remedies, so the text tells them apart; the code is the same for clients.
        has_master = any(group.master is not None for group in found.brokers)
        reason = "permits neither reading nor writing" if has_master else "has no live master"
        return definition.Status(code=_Code.TOPIC_NOT_FOUND, message=f"topic {topic} {reason}")
    return rows


def takes_one_address(metadata: Mapping[str, str]) -> bool:
    """Whether the client cannot connect to several addresses. The official one for Node, which calls itself HTTP, looks
    a list of them up as one name; it asks for the route again when the one it has does not answer."""
    return metadata.get(_LANGUAGE_HEADER, "").strip().upper() == _ONE_ADDRESS_LANGUAGE


def message_queue(row: QueueRow, topic: definition.Resource, *, one_address: bool = False) -> definition.MessageQueue:
    """A row as clients read it. `topic` is echoed as requested, namespace included: clients match by it."""
    addresses = (row.address,) if one_address else (row.address, *row.stand_ins)
    endpoints = definition.Endpoints(
        scheme=_SCHEMES[row.address.scheme],
        addresses=[definition.Address(host=address.host, port=address.port) for address in addresses],
    )
    return definition.MessageQueue(
        topic=topic,
        id=row.queue_id,
        permission=_PERMISSIONS[row.permission],
        broker=definition.Broker(name=row.broker_name, id=row.broker_id, endpoints=endpoints),
        accept_message_types=row.accept_types,
    )


def _endpoints_problem(endpoints: definition.Endpoints) -> definition.Status | None:
    """The access point as the client wrote it. Only its form matters: the answer depends on the topic alone."""
    if len(endpoints.addresses) > _ADDRESSES_MAX:
        reason = f"the access point has {len(endpoints.addresses)} addresses, the limit is {_ADDRESSES_MAX}"
    elif endpoints.scheme not in _SCHEMES.values():
        reason = "the access point has no address scheme"
    elif not endpoints.addresses:
        reason = "the access point has no address"
    elif any(not address.host.strip() or not 0 < address.port < 65_536 for address in endpoints.addresses):
        reason = "an address of the access point has no host or no port from 1 to 65535"
    else:
        return None
    return definition.Status(code=_Code.ILLEGAL_ACCESS_POINT, message=reason)

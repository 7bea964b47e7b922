from __future__ import annotations

from typing import Any

import pytest

from support.fake_call import FakeCall
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.values import (
    BrokerData,
    BrokerEndpoints,
    BrokerIdentity,
    QueueData,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    TopicRoute,
)
from tandemmq.nameserver.name_server import client_api
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.route_messages import (
    AssignmentHandler,
    RouteQueryHandler,
    broker_message,
    broker_value,
    registration_message,
    registration_value,
    replica_message,
    route_message,
    route_value,
)
from tandemmq.service.rpc import RequestTooLong, StatusCode

ACCESS_POINT = definition.Endpoints(scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=9876)])
ROUTE = TopicRoute(
    "orders",
    (QueueData("broker-a", 2, 2, 6),),
    (
        BrokerData(
            "DefaultCluster", "broker-a", {0: BrokerEndpoints("broker-a-0:8081"), 1: BrokerEndpoints("broker-a-1:8081")}
        ),
    ),
)


def query(
    topic: str = "orders",
    *,
    routes: dict[str, TopicRoute] | None = None,
    endpoints: definition.Endpoints = ACCESS_POINT,
    client_id: str = "me",
    language: str = "JAVA",
) -> service.QueryRouteResponse:
    known = {"orders": ROUTE} if routes is None else routes
    call = FakeCall(metadata={"x-mq-client-id": client_id, "x-mq-language": language})
    request = service.QueryRouteRequest(
        topic=definition.Resource(resource_namespace="ns", name=topic), endpoints=endpoints
    )
    RouteQueryHandler(known.get).query_route(request, call)
    assert call.code is StatusCode.OK
    [response] = call.sent
    assert isinstance(response, service.QueryRouteResponse)
    return response


def test_rows_carry_what_every_client_checks() -> None:
    response = query()
    assert response.status.code == definition.OK
    assert [queue.id for queue in response.message_queues] == [0, 1]
    first = response.message_queues[0]
    assert (first.topic.resource_namespace, first.topic.name) == ("ns", "orders")
    assert first.permission == definition.READ_WRITE
    assert (first.broker.name, first.broker.id) == ("broker-a", 0)
    assert first.broker.endpoints.scheme == definition.DOMAIN_NAME
    assert [(a.host, a.port) for a in first.broker.endpoints.addresses] == [("broker-a-0", 8081)]
    assert list(first.accept_message_types) == [definition.NORMAL]


def test_clients_that_cannot_connect_to_a_list_are_told_the_masters_address_alone() -> None:
    members = {broker_id: BrokerEndpoints(f"10.0.0.{broker_id}:8081", forwards=True) for broker_id in (0, 1)}
    group = BrokerData("DefaultCluster", "broker-a", members, master_id=1)
    routes = {"orders": TopicRoute("orders", (QueueData("broker-a", 1, 1, 6),), (group,))}

    def hosts(language: str) -> list[str]:
        [queue] = query(routes=routes, language=language).message_queues
        return [address.host for address in queue.broker.endpoints.addresses]

    assert hosts("HTTP") == ["10.0.0.1"]
    for language in ("JAVA", "GOLANG", "PYTHON", "CPP", "RUST", ""):
        assert hosts(language) == ["10.0.0.1", "10.0.0.0"]


def test_unknown_topic() -> None:
    assert query(routes={}).status.code == definition.TOPIC_NOT_FOUND


def test_topic_without_a_live_master_is_not_ok_with_no_rows() -> None:
    group = BrokerData("DefaultCluster", "broker-a", {1: BrokerEndpoints("broker-a-1:8081")})
    status = query(routes={"orders": TopicRoute("orders", ROUTE.queues, (group,))}).status
    assert status.code == definition.TOPIC_NOT_FOUND
    assert "no live master" in status.message


@pytest.mark.parametrize("queue_count", [1, 1_000])
@pytest.mark.parametrize("what", ["namespace", "unknown field"])
def test_what_anybody_writes_beside_a_topic_s_name_is_not_told_again_with_each_queue(
    what: str, queue_count: int
) -> None:
    """64 KiB, which a stranger may send, were 64 MB of one answer."""
    routes = {"orders": TopicRoute("orders", (QueueData("broker-a", queue_count, queue_count, 6),), ROUTE.brokers)}
    at_length = b"x" * 60_000
    for text in (at_length, b"x" * 400):
        extra = bytes([0x0A if what == "namespace" else 0x7A]) + _varint(len(text)) + text
        topic = definition.Resource.FromString(definition.Resource(name="orders").SerializeToString() + extra)
        is_refused = text is at_length
        calls: list[Any] = [FakeCall(), FakeCall()]
        route = service.QueryRouteRequest(topic=topic, endpoints=ACCESS_POINT)
        RouteQueryHandler(routes.get).query_route(route, calls[0])
        group = definition.Resource(name="billing")
        AssignmentHandler(routes.get).query_assignment(
            service.QueryAssignmentRequest(topic=topic, group=group), calls[1]
        )
        for [answer] in (call.sent for call in calls):
            assert answer.status.code == (definition.ILLEGAL_TOPIC if is_refused else definition.OK)
            assert len(answer.SerializeToString()) < 1_000 + 600 * queue_count


def test_an_access_point_has_few_addresses() -> None:
    for count, code in ((1_024, definition.OK), (1_025, definition.ILLEGAL_ACCESS_POINT)):
        addresses = [definition.Address(host="127.0.0.1", port=9876)] * count
        assert query(endpoints=definition.Endpoints(scheme=definition.IPv4, addresses=addresses)).status.code == code


def test_anybody_asks_a_name_server_shortly() -> None:
    for method in client_api(lambda _: None).methods.values():
        assert method.request_type.FromString(bytes(0)) is not None
        with pytest.raises(RequestTooLong):
            method.request_type.FromString(bytes((64 << 10) + 1))


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "TBW102", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topic_that_no_client_may_use(topic: str) -> None:
    assert query(topic).status.code == definition.ILLEGAL_TOPIC


@pytest.mark.parametrize("client_id", ["", "  "])
def test_client_without_an_id(client_id: str) -> None:
    assert query(client_id=client_id).status.code == definition.CLIENT_ID_REQUIRED


def test_client_with_an_id_that_is_too_long() -> None:
    assert query(client_id="x" * 1_024).status.code == definition.OK
    assert query(client_id="x" * 1_025).status.code == definition.BAD_REQUEST


@pytest.mark.parametrize(
    "endpoints",
    [
        definition.Endpoints(),
        definition.Endpoints(scheme=definition.IPv4),
        definition.Endpoints(addresses=ACCESS_POINT.addresses),
        definition.Endpoints(scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host="x", port=0)]),
        definition.Endpoints(scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host=" ", port=80)]),
    ],
)
def test_unusable_access_point(endpoints: definition.Endpoints) -> None:
    assert query(endpoints=endpoints).status.code == definition.ILLEGAL_ACCESS_POINT


# Roles, and versions that do not tell them


def _identity(broker_id: int) -> BrokerIdentity:
    return BrokerIdentity("DefaultCluster", "broker-a", broker_id)


@pytest.mark.parametrize("broker_id", [0, 1])
@pytest.mark.parametrize("is_master", [False, True])
def test_roles_arrive_as_they_were_told(broker_id: int, is_master: bool) -> None:
    known = (ReplicaMemory(0, "disk-0", 1, 7, 100, master_epoch=3),)
    registration = Registration(
        _identity(broker_id),
        BrokerEndpoints("h:8081"),
        1,
        1_000,
        DataVersion(),
        (),
        epoch=5,
        known_replicas=known,
        is_master=is_master,
    )
    assert registration_value(registration_message(registration)) == registration
    broker = RegisteredBroker(
        _identity(broker_id), BrokerEndpoints("h:8081"), 1, DataVersion(), epoch=5, is_master=is_master, role_epoch=4
    )
    assert broker_value(broker_message(broker, last_seen_wall_ms=0)) == broker


@pytest.mark.parametrize("master_id", [None, 0, 1])
def test_a_groups_master_arrives_as_it_was_told(master_id: int | None) -> None:
    [group] = ROUTE.brokers
    route = TopicRoute(
        "orders", ROUTE.queues, (BrokerData(group.cluster, group.broker_name, group.endpoints, master_id, 4),)
    )
    assert route_value(route_message(route)) == route


def test_an_older_version_means_broker_id_0() -> None:
    for broker_id, is_master in ((0, True), (1, False)):
        said = pb.RegisterBrokerRequest(identity=pb.BrokerIdentity(broker_id=broker_id), epoch=5)
        said.known_replicas.add(broker_id=broker_id, disk_id="disk", epoch=7)
        registration = registration_value(said)
        assert registration.is_master is is_master
        assert registration.known_replicas[0].master_epoch == (7 if is_master else 0)
        broker = broker_value(pb.RegisteredBroker(identity=pb.BrokerIdentity(broker_id=broker_id), epoch=5))
        assert (broker.is_master, broker.role_epoch) == (is_master, 5)


def test_a_role_that_only_a_newer_version_knows_goes_by_the_id() -> None:
    said = pb.RegisterBrokerRequest(identity=pb.BrokerIdentity(broker_id=0))
    said.role = 17  # type: ignore[assignment]
    assert registration_value(said).is_master


def test_an_older_name_servers_route_has_member_0_as_master() -> None:
    message = route_message(ROUTE)
    message.brokers[0].ClearField("master_id")
    assert route_value(message).brokers[0].master_id == 0
    del message.brokers[0].endpoints[0]
    assert route_value(message).brokers[0].master_id is None


def test_what_is_remembered_of_a_master_arrives() -> None:
    for master_epoch in (0, 3):
        replica = ReplicaMemory(0, "disk-0", 1, 7, 100, master_epoch=master_epoch)
        assert replica_message(replica).master_epoch == master_epoch

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message

from tandemmq.core.routing.values import BrokerData, BrokerEndpoints, QueueData, TopicRoute
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.route_messages import RouteQueryHandler
from tandemmq.service.rpc import StatusCode

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


@dataclass
class FakeCall:
    metadata: dict[str, str] = field(default_factory=lambda: {"x-mq-client-id": "me"})
    peer: str = "test"
    deadline_ms: int | None = None
    received_ns: int = 0
    sent: list[Message] = field(default_factory=list)
    code: StatusCode | None = None

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def send_encoded(self, data: bytes) -> None:
        raise AssertionError("routes are sent as messages")

    def send_all_encoded(self, messages: list[bytes]) -> None:
        raise AssertionError("routes are sent as messages")

    def respond(self, data: bytes) -> None:
        raise AssertionError("routes are sent as messages")

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        self.code = code

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Never cancelled."""

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        """Everything arrives."""


def query(
    topic: str = "orders",
    *,
    routes: dict[str, TopicRoute] | None = None,
    endpoints: definition.Endpoints = ACCESS_POINT,
    client_id: str = "me",
) -> service.QueryRouteResponse:
    known = {"orders": ROUTE} if routes is None else routes
    call = FakeCall(metadata={"x-mq-client-id": client_id})
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


def test_unknown_topic() -> None:
    assert query(routes={}).status.code == definition.TOPIC_NOT_FOUND


def test_topic_without_a_live_master_is_not_ok_with_no_rows() -> None:
    group = BrokerData("DefaultCluster", "broker-a", {1: BrokerEndpoints("broker-a-1:8081")})
    status = query(routes={"orders": TopicRoute("orders", ROUTE.queues, (group,))}).status
    assert status.code == definition.TOPIC_NOT_FOUND
    assert "no live master" in status.message


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "TBW102", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topic_that_no_client_may_use(topic: str) -> None:
    assert query(topic).status.code == definition.ILLEGAL_TOPIC


@pytest.mark.parametrize("client_id", ["", "  "])
def test_client_without_an_id(client_id: str) -> None:
    assert query(client_id=client_id).status.code == definition.CLIENT_ID_REQUIRED


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

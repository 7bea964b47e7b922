"""Topics made because a client asks for their route."""

from __future__ import annotations

import pytest

from support.api_requests import call
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.core.routing.values import TopicRoute
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code


def ask(broker: BrokerAssembly, topic: str) -> FakeCall:
    request = pb.QueryRouteRequest(topic=definition.Resource(name=topic))
    request.endpoints.scheme = definition.IPv4
    request.endpoints.addresses.add(host="127.0.0.1", port=8_081)
    return call(broker, "QueryRoute", request)


def code(asked: FakeCall) -> int:
    return asked.only(pb.QueryRouteResponse).status.code


def test_by_default_no_topic_is_made(broker: BrokerAssembly) -> None:
    assert code(ask(broker, "fresh")) == Code.TOPIC_NOT_FOUND
    assert broker.topics.get("fresh") is None


def test_a_topic_is_made_with_its_queues(broker: BrokerAssembly) -> None:
    broker.options.auto_create_topic_queues = 5
    answer = ask(broker, "fresh").only(pb.QueryRouteResponse)
    assert answer.status.code == Code.OK
    assert [row.id for row in answer.message_queues] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group", "a b", "TBW102", "rmq_sys_x", ""])
def test_names_that_clients_may_not_make_are_not_made(broker: BrokerAssembly, topic: str) -> None:
    broker.options.auto_create_topic_queues = 5
    before = len(broker.topics)
    assert code(ask(broker, topic)) in (Code.TOPIC_NOT_FOUND, Code.ILLEGAL_TOPIC)
    assert len(broker.topics) == before


def test_a_broker_that_takes_no_messages_makes_none(broker: BrokerAssembly) -> None:
    broker.options.auto_create_topic_queues = 5
    broker.refusal = "a slave"
    assert code(ask(broker, "fresh")) == Code.TOPIC_NOT_FOUND


def test_a_client_that_names_topics_in_a_loop_is_stopped(broker: BrokerAssembly) -> None:
    broker.options.auto_create_topic_queues = 1
    codes = [code(ask(broker, f"t{number}")) for number in range(30)]
    assert codes == [Code.OK] * 5 + [Code.TOPIC_NOT_FOUND] * 25


def test_the_answer_waits_until_the_topic_is_routed_and_no_longer(
    broker: BrokerAssembly, time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.options.auto_create_topic_queues = 1
    real_route = broker.route
    routed: list[str] = []

    def route(topic: str) -> TopicRoute | None:
        return real_route(topic) if topic in routed else None

    monkeypatch.setattr(broker, "route", route)
    asked = ask(broker, "fresh")
    time.advance(500)
    assert asked.code is None
    time.advance(2_000)
    assert code(asked) == Code.TOPIC_NOT_FOUND
    second = ask(broker, "second")
    routed.append("second")
    time.advance(100)
    assert code(second) == Code.OK

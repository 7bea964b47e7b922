"""Who waits for messages where there is no place for one more."""

from __future__ import annotations

from support.api_requests import Answer, call, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.core.delivery.poll_table import PollTable
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
PLACES = 12


def few_places(broker: BrokerAssembly) -> None:
    broker.api._receive._polls = PollTable(max_waiting=PLACES)


def poll(broker: BrokerAssembly, host: str, group: str = "group") -> FakeCall:
    return call(broker, "ReceiveMessage", receive_request(group=group, poll_ms=20_000), FakeCall(peer=f"ipv4:{host}:1"))


def pull(broker: BrokerAssembly, host: str) -> FakeCall:
    request = pb.PullMessageRequest(group=definition.Resource(name="group"), offset=0)
    request.message_queue.topic.name = "orders"
    request.long_polling_timeout.FromMilliseconds(20_000)
    return call(broker, "PullMessage", request, FakeCall(peer=f"ipv4:{host}:1"))


def waiting(calls: list[FakeCall]) -> int:
    return sum(one.code is None for one in calls)


def test_whoever_waits_very_often_keeps_nobody_else_from_waiting(broker: BrokerAssembly, time: ManualTime) -> None:
    few_places(broker)
    greedy = [poll(broker, "10.0.0.1", "greedy") for _ in range(PLACES)]
    orderly = [poll(broker, "10.0.0.2"), pull(broker, "10.0.0.2")]
    assert (waiting(greedy), waiting(orderly)) == (PLACES - 2, 2)
    gave_way = next(one for one in greedy if one.code is not None)
    assert Answer.of(gave_way).code == Code.TOO_MANY_REQUESTS
    # He asks again, and costs as much as what is served: he is told after a pause.
    again = [poll(broker, "10.0.0.1", "greedy"), pull(broker, "10.0.0.1")]
    time.advance(999)
    assert (waiting(again), waiting(greedy), waiting(orderly)) == (2, PLACES - 2, 2)
    time.advance(1)
    assert Answer.of(again[0]).code == Code.TOO_MANY_REQUESTS
    [status, *_] = again[1].sent
    assert isinstance(status, pb.PullMessageResponse)
    assert status.status.code == Code.TOO_MANY_REQUESTS
    call(broker, "SendMessage", send_request(message("orders", b"a")))
    time.end_turn()
    assert Answer.of(orderly[0]).bodies == [b"a"]


def test_an_address_has_its_share_and_no_more_of_places_that_are_taken(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    few_places(broker)
    greedy = [poll(broker, "10.0.0.1", "greedy") for _ in range(PLACES)]
    other = [poll(broker, "10.0.0.2", "other") for _ in range(PLACES)]
    time.advance(1_000)
    assert (waiting(greedy), waiting(other)) == (PLACES // 2, PLACES // 2)
    third = [poll(broker, "10.0.0.3", "third") for _ in range(PLACES)]
    time.advance(1_000)
    assert (waiting(greedy), waiting(other), waiting(third)) == (PLACES // 3, PLACES // 3, PLACES // 3)


def test_who_is_gone_has_no_place_to_give(broker: BrokerAssembly, time: ManualTime) -> None:
    few_places(broker)
    greedy = [poll(broker, "10.0.0.1", "greedy") for _ in range(PLACES)]
    first = poll(broker, "10.0.0.2")
    for one in greedy:
        one.cancel()
    assert first.code is None
    # Places are free, and taken again before the shares are counted anew.
    greedy = [poll(broker, "10.0.0.1", "greedy") for _ in range(PLACES - 1)]
    second = poll(broker, "10.0.0.2")
    assert (waiting(greedy), second.code) == (PLACES - 1, None), "it waits for its refusal"
    time.advance(1_000)
    assert Answer.of(second).code == Code.TOO_MANY_REQUESTS
    assert poll(broker, "10.0.0.2").code is None
    assert waiting(greedy) == PLACES - 2
    time.advance(2_000)
    broker.api.housekeep()
    assert not broker.api._receive._beyond_shares

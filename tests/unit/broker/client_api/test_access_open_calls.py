"""What stays open while users and policies change: receives that wait, and streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.api_requests import receive_request
from support.fake_call import FakeCall
from support.guarded_api import (
    SECRET,
    UNAUTHORIZED,
    GuardedBroker,
    consumer_settings,
    open_stream,
    producer_settings,
)
from tandemmq.core.access.users_and_policies import (
    Decision,
    Resource,
    UserStatus,
)
from tandemmq.core.quotas import parse_quotas
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import StatusCode


def waiting_receive(guarded: GuardedBroker) -> FakeCall:
    fake = guarded.call("ReceiveMessage", receive_request(poll_ms=5_000))
    assert fake.code is None, "it waits"
    return fake


def test_a_receive_that_waits_is_asked_anew_when_policies_change(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Sub,Pub")
    guarded.allow("Group:group", "Sub")
    waiting = waiting_receive(guarded)
    guarded.allow("Group:group", "Sub", decision=Decision.DENY)
    answer = waiting.sent[0]
    assert isinstance(answer, pb.ReceiveMessageResponse)
    assert answer.status.code == definition.MESSAGE_NOT_FOUND, "clients ask again, and are refused then"
    assert guarded.send_code() == definition.OK
    again = guarded.call("ReceiveMessage", receive_request(poll_ms=5_000)).sent[0]
    assert isinstance(again, pb.ReceiveMessageResponse)
    assert again.status.code == UNAUTHORIZED


WHAT_ENDS: Final[dict[str, Callable[[GuardedBroker], object]]] = {
    "deleted": lambda guarded: guarded.changes.delete_user("ann"),
    "disabled": lambda guarded: guarded.changes.put_user("ann", status=UserStatus.DISABLE),
    "another key": lambda guarded: guarded.changes.put_user("ann", secret="another secret"),
    "made anew": lambda guarded: (
        guarded.changes.delete_user("ann"),
        guarded.changes.put_user("ann", secret="another secret"),
    ),
    "topic denied": lambda guarded: guarded.allow("Topic:ord*", "Sub", decision=Decision.DENY),
    "group denied": lambda guarded: guarded.allow("Group:*", "All", decision=Decision.DENY),
    "elsewhere only": lambda guarded: guarded.allow("Topic:orders", "Sub,Pub", ips="10.9.0.0/16"),
    "policies deleted": lambda guarded: guarded.changes.delete_entries("User:ann", [Resource.parse("Topic:orders")]),
}


@pytest.mark.parametrize("what", WHAT_ENDS)
@pytest.mark.parametrize("method", ["ReceiveMessage", "PullMessage"])
def test_whoever_waits_gets_nothing_more_once_its_user_may_not(guarded: GuardedBroker, method: str, what: str) -> None:
    """And its place among those that wait is free again."""
    guarded.allow("Topic:orders", "Sub,Pub")
    guarded.allow("Group:group", "Sub")
    guarded.changes.put_user("bob", secret="sesame of bob")
    guarded.allow("*", "All", user="bob")
    guarded.api.change_quotas(parse_quotas("user:* polls=1; address:* polls=3"))
    request: Any = receive_request(poll_ms=20_000)
    if method == "PullMessage":
        queue = definition.MessageQueue(topic=definition.Resource(name="orders"), id=0)
        queue.broker.name = "broker-a"
        request = pb.PullMessageRequest(message_queue=queue, group=definition.Resource(name="group"), batch_size=1)
        request.long_polling_timeout.FromSeconds(20)
    waiting = guarded.call(method, request)
    assert waiting.code is None, "it waits"
    WHAT_ENDS[what](guarded)
    guarded.time.end_turn()
    assert waiting.code is StatusCode.OK, "it is answered at once"
    said = [getattr(each, "status", each) for each in waiting.sent]
    assert guarded.send_code(guarded.headers_of("bob", "client@2")) == definition.OK
    guarded.time.advance(1_000)
    assert [getattr(each, "status", each) for each in waiting.sent] == said
    assert not [each for each in waiting.sent if getattr(each, "WhichOneof", lambda _: "")("content") == "message"]
    assert not guarded.api.quotas._quotas._polls
    again: Any = guarded.call(method, request).sent[0]
    assert again.status.code == UNAUTHORIZED


def test_a_stranger_s_stream_ends_with_the_reason(guarded: GuardedBroker) -> None:
    fake, stream = open_stream(guarded, {"x-mq-client-id": "client@1"})
    command = fake.sent[0]
    assert isinstance(command, pb.TelemetryCommand)
    assert command.status.code == UNAUTHORIZED
    assert fake.code is StatusCode.UNAUTHENTICATED
    stream.message(producer_settings("orders"))
    assert guarded.broker.sessions.get("client@1 (ann)") is None


def test_a_producer_publishes_on_its_stream_what_it_may_send(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    fake, stream = open_stream(guarded)
    stream.message(producer_settings("orders"))
    assert fake.code is None
    assert guarded.api._telemetry.publishers("orders")
    stream.message(producer_settings("bills"))
    assert fake.code is None, "a client that gets no answer would wait for ever"
    assert [command.status.code for command in fake.sent] == [definition.OK] * 2  # type: ignore[attr-defined]
    assert not guarded.api._telemetry.publishers("bills"), "half messages are shown to those who may send them"


def test_a_stream_ends_when_its_user_may_no_more(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    fake, stream = open_stream(guarded)
    stream.message(producer_settings("orders"))
    guarded.allow("Topic:bills", "Pub")
    assert fake.code is None
    guarded.allow("Topic:orders", "Pub", decision=Decision.DENY)
    assert fake.code is StatusCode.UNAUTHENTICATED
    fake, stream = open_stream(guarded)
    guarded.changes.put_user("ann", status=UserStatus.DISABLE)
    guarded.time.end_turn()
    assert fake.code is StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_stream_ends_when_the_secret_that_signed_it_is_another(
    guarded: GuardedBroker, lines: list[dict[str, Any]], is_made_anew: bool
) -> None:
    """Half messages are shown to whoever holds such a stream: a key that leaked must not keep it."""
    guarded.allow("Topic:orders", "Pub")
    fake, stream = open_stream(guarded)
    stream.message(producer_settings("orders"))
    if is_made_anew:  # A slave sees both in one pull of the tables.
        guarded.changes.delete_user("ann")
    guarded.changes.put_user("ann", secret="a new secret")
    guarded.allow("Topic:orders", "Pub")
    assert fake.code is StatusCode.UNAUTHENTICATED
    assert not guarded.api._telemetry.publishers("orders")
    [line] = [line for line in lines if line["event"] == "access_refused"]
    assert (line["user"], line["method"], "another secret key" in line["reason"]) == ("ann", "Telemetry", True)


def test_a_secret_that_is_only_sealed_anew_ends_no_stream(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    fake, stream = open_stream(guarded)
    stream.message(producer_settings("orders"))
    guarded.changes.put_user("ann", secret=SECRET)
    guarded.time.end_turn()
    assert fake.code is None


def test_a_consumer_s_stream_needs_its_group_and_each_topic(guarded: GuardedBroker) -> None:
    settings = definition.Settings(client_type=definition.SIMPLE_CONSUMER)
    settings.subscription.group.name = "group"
    settings.subscription.subscriptions.add(
        topic=definition.Resource(name="orders"),
        expression=definition.FilterExpression(type=definition.TAG, expression="*"),
    )
    guarded.allow("Group:group", "Sub")
    fake, stream = open_stream(guarded)
    stream.message(pb.TelemetryCommand(settings=settings))
    assert guarded.broker.sessions.get("client@1 (ann)") is None, "it is answered, and not taken"
    guarded.allow("Topic:orders", "Sub")
    stream.message(pb.TelemetryCommand(settings=settings))
    session = guarded.broker.sessions.get("client@1 (ann)")
    assert session is not None
    assert session.group == "group"
    assert fake.code is None


@given(st.lists(st.sampled_from(["publish orders", "publish bills", "publish both", "publish none", "consume"])))
def test_a_stream_is_shown_half_messages_of_what_its_last_settings_say_and_of_nothing_that_is_denied(
    said: list[str],
) -> None:
    """Whatever it said before: a topic that it may send to no more is none of its stream's."""
    guarded = GuardedBroker()
    for resource in ("Topic:orders", "Topic:bills"):
        guarded.allow(resource, "Pub")
    guarded.allow("Group:group", "Sub")
    guarded.broker.add_topic("bills")
    topics = {"both": ("orders", "bills"), "none": (), "orders": ("orders",), "bills": ("bills",)}
    fake, stream = open_stream(guarded)
    for what in said:
        is_consumer = what == "consume"
        stream.message(consumer_settings("group") if is_consumer else producer_settings(*topics[what.split()[1]]))
    published = {topic for topic in ("orders", "bills") if guarded.api._telemetry.publishers(topic)}
    last = said[-1] if said else "publish none"
    assert published == (set() if last == "consume" else {*topics[last.split()[1]]})
    guarded.allow("Topic:orders", "Pub", decision=Decision.DENY)
    assert not guarded.api._telemetry.publishers("orders")
    assert (fake.code is StatusCode.UNAUTHENTICATED) == ("orders" in published)


@given(st.lists(st.sampled_from(["no client", "nothing", "bad filter", "good", "half closed", "gone", "drained"])))
def test_a_stream_that_is_over_is_not_kept_however_it_ended(ends: list[str]) -> None:
    """Whoever opens streams and has them ended must not fill the memory."""
    guarded = GuardedBroker()
    guarded.allow("*", "All")
    lasting = 0
    for end in ends:
        headers = guarded.headers() | ({"x-mq-client-id": ""} if end == "no client" else {})
        fake, stream = open_stream(guarded, headers)
        if fake.code is None:
            # As a front does: nothing is told to the handler of a call that has ended.
            if end == "nothing":
                stream.message(pb.TelemetryCommand(settings=definition.Settings()))
            elif end == "bad filter":
                settings = consumer_settings("group", "orders")
                settings.settings.subscription.subscriptions[0].expression.expression = "||"
                stream.message(settings)
            elif end == "half closed":
                stream.half_closed()
            elif end == "gone":
                stream.cancelled()
            elif end == "drained":
                guarded.api.drain()
        if end == "drained":
            lasting = 0
        lasting += fake.code is None and end != "gone"
    assert len(guarded.access._streams) == lasting

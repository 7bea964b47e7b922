"""Every method, whoever calls it, whatever it is about, and whatever became of the caller's permissions meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.api_requests import receive_request
from support.guarded_api import (
    SECRET,
    UNAUTHORIZED,
    WANTED,
    GuardedBroker,
    consumer_settings,
    open_stream,
    producer_settings,
    request_of,
)
from tandemmq.broker.client_api.validation import SETTINGS_TOPICS_MAX
from tandemmq.core.access.signature import DATE_WINDOW_MS
from tandemmq.core.access.users_and_policies import (
    Decision,
    UserStatus,
)
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.service.rpc import StatusCode

ACTIONS = ["Pub", "Sub", "Get", "Update", "Create", "List"]


MOMENTS = ["as it was", "policy deleted", "denied", "disabled", "deleted", "made anew", "another key", "old signature"]


NEAR = [
    "orders",
    "Orders",
    "orders-1",
    "order",
    "orders ",
    "%RETRY%orders",
    "%DLQ%orders",
    "%ns%orders",
    "*",
    "",
    "ordersé",
]
"""Names that are not quite the topic's and the group's, which are called alike here."""


@given(
    method=st.sampled_from(sorted(WANTED)),
    topic=st.sampled_from(NEAR),
    group=st.sampled_from(["orders", "others"]),
    on_topic=st.sets(st.sampled_from(ACTIONS), max_size=2),
    on_group=st.sets(st.sampled_from(ACTIONS), max_size=2),
    moment=st.sampled_from(MOMENTS),
)
def test_each_method_does_what_the_policies_of_this_moment_allow_and_nothing_else(
    method: str, topic: str, group: str, on_topic: set[str], on_group: set[str], moment: str
) -> None:
    guarded = GuardedBroker()
    for kind, actions in (("Topic", on_topic), ("Group", on_group)):
        if actions:
            guarded.allow(f"{kind}:orders", ",".join(actions))
    headers = guarded.headers()

    def is_refused() -> bool:
        fake = guarded.call(method, request_of(method, topic, group), headers)
        if not fake.sent:
            return False  # It waits for messages.
        answer: Any = fake.sent[0]
        return bool(answer.status.code == UNAUTHORIZED)

    topics, groups = WANTED[method]
    kind, name = ("Group", topic.removeprefix("%RETRY%")) if topic.startswith("%RETRY%") else ("Topic", topic)
    if kind == "Group" and topics == {"Pub"}:
        topics = {"Sub"}
    held = (on_group if kind == "Group" else on_topic) if name == "orders" else set()
    may = (not topics or bool(topics & held)) and (not groups or (group == "orders" and bool(groups & on_group)))
    assert is_refused() is not may
    match moment:
        case "policy deleted":
            guarded.changes.delete_entries("User:ann", [])
        case "denied":
            guarded.allow("*", "All", decision=Decision.DENY)
        case "disabled":
            guarded.changes.put_user("ann", status=UserStatus.DISABLE)
        case "deleted" | "made anew":
            guarded.changes.delete_user("ann")
            if moment == "made anew":
                guarded.changes.put_user("ann", secret=SECRET)
        case "another key":
            guarded.changes.put_user("ann", secret="a new secret")
        case "old signature":
            guarded.time.advance(DATE_WINDOW_MS + 61_000)
    guarded.time.end_turn()
    assert is_refused() is not (may and moment == "as it was")


@pytest.mark.parametrize("method", sorted(WANTED))
@pytest.mark.parametrize("what", ["topic", "group", "client id"])
def test_what_a_caller_says_at_length_is_refused_and_not_remembered(
    guarded: GuardedBroker, method: str, what: str
) -> None:
    """A name may have as many bytes as a request, and a broker remembers tens of thousands of rulings and clients."""
    guarded.allow("*", "All")
    long = "x" * 20_000
    headers = guarded.headers() | ({"x-mq-client-id": long} if what == "client id" else {})
    names = (long if what == "topic" else "orders", long if what == "group" else "group")
    has_it = {"topic": bool(WANTED[method][0]), "group": bool(WANTED[method][1]), "client id": True}[what]
    fake = guarded.call(method, request_of(method, *names), headers)
    if has_it and method != "NotifyClientTermination":
        answer: Any = fake.sent[0]
        assert answer.status.code not in (definition.OK, definition.MESSAGE_NOT_FOUND)
    assert all(len(part) < 1_000 for key in guarded.access._rulings for part in key)
    assert all(len(session.client_id) < 1_100 for session in guarded.broker.sessions.all())


def test_what_a_client_says_of_itself_at_length_is_cut(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    fake, stream = open_stream(guarded)
    command = consumer_settings("group", "orders")
    command.settings.user_agent.version = "1" * 100_000
    command.settings.subscription.subscriptions[0].expression.expression = "||".join(["tag"] * 10_000)
    stream.message(command)
    session = guarded.broker.sessions.get("client@1 (ann)")
    assert session is not None
    assert len(session.version) == 64
    assert len(session.subscriptions["orders"]) == 1_001
    fake, stream = open_stream(guarded, guarded.headers() | {"x-mq-client-id": "x" * 20_000})
    answer: Any = fake.sent[0]
    assert (answer.status.code, fake.code) == (definition.BAD_REQUEST, StatusCode.OK)
    assert len(guarded.access._streams) == 1


@pytest.mark.parametrize("kind", ["producer", "consumer"])
@pytest.mark.parametrize("names", ["", "orders", "orders-{}"])
def test_settings_of_very_many_topics_are_refused_before_each_is_looked_at(
    guarded: GuardedBroker, kind: str, names: str
) -> None:
    """Two bytes of a request each: a megabyte of them held the loop up for seconds, and was remembered."""
    guarded.allow("*", "All")
    for count, is_refused in ((SETTINGS_TOPICS_MAX, not names), (SETTINGS_TOPICS_MAX + 1, True), (100_000, True)):
        topics = [names.format(number) for number in range(count)]
        fake, stream = open_stream(guarded)
        stream.message(producer_settings(*topics) if kind == "producer" else consumer_settings("group", *topics))
        answer: Any = fake.sent[0]
        assert (answer.status.code != definition.OK) is is_refused
        assert (fake.code is StatusCode.INVALID_ARGUMENT) is is_refused
        if count > SETTINGS_TOPICS_MAX:
            assert f"{count} topics, the limit is" in answer.status.message
        for session in guarded.broker.sessions.all():
            assert sum(map(len, session.subscriptions)) < 1 << 20


def test_an_attempt_id_is_short(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    request = receive_request("orders")
    request.attempt_id = "x" * 257
    answer: Any = guarded.call("ReceiveMessage", request).sent[0]
    assert answer.status.code == definition.BAD_REQUEST

"""The guard before the client API: who is let in, and what policies allow."""

from __future__ import annotations

from typing import Any, Final

import pytest

from support.api_requests import ack_request, message, receive_request, send_request
from support.fake_call import FakeCall
from support.guarded_api import (
    SECRET,
    UNAUTHORIZED,
    GuardedBroker,
)
from tandemmq.broker.client_api.access import _METHODS
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.core.access.signature import DATE_WINDOW_MS
from tandemmq.core.access.users_and_policies import (
    Decision,
    UserStatus,
    UserType,
)
from tandemmq.core.quotas import parse_quotas
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import CALLER_HEADER, BidiMethod, StatusCode


def test_every_method_is_behind_the_guard(guarded: GuardedBroker) -> None:
    open_methods = ClientApi(guarded.broker).method_table().methods
    assert set(guarded.methods) == set(open_methods) == {*_METHODS, "Telemetry"}
    for name, method in guarded.methods.items():
        assert method.handler != open_methods[name].handler


def test_nobody_may_call_any_method(guarded: GuardedBroker) -> None:
    for name, method in guarded.methods.items():
        if isinstance(method, BidiMethod):
            continue
        request_type = pb.SendMessageRequest if name == "SendMessage" else getattr(pb, f"{name}Request")
        fake = guarded.call(name, request_type(), {"x-mq-client-id": "client@1"})
        [answer] = fake.sent
        assert answer.status.code == UNAUTHORIZED, name  # type: ignore[attr-defined]
        assert fake.code is StatusCode.OK


_ON_TOPIC, _ON_GROUP = ("Topic", "orders"), ("Group", "billing")


_BOTH: Final = {_ON_TOPIC: {"Sub"}, _ON_GROUP: {"Sub"}}


_THEIRS: Final[dict[str, dict[tuple[str, str], set[str]]]] = {
    "SendMessage": {_ON_TOPIC: {"Pub"}},
    "RecallMessage": {_ON_TOPIC: {"Pub"}},
    "EndTransaction": {_ON_TOPIC: {"Pub"}},
    "Heartbeat": {_ON_GROUP: {"Sub"}},
    "NotifyClientTermination": {_ON_GROUP: {"Sub"}},
    "ChangeInvisibleDuration": {_ON_GROUP: {"Sub"}},
    "QueryRoute": {_ON_TOPIC: {"Pub", "Sub", "Get"}},
    **dict.fromkeys(["ReceiveMessage", "AckMessage", "ForwardMessageToDeadLetterQueue", "QueryAssignment"], _BOTH),
    # Not of its proxy: as over its own protocol.
    "PullMessage": _BOTH,
    "GetOffset": {_ON_TOPIC: {"Sub", "Get"}, _ON_GROUP: {"Sub", "Get"}},
    "UpdateOffset": {_ON_TOPIC: {"Sub", "Update"}, _ON_GROUP: {"Sub", "Update"}},
    "QueryOffset": {_ON_TOPIC: {"Sub", "Get"}},
    "SyncLiteSubscription": _BOTH,
}
"""What RocketMQ 5.3.4's DefaultAuthorizationContextBuilder asks of each call: of each resource one of these actions."""


@pytest.mark.parametrize("name", sorted(_METHODS))
def test_each_method_asks_at_least_what_the_original_asks(guarded: GuardedBroker, name: str) -> None:
    request: Any = send_request(message()) if name == "SendMessage" else getattr(pb, f"{name}Request")()
    for field, value in (("topic", "orders"), ("group", "billing")):
        if field in request.DESCRIPTOR.fields_by_name:
            getattr(request, field).name = value
    if "message_queue" in request.DESCRIPTOR.fields_by_name:
        request.message_queue.topic.name = "orders"
    entry: Any = guarded.methods[name]
    needs = _METHODS[name][0](entry.request_type.FromString(request.SerializeToString()))
    asked = {(kind.value, resource): {action.value for action in actions} for kind, resource, actions in needs}
    assert asked, "nobody calls it without being asked"
    for resource, actions in _THEIRS[name].items():
        assert asked[resource] <= actions


def test_a_user_sends_what_its_policies_allow(guarded: GuardedBroker) -> None:
    assert guarded.send_code() == UNAUTHORIZED
    guarded.allow("Topic:orders", "Pub")
    assert guarded.send_code() == definition.OK


@pytest.mark.parametrize(
    ("user", "secret"), [("ann", "another one"), ("bob", SECRET), ("", SECRET), ("ann", "")], ids=str
)
def test_a_wrong_key_is_not_let_in(guarded: GuardedBroker, user: str, secret: str) -> None:
    guarded.allow("*", "All")
    answer = guarded.call("SendMessage", send_request(message()), guarded.headers(user, secret))
    status = answer.only(pb.SendMessageResponse).status
    assert status.code == UNAUTHORIZED
    assert SECRET not in status.message


def test_a_signature_of_one_date_does_not_sign_another(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    good = guarded.headers()
    assert guarded.send_code(good) == definition.OK
    assert (
        guarded.send_code({**good, "x-mq-date-time": guarded.headers(off_ms=1_000)["x-mq-date-time"]}) == UNAUTHORIZED
    )


@pytest.mark.parametrize("off_ms", [-DATE_WINDOW_MS - 60_000, DATE_WINDOW_MS + 60_000])
def test_an_old_signature_does_not_count(guarded: GuardedBroker, off_ms: int) -> None:
    guarded.allow("*", "All")
    assert guarded.send_code(guarded.headers(off_ms=off_ms)) == UNAUTHORIZED


def test_a_signature_that_was_good_is_not_good_for_ever(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    overheard = guarded.headers()
    assert guarded.send_code(overheard) == definition.OK
    guarded.time.advance(DATE_WINDOW_MS + 120_000)
    assert guarded.send_code(overheard) == UNAUTHORIZED


def test_a_user_that_is_disabled_or_removed_or_has_a_new_key_is_out_at_once(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    good = guarded.headers()
    assert guarded.send_code(good) == definition.OK
    guarded.changes.put_user("ann", status=UserStatus.DISABLE)
    assert guarded.send_code(good) == UNAUTHORIZED
    guarded.changes.put_user("ann", status=UserStatus.ENABLE)
    assert guarded.send_code(good) == definition.OK
    guarded.changes.put_user("ann", secret="a new secret")
    assert guarded.send_code(good) == UNAUTHORIZED
    assert guarded.send_code(guarded.headers(secret="a new secret")) == definition.OK
    guarded.changes.delete_user("ann")
    assert guarded.send_code(guarded.headers(secret="a new secret")) == UNAUTHORIZED


def test_who_may_send_to_a_topic_gets_its_route_whatever_else_is_denied(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    guarded.allow("Topic:*", "Sub", decision=Decision.DENY)
    asked = pb.QueryRouteRequest(topic=definition.Resource(name="orders"))
    assert guarded.call("QueryRoute", asked).only(pb.QueryRouteResponse).status.code != UNAUTHORIZED
    assert guarded.send_code() == definition.OK
    guarded.allow("Topic:*", "Pub,Sub", decision=Decision.DENY)
    assert guarded.call("QueryRoute", asked).only(pb.QueryRouteResponse).status.code == UNAUTHORIZED


def test_who_signs_as_a_user_is_known_and_nothing_is_counted(guarded: GuardedBroker) -> None:
    def known_user(headers: dict[str, str]) -> str:
        return guarded.access.known_user(FakeCall(metadata=headers))

    assert known_user(guarded.headers()) == "ann"
    for headers in ({}, guarded.headers("bob"), guarded.headers(secret="guessed"), {"authorization": "x"}):
        assert known_user(headers) == ""
    assert not guarded.access.refused


def test_a_super_user_needs_no_policy(guarded: GuardedBroker) -> None:
    guarded.changes.put_user("root", secret=SECRET, user_type=UserType.SUPER)
    assert guarded.send_code(guarded.headers("root")) == definition.OK


def test_without_authorization_whoever_signs_in_may_do_everything() -> None:
    guarded = GuardedBroker(authorizes=False)
    assert guarded.send_code() == definition.OK
    assert guarded.send_code(guarded.headers(secret="another one")) == UNAUTHORIZED


def test_a_receive_needs_topic_and_group(guarded: GuardedBroker) -> None:
    def code() -> int:
        fake = guarded.call("ReceiveMessage", receive_request(poll_ms=5_000))
        guarded.time.advance(5_000)
        answer = fake.sent[0]
        assert isinstance(answer, pb.ReceiveMessageResponse)
        return answer.status.code

    guarded.allow("Topic:orders", "Sub")
    assert code() == UNAUTHORIZED
    guarded.allow("Group:group", "Sub")
    assert code() == definition.MESSAGE_NOT_FOUND
    guarded.allow("Topic:orders", "Sub", decision=Decision.DENY)
    assert code() == UNAUTHORIZED


def test_an_ack_of_another_s_group_is_refused_for_each_entry(guarded: GuardedBroker) -> None:
    answer = guarded.call("AckMessage", ack_request("one", "two")).only(pb.AckMessageResponse)
    assert answer.status.code == UNAUTHORIZED
    assert [entry.status.code for entry in answer.entries] == [UNAUTHORIZED] * 2


def test_who_changes_a_lease_needs_its_topic_too(guarded: GuardedBroker) -> None:
    guarded.allow("Group:group", "Sub")
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle="mine"
    )
    answer = guarded.call("ChangeInvisibleDuration", request).only(pb.ChangeInvisibleDurationResponse)
    assert (answer.status.code, answer.receipt_handle) == (UNAUTHORIZED, "mine")


@pytest.mark.parametrize("topics", [("orders", "bills"), ("bills", "orders")])
def test_a_request_with_a_second_topic_needs_both(guarded: GuardedBroker, topics: tuple[str, str]) -> None:
    guarded.allow("Topic:orders", "Pub")
    request = send_request(*(message(topic) for topic in topics))
    assert guarded.call("SendMessage", request).only(pb.SendMessageResponse).status.code == UNAUTHORIZED


def test_a_policy_counts_for_the_addresses_it_names(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub", ips="10.1.0.0/16")
    assert guarded.send_code(peer="ipv4:10.1.2.3:4000") == definition.OK
    assert guarded.send_code(peer="ipv6:[::ffff:10.1.2.3]:4000") == definition.OK
    assert guarded.send_code(peer="ipv4:10.2.2.3:4000") == UNAUTHORIZED


def test_an_address_is_believed_only_with_a_broker_s_mark(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub", ips="10.1.0.0/16")
    headers = guarded.headers()
    vouched = guarded.access.sources.vouch(FakeCall(metadata=headers, peer="ipv4:10.1.2.3:4000"))
    broker_peer = "ipv4:10.9.0.1:5000"
    assert guarded.send_code({**headers, CALLER_HEADER: vouched}, peer=broker_peer) == definition.OK
    forged = vouched.replace("10.1.2.3", "10.1.2.4")
    unusual = ("10.1.2.3 \u00b2 mark", "10.1.2.3 \u0663 m\u00e4rk", f"10.1.2.3 {'9' * 5_000} mark", "\u00ff" * 3)
    for text in (forged, "10.1.2.3", "10.1.2.3 1 mark", " ", vouched + "x", *unusual):
        assert guarded.send_code({**headers, CALLER_HEADER: text}, peer=broker_peer) == UNAUTHORIZED
    other = guarded.headers(off_ms=1_000)
    assert guarded.send_code({**other, CALLER_HEADER: vouched}, peer=broker_peer) == UNAUTHORIZED, "another call's"
    guarded.time.advance(DATE_WINDOW_MS + 1)
    fresh = {**guarded.headers(), CALLER_HEADER: vouched}
    assert guarded.send_code(fresh, peer=broker_peer) == UNAUTHORIZED


def test_a_call_that_was_passed_on_counts_for_its_client_s_address(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    guarded.api.change_quotas(parse_quotas("address:* sentMessages=1"))
    headers = guarded.headers()

    def code(client: str) -> int | None:
        vouched = guarded.access.sources.vouch(FakeCall(metadata=headers, peer=f"ipv4:{client}:4000"))
        passed_on = {**headers, CALLER_HEADER: vouched}
        fake = guarded.call("SendMessage", send_request(message()), passed_on, peer="ipv4:10.9.0.1:5000")
        return fake.only(pb.SendMessageResponse).status.code if fake.code is not None else None

    assert [code("10.1.2.3"), code("10.1.2.4")] == [definition.OK] * 2
    assert code("10.1.2.3") is None, "held back: over its quota"
    forged = {**guarded.headers(), CALLER_HEADER: "10.1.2.5 1 mark"}
    assert guarded.send_code(forged, peer="ipv4:10.8.0.1:1") == definition.OK
    again = guarded.call("SendMessage", send_request(message()), forged, peer="ipv4:10.8.0.1:1")
    assert again.code is None, "a client that only says so has the quota of where it is"


def test_a_vouched_address_is_passed_on_a_second_time(guarded: GuardedBroker) -> None:
    headers = guarded.headers()
    first = guarded.access.sources.vouch(FakeCall(metadata=headers, peer="ipv4:10.1.2.3:4000"))
    second = guarded.access.sources.vouch(
        FakeCall(metadata={**headers, CALLER_HEADER: first}, peer="ipv4:10.9.0.1:5000")
    )
    assert second.startswith("10.1.2.3 ")

"""The guard before the client API: who is let in, what is remembered, and what a change of policies does at once."""

from __future__ import annotations

import base64
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pytest
import structlog
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.api_requests import ack_request, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.client_api.access import _METHODS, ClientAccess, Refused, SignatureZones, _AuditLines
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.client_api.sessions import SESSION_EXPIRY_MS, ClientSessions, client_of_user, user_of_client
from tandemmq.broker.client_api.validation import SETTINGS_TOPICS_MAX
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.signature import DATE_WINDOW_MS, sign
from tandemmq.core.access.users_and_policies import (
    _USERNAME,
    Decision,
    PolicyEntry,
    Resource,
    User,
    UserStatus,
    UserType,
    actions_of,
    source_ips_of,
)
from tandemmq.core.quotas import parse_quotas
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import CALLER_HEADER, BidiMethod, StatusCode

KEYS = SecretKeys([b"k" * 32])
UNAUTHORIZED = definition.UNAUTHORIZED
SECRET = "open sesame"
UTC_ALONE = SignatureZones((0,), with_local=False)


class GuardedBroker:
    """A broker whose client API is guarded; user ann has a secret and no policy."""

    def __init__(self, *, authorizes: bool = True, zones: SignatureZones = UTC_ALONE) -> None:
        self.time = ManualTime()
        self.broker = BrokerAssembly(clock=self.time, timers=self.time)
        self.tables = MetadataTables(SimulatedDisk(random.Random(1)), self.time, topics_changed=lambda: None)
        self.changes = AccessChanges(self.tables, keys=KEYS, clock=self.time)
        self.access = ClientAccess(
            users=self.tables.users,
            acls=self.tables.acls,
            keys=KEYS,
            authorizes=authorizes,
            zones=zones,
            clock=self.time,
            timers=self.time,
            revoked=lambda: self.api.access_changed(),
            has_room=self.broker.sessions.has_room,
        )
        self.broker.client_id_of = self.access.client_id_of
        self.broker.whose = self.access.user_of
        self.tables.access_changed = self.access.changed
        self.api = self.broker.api = ClientApi(self.broker, None, self.access)
        self.methods = self.api.method_table().methods
        self.broker.add_topic("orders")
        self.changes.put_user("ann", secret=SECRET)

    def allow(
        self, resource: str, actions: str, *, ips: str = "", decision: Decision = Decision.ALLOW, user: str = "ann"
    ) -> None:
        entry = PolicyEntry(Resource.parse(resource), actions_of(actions), decision, source_ips_of(ips))
        self.changes.put_entries(f"User:{user}", [entry])
        self.time.end_turn()

    def headers(self, user: str = "ann", secret: str = SECRET, *, off_ms: int = 0) -> dict[str, str]:
        date = datetime.fromtimestamp((self.time.wall_ms() + off_ms) / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = sign(secret.encode(), date).hex()
        text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return {"x-mq-client-id": "client@1", "authorization": text, "x-mq-date-time": date}

    def headers_of(self, user: str, client_id: str) -> dict[str, str]:
        return self.headers(user, SECRET if user == "ann" else f"sesame of {user}") | {"x-mq-client-id": client_id}

    def call(
        self,
        method: str,
        request: Message,
        headers: dict[str, str] | None = None,
        *,
        peer: str = "ipv4:127.0.0.1:50000",
    ) -> FakeCall:
        fake = FakeCall(metadata=self.headers() if headers is None else headers, peer=peer)
        fake.response_type = getattr(pb, f"{method}Response")
        entry: Any = self.methods[method]
        entry.handler(entry.request_type.FromString(request.SerializeToString()), fake)
        return fake

    def send_code(self, headers: dict[str, str] | None = None, *, peer: str = "ipv4:127.0.0.1:50000") -> int:
        answer = self.call("SendMessage", send_request(message()), headers, peer=peer)
        return answer.only(pb.SendMessageResponse).status.code


@pytest.fixture
def guarded() -> GuardedBroker:
    return GuardedBroker()


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


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
    vouched = guarded.access.vouch(FakeCall(metadata=headers, peer="ipv4:10.1.2.3:4000"))
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
        vouched = guarded.access.vouch(FakeCall(metadata=headers, peer=f"ipv4:{client}:4000"))
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
    first = guarded.access.vouch(FakeCall(metadata=headers, peer="ipv4:10.1.2.3:4000"))
    second = guarded.access.vouch(FakeCall(metadata={**headers, CALLER_HEADER: first}, peer="ipv4:10.9.0.1:5000"))
    assert second.startswith("10.1.2.3 ")


# What stays open


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


def open_stream(guarded: GuardedBroker, headers: dict[str, str] | None = None) -> tuple[FakeCall, Any]:
    fake = FakeCall(metadata=guarded.headers() if headers is None else headers)
    method = guarded.methods["Telemetry"]
    assert isinstance(method, BidiMethod)
    return fake, method.handler(fake)


def producer_settings(*topics: str) -> pb.TelemetryCommand:
    settings = definition.Settings(client_type=definition.PRODUCER)
    settings.publishing.topics.extend(definition.Resource(name=topic) for topic in topics)
    settings.publishing.SetInParent()
    return pb.TelemetryCommand(settings=settings)


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


def consumer_settings(group: str, *topics: str) -> pb.TelemetryCommand:
    settings = definition.Settings(client_type=definition.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    for topic in topics:
        every = definition.FilterExpression(type=definition.TAG, expression="*")
        settings.subscription.subscriptions.add(topic=definition.Resource(name=topic), expression=every)
    return pb.TelemetryCommand(settings=settings)


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


# Clients of others


def two_users() -> GuardedBroker:
    guarded = GuardedBroker(authorizes=False)
    guarded.changes.put_user("bob", secret="sesame of bob")
    guarded.time.end_turn()
    return guarded


def bob(guarded: GuardedBroker, client_id: str = "client@1") -> dict[str, str]:
    return guarded.headers_of("bob", client_id)


CONSUMER_BEAT = pb.HeartbeatRequest(client_type=definition.SIMPLE_CONSUMER, group=definition.Resource(name="group"))


def answered(fake: FakeCall) -> int:
    status: definition.Status = fake.sent[-1].status  # type: ignore[attr-defined]
    return status.code


Step: TypeAlias = tuple[str, str, int]
"""Who does what, and how many seconds later."""
CALLS: Final = ("heartbeat", "receive", "renewed receive", "settings", "subscribe", "goodbye", "ack", "route")


def lived(
    steps: Sequence[Step], *, bob_s_id: str, shares_group: bool, changes_master_at: int
) -> tuple[list[Any], list[Any]]:
    """What each of both is told, and what is leased in the end, and until when."""
    guarded = GuardedBroker()
    guarded.changes.put_user("bob", secret="sesame of bob")
    broker = guarded.broker
    calls: list[tuple[str, str, FakeCall]] = []
    handles: dict[str, str] = {}
    for user in ("ann", "bob"):
        own = "orders" if shares_group else user
        for resource in (f"Topic:{own}", f"Group:{own}"):
            guarded.allow(resource, "Sub,Pub,Get,Update", user=user)
        broker.add_topic(own, queue_count=1)
        broker.add_group(own)
        for _ in range(3):
            guarded.call("SendMessage", send_request(message(own)), guarded.headers_of(user, "sender@1"))
    streams: dict[str, Any] = {}
    for number, (user, call, later_s) in enumerate(steps):
        if number == changes_master_at:
            # The next master has the leases, and has heard of nobody.
            broker.sessions.clear()
            guarded.access.changed()
            guarded.time.end_turn()
        own = "orders" if shares_group else user
        headers = guarded.headers_of(user, "client@1" if user == "ann" else bob_s_id)
        if call == "settings":
            if user not in streams or streams[user][0].code is not None:
                streams[user] = open_stream(guarded, headers)
            fake, stream = streams[user]
            stream.message(consumer_settings(own, own))
            calls.append((user, call, fake))
        else:
            method, request = request_as(call, own, handles.get(user, "none"))
            fake = guarded.call(method, request, headers)
            calls.append((user, call, fake))
            for one in fake.sent:
                if isinstance(one, pb.ReceiveMessageResponse) and one.HasField("message"):
                    handles[user] = one.message.system_properties.receipt_handle
        guarded.time.advance(1_000 * later_s)
        guarded.api.housekeep()
        guarded.time.end_turn()
    for user in ("ann", "bob"):
        own = "orders" if shares_group else user
        rest = guarded.call("ReceiveMessage", request_of("ReceiveMessage", own, own), guarded.headers_of(user, "x"))
        calls.append((user, "the rest", rest))
    told: list[Any] = [(user, call, fake.code, [said(one) for one in fake.sent]) for user, call, fake in calls]
    told.append(guarded.access.refused)
    leased = [
        (name, queue.queue_id, queue.committed, offset, lease.deadline_ms, lease.attempt, lease.auto_renew)
        for name, subscription in sorted(broker.leases._state.subscriptions.items())
        for queue in subscription.queues.values()
        for offset, lease in sorted(queue.pending.items())
    ]
    return told, leased


def said(answer: Any) -> tuple[object, ...]:
    """Without what each run has another one of."""
    if isinstance(answer, pb.ReceiveMessageResponse) and answer.HasField("message"):
        properties = answer.message.system_properties
        return properties.queue_offset, properties.delivery_attempt
    if isinstance(answer, pb.AckMessageResponse):
        return tuple(entry.status.code for entry in answer.entries)
    return (answer.status.code,)


def request_as(call: str, own: str, handle: str) -> tuple[str, Message]:
    if call == "heartbeat":
        group = definition.Resource(name=own)
        return "Heartbeat", pb.HeartbeatRequest(client_type=definition.SIMPLE_CONSUMER, group=group)
    if call == "goodbye":
        return "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=definition.Resource(name=own))
    of_call = {"ack": "AckMessage", "route": "QueryRoute", "subscribe": "SyncLiteSubscription"}
    method = of_call.get(call, "ReceiveMessage")
    request: Any = request_of(method, own, own)
    if call == "ack":
        request.entries[0].receipt_handle = handle
    elif method == "ReceiveMessage":
        request.auto_renew = call == "renewed receive"
        request.batch_size = 1
    return method, request


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from(CALLS), st.sampled_from([0, 1, 40, 130])),
        max_size=14,
    ),
    shares_group=st.booleans(),
    changes_master_at=st.integers(0, 20),
)
@example([("ann", "heartbeat", 0), ("bob", "heartbeat", 0), ("bob", "goodbye", 0)], False, 20)
@example([("ann", "renewed receive", 1), ("bob", "heartbeat", 0), ("bob", "goodbye", 40), ("ann", "ack", 0)], True, 20)
@example([("ann", "renewed receive", 130), ("bob", "heartbeat", 40), ("ann", "heartbeat", 40)], False, 1)
def test_a_user_s_client_lives_as_if_no_other_user_s_had_its_id(
    steps: list[Step], shares_group: bool, changes_master_at: int
) -> None:
    """Ids may be equal by accident, as those of two containers are with one host name and one process id, or by
    intent: whatever either does and in whatever order, nobody is kept out, nobody is spoken for, and nobody's leases
    end by it, also when another broker becomes the master in between."""
    alone = lived(steps, bob_s_id="client@2", shares_group=shares_group, changes_master_at=changes_master_at)
    same = lived(steps, bob_s_id="client@1", shares_group=shares_group, changes_master_at=changes_master_at)
    assert same == alone
    told, _ = alone
    assert not told[-1], "nobody is refused"


def test_an_operator_sees_whose_a_client_is_and_commands_that_one() -> None:
    guarded = two_users()
    hers, _ = open_stream(guarded)
    his, _ = open_stream(guarded, bob(guarded))
    for user, headers in (("ann", guarded.headers()), ("bob", bob(guarded))):
        guarded.call("Heartbeat", CONSUMER_BEAT, headers)
        session = guarded.broker.sessions.get(f"client@1 ({user})")
        assert session is not None
    guarded.api.commands.reconnect("client@1 (bob)")
    assert [len(hers.sent), len(his.sent)] == [0, 1]


@given(client_id=st.text(max_size=20), username=st.from_regex(_USERNAME, fullmatch=True))
def test_no_id_makes_a_client_another_user_s(client_id: str, username: str) -> None:
    client = client_of_user(client_id, username)
    assert user_of_client(client) == username
    assert client == client_of_user(client.removesuffix(f" ({username})"), username)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.sampled_from([0, 1_000, 60_000]), st.booleans()),
        max_size=80,
    )
)
def test_no_user_s_clients_push_out_those_of_another(steps: list[tuple[str, int, int, bool]]) -> None:
    sessions, now_ms = ClientSessions(lambda _: None, whose=lambda call: call.peer, max_sessions=8), 0
    for user, number, later_ms, leaves in steps:
        now_ms += later_ms
        sessions.expire(now_ms=now_ms)
        client = client_of_user(f"{number}", user)
        before = [session.client_id for session in sessions.all()]
        if leaves:
            sessions.terminate(client)
        elif sessions.has_room(client):
            sessions.seen(client, FakeCall(peer=user), now_ms=now_ms)
        else:
            assert sum(user_of_client(one) == user for one in before) == 6
        counts = Counter({user: len(ids) for user, ids in sessions._ids_of.items()})
        assert counts == Counter(user_of_client(session.client_id) for session in sessions.all())
        others = [one for one in before if user_of_client(one) != user]
        if len(others) <= 2:
            assert all(sessions.get(one) is not None for one in others)


def test_who_invents_clients_is_refused_before_others_are_forgotten(guarded: GuardedBroker) -> None:
    guarded.broker.sessions._max_of_one = 6
    guarded.changes.put_user("bob", secret="sesame of bob")
    guarded.allow("Group:group", "Sub")
    assert answered(guarded.call("Heartbeat", CONSUMER_BEAT)) == definition.OK
    beat = pb.HeartbeatRequest(client_type=definition.PRODUCER)  # needs no permission at all
    codes = [answered(guarded.call("Heartbeat", beat, bob(guarded, f"bob@{number}"))) for number in range(20)]
    assert codes == [definition.OK] * 6 + [definition.TOO_MANY_REQUESTS] * 14
    assert guarded.broker.gone_client_ids == []
    guarded.time.advance(SESSION_EXPIRY_MS)
    guarded.api.housekeep()
    assert answered(guarded.call("Heartbeat", beat, bob(guarded, "bob@99"))) == definition.OK


def test_who_may_not_consume_is_no_client(guarded: GuardedBroker) -> None:
    guarded.changes.put_user("bob", secret="sesame of bob")
    assert answered(guarded.call("Heartbeat", CONSUMER_BEAT, bob(guarded))) == UNAUTHORIZED
    assert not len(guarded.broker.sessions)


# Guesses and the log


def test_refusals_are_counted_by_a_few_reasons(guarded: GuardedBroker) -> None:
    guarded.send_code({"x-mq-client-id": "client@1"})
    guarded.send_code(guarded.headers(secret="another one"))
    guarded.send_code(guarded.headers("nobody"))
    guarded.send_code(guarded.headers(off_ms=-2 * DATE_WINDOW_MS))
    guarded.send_code()
    guarded.changes.put_user("cy", secret=SECRET, status=UserStatus.DISABLE)
    guarded.send_code(guarded.headers("cy"))
    assert guarded.access.refused == {
        "unsigned": 1,
        "wrong_key": 1,
        "unknown_user": 1,
        "date": 1,
        "not_allowed": 1,
        "disabled_user": 1,
    }
    for number in range(400):
        guarded.call("SendMessage", send_request(message()), guarded.headers(f"user{number}", secret="guessed"))
    assert guarded.access.refused["too_many_failures"] > 0
    assert set(guarded.access.refused) <= set(Refused)


def test_a_stranger_who_guesses_keeps_no_user_out(guarded: GuardedBroker) -> None:
    guarded.allow("Topic:orders", "Pub")
    assert guarded.send_code() == definition.OK
    wrong = guarded.headers(secret="guessed")
    for number in range(3_000):
        guarded.call("SendMessage", send_request(message()), wrong, peer=f"ipv4:10.0.0.{number % 9}:1")
    assert guarded.send_code(peer="ipv4:10.1.1.1:9") == definition.OK, "from an address of its own"
    for _ in range(1_000):
        guarded.call("SendMessage", send_request(message()), wrong)
    guarded.access.changed()  # What is remembered of good signatures does not help.
    assert guarded.send_code() == definition.OK, "from the guesser's own address, as it signed in from there before"


def test_guesses_are_answered_ever_later(guarded: GuardedBroker) -> None:
    wrong = guarded.headers(secret="another one")
    for _ in range(30):
        fake = guarded.call("SendMessage", send_request(message()), wrong)
    assert fake.code is None, "held back"
    guarded.time.advance(2_000)
    assert fake.only(pb.SendMessageResponse).status.code == UNAUTHORIZED
    guarded.allow("Topic:orders", "Pub")
    assert guarded.send_code() == definition.OK, "who knows the key is not held back"


def guesses(guarded: GuardedBroker, method: str, request: Any) -> tuple[list[FakeCall], list[int]]:
    """Twenty calls with a wrong key, the last ones held back, and how often the request is kept meanwhile."""
    headers = guarded.headers(secret="another secret")
    before, kept, fakes = sys.getrefcount(request), [], []
    for _ in range(20):
        fake = FakeCall(metadata=headers)
        fake.response_type = getattr(pb, f"{method}Response")
        handler: Any = guarded.methods[method].handler
        handler(request, fake)
        fakes.append(fake)
        kept.append(sys.getrefcount(request) - before)
    return fakes, kept


@pytest.mark.parametrize("method", sorted(_METHODS))
def test_an_answer_that_is_held_back_keeps_nothing_of_its_request(guarded: GuardedBroker, method: str) -> None:
    """Ten thousand may wait for two seconds, and a stranger's request has as many megabytes as it likes."""
    entry: Any = guarded.methods[method]
    request = entry.request_type.FromString(request_of(method, "orders", "group").SerializeToString())
    fakes, kept = guesses(guarded, method, request)
    assert {len(fake.sent) for fake in fakes} == {0, 1}, "some were answered, and some wait"
    assert kept == [0] * 20
    guarded.time.advance(2_000)
    for fake in fakes:
        assert (len(fake.sent), fake.code) == (1, StatusCode.OK)
        answer: Any = fake.sent[0]
        assert answer.status.code == UNAUTHORIZED


def test_long_answers_wait_within_a_bound_and_others_go_out_at_once(guarded: GuardedBroker) -> None:
    """They repeat handles, which may be as long as a request."""
    long = pb.ChangeInvisibleDurationRequest(receipt_handle="x" * (6 << 20))
    fakes, _ = guesses(guarded, "ChangeInvisibleDuration", long)
    assert sum(not fake.sent for fake in fakes) == 2
    guarded.time.advance(2_000)
    assert all(fake.sent for fake in fakes)
    fakes, _ = guesses(guarded, "ChangeInvisibleDuration", long)
    assert sum(not fake.sent for fake in fakes) == 2, "those that waited are not counted any more"


def test_a_send_over_its_quota_keeps_nothing_of_its_messages_while_it_waits(guarded: GuardedBroker) -> None:
    guarded.allow("*", "All")
    guarded.api.change_quotas(parse_quotas("user:* sentMessages=1"))
    entry: Any = guarded.methods["SendMessage"]
    one = message()
    one.system_properties.message_id = "x" * 100_000
    fakes, kept = [], []
    for _ in range(5):
        request = entry.request_type.FromString(send_request(one).SerializeToString())
        before = sys.getrefcount(request[0])
        fake = FakeCall(metadata=guarded.headers())
        fake.response_type = pb.SendMessageResponse
        entry.handler(request, fake)
        kept.append(sys.getrefcount(request[0]) - before)
        fakes.append(fake)
    waits = [place for place, fake in enumerate(fakes) if not fake.sent]
    assert waits
    assert not any(kept[place] for place in waits)
    guarded.time.advance(1_000)
    for place in waits:
        answer = fakes[place].only(pb.SendMessageResponse)
        assert (answer.status.code, answer.entries[0].message_id) == (definition.TOO_MANY_REQUESTS, "x" * 1_024)


def test_a_refusal_leaves_a_line_and_a_thousand_leave_one(guarded: GuardedBroker, lines: list[dict[str, Any]]) -> None:
    for _ in range(1_000):
        guarded.send_code()
    [line] = [line for line in lines if line["event"] == "access_refused"]
    assert line["user"] == "ann"
    assert line["source"] == "127.0.0.1"
    assert (line["resource"], line["actions"], line["decision"]) == ("Topic:orders", "Pub", "Deny")
    guarded.time.advance(11_000)
    guarded.send_code()
    assert [line["not_told"] for line in lines if line["event"] == "access_refused"] == [0, 999]


def test_a_flood_of_names_fills_neither_log_nor_memory(guarded: GuardedBroker, lines: list[dict[str, Any]]) -> None:
    for number in range(3_000):
        guarded.send_code(guarded.headers(f"user{number}"), peer=f"ipv4:10.0.{number % 250}.{number // 250}:1")
    assert sum(line["event"] == "access_refused" for line in lines) <= 100


def refusals(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == "access_refused"]


def test_a_flood_of_names_keeps_no_other_refusal_out_of_the_log(
    guarded: GuardedBroker, lines: list[dict[str, Any]]
) -> None:
    """Whoever wants to do something unseen would make a hundred names up first."""
    guarded.changes.put_user("bob", secret="sesame of bob")
    for number in range(1_000):
        guarded.call("SendMessage", send_request(message()), guarded.headers(f"user{number}"), peer="ipv4:10.0.0.9:1")
        guarded.call("SendMessage", send_request(message(f"topic{number}")), bob(guarded))
    assert len(refusals(lines)) <= 100
    assert guarded.send_code() == UNAUTHORIZED
    assert (refusals(lines)[-1]["user"], refusals(lines)[-1]["resource"]) == ("ann", "Topic:orders")
    guarded.send_code(guarded.headers(secret="guessed"), peer="ipv4:10.0.0.7:1")
    assert (refusals(lines)[-1]["source"], refusals(lines)[-1]["reason"]) == ("10.0.0.7", "another secret key")


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9), st.booleans(), st.integers(0, 4_000)), max_size=400))
def test_every_refusal_is_told_or_counted(asked: list[tuple[int, int, bool, int]]) -> None:
    time = ManualTime()
    audit = _AuditLines(time)
    with structlog.testing.capture_logs() as captured:
        for user, address, is_known, later_ms in asked:
            audit.refused("m", "r", user=f"u{user}", source=f"10.0.0.{address}", is_known=is_known)
            time.advance(later_ms)
        # Enough for every kind to be due, and for those that were left out to be told of.
        time.advance(20_000)
        for is_known in (False, True):
            for user, address in {(user, address) for user, address, known, _ in asked if known is is_known}:
                audit.refused("m", "r", user=f"u{user}", source=f"10.0.0.{address}", is_known=is_known)
                time.advance(20_000)
            audit.refused("m", "r", user="last", source="10.0.0.0", is_known=is_known)
    more = len({(user, address, known) for user, address, known, _ in asked}) + 2
    told = sum(1 + line["not_told"] + line.get("others_not_told", 0) for line in captured)
    assert told == len(asked) + more


def test_no_secret_is_in_any_line(guarded: GuardedBroker, lines: list[dict[str, Any]]) -> None:
    guarded.changes.put_user("bob", secret="planted-secret-1")
    guarded.send_code(guarded.headers("bob", "planted-secret-2"))
    guarded.send_code(guarded.headers("bob", "planted-secret-1"))
    assert "planted-secret" not in str(lines) + repr(list(guarded.tables.users)) + guarded.tables.users.to_json()


def test_a_secret_of_another_key_file_is_told_to_the_operator(
    guarded: GuardedBroker, lines: list[dict[str, Any]]
) -> None:
    sealed = SecretKeys([b"z" * 32]).seal("cy", SECRET, nonce=bytes(12))
    guarded.tables.put_user(User("cy", sealed))
    assert guarded.send_code(guarded.headers("cy")) == UNAUTHORIZED
    assert any(line["event"] == "secret_not_opened" and "authKeyPath" in line["remedy"] for line in lines)


def test_a_key_file_s_text_is_base64() -> None:
    text = base64.b64encode(b"k" * 32).decode()
    assert SecretKeys.parse(text).open("ann", KEYS.seal("ann", SECRET, nonce=bytes(12))) == SECRET.encode()


# Every method, whoever calls it, whatever it is about, and whatever became of the caller's permissions meanwhile


def request_of(method: str, topic: str, group: str) -> Message:
    """As a client makes it."""
    named, of = definition.Resource(name=topic), definition.Resource(name=group)
    queue = definition.MessageQueue(topic=named)
    requests: dict[str, Message] = {
        "SendMessage": send_request(message(topic)),
        "QueryRoute": pb.QueryRouteRequest(topic=named),
        "QueryAssignment": pb.QueryAssignmentRequest(topic=named, group=of),
        "ReceiveMessage": receive_request(topic, group=group),
        "AckMessage": ack_request("handle", topic=topic, group=group),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(topic=named, group=of),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(topic=named, group=of),
        "EndTransaction": pb.EndTransactionRequest(topic=named),
        "RecallMessage": pb.RecallMessageRequest(topic=named),
        "PullMessage": pb.PullMessageRequest(message_queue=queue, group=of),
        "GetOffset": pb.GetOffsetRequest(message_queue=queue, group=of),
        "UpdateOffset": pb.UpdateOffsetRequest(message_queue=queue, group=of),
        "QueryOffset": pb.QueryOffsetRequest(message_queue=queue),
        "SyncLiteSubscription": pb.SyncLiteSubscriptionRequest(topic=named, group=of),
        "Heartbeat": pb.HeartbeatRequest(client_type=definition.PUSH_CONSUMER, group=of),
        "NotifyClientTermination": pb.NotifyClientTerminationRequest(group=of),
    }
    return requests[method]


WANTED: dict[str, tuple[set[str], set[str]]] = {
    # One of these on the topic, and one of these on the group; as docs/operations/users-and-policies.md has it.
    "SendMessage": ({"Pub"}, set()),
    "QueryRoute": ({"Pub", "Sub", "Get"}, set()),
    "QueryAssignment": ({"Sub"}, {"Sub"}),
    "ReceiveMessage": ({"Sub"}, {"Sub"}),
    "AckMessage": ({"Sub"}, {"Sub"}),
    "ChangeInvisibleDuration": ({"Sub"}, {"Sub"}),
    "ForwardMessageToDeadLetterQueue": ({"Sub"}, {"Sub"}),
    "EndTransaction": ({"Pub"}, set()),
    "RecallMessage": ({"Pub"}, set()),
    "PullMessage": ({"Sub"}, {"Sub"}),
    "GetOffset": ({"Sub", "Get"}, {"Sub", "Get"}),
    "UpdateOffset": ({"Sub", "Update"}, {"Sub", "Update"}),
    "QueryOffset": ({"Sub", "Get"}, set()),
    "SyncLiteSubscription": ({"Sub"}, {"Sub"}),
    "Heartbeat": (set(), {"Sub"}),
    "NotifyClientTermination": (set(), {"Sub"}),
}
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

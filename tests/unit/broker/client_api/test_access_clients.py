"""Clients of one user beside another's: ids, and how many there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.api_requests import message, send_request
from support.fake_call import FakeCall
from support.guarded_api import (
    UNAUTHORIZED,
    GuardedBroker,
    bob,
    consumer_settings,
    open_stream,
    request_of,
)
from tandemmq.broker.client_api.sessions import SESSION_EXPIRY_MS, ClientSessions, client_of_user, user_of_client
from tandemmq.core.access.users_and_policies import (
    _USERNAME,
)
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb


def two_users() -> GuardedBroker:
    guarded = GuardedBroker(authorizes=False)
    guarded.changes.put_user("bob", secret="sesame of bob")
    guarded.time.end_turn()
    return guarded


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

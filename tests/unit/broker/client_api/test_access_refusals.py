"""Guesses, refusals, and what of them is counted and in the log."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from support.api_requests import message, send_request
from support.fake_call import FakeCall
from support.guarded_api import (
    KEYS,
    SECRET,
    UNAUTHORIZED,
    GuardedBroker,
    bob,
    request_of,
)
from support.manual_time import ManualTime
from tandemmq.broker.client_api.access import _METHODS, Refused, _AuditLines
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.signature import DATE_WINDOW_MS
from tandemmq.core.access.users_and_policies import (
    User,
    UserStatus,
)
from tandemmq.core.quotas import parse_quotas
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import StatusCode


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
    # The last ones are due together, which is more than are told in a millisecond.
    guarded.time.advance(2_000 + 1)
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

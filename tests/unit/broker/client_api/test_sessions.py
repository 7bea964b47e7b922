"""Who is connected, and who has fallen silent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_call import FakeCall
from tandemmq.broker.client_api.sessions import SESSION_EXPIRY_MS, ClientSessions


def test_those_silent_for_long_enough_are_forgotten_in_their_order() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append)
    for number, client_id in enumerate(("a", "b", "c", "d")):
        sessions.seen(client_id, FakeCall(), now_ms=number)
    sessions.seen("b", FakeCall(), now_ms=10)
    sessions.expire(now_ms=SESSION_EXPIRY_MS + 1)
    assert gone == ["a"]
    sessions.expire(now_ms=SESSION_EXPIRY_MS + 9)
    assert gone == ["a", "c", "d"]
    assert [session.client_id for session in sessions.all()] == ["b"]


def test_a_goodbye_comes_once_however_often_it_is_said() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append)
    sessions.seen("a", FakeCall(), now_ms=0)
    sessions.terminate("a")
    sessions.terminate("a")
    sessions.expire(now_ms=10 * SESSION_EXPIRY_MS)
    assert gone == ["a"]


def test_a_full_table_forgets_the_one_heard_of_longest_ago() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append, max_sessions=2)
    for client_id in ("a", "b", "a", "c"):
        sessions.seen(client_id, FakeCall(), now_ms=0)
    assert gone == ["b"]
    assert len(sessions) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["describe", "goodbye", "clear"]),
            st.integers(0, 200),
            st.integers(0, 12_000),
            st.integers(0, 1_000),
        ),
        max_size=150,
    )
)
@settings(max_examples=30, deadline=None)
def test_what_clients_say_of_themselves_is_bounded_and_counted(steps: list[tuple[str, int, int, int]]) -> None:
    sessions = ClientSessions(lambda _: None)
    for step, client, topics, length in steps:
        if step == "describe":
            said = ((f"topic-{number}", "x" * length) for number in range(topics))
            sessions.describe(sessions.seen(f"client@{client}", FakeCall(), now_ms=0), said)
        elif step == "goodbye":
            sessions.terminate(f"client@{client}")
        else:
            sessions.clear()
        held = sessions.all()
        assert sessions._shown_bytes == sum(session.shown_bytes for session in held) <= 64 << 20
        assert all(session.shown_bytes <= 1 << 20 for session in held)
        for session in held:
            assert (session.shown_bytes > 0) == bool(session.subscriptions)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 15), st.booleans()), max_size=200))
@settings(deadline=None)
def test_who_has_less_than_an_equal_share_loses_no_client(steps: list[tuple[int, int, bool]]) -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append, whose=lambda call: call.peer, max_sessions=12)
    for user, number, leaves in steps:
        gone.clear()
        client = f"{user}-{number}"
        if leaves:
            sessions.terminate(client)
            continue
        session = sessions.seen(client, FakeCall(peer=str(user)), now_ms=0)
        assert sessions.get(client) is session
        assert len(sessions) <= 12
        held = [one.whose for one in sessions.all()]
        for lost in gone:
            whose = lost.partition("-")[0]
            assert held.count(whose) + 1 > 12 // len({*held, whose})
        assert {whose: set(ids) for whose, ids in sessions._ids_of.items()} == {
            whose: {one.client_id for one in sessions.all() if one.whose == whose} for whose in held
        }


@pytest.mark.parametrize("users", [1, 2, 40, 5_000])
def test_users_who_fill_the_table_leave_others_theirs(users: int) -> None:
    """They are heard of all the time, and the others' client every ten seconds."""
    sessions = ClientSessions(lambda _: None, whose=lambda call: call.peer, max_sessions=2_000)
    sessions.seen("mine", FakeCall(peer="ann"), now_ms=0)
    for number in range(4_000):
        sessions.seen(f"c{number}", FakeCall(peer=f"user-{number % users}"), now_ms=number)
    # Of so many that each has a client or none there is nothing to share.
    assert (sessions.get("mine") is not None) == (users < 5_000)
    assert len(sessions) == 2_000

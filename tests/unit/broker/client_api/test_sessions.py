"""Who is connected, and who has fallen silent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.client_api.sessions import SESSION_EXPIRY_MS, ClientSessions


def test_those_silent_for_long_enough_are_forgotten_in_their_order() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append)
    for number, client_id in enumerate(("a", "b", "c", "d")):
        sessions.seen(client_id, now_ms=number)
    sessions.seen("b", now_ms=10)
    sessions.expire(now_ms=SESSION_EXPIRY_MS + 1)
    assert gone == ["a"]
    sessions.expire(now_ms=SESSION_EXPIRY_MS + 9)
    assert gone == ["a", "c", "d"]
    assert [session.client_id for session in sessions.all()] == ["b"]


def test_a_goodbye_comes_once_however_often_it_is_said() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append)
    sessions.seen("a", now_ms=0)
    sessions.terminate("a")
    sessions.terminate("a")
    sessions.expire(now_ms=10 * SESSION_EXPIRY_MS)
    assert gone == ["a"]


def test_a_full_table_forgets_the_one_heard_of_longest_ago() -> None:
    gone: list[str] = []
    sessions = ClientSessions(gone.append, max_sessions=2)
    for client_id in ("a", "b", "a", "c"):
        sessions.seen(client_id, now_ms=0)
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
            sessions.describe(sessions.seen(f"client@{client}", now_ms=0), said)
        elif step == "goodbye":
            sessions.terminate(f"client@{client}")
        else:
            sessions.clear()
        held = sessions.all()
        assert sessions._shown_bytes == sum(session.shown_bytes for session in held) <= 64 << 20
        assert all(session.shown_bytes <= 1 << 20 for session in held)
        for session in held:
            assert (session.shown_bytes > 0) == bool(session.subscriptions)

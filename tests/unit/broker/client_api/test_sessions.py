"""Who is connected, and who has fallen silent."""

from __future__ import annotations

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

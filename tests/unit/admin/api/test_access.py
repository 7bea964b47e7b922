"""Who asks, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from support.manual_time import ManualTime
from tandemmq.admin.api.access import SESSION_LIFE_S, Access, AccessRules, Refusal, Request, SessionTable
from tandemmq.admin.audit_log import Actor, Role
from tandemmq.admin.settings import AdminSettings
from tandemmq.service.settings import load_settings

_TOKEN = "correct-horse-battery"
_VIEWER_TOKEN = "another-horse-battery"
_WITH_TOKEN = Access(SecretStr(_TOKEN))
_OPEN = Access(SecretStr(""))


def _asked(access: Access, peer_host: str, *, headers: dict[str, str] | None = None, **facts: Any) -> Actor | Refusal:
    found = headers or {}
    return access.actor_of(Request(peer_host, lambda name: found.get(name, ""), **facts))


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _access(*overrides: str, sessions: SessionTable | None = None) -> Access:
    settings = load_settings(AdminSettings, environ={}, overrides=overrides)
    return Access(settings.admin_token, AccessRules.of(settings), sessions)


def test_other_hosts_need_the_token() -> None:
    assert _asked(_WITH_TOKEN, "10.0.0.7") is Refusal.TOKEN_MISSING
    assert _asked(_WITH_TOKEN, "10.0.0.7", headers=_bearer("guess")) is Refusal.TOKEN_WRONG
    assert _asked(_WITH_TOKEN, "10.0.0.7", headers={"authorization": _TOKEN}) is Refusal.TOKEN_WRONG
    operator = Actor("adminToken", Role.OPERATOR, "10.0.0.7")
    assert _asked(_WITH_TOKEN, "10.0.0.7", headers=_bearer(_TOKEN)) == operator
    assert _asked(_WITH_TOKEN, "10.0.0.7", headers={"authorization": f"bearer {_TOKEN}"}) == operator


def test_a_token_for_looking_does_not_change() -> None:
    access = _access(f"adminToken={_TOKEN}", f"viewerToken={_VIEWER_TOKEN}")
    actor = _asked(access, "10.0.0.7", headers=_bearer(_VIEWER_TOKEN))
    assert actor == Actor("viewerToken", Role.VIEWER, "10.0.0.7")
    assert not actor.may_change


def test_monitoring_is_open_while_no_token_is_set() -> None:
    assert _asked(_OPEN, "10.0.0.7", monitoring=True) == Actor("anonymous", Role.VIEWER, "10.0.0.7")
    assert isinstance(_asked(_OPEN, "10.0.0.7", headers=_bearer(""), monitoring=True), Actor)
    assert _asked(_OPEN, "10.0.0.7") is Refusal.NO_TOKEN_SET
    assert _asked(_WITH_TOKEN, "10.0.0.7", monitoring=True) is Refusal.TOKEN_MISSING
    only_viewers = _access(f"viewerToken={_VIEWER_TOKEN}")
    assert _asked(only_viewers, "10.0.0.7", monitoring=True) is Refusal.TOKEN_MISSING


def test_who_proves_nothing_looks_if_that_is_set_and_never_changes() -> None:
    access = _access("anonymousRole=viewer", f"adminToken={_TOKEN}")
    assert _asked(access, "10.0.0.7") == Actor("anonymous", Role.VIEWER, "10.0.0.7")


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_port_forward_needs_no_token(peer: str) -> None:
    assert _asked(_WITH_TOKEN, peer, requested_host="localhost:8080") == Actor("local", Role.OPERATOR, peer)


def test_port_forward_may_be_for_looking_only_and_a_token_is_more() -> None:
    access = _access("localRole=viewer", f"adminToken={_TOKEN}")
    local = _asked(access, "127.0.0.1", requested_host="localhost")
    assert local == Actor("local", Role.VIEWER, "127.0.0.1")
    proven = _asked(access, "127.0.0.1", requested_host="localhost", headers=_bearer(_TOKEN))
    assert proven == Actor("adminToken", Role.OPERATOR, "127.0.0.1")


def test_sidecar_of_a_mesh_is_no_local_caller() -> None:
    assert _asked(_WITH_TOKEN, "127.0.0.6") is Refusal.TOKEN_MISSING


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "mq.localhost"])
def test_local_names_are_asked_for_by_people_at_this_machine(host: str) -> None:
    assert isinstance(_asked(_OPEN, "127.0.0.1", requested_host=host), Actor)


@pytest.mark.parametrize("host", ["attacker.example", "localhost.attacker.example:8080", "", "127.0.0.1.example"])
def test_page_that_had_its_name_resolved_to_loopback_reads_nothing(host: str) -> None:
    for monitoring in (False, True):
        refused = _asked(_WITH_TOKEN, "127.0.0.1", requested_host=host, monitoring=monitoring)
        assert refused is Refusal.HOST_NOT_LOCAL
    assert isinstance(_asked(_WITH_TOKEN, "127.0.0.1", requested_host=host, headers=_bearer(_TOKEN)), Actor)


_PROXIED = ("trustedProxies=10.1.0.0/16;fd00::/8", "operatorGroups=messaging;on-call")


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        ("on-call, staff", Role.OPERATOR),
        ("staff", Role.VIEWER),
        ("", Role.VIEWER),
        ("messaging-interns", Role.VIEWER),
    ],
)
def test_a_trusted_proxy_says_who_its_users_are(groups: str, role: Role) -> None:
    headers = {"x-forwarded-user": "ada@example.org", "x-forwarded-groups": groups}
    assert _asked(_access(*_PROXIED), "10.1.2.3", headers=headers) == Actor("ada@example.org", role, "10.1.2.3")


@pytest.mark.parametrize("name", ["local", "anonymous", "adminToken", "viewerToken"])
def test_a_user_of_a_proxy_cannot_be_called_like_one_of_ours(name: str) -> None:
    actor = _asked(_access(*_PROXIED), "10.1.2.3", headers={"x-forwarded-user": name})
    assert actor == Actor(f"proxy:{name}", Role.VIEWER, "10.1.2.3")


@pytest.mark.parametrize("peer", ["10.2.0.1", "192.168.0.1", "127.0.0.1"])
def test_nobody_else_is_believed_about_users(peer: str) -> None:
    headers = {"x-forwarded-user": "ada", "x-forwarded-groups": "messaging"}
    actor = _asked(_access(*_PROXIED), peer, headers=headers, requested_host="localhost")
    assert not isinstance(actor, Actor) or actor.name == "local"


def test_networks_hold_addresses_of_both_kinds() -> None:
    headers = {"x-forwarded-user": "ada"}
    for peer in ("::ffff:10.1.2.3", "fd00::1"):
        assert isinstance(_asked(_access(*_PROXIED), peer, headers=headers), Actor)


def test_a_proxy_that_names_nobody_gets_nothing() -> None:
    access = _access(*_PROXIED)
    assert _asked(access, "10.1.2.3") is Refusal.PROXY_NAMES_NOBODY
    assert _asked(access, "10.1.2.3", headers={"x-forwarded-user": "a\tb\x00"}) is Refusal.PROXY_NAMES_NOBODY
    assert isinstance(_asked(access, "10.1.2.3", monitoring=True), Actor)


def test_beside_a_proxy_in_the_same_pod_nobody_is_trusted_for_being_there() -> None:
    access = _access("trustedProxies=127.0.0.1/32")
    assert _asked(access, "127.0.0.1", requested_host="localhost") is Refusal.PROXY_NAMES_NOBODY
    assert _asked(access, "::1", requested_host="localhost") is Refusal.NO_TOKEN_SET
    named = _asked(access, "127.0.0.1", requested_host="mq.example", headers={"x-forwarded-user": "ada"})
    assert named == Actor("ada", Role.VIEWER, "127.0.0.1")


def test_a_session_stands_for_its_token_for_half_a_day() -> None:
    time = ManualTime()
    sessions = SessionTable(clock=time)
    access = _access(f"adminToken={_TOKEN}", sessions=sessions)
    actor = Actor("adminToken", Role.OPERATOR, "10.0.0.7")
    session_id = sessions.open(actor)
    assert _asked(access, "10.0.0.8", session_id=session_id) == actor
    assert _asked(access, "10.0.0.8", session_id=session_id + "x") is Refusal.TOKEN_MISSING
    time.advance(SESSION_LIFE_S * 1_000)
    assert _asked(access, "10.0.0.8", session_id=session_id) is Refusal.TOKEN_MISSING


def test_sessions_end_when_they_are_closed_or_too_many() -> None:
    sessions = SessionTable(clock=ManualTime())
    actor = Actor("adminToken", Role.OPERATOR)
    first, second = sessions.open(actor), sessions.open(actor)
    sessions.close(second)
    assert (sessions.actor_of(first), sessions.actor_of(second)) == (actor, None)
    for _ in range(1_000):
        sessions.open(actor)
    assert sessions.actor_of(first) is None


def test_whoever_logs_in_without_end_logs_out_nobody_but_himself() -> None:
    sessions = SessionTable(clock=ManualTime())
    others = [
        Actor("adminToken", Role.OPERATOR, "10.0.0.7"),
        Actor("viewerToken", Role.VIEWER, "10.0.0.8"),
        Actor("viewerToken", Role.VIEWER, "2001:db8:1::8"),
    ]
    opened = {sessions.open(actor): actor for actor in others}
    for number in range(1_200):
        sessions.open(Actor("viewerToken", Role.VIEWER, f"2001:db8::{number:x}"))
    assert {found: sessions.actor_of(found) for found in opened} == opened
    assert len(sessions._sessions) == 1_000

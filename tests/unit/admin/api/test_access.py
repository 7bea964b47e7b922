"""Who may read the cluster's state."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from admin.api.access import Access, Refusal, Request, peer_host_of

_TOKEN = "correct-horse-battery"
_WITH_TOKEN = Access(SecretStr(_TOKEN))
_OPEN = Access(SecretStr(""))


def _refusal(
    access: Access,
    peer_host: str,
    *,
    authorization: str = "",
    requested_host: str | None = None,
    monitoring: bool = False,
) -> Refusal | None:
    headers = {"authorization": authorization}
    request = Request(
        peer_host, lambda name: headers.get(name, ""), requested_host=requested_host, monitoring=monitoring
    )
    actor = access.actor_of(request)
    return actor if isinstance(actor, Refusal) else None


def test_other_hosts_need_the_token() -> None:
    assert _refusal(_WITH_TOKEN, "10.0.0.7") is Refusal.TOKEN_MISSING
    assert _refusal(_WITH_TOKEN, "10.0.0.7", authorization="Bearer guess") is Refusal.TOKEN_WRONG
    assert _refusal(_WITH_TOKEN, "10.0.0.7", authorization=_TOKEN) is Refusal.TOKEN_WRONG
    assert _refusal(_WITH_TOKEN, "10.0.0.7", authorization=f"Bearer {_TOKEN}") is None
    assert _refusal(_WITH_TOKEN, "10.0.0.7", authorization=f"bearer {_TOKEN}") is None


def test_monitoring_is_open_while_no_token_is_set() -> None:
    assert _refusal(_OPEN, "10.0.0.7", monitoring=True) is None
    assert _refusal(_OPEN, "10.0.0.7", authorization="Bearer ", monitoring=True) is None
    assert _refusal(_OPEN, "10.0.0.7") is Refusal.NO_TOKEN_SET
    assert _refusal(_WITH_TOKEN, "10.0.0.7", monitoring=True) is Refusal.TOKEN_MISSING


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_port_forward_needs_no_token(peer: str) -> None:
    assert _refusal(_WITH_TOKEN, peer, requested_host="localhost:8080") is None


def test_sidecar_of_a_mesh_is_no_local_caller() -> None:
    assert _refusal(_WITH_TOKEN, "127.0.0.6") is Refusal.TOKEN_MISSING


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "mq.localhost"])
def test_local_names_are_asked_for_by_people_at_this_machine(host: str) -> None:
    assert _refusal(_OPEN, "127.0.0.1", requested_host=host) is None


@pytest.mark.parametrize("host", ["attacker.example", "localhost.attacker.example:8080", "", "127.0.0.1.example"])
def test_page_that_had_its_name_resolved_to_loopback_reads_nothing(host: str) -> None:
    assert _refusal(_WITH_TOKEN, "127.0.0.1", requested_host=host) is Refusal.HOST_NOT_LOCAL
    assert _refusal(_WITH_TOKEN, "127.0.0.1", requested_host=host, authorization=f"Bearer {_TOKEN}") is None


def test_address_is_found_in_a_grpc_peer() -> None:
    assert peer_host_of("ipv4:10.0.0.7:51234") == "10.0.0.7"
    assert peer_host_of("ipv6:[::1]:51234") == "::1"
    assert peer_host_of("unix:") == ""

"""How callers are told."""

from __future__ import annotations

import pytest

from tandemmq.core.tracing.span_data import peer_attributes


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:51234", "10.0.0.7"), ("ipv6:[::1]:51234", "::1"), ("ipv6:%5B::1%5D:51234", "::1")],
)
def test_address_is_told_without_brackets(peer: str, address: str) -> None:
    assert peer_attributes(peer) == {"network.peer.address": address, "network.peer.port": 51_234}


@pytest.mark.parametrize("peer", ["", "unix:/run/socket", "ipv4:10.0.0.7:port"])
def test_what_is_no_address_is_not_told(peer: str) -> None:
    assert peer_attributes(peer) == {}

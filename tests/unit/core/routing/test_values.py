"""Addresses as text."""

from __future__ import annotations

import pytest

from tandemmq.core.routing.values import connection_end


@pytest.mark.parametrize(
    ("host", "end"),
    [
        ("10.0.0.7", "10.0.0.7:4000"),
        ("::ffff:10.0.0.7", "10.0.0.7:4000"),
        ("fd00::7", "[fd00::7]:4000"),
        ("fe80::7%eth0", "[fe80::7]:4000"),
        ("slave-1", "slave-1:4000"),
    ],
)
def test_both_ends_of_a_connection_name_an_end_alike(host: str, end: str) -> None:
    assert connection_end(host, 4000) == end

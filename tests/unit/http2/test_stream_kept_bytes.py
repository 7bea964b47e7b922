"""Memory for one peer, beside that for all."""

from __future__ import annotations

from tandemmq.http2.errors import Limits, Usage
from tandemmq.http2.stream import KeptBytes

LIMITS = Limits(connection_buffer_bytes=100, server_buffer_bytes=150)


def test_a_connection_has_a_bound_of_its_own() -> None:
    kept = KeptBytes(LIMITS, Usage())
    kept.add(100)
    assert not kept.is_over
    kept.add(1)
    assert kept.is_over
    kept.add(-1)
    assert (kept.count, kept.is_over) == (100, False)


def test_all_connections_together_have_one() -> None:
    usage = Usage()
    one, other = KeptBytes(LIMITS, usage), KeptBytes(LIMITS, usage)
    one.add(80)
    other.add(71)
    assert usage.buffered_bytes == 151
    assert one.is_over
    assert other.is_over
    one.add(-80)
    assert not other.is_over

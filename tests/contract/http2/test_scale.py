"""The small form of `make http2-scale`."""

from __future__ import annotations

from tools.http2_scale import Sizes, run


def test_many_streams_connections_and_large_bodies() -> None:
    rows = run(Sizes(streams=600, connections=10, idle_connections=50, bodies=4))
    assert [row["name"] for row in rows if not row["holds"]] == []

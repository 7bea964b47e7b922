"""A record of a broker group, as tests begin with."""

from __future__ import annotations

from typing import Final

from tandemmq.core.replication.mastership import GroupRecord, Replica

MASTER: Final = Replica(0, "disk-of-0")
RECORD: Final = GroupRecord(
    epoch=1,
    master=MASTER,
    nonce="nonce",
    in_sync=frozenset({MASTER, Replica(1, "disk-of-1")}),
    lease_ms=6_000,
    reason="the first",
    changed_wall_ms=1_700_000_000_123,
    past=((1, 0),),
)

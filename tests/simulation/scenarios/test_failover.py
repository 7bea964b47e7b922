"""What fails, and what that costs a group that fails over: a row each, driven on whole simulated brokers.

No row loses what was acknowledged: the checkers of the seeds are at the end of each. `gap_ms` is the longest time
without an acknowledgement that a row allows, as producers see it: 1.5 s of it are theirs, who have to hear of another
master from a NameServer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import pytest

from simulation.cluster import Cluster
from simulation.run_settings import RunSettings
from simulation.sim_authority import AUTHORITY
from simulation.sim_broker import SimBroker
from simulation.virtual_time import US_PER_MS
from tandemmq.core.storage.options import FlushDiskType

LEASE_MS: Final = 6_000
CLIENT_MS: Final = 1_500
WATCHED_MS: Final = 40_000
ALWAYS: Final = 10 * WATCHED_MS


@dataclass(frozen=True)
class Row:
    name: str
    fails: Callable[[Cluster], None]
    gap_ms: int
    """`ALWAYS`: until somebody repairs it."""
    master: int = 0
    """Who is master at the end."""
    settings: dict[str, Any] = field(default_factory=dict)


def _link(cluster: Cluster, first: str, second: str) -> None:
    cluster.network.cut(first, second)
    cluster.network.cut(second, first)


def _isolate(cluster: Cluster, *, from_authority: bool = True) -> None:
    for slave in cluster.slaves:
        _link(cluster, cluster.master.name, slave.name)
    if from_authority:
        _link(cluster, cluster.master.name, AUTHORITY)


def _lonely_master_goes(cluster: Cluster) -> None:
    _isolate(cluster, from_authority=False)
    cluster.run_for(6_000)
    cluster.master.kill(restart_after_ms=None)


def _authority_then_slave(cluster: Cluster) -> None:
    cluster.stop_authority(for_ms=ALWAYS)
    cluster.run_for(10_000)
    cluster.slaves[0].kill(restart_after_ms=None)


def _put_back(cluster: Cluster) -> None:
    assert cluster.authority.put_back(4)
    cluster.timeline.after(15_000 * US_PER_MS, cluster.seed_authority)


def _both_lose_power(cluster: Cluster) -> None:
    for member in cluster.members:
        member.lose_power(restart_after_ms=2_000)


def _forgetful_slave_stops_in_order(cluster: Cluster) -> None:
    """It is no whole disk for having been stopped well."""
    cluster.slaves[0].lose_power(restart_after_ms=50)
    cluster.master.kill(restart_after_ms=None)
    cluster.run_for(1_000)
    cluster.slaves[0].stop_in_order(limit_ms=5_000, restart_after_ms=100)


def _cut_off_and_stopped(cluster: Cluster) -> None:
    """The hand-over of its last moments fails: nobody hears it."""
    _isolate(cluster)
    cluster.run_for(200)
    cluster.master.stop_in_order(limit_ms=20_000, restart_after_ms=None)


def _clocks_jump(cluster: Cluster) -> None:
    for number, member in enumerate(cluster.members):
        member.machine.wall_skew_ms = (-1) ** number * 3_600_000


def _hand_over(cluster: Cluster) -> None:
    node, process = cluster.master.node, cluster.master.process
    assert isinstance(node, SimBroker)
    assert process is not None
    process.loop.spawn(node.hand_over(1), name="hand over")


def _late_swaps(cluster: Cluster) -> None:
    cluster.authority.late_share = 0.5


ROWS: Final = (
    Row("process killed", lambda c: c.master.kill(restart_after_ms=300), 3_000),
    Row("node gone", lambda c: c.master.lose_power(restart_after_ms=None), LEASE_MS + 1_500, master=1),
    Row(
        "node back before its lease is over, power was cut",
        lambda c: c.master.lose_power(restart_after_ms=2_000),
        LEASE_MS + 1_500,
        master=-1,
    ),
    Row("slave gone", lambda c: c.slaves[0].kill(restart_after_ms=None), 3_000),
    Row("slave gone, two copies asked for", lambda c: c.slaves[0].kill(restart_after_ms=None), ALWAYS,
        settings={"in_sync_replicas": 2}),
    Row("master gone while alone in the set", _lonely_master_goes, ALWAYS),
    Row("link between them cut", lambda c: _isolate(c, from_authority=False), 3_000),
    Row("master cut off from slave and authority", _isolate, LEASE_MS + 1_500, master=1),
    Row("master cut off, and stopped in order", _cut_off_and_stopped, LEASE_MS + 1_500, master=1),
    Row("master cut off from the authority", lambda c: _link(c, c.master.name, AUTHORITY), 0),
    Row("authority away", lambda c: c.stop_authority(for_ms=ALWAYS), 0),
    Row("authority away, and then the slave", _authority_then_slave, ALWAYS),
    Row("authority restored from an old backup", _put_back, ALWAYS, master=-1),
    Row("master paused longer than its lease", lambda c: c.master.pause(12_000), LEASE_MS + 1_500, master=1),
    Row("clocks stepped", _clocks_jump, 0),
    Row("clocks run fast and slow", lambda c: None, 0, settings={"clock_rate_spread": 0.1}),
    Row("swaps that are late", _late_swaps, ALWAYS, master=-1),
    Row("both lose power", _both_lose_power, 2_000 + LEASE_MS + 1_500, master=-1,
        settings={"flush_disk_type": FlushDiskType.SYNC_FLUSH}),
    Row("slave lost power and was stopped in order, master gone", _forgetful_slave_stops_in_order, ALWAYS),
    Row("disk of the master broken", lambda c: setattr(c.master.disk, "failing_syncs", "commitlog"),
        LEASE_MS + 1_500, master=-1),
    Row("planned", _hand_over, 1_000, master=1),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_fails_costs_no_more_than_it_has_to(row: Row) -> None:
    cluster = Cluster(
        RunSettings(
            **{
                "seed": 3,
                "failover": True,
                "slave_count": 1,
                "in_sync_replicas": 1,
                "no_wait_share": 0.0,
                "pause_ms_max": 40,
                "body_bytes_max": 60,
                "send_timeout_ms": 500,
                **row.settings,
            }
        )
    )
    cluster.start()
    cluster.run_for(8_000)
    began_us = cluster.timeline.now_us
    row.fails(cluster)
    cluster.run_for(WATCHED_MS)
    ended_us = cluster.timeline.now_us
    if row.master >= 0:
        assert cluster.master.broker_id == row.master
    if row.gap_ms < ALWAYS:
        times = [ack.at_us for ack in cluster.ledger.acknowledgements if ack.at_us >= began_us]
        gaps = [after - before for before, after in pairwise([began_us, *times, ended_us])]
        assert max(gaps) // US_PER_MS <= row.gap_ms + CLIENT_MS
    cluster.settle()
    report = cluster.check()
    assert report.acknowledged > 100
    assert report.lost_as_expected == 0

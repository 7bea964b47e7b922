"""What happens to a slave, step by step. Every scenario ends with the checkers of the seeds."""

from __future__ import annotations

import pytest

from simulation.cluster import Cluster
from simulation.member import Member
from simulation.run_settings import MASTER, RunSettings
from tandemmq.core.storage.options import FlushDiskType


def _cluster(
    *, seed: int = 1, in_sync_replicas: int = 2, flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
) -> Cluster:
    cluster = Cluster(
        RunSettings(
            seed=seed,
            in_sync_replicas=in_sync_replicas,
            flush_disk_type=flush_disk_type,
            commit_log_file_bytes=8 << 10,
            no_wait_share=0.0,
        )
    )
    cluster.start()
    cluster.run_for(3_000)
    return cluster


def _end(member: Member) -> int:
    assert member.node is not None
    return member.node.store.end_offset


def _kept_tails(member: Member) -> list[str]:
    return [entry.name for entry in member.disk.list_folder("kept-tails")]


def test_late_joiner_gets_the_whole_log() -> None:
    cluster = _cluster()
    joiner = cluster.slaves[0]
    joiner.kill(restart_after_ms=None)
    cluster.run_for(20_000)
    joiner.replace_disk(restart_after_ms=10)
    cluster.settle()
    cluster.check()
    assert joiner.node is not None
    assert joiner.node.store.min_offset == 0
    assert _end(joiner) == _end(cluster.master)


def test_slave_cut_off_while_it_gets_a_record_goes_on_behind_its_last_whole_one() -> None:
    cluster = _cluster()
    slave = cluster.slaves[0]
    for _ in range(20):
        cluster.run_for(700)
        slave.kill(restart_after_ms=100)
        cluster.run_for(1_500)
    cluster.settle()
    cluster.check()


def test_async_master_that_lost_its_tail_gets_it_from_a_slave() -> None:
    """It promises nothing, and gives up nothing that a slave has."""
    cluster = _cluster(seed=2, in_sync_replicas=1)  # One with which the disk does not happen to keep it all.
    cluster.run_for(5_000)
    cluster.master.machine.blocking_ms = (60_000, 60_000)
    cluster.run_for(2_000)
    before = max(_end(slave) for slave in cluster.slaves)
    cluster.master.lose_power(restart_after_ms=100)
    cluster.settle()
    cluster.check()
    assert _end(cluster.master) >= before
    assert not any(_kept_tails(slave) for slave in cluster.slaves)


def test_slave_ahead_after_its_masters_power_loss_gives_the_tail_back() -> None:
    cluster = _cluster()
    cluster.run_for(5_000)
    cluster.master.machine.blocking_ms = (60_000, 60_000)
    cluster.run_for(2_000)
    before = max(_end(slave) for slave in cluster.slaves)
    cluster.master.lose_power(restart_after_ms=100)
    cluster.settle()
    report = cluster.check()
    assert _end(cluster.master) >= before
    assert not any(_kept_tails(slave) for slave in cluster.slaves)
    assert report.lost_as_expected == 0


def test_master_killed_while_it_asks_for_its_lost_tail_asks_again() -> None:
    cluster = _cluster()
    cluster.run_for(5_000)
    cluster.master.machine.blocking_ms = (60_000, 60_000)
    cluster.run_for(2_000)
    for slave in cluster.slaves:
        slave.kill(restart_after_ms=5_000)
    cluster.master.lose_power(restart_after_ms=100)
    cluster.run_for(1_000)
    cluster.master.kill(restart_after_ms=100)
    cluster.settle()
    cluster.check()


def test_slave_that_goes_away_while_its_tail_is_fetched_is_waited_for() -> None:
    cluster = _cluster()
    cluster.run_for(5_000)
    for slave in cluster.slaves:
        slave.machine.blocking_ms = (60_000, 60_000)
    cluster.master.replace_disk(restart_after_ms=100)
    cluster.run_until(lambda: cluster.master.node is not None, limit_ms=1_000, what="the master is down")
    cluster.run_until(lambda: _end(cluster.master) > 0, limit_ms=5_000, what="nothing is fetched")
    assert not cluster.master.ready
    for slave in cluster.slaves:
        slave.kill(restart_after_ms=2_000)
    cluster.settle()
    cluster.check()


@pytest.mark.parametrize("restart_after_ms", [10, 3_000])
def test_master_killed_between_append_and_send_keeps_what_it_appended(restart_after_ms: int) -> None:
    cluster = _cluster()
    for slave in cluster.slaves:
        cluster.network.cut(MASTER, slave.name)
    cluster.run_for(1_500)
    appended = _end(cluster.master)
    assert appended > max(_end(slave) for slave in cluster.slaves)
    cluster.master.kill(restart_after_ms=restart_after_ms)
    cluster.settle()
    cluster.check()
    assert _end(cluster.master) >= appended


@pytest.mark.parametrize("from_master", [True, False])
def test_one_way_partition_ends_in_a_new_link(from_master: bool) -> None:
    cluster = _cluster(in_sync_replicas=3)
    slave = cluster.slaves[0].name
    source, target = (MASTER, slave) if from_master else (slave, MASTER)
    cluster.network.cut(source, target)
    cluster.run_for(40_000)
    acknowledged = len(cluster.ledger.acknowledgements)
    cluster.run_for(5_000)
    assert len(cluster.ledger.acknowledgements) == acknowledged, "two slaves are needed and one does not answer"
    cluster.settle()
    cluster.check_still_serves()
    cluster.check()


def test_slave_with_a_full_disk_holds_nobody_up_and_catches_up_later() -> None:
    cluster = _cluster()
    slave = cluster.slaves[0]
    slave.disk.capacity_bytes = slave.disk.usage().used_bytes
    acknowledged = len(cluster.ledger.acknowledgements)
    cluster.run_for(20_000)
    assert len(cluster.ledger.acknowledgements) > acknowledged, "the other slave is enough"
    slave.free_disk()
    cluster.settle()
    cluster.check()


def test_whole_group_without_power_keeps_what_sync_flush_acknowledged() -> None:
    cluster = _cluster(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    cluster.run_for(5_000)
    for member in cluster.members:
        member.lose_power(restart_after_ms=500)
    cluster.settle()
    report = cluster.check()
    assert report.lost_as_expected == 0

"""Disks that come back empty, old or damaged. Every scenario ends with the checkers of the seeds."""

from __future__ import annotations

from simulation.checkers import log_place
from simulation.cluster import Cluster
from simulation.member import Member
from simulation.run_settings import RunSettings
from tandemmq.core.message.record import RecordFound, scan_record

SEGMENT_BYTES = 8 << 10


def _cluster(*, seed: int = 1, in_sync_replicas: int = 2) -> Cluster:
    cluster = Cluster(
        RunSettings(
            seed=seed, in_sync_replicas=in_sync_replicas, commit_log_file_bytes=SEGMENT_BYTES, no_wait_share=0.0
        )
    )
    cluster.start()
    cluster.run_for(10_000)
    return cluster


def _end(member: Member) -> int:
    assert member.node is not None
    return member.node.store.end_offset


def _assert_nothing_is_lost(cluster: Cluster) -> None:
    cluster.settle()
    report = cluster.check()
    assert report.acknowledged > 0
    assert report.lost_as_expected == 0


def test_master_with_an_empty_disk_fetches_log_and_tables_from_slaves_that_come_a_minute_late() -> None:
    cluster = _cluster()
    for slave in cluster.slaves:
        slave.kill(restart_after_ms=60_000)
    cluster.master.replace_disk(restart_after_ms=50)
    cluster.run_for(50_000)
    assert not cluster.master.ready
    _assert_nothing_is_lost(cluster)


def test_master_with_an_old_copy_of_its_disk_fetches_what_came_since() -> None:
    cluster = _cluster()
    image = cluster.master.disk.image()
    cluster.run_for(10_000)
    end_offset = _end(cluster.master)
    cluster.master.put_back_disk(image, reboots=False, restart_after_ms=50)
    _assert_nothing_is_lost(cluster)
    assert _end(cluster.master) >= end_offset


def test_of_two_masters_on_copies_of_one_disk_the_one_of_the_earlier_epoch_stops() -> None:
    """Their disk has one id: the earlier epoch alone tells which of the two has been replaced."""
    cluster = _cluster()
    second = cluster.start_second_master(cluster.master.disk.image())
    cluster.run_for(3_000)
    cluster.master.kill(restart_after_ms=15_000)
    cluster.run_until(lambda: second.ready, limit_ms=30_000, what="the copy does not take over")
    cluster.run_for(40_000)
    assert cluster.master.ready != second.ready
    cluster.end_second_master(second)
    cluster.settle()
    cluster.check()


def test_copy_of_a_live_masters_disk_does_not_serve_beside_it() -> None:
    """Whatever comes first: what NameServers remember, or who is registered with them."""
    cluster = _cluster(in_sync_replicas=1)
    second = cluster.start_second_master(cluster.master.disk.image())
    for _ in range(100):
        cluster.run_for(100)
        assert not second.ready
    cluster.end_second_master(second)
    _assert_nothing_is_lost(cluster)


def test_slave_cuts_a_record_whose_damaged_length_leads_beyond_its_end() -> None:
    """It looks like a record that is still coming, and lies where no start walks over the log."""
    cluster = _cluster()
    slave = cluster.slaves[0]
    assert slave.node is not None
    slave.stop_in_order(limit_ms=10_000, restart_after_ms=None)
    cluster.run_for(10_000)
    path, _ = log_place(0, SEGMENT_BYTES)
    data = slave.disk.read_file(path)
    assert data is not None
    first = scan_record(data, 0, len(data), physical_offset=0)
    assert isinstance(first, RecordFound)
    slave.damage_unseen(first.size, bytes((data[first.size] ^ 0x10,)))
    slave.start()
    cluster.settle()
    cluster.check()

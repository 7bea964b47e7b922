"""Real processes on loopback: what a SYNC_MASTER acknowledges survives kills, and replicas end byte-identical."""

from __future__ import annotations

import asyncio
import random
import shutil
from functools import partial
from pathlib import Path

import grpc
import pytest

from demo.evidence import logged_message_ids
from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import SMALL_STORE, ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from support.stores import new_store, with_options
from support.topic_admin import accept_loss, broker_status, create_topic, loss_to_accept, wait_remembered
from tandemmq.broker.posix_disk import PosixDisk

TOPIC = "integration"


def start_pair(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess]:
    """A NameServer, a SYNC_MASTER and its slave, in sync."""
    cluster.add_name_server()
    master = cluster.add_broker("broker-a")
    slave = cluster.add_broker("broker-a", broker_id=1)
    asyncio.run(create_topic(master, TOPIC))
    wait_until(lambda: in_sync_slaves(master) == 1, limit_s=PATIENCE_S, what="the slave is in sync")
    return master, slave


def in_sync_slaves(master: ServiceProcess) -> int:
    """Slaves the master counts as in sync."""
    return sum(1 for slave in asyncio.run(broker_status(master)).slaves if slave.in_sync)


def slave_ids(master: ServiceProcess) -> list[int]:
    """Broker ids of the slaves the master counts; -1 for one it does not know."""
    return sorted(slave.broker_id for slave in asyncio.run(broker_status(master)).slaves)


def ends_equal(master: ServiceProcess, slave: ServiceProcess) -> bool:
    """True when master and slave hold logs of one length."""
    return bool(asyncio.run(broker_status(master)).end_offset == asyncio.run(broker_status(slave)).end_offset)


def fill_store(folder: Path, *, log_bytes: int) -> None:
    """Makes the store of a broker with the settings of SMALL_STORE and so much log, without a broker."""
    options = with_options(
        commit_log_file_bytes=int(SMALL_STORE["mappedFileSizeCommitLog"]),
        consume_queue_file_bytes=int(SMALL_STORE["mappedFileSizeConsumeQueue"]),
        index_slot_count=int(SMALL_STORE["maxHashSlotNum"]),
        index_entry_count=int(SMALL_STORE["maxIndexNum"]),
    )
    store = new_store(PosixDisk(folder), options=options)
    store.load()
    body, number = random.Random(5).randbytes(16_000), 0
    while store.end_offset < log_bytes:
        keys = (f"key-{number}",)
        store.put_batch([outgoing_message(topic=TOPIC, queue_id=queue, body=body, keys=keys) for queue in range(8)])
        number += 1
    store.close()


def problems(broker: ServiceProcess) -> list[str]:
    """What a broker says of itself; nothing while it does not answer."""
    try:
        return [each.problem for each in asyncio.run(broker_status(broker)).problems]
    except grpc.aio.AioRpcError:
        return []


def away(master: ServiceProcess) -> list[int]:
    """Broker ids of the disks that the master waits for, or, if it serves, of the members that are away."""
    return sorted(replica.broker_id for replica in asyncio.run(loss_to_accept(master)).missing)


def kept_tails(slave: ServiceProcess) -> list[str]:
    """What the slave cut off and kept, as paths below its store."""
    return list(asyncio.run(broker_status(slave)).kept_tails)


def assert_departure_is_told(master: ServiceProcess) -> None:
    """The master says who went, why, and what its sends cost until then."""

    def is_told() -> bool:
        status = asyncio.run(broker_status(master))
        return not status.slaves and len(status.slave_departures) > 0

    wait_until(is_told, limit_s=PATIENCE_S, what="the master says who went")
    status = asyncio.run(broker_status(master))
    departure = status.slave_departures[-1]
    assert departure.reason
    assert departure.lag_bytes >= 0
    assert sum(status.ack_latency.counts) > 200
    assert len(status.ack_latency.counts) == len(status.ack_latency.bounds_s) + 1
    assert status.messages_in_count > 200
    assert 0 < status.disk.used_ratio < 1
    assert status.topic_count > 1


def assert_identical(cluster: ProcessCluster, master: str, slave: str) -> None:
    """Compares every CommitLog file both hold."""
    ours, theirs = commit_log_bytes(cluster.store_folder(master)), commit_log_bytes(cluster.store_folder(slave))
    common = sorted(set(ours) & set(theirs))
    assert common, "no CommitLog file on both sides"
    # A next file prepared ahead by one side only is empty.
    assert all(not any(data) for name, data in (ours | theirs).items() if name not in common)
    for name in common:
        assert ours[name] == theirs[name], f"{name} differs"


def test_slaves_with_equal_logs_are_each_known_by_their_id(tmp_path: Path) -> None:
    """Two come empty at once, and one comes again: each proof is for its own connection."""
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings={"totalReplicas": "3", "inSyncReplicas": "3"})
        slaves = [cluster.add_broker("broker-a", broker_id=broker_id) for broker_id in (1, 2)]
        both = "both slaves are in sync"
        wait_until(lambda: in_sync_slaves(master) == 2, limit_s=PATIENCE_S, what=both)
        asyncio.run(create_topic(master, TOPIC))
        assert slave_ids(master) == [1, 2]
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 100, limit_s=PATIENCE_S, what="100 acknowledged sends")
        slaves[0].kill()
        slaves[0].start()
        wait_until(lambda: in_sync_slaves(master) == 2, limit_s=PATIENCE_S, what=both)
        assert slave_ids(master) == [1, 2]


def test_sync_master_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 300, limit_s=PATIENCE_S, what="300 acknowledged sends")
            master.kill()
        acknowledged = sender.acknowledged
        assert set(acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-1"))
        master.start()
        wait_until(
            lambda: in_sync_slaves(master) == 1 and ends_equal(master, slave), limit_s=PATIENCE_S, what="caught up"
        )
        assert master.stop() == 0
        assert slave.stop() == 0
        assert set(acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-0"))
        assert_identical(cluster, "broker-a-0", "broker-a-1")


def test_slave_killed_under_load_catches_up(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 200, limit_s=PATIENCE_S, what="200 acknowledged sends")
            slave.kill()
            wait_until(lambda: sender.refused > 0, limit_s=PATIENCE_S, what="a send without a slave is no OK")
            assert_departure_is_told(master)
            slave.start()
            before = len(sender.acknowledged)
            wait_until(lambda: len(sender.acknowledged) > before + 200, limit_s=PATIENCE_S, what="acknowledged again")
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="caught up")
        assert master.stop() == 0
        assert slave.stop() == 0
        assert set(sender.acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-1"))
        assert_identical(cluster, "broker-a-0", "broker-a-1")


def test_fresh_slave_gets_the_whole_log_of_several_files(tmp_path: Path) -> None:
    small = {"mappedFileSizeCommitLog": str(1 << 20), "maxMessageSize": "65536"}
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=small | {"brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(master, TOPIC))
        with AcknowledgedSender(master, TOPIC, body_bytes=16_000) as sender:
            wait_until(
                lambda: asyncio.run(broker_status(master)).end_offset > 3 << 20,
                limit_s=PATIENCE_S,
                what="more than 3 files",
            )
        slave = cluster.add_broker("broker-a", broker_id=1, settings=small)
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="the fresh slave caught up")
        assert asyncio.run(broker_status(slave)).min_offset == 0
        assert master.stop() == 0
        assert slave.stop() == 0
        assert len(commit_log_bytes(cluster.store_folder("broker-a-1"))) >= 4
        assert set(sender.acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-1"))
        assert_identical(cluster, "broker-a-0", "broker-a-1")


@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_damaged_log_is_told_until_a_replica_has_given_back_what_was_lost(broker_id: int, tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        members = start_pair(cluster)
        with AcknowledgedSender(members[0], TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 100, limit_s=PATIENCE_S, what="100 acknowledged sends")
        wait_until(lambda: ends_equal(*members), limit_s=PATIENCE_S, what="caught up")
        end_offset = asyncio.run(broker_status(members[0])).end_offset
        spoiled, other = members[broker_id], members[1 - broker_id]
        other.kill()
        spoiled.kill()
        with (cluster.store_folder(spoiled.name) / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(end_offset - 1_000)
            log.write(b"\xff" * 500)
        spoiled.start(wait=False)
        wait_until(lambda: problems(spoiled) != [], limit_s=PATIENCE_S, what="the damage is told")
        assert "found its log damaged" in problems(spoiled)[0]
        other.start(wait=False)
        wait_until(lambda: problems(spoiled) == [], limit_s=PATIENCE_S, what="what was lost is back")
        assert ends_equal(*members)
        assert [event.get("event") for event in spoiled.events()].count("log_made_good") == 1


def test_slave_killed_while_it_catches_up_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        fill_store(cluster.store_folder("broker-a-0"), log_bytes=5 * int(SMALL_STORE["mappedFileSizeCommitLog"]))
        master = cluster.add_broker("broker-a", settings={"brokerRole": "ASYNC_MASTER"})
        slave = cluster.add_broker("broker-a", broker_id=1)
        log_folder = cluster.store_folder("broker-a-1") / "commitlog"

        def has_files(count: int) -> bool:
            return len(list(log_folder.glob("0*"))) >= count

        for count in (2, 4):
            wait_until(partial(has_files, count), limit_s=PATIENCE_S, what="the slave is on its way")
            slave.kill()
            slave.start()
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="caught up")
        assert kept_tails(slave) == [], "a kill alone makes no log differ"
        assert master.stop() == 0
        assert slave.stop() == 0
        assert_identical(cluster, "broker-a-0", "broker-a-1")


def test_sync_master_without_slave_stores_and_says_so(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a")
        asyncio.run(create_topic(master, TOPIC))
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: sender.refused > 5, limit_s=PATIENCE_S, what="sends answered HA_NOT_AVAILABLE")
        assert not sender.acknowledged
        assert asyncio.run(broker_status(master)).put_counts["SLAVE_NOT_AVAILABLE"] >= 5


def test_wrong_settings_are_all_named_before_anything_starts(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster, pytest.raises(AssertionError) as failure:
        cluster.add_broker(
            "broker-a", settings={"brokerRole": "SLAVE", "flushDiskTyp": "SYNC_FLUSH", "slaveTimeout": "soon"}
        )
    text = str(failure.value)
    assert "flushDiskTyp" in text
    assert "flushDiskType" in text
    assert "slaveTimeout" in text
    assert not (tmp_path / "broker-a-0" / "commitlog").exists()


def test_slave_of_an_older_history_resynchronises_and_keeps_its_tail(tmp_path: Path) -> None:
    """Only an operator lets a master serve without a replica that may hold more; nobody is in reach."""
    asynchronous = {"brokerRole": "ASYNC_MASTER"}
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=asynchronous)
        slave = cluster.add_broker("broker-a", broker_id=1)
        asyncio.run(create_topic(master, TOPIC))
        with AcknowledgedSender(master, TOPIC) as common:
            wait_until(lambda: len(common.acknowledged) > 50, limit_s=PATIENCE_S, what="50 acknowledged sends")
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="caught up")
        assert master.stop() == 0
        # What the slave has from now on, its master will not have: a copy of the store goes on in the master's place.
        shutil.copytree(cluster.store_folder("broker-a-0"), tmp_path / "past")
        master.start()
        with AcknowledgedSender(master, TOPIC, first_number=10_000) as lost:
            wait_until(lambda: len(lost.acknowledged) > 50, limit_s=PATIENCE_S, what="50 acknowledged sends")
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="caught up")
        [name_server] = cluster.name_servers
        wait_remembered(name_server, "broker-a", asyncio.run(broker_status(master)).end_offset)
        assert master.stop() == 0
        assert slave.stop() == 0
        shutil.rmtree(cluster.store_folder("broker-a-0"))
        (tmp_path / "past").rename(cluster.store_folder("broker-a-0"))
        master.start(wait=False)
        # For the slave, and the newer copy of the disk.
        wait_until(lambda: away(master) == [0, 1], limit_s=PATIENCE_S, what="the master waits for both")
        assert asyncio.run(accept_loss(master)).lost_bytes > 0
        master.wait_serving()
        slave.start()
        with AcknowledgedSender(master, TOPIC, first_number=20_000) as other:
            wait_until(lambda: len(other.acknowledged) > 50, limit_s=PATIENCE_S, what="50 acknowledged sends")
        # Both histories may happen to be of one length, so an equal end alone says nothing yet.
        wait_until(lambda: kept_tails(slave) != [], limit_s=PATIENCE_S, what="the slave keeps what it cut off")
        wait_until(lambda: ends_equal(master, slave), limit_s=PATIENCE_S, what="the slave follows the other history")
        kept = kept_tails(slave)
        assert len(kept) == 1
        assert master.stop() == 0
        assert slave.stop() == 0
        assert_identical(cluster, "broker-a-0", "broker-a-1")
        tail = (cluster.store_folder("broker-a-1") / kept[0]).read_bytes()
        assert all(message_id.encode() in tail for message_id in lost.acknowledged)


def test_wiped_sync_master_gets_its_log_back_from_its_slave(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 100, limit_s=PATIENCE_S, what="100 acknowledged sends")
        master.kill()
        shutil.rmtree(cluster.store_folder("broker-a-0"))
        master.start()
        wait_until(
            lambda: in_sync_slaves(master) == 1 and ends_equal(master, slave), limit_s=PATIENCE_S, what="in sync"
        )
        assert master.stop() == 0
        assert slave.stop() == 0
        assert set(sender.acknowledged) <= logged_message_ids(cluster.store_folder("broker-a-0"))
        assert_identical(cluster, "broker-a-0", "broker-a-1")


def test_pair_that_waits_for_both_disks_acknowledges(tmp_path: Path) -> None:
    flushed = {"flushDiskType": "SYNC_FLUSH"}
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=flushed)
        slave = cluster.add_broker("broker-a", broker_id=1, settings=flushed)
        asyncio.run(create_topic(master, TOPIC))
        wait_until(lambda: in_sync_slaves(master) == 1, limit_s=PATIENCE_S, what="the slave is in sync")
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 50, limit_s=PATIENCE_S, what="50 acknowledged sends")
        status = asyncio.run(broker_status(master))
        assert status.flushed_offset == status.end_offset
        assert asyncio.run(broker_status(slave)).flushed_offset == status.end_offset


def test_a_slave_that_is_gone_for_good_is_forgotten_by_an_operator_only(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave = start_pair(cluster)
        wait_until(lambda: away(master) == [], limit_s=PATIENCE_S, what="the slave is here")
        assert slave.stop() == 0
        wait_until(lambda: away(master) == [1], limit_s=PATIENCE_S, what="the master notices")
        assert asyncio.run(accept_loss(master)).accepted
        assert away(master) == []
        assert master.stop() == 0
        master.start()
        slave.start()
        wait_until(lambda: in_sync_slaves(master) == 1, limit_s=PATIENCE_S, what="who comes back is a member again")
        assert slave.stop() == 0
        wait_until(lambda: away(master) == [1], limit_s=PATIENCE_S, what="the master notices")

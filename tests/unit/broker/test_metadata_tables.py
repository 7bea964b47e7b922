"""What a broker keeps of its groups' progress."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from broker.master.metadata_recovery import recover_metadata
from broker.metadata_tables import MetadataTables
from broker.slave.metadata_pull import MetadataPull
from mqcore.delivery import DeliveryOptions, LeaseTable, TagFilter
from mqcore.metadata import DataVersion, MetadataFile, SubscriptionGroupConfig, TopicConfig
from support.queue_memory import QueueMemory
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import ManualClock


class Progress:
    """A group that consumes three messages of one queue, and the tables its progress goes into."""

    def __init__(self) -> None:
        queues = QueueMemory()
        for _ in range(3):
            queues.put("T", 0)
        self.leases = LeaseTable(
            queues,
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="broker-a",
            nonce=lambda: 1,
        )
        self.tables = MetadataTables(SimulatedDisk(random.Random(1)), ManualClock(), topics_changed=lambda: None)

    def consume(self, count: int) -> None:
        received = self.leases.receive(
            group="G",
            topic="T",
            queue_ids=[0],
            tag_filter=TagFilter.ALL,
            batch_size=count,
            invisible_ms=10_000,
            now_ms=0,
            max_attempts=17,
            auto_renew=False,
            client_id="c",
        )
        for delivery in received.deliveries:
            assert self.leases.acknowledge(group="G", topic="T", handle=delivery.handle, now_ms=0)

    def collected(self) -> int | None:
        self.tables.collect_progress(self.leases)
        return self.tables.consumer_offsets.offset("G", "T", 0)


def test_progress_is_collected_when_it_moved() -> None:
    progress = Progress()
    assert progress.collected() is None
    progress.consume(2)
    assert progress.collected() == 2
    version = progress.tables.consumer_offsets.version
    assert progress.collected() == 2
    assert progress.tables.consumer_offsets.version == version


def test_an_operators_reset_goes_back_and_reaches_the_file() -> None:
    progress = Progress()
    progress.consume(3)
    assert progress.collected() == 3
    progress.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    assert progress.collected() == 1
    assert not progress.tables.persist(MetadataFile.CONSUMER_OFFSETS), "written already"
    progress.consume(1)
    assert progress.collected() == 2


def test_a_removed_group_takes_its_progress_with_it_in_the_files_too() -> None:
    progress = Progress()
    progress.tables.put_group(SubscriptionGroupConfig("G"))
    progress.consume(2)
    assert progress.collected() == 2
    assert progress.tables.remove_group("G")
    assert progress.tables.groups.get("G") is None
    assert progress.tables.consumer_offsets.offset("G", "T", 0) is None
    for file in (MetadataFile.SUBSCRIPTION_GROUPS, MetadataFile.CONSUMER_OFFSETS):
        assert not progress.tables.persist(file), "written already"
    assert not progress.tables.remove_group("G")


@pytest.mark.parametrize("operation", range(1, 5))
def test_a_crash_while_a_group_is_removed_never_leaves_its_progress_alone(operation: int) -> None:
    disk = SimulatedDisk(random.Random(1))
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    tables.put_group(SubscriptionGroupConfig("G"))
    tables.consumer_offsets.commit("G", "T", 0, 2, now_ms=1)
    tables.persist(MetadataFile.CONSUMER_OFFSETS)
    disk.crash_at_operation(operation)
    with pytest.raises(SimulatedCrash):
        tables.remove_group("G")
    disk.crash(power_loss=False)
    restarted = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    restarted.load(cluster="c", broker_name="b", auto_create_topic=False)
    assert restarted.groups.get("G") is not None, "it can be removed again"
    restarted.remove_group("G")
    assert restarted.groups.get("G") is None
    assert restarted.consumer_offsets.offset("G", "T", 0) is None


def started(disk: SimulatedDisk) -> MetadataTables:
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    tables.load(cluster="c", broker_name="b", auto_create_topic=True)
    return tables


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def full() -> MetadataTables:
    """What a slave holds."""
    tables = started(new_disk())
    tables.put_topic(TopicConfig("T", 8, 8))
    tables.put_group(SubscriptionGroupConfig("G"))
    tables.consumer_offsets.commit("G", "T", 3, 7, now_ms=5)
    tables.delay_offsets.advance(2, 9, now_ms=5)
    tables.persist_all()
    return tables


class Peer:
    """A replica that answers with its tables."""

    endpoint = "replica"

    def __init__(self, tables: MetadataTables) -> None:
        self.tables = tables

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool = False
    ) -> tuple[DataVersion, str | None]:
        table = self.tables.by_file[file]
        is_known = known == table.version or file in self.tables.damaged
        return table.version, None if is_known else table.to_json()


def recover(tables: MetadataTables, replica: MetadataTables) -> list[str]:
    peer: Any = Peer(replica)
    return asyncio.run(recover_metadata(peer, tables))


def texts(tables: MetadataTables) -> list[str]:
    return [table.to_json() for table in tables.by_file.values()]


def test_a_master_with_a_new_disk_takes_everything_from_its_slave_durably(full: MetadataTables) -> None:
    disk = new_disk()
    master = started(disk)
    assert recover(master, full) == ["topic T", "group G", "progress of T@G", "delay level 2"]
    assert recover(master, full) == []
    disk.crash(power_loss=True)
    assert texts(started(disk)) == texts(full)


def test_a_slave_keeps_its_tables_when_its_master_comes_with_none(full: MetadataTables) -> None:
    master = started(new_disk())
    follow(full, master)
    assert full.topics.get("T") is not None
    assert full.groups.get("G") is not None
    assert full.consumer_offsets.offset("G", "T", 3) == 7
    assert full.delay_offsets.offset(2) == 9
    assert [file.value for file, lines in full.kept.items() if lines] == [
        "topics.json",
        "subscriptionGroup.json",
        "delayOffset.json",
    ]
    recover(master, full)
    follow(full, master)
    assert not any(full.kept.values()), "the master has them again"


def follow(slave: MetadataTables, master: MetadataTables, *, accepted: bool = True) -> None:
    """One pull."""
    pull = MetadataPull(
        tables=slave.by_file, master=lambda: "master", applied=slave.applied_from_master, accepted=lambda: accepted
    )
    peer: Any = Peer(master)
    asyncio.run(pull.pull(peer))


def test_nothing_is_taken_from_a_master_whose_log_is_not_followed(full: MetadataTables) -> None:
    before = texts(full)
    master = started(new_disk())
    master.topics.put(TopicConfig("T", 1, 1), now_ms=9)
    follow(full, master, accepted=False)
    assert texts(full) == before
    follow(full, master)
    assert texts(full) != before


def test_a_table_that_loses_most_of_its_entries_is_kept_aside() -> None:
    disk = new_disk()
    slave, master = started(disk), started(new_disk())
    for number in range(100):
        master.put_topic(TopicConfig(f"T{number}", 8, 8))
    follow(slave, master)
    long = disk.read_file("config/topics.json")
    for number in range(100):
        master.topics.remove(f"T{number}", now_ms=9)
    master.topics_edited()
    follow(slave, master)
    assert slave.topics.get("T1") is None
    assert disk.read_file("config/topics.json.before-removal") == long


@pytest.mark.parametrize("content", [b"", b"{half a fi", b"\xff"])
@pytest.mark.parametrize("file", list(MetadataFile))
def test_a_damaged_table_comes_from_a_replica_or_keeps_the_master_from_serving(
    full: MetadataTables, file: MetadataFile, content: bytes
) -> None:
    disk = new_disk()
    recover(started(disk), full)
    disk.write_file(f"config/{file.value}", content)
    disk.remove(f"config/{file.value}.bak")
    damaged = started(disk)
    assert list(damaged.damaged) == [file]
    assert any(f"config/{file.value}" in problem for problem in damaged.problems)
    damaged.persist_all()
    assert disk.read_file(f"config/{file.value}") == content, "nothing takes its place yet"
    if file is not MetadataFile.DELAY_OFFSETS:
        recover(damaged, started(new_disk()))
        assert list(damaged.damaged) == [file], "a new replica has nothing to say"
    assert recover(damaged, full)
    assert not damaged.problems
    assert texts(started(disk)) == texts(full)


def test_an_operator_may_go_on_without_a_damaged_table(full: MetadataTables) -> None:
    disk = new_disk()
    disk.write_file("config/topics.json", b"{half")
    damaged = started(disk)
    (line,) = damaged.accept_damage()
    assert "config/topics.json" in line
    assert not damaged.problems
    assert disk.read_file("config/topics.json.damaged") == b"{half"
    assert not started(disk).damaged


def test_a_damaged_replica_says_nothing(full: MetadataTables) -> None:
    disk = new_disk()
    disk.write_file("config/topics.json", b"")
    before = full.topics.to_json()
    recover(full, started(disk))
    assert full.topics.to_json() == before

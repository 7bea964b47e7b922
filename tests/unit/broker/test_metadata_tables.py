"""What a broker keeps of its groups' progress."""

from __future__ import annotations

import random

import pytest

from broker.metadata_tables import MetadataTables
from mqcore.delivery import DeliveryOptions, LeaseTable, TagFilter
from mqcore.metadata import MetadataFile, SubscriptionGroupConfig
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

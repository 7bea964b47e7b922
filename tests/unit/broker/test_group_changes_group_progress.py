"""How far groups are, from leases, and from stored offsets where there are none."""

from __future__ import annotations

from support.group_operations import ConsumedBroker
from tandemmq.broker.group_changes import QueueStanding
from tandemmq.core.metadata.offset_tables import GroupOffset
from tandemmq.core.metadata.topic_table import TopicConfig


async def test_progress_in_each_queue_with_the_age_of_what_is_unfinished() -> None:
    broker = ConsumedBroker()
    first_ms, second_ms, _ = broker.put(3)
    broker.put(1, queue_id=1)
    broker.acknowledge(broker.receive(1))
    broker.receive(1)
    now_ms = broker.clock.wall_ms()
    assert first_ms < second_ms
    standings = await broker.progress.of(["G"], with_ages=True)
    assert standings == {
        "G": [
            QueueStanding("T", 0, 1, 3, 0, now_ms - second_ms),
            QueueStanding("T", 1, 0, 1, 1, 1_000),
        ]
    }
    without_ages = await broker.progress.of(["G"], with_ages=False)
    assert [standing.oldest_age_ms for standing in without_ages["G"]] == [0, 0]


async def test_a_group_that_has_finished_everything_has_no_age() -> None:
    broker = ConsumedBroker()
    broker.put(1)
    broker.acknowledge(broker.receive())
    standings = await broker.progress.of(["G"], with_ages=True)
    assert standings["G"] == [QueueStanding("T", 0, 1, 1, 0, 0), QueueStanding("T", 1, 0, 0, 0, 0)]


async def test_stored_offsets_count_where_no_lease_is_known() -> None:
    broker = ConsumedBroker()
    broker.put(3)
    broker.put(5, queue_id=1)
    stored = [GroupOffset("G", "T", 1, 4), GroupOffset("H", "T", 0, 2), GroupOffset("G", "gone", 0, 2)]
    broker.tables.consumer_offsets.commit_all(stored, now_ms=1)
    assert await broker.progress.of(["G", "nobody"], with_ages=False) == {
        "G": [QueueStanding("T", 1, 4, 5, 0, 0)],
        "nobody": [],
    }
    broker.receive(1)
    standings = await broker.progress.of(["G"], with_ages=False)
    assert [(standing.queue_id, standing.committed_offset) for standing in standings["G"]] == [(0, 0), (1, 4)]


async def test_many_pairs_are_read_in_turns() -> None:
    broker = ConsumedBroker()
    for number in range(300):
        broker.tables.topics.put(TopicConfig(f"topic-{number}", 1, 1), now_ms=1)
        broker.leases.open("G", f"topic-{number}", [0])
    standings = await broker.progress.of(["G"], with_ages=False)
    assert len(standings["G"]) == 300

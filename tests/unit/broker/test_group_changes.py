"""Operators move groups, remove them, and delete topics they consumed."""

from __future__ import annotations

import pytest

from support.fake_call import FakeCall
from support.group_operations import ConsumedBroker
from tandemmq.broker.group_changes import Edge, GroupRemoval, InvalidOffsets, OffsetMove, ResetTarget, StoreTime
from tandemmq.core.delivery.queue_progress import SkippedBacklog
from tandemmq.core.metadata.topic_table import TopicConfig


async def reset(broker: ConsumedBroker, target: ResetTarget) -> list[OffsetMove]:
    moves = await broker.changes.moves("G", "T", target)
    broker.changes.move("G", "T", moves)
    return moves


def offsets(broker: ConsumedBroker) -> list[tuple[int, int]]:
    return sorted((delivery.queue_id, delivery.queue_offset) for delivery in broker.receive())


async def test_a_group_goes_back_while_messages_are_in_its_hands() -> None:
    broker = ConsumedBroker()
    broker.put(4)
    broker.put(1, queue_id=1)
    broker.acknowledge(broker.receive(3))
    held = broker.receive()
    assert await reset(broker, Edge.EARLIEST) == [OffsetMove(0, 3, 0, 4, 1), OffsetMove(1, 0, 0, 1, 1)]
    assert broker.tables.consumer_offsets.offsets_of("G", "T") == {0: 0, 1: 0}, "stored before the answer"
    assert broker.journal
    assert broker.wakes == 1
    assert broker.begun_anew == [("G", "T")]
    assert broker.acknowledge(held) == [False, False]
    assert offsets(broker) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


async def test_a_look_at_a_reset_changes_nothing() -> None:
    broker = ConsumedBroker()
    broker.put(2)
    held = broker.receive()
    assert await broker.changes.moves("G", "T", Edge.LATEST) == [OffsetMove(0, 0, 2, 2, 2), OffsetMove(1, 0, 0, 0, 0)]
    assert broker.acknowledge(held) == [True, True]
    assert broker.wakes == 0


async def test_a_time_is_the_first_message_stored_then_or_later() -> None:
    broker = ConsumedBroker()
    stored_ms = broker.put(5)
    later_ms = broker.put(2, queue_id=1)[0]

    async def targets(wall_ms: int) -> list[int]:
        return [move.to_offset for move in await broker.changes.moves("G", "T", StoreTime(wall_ms))]

    assert await targets(0) == [0, 0]
    assert await targets(stored_ms[2]) == [2, 0]
    assert await targets(stored_ms[2] + 1) == [3, 0]
    assert await targets(later_ms + 1) == [5, 1]
    assert await targets(later_ms + 3_600_000) == [5, 2]


async def test_only_named_queues_move_and_the_others_begin_as_by_themselves() -> None:
    broker = ConsumedBroker(consume_from_earliest=False)
    broker.put(3)
    broker.put(3, queue_id=1)
    assert await reset(broker, {0: 1}) == [OffsetMove(0, -1, 1, 3, 0)]
    assert offsets(broker) == [(0, 1), (0, 2)]


async def test_a_group_that_begins_at_the_newest_message_tells_what_it_will_not_get() -> None:
    broker = ConsumedBroker(consume_from_earliest=False)
    assert broker.leases.take_new_skips() == []
    broker.put(3)
    broker.put(2, queue_id=1)
    broker.receive()
    told = SkippedBacklog("G", "T", 5)
    assert broker.leases.take_new_skips() == [told]
    assert broker.leases.take_new_skips() == []
    broker.put(4)
    assert broker.leases.skipped_backlogs() == [told], "what came later is delivered"
    await reset(broker, {0: 1})
    assert broker.leases.skipped_backlogs() == [SkippedBacklog("G", "T", 2)]
    await reset(broker, Edge.LATEST)
    assert broker.leases.skipped_backlogs() == [], "an operator wants it there"
    broker.changes.remove_group("G")
    broker.receive()
    assert broker.leases.take_new_skips() == [SkippedBacklog("G", "T", 9)], "it began anew"
    broker.changes.forget_topic("T")
    assert broker.leases.skipped_backlogs() == []


@pytest.mark.parametrize("from_earliest", [True, False])
def test_a_group_that_misses_nothing_tells_nothing(from_earliest: bool) -> None:
    broker = ConsumedBroker(consume_from_earliest=from_earliest)
    if from_earliest:
        broker.put(3)
    broker.receive()
    broker.put(3)
    broker.receive()
    assert broker.leases.take_new_skips() == []
    assert broker.leases.skipped_backlogs() == []


@pytest.mark.parametrize(
    ("target", "problem"), [({0: 3}, "holds 0 to 2, not 3"), ({0: -1}, "holds 0 to 2"), ({7: 0}, "has no queue 7")]
)
async def test_offsets_a_queue_does_not_hold_are_refused(target: dict[int, int], problem: str) -> None:
    broker = ConsumedBroker()
    broker.put(2)
    with pytest.raises(InvalidOffsets, match=problem):
        await broker.changes.moves("G", "T", target)


async def test_a_topic_without_queues_to_read_says_so() -> None:
    broker = ConsumedBroker()
    # A Java broker's file may have it.
    text = broker.tables.topics.to_json().replace('"readQueueNums":2', '"readQueueNums":0')
    broker.tables.topics.load_json(text)
    with pytest.raises(InvalidOffsets, match="no queue 0 to read"):
        await broker.changes.moves("G", "T", {0: 0})


async def test_queues_a_topic_lost_when_it_shrank_move_too() -> None:
    broker = ConsumedBroker()
    broker.put(2, queue_id=1)
    broker.acknowledge(broker.receive())
    broker.tables.put_topic(TopicConfig("T", 1, 1))
    assert await reset(broker, Edge.EARLIEST) == [OffsetMove(0, 0, 0, 0, 0), OffsetMove(1, 2, 0, 2, 0)]


async def test_a_reset_of_a_group_known_by_its_stored_offsets_alone() -> None:
    broker = ConsumedBroker()
    broker.put(3)
    broker.tables.consumer_offsets.commit("G", "T", 0, 2, now_ms=1)
    assert (await reset(broker, Edge.EARLIEST))[0] == OffsetMove(0, 2, 0, 3, 0)
    assert broker.tables.consumer_offsets.offset("G", "T", 0) == 0


def test_a_removed_group_starts_anew() -> None:
    broker = ConsumedBroker(consume_from_earliest=False)
    broker.receive()
    broker.put(3)
    held = broker.receive(2)
    broker.acknowledge(held[:1])
    broker.collect()
    removal = GroupRemoval(existed=True, topics=["T"], inflight_count=1)
    assert broker.changes.removal_of("G") == removal
    assert broker.changes.has_group("G")
    assert broker.changes.remove_group("G") == removal
    assert not broker.changes.has_group("G")
    assert broker.tables.consumer_offsets.pairs() == []
    assert broker.acknowledge(held[1:]) is None
    assert broker.receive() == [], "a new group begins at the end"
    assert broker.begun_anew == [("G", "")]
    assert broker.changes.remove_group("H") == GroupRemoval(existed=False, topics=[], inflight_count=0)


def test_groups_start_anew_in_a_topic_that_was_deleted_and_made_again() -> None:
    broker = ConsumedBroker(consume_from_earliest=False)
    broker.receive()
    broker.put(3)
    broker.receive(1)
    broker.collect()
    broker.changes.forget_topic("T")
    assert broker.begun_anew == [("", "T")]
    assert broker.leases.pairs() == []
    assert broker.tables.consumer_offsets.pairs() == []
    broker.collect()
    assert broker.tables.consumer_offsets.pairs() == []
    assert broker.receive() == []
    broker.put(1)
    assert offsets(broker) == [(0, 3)]


def test_members_are_its_connected_consumers() -> None:
    broker = ConsumedBroker()
    for client_id, group in (("one", "G"), ("two", "H"), ("three", "")):
        broker.sessions.seen(client_id, FakeCall(), now_ms=1).group = group
    assert [member.client_id for member in broker.changes.members("G")] == ["one"]
    assert broker.progress.member_counts() == {"G": 1, "H": 1}

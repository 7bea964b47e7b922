"""Queue choice equals RocketMQ's."""

from __future__ import annotations

from collections import Counter

import pytest

from tandemmq.core.routing.queue_choice import QueueRotation, queue_of_message_group


# From a store written by RocketMQ 5.5.0: topic of two queues, sends of a gRPC client.
@pytest.mark.parametrize(("message_group", "queue_id"), [("grp0", 1), ("grp1", 0)])
def test_message_group_lands_in_the_queue_rocketmq_chose(message_group: str, queue_id: int) -> None:
    assert queue_of_message_group(message_group, 2) == queue_id


def test_adding_a_queue_moves_groups_only_to_the_new_one() -> None:
    for number in range(500):
        before, after = (queue_of_message_group(f"order-{number}", count) for count in (7, 8))
        assert after in (before, 7)


def test_groups_spread_over_all_queues() -> None:
    spread = Counter(queue_of_message_group(f"order-{number}", 8) for number in range(4_000))
    assert set(spread) == set(range(8))
    assert max(spread.values()) < 2 * min(spread.values())


def test_rotation_deals_each_topic_evenly() -> None:
    rotation = QueueRotation()
    assert [rotation.next_queue("a", 3) for _ in range(4)] == [0, 1, 2, 0]
    assert rotation.next_queue("b", 3) == 0
    assert rotation.next_queue("a", 3) == 1

"""Queue choice equals RocketMQ's."""

from __future__ import annotations

from collections import Counter

import pytest

from tandemmq.core.routing.queue_choice import QueueRotation, home_of_message_group, queue_of_message_group


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


def test_message_groups_spread_over_all_broker_groups() -> None:
    names = [f"broker-{letter}" for letter in "abcde"]
    spread = Counter(home_of_message_group(f"order-{number}", names) for number in range(5_000))
    assert set(spread) == set(names)
    assert max(spread.values()) < 1.2 * min(spread.values())


def test_a_broker_group_that_is_added_moves_message_groups_only_to_itself() -> None:
    names = ["broker-a", "broker-c", "broker-d"]
    homes = {f"order-{number}": home_of_message_group(f"order-{number}", names) for number in range(2_000)}
    moved = Counter(
        home
        for group, before in homes.items()
        if (home := home_of_message_group(group, [*names, "broker-b"])) != before
    )
    assert set(moved) == {"broker-b"}
    assert 400 < moved["broker-b"] < 600


def test_homes_do_not_depend_on_the_order_of_the_list_nor_on_the_version() -> None:
    names = ["broker-a", "broker-b", "broker-c"]
    for number in range(100):
        assert home_of_message_group(f"g{number}", names) == home_of_message_group(f"g{number}", names[::-1])
    # Brokers of two versions must agree.
    assert [home_of_message_group(f"g{number}", names)[-1] for number in range(12)] == list("cbccabcacabb")


def test_queues_of_a_home_are_all_used() -> None:
    names = ["broker-a", "broker-b"]
    here = [group for number in range(4_000) if home_of_message_group(group := f"order-{number}", names) == "broker-a"]
    spread = Counter(queue_of_message_group(group, 4) for group in here)
    assert max(spread.values()) < 1.3 * min(spread.values())

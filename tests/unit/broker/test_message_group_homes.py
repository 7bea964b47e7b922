"""Where message groups live while broker groups come, go and die."""

from __future__ import annotations

import random
from types import MappingProxyType

from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.message_group_homes import MessageGroupHomes
from tandemmq.core.metadata.topic_table import ATTRIBUTE_MESSAGE_TYPE, TopicConfig, TopicTable
from tandemmq.core.routing.values import BrokerData, QueueData, TopicRoute

GROUPS = [f"order-{number}" for number in range(60)]


class Cluster:
    """What NameServers tell broker-a of the topic "orders"."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(1), wall_ms=ManualTime().wall_ms)
        self.topics = TopicTable()
        self.topics.put(
            TopicConfig("orders", 4, 4, attributes=MappingProxyType({ATTRIBUTE_MESSAGE_TYPE: "FIFO"})), now_ms=1
        )
        # Permission by broker group; None: the topic is not there.
        self.live: dict[str, int | None] = {"broker-a": 6, "broker-b": 6, "broker-c": 6}
        self.order_topic_conf = ""
        self.homes = self.new_homes()

    def new_homes(self) -> MessageGroupHomes:
        homes = MessageGroupHomes(
            self.disk, self.topics, own_name="broker-a", route=self.route, live=lambda: self.live.keys()
        )
        homes.load()
        return homes

    def route(self, topic: str) -> TopicRoute | None:
        rows = tuple(QueueData(name, 4, 4, perm) for name, perm in self.live.items() if perm is not None)
        brokers = tuple(BrokerData("DefaultCluster", row.broker_name, {}) for row in rows)
        return TopicRoute(topic, rows, brokers, self.order_topic_conf) if rows else None

    def used(self) -> list[str]:
        return sorted({self.homes.home_of("orders", group) for group in GROUPS})


async def test_a_dead_broker_group_keeps_its_message_groups_also_after_a_restart() -> None:
    cluster = Cluster()
    homes = {group: cluster.homes.home_of("orders", group) for group in GROUPS}
    del cluster.live["broker-b"]
    cluster.homes.routes_changed()
    assert {group: cluster.homes.home_of("orders", group) for group in GROUPS} == homes
    await cluster.homes.close()
    cluster.homes = cluster.new_homes()
    cluster.homes.routes_changed()
    assert {group: cluster.homes.home_of("orders", group) for group in GROUPS} == homes


async def test_a_live_broker_group_that_does_not_take_the_topic_gives_its_message_groups_up() -> None:
    cluster = Cluster()
    assert cluster.used() == ["broker-a", "broker-b", "broker-c"]
    cluster.live["broker-b"] = 4
    cluster.live["broker-c"] = None
    cluster.homes.routes_changed()
    assert cluster.used() == ["broker-a"]
    cluster.live["broker-c"] = 6
    cluster.homes.routes_changed()
    assert cluster.used() == ["broker-a", "broker-c"]
    await cluster.homes.close()


async def test_an_order_configuration_is_the_list() -> None:
    cluster = Cluster()
    cluster.order_topic_conf = "broker-c:4; broker-z:4"
    cluster.homes.routes_changed()
    assert cluster.used() == ["broker-c", "broker-z"]
    await cluster.homes.close()


async def test_without_name_servers_message_groups_live_here() -> None:
    cluster = Cluster()
    cluster.live.clear()
    assert cluster.used() == ["broker-a"]
    await cluster.homes.close()


async def test_a_file_that_is_damaged_costs_only_what_it_knew() -> None:
    cluster = Cluster()
    cluster.disk.write_file("config/messageGroupHomes.json", b'["broker-a"')
    cluster.homes = cluster.new_homes()
    assert cluster.used() == ["broker-a", "broker-b", "broker-c"]
    await cluster.homes.close()

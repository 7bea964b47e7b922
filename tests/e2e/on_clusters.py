"""What official clients show on two broker groups that fail over: a killed master, and a start beside a dead group.

The programs' scenarios are called `change_of_master` and `dead_master`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tools.official_clients import driver_environment

from contract.client_api.raw_client import RawClient
from e2e.driver import Driver
from support.api_requests import receive_request
from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from support.two_failover_groups import GROUPS, TwoFailoverGroups, client_endpoint
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition


class Program:
    """One language's program; its log is in the folder."""

    def __init__(self, language: str, command: list[str], folder: Path) -> None:
        self._language = language
        self._command = command
        self._folder = folder

    def at(self, endpoints: str, log: str = "program") -> Driver:
        """It runs, beginning at these client planes."""
        return Driver(
            [*self._command, "--endpoint", endpoints],
            environment=driver_environment(self._language),
            log_path=self._folder / f"{log}.log",
        )

    def lives_through_a_killed_master(self, groups: TwoFailoverGroups) -> None:
        """Nothing acknowledged is lost, no send hangs, and push goes on."""
        name = "change_of_master"
        create_everywhere(groups, name)
        with self.at(groups.endpoints) as driver:
            driver.start(name)
            driver.wait_waiting(name, limit_s=PATIENCE_S)
            killed = groups.kill_master("broker-a")
            assert groups.wait_master("broker-a", in_sync=1) is not killed
            driver.resume(name)
            driver.passed(name, limit_s=PATIENCE_S)

    def starts_beside_a_dead_group(self, groups: TwoFailoverGroups) -> None:
        """The route has no dead row, and clients start."""
        name = "dead_master"
        create_everywhere(groups, name)
        access_point = client_endpoint(groups.members("broker-a")[0])
        for member in groups.members("broker-b"):
            member.kill()
        wait_until(
            lambda: asyncio.run(routed_groups(access_point, name)) == {"broker-a"},
            limit_s=PATIENCE_S,
            what="the route has no dead row",
        )
        with self.at(groups.endpoints) as driver:
            driver.start(name)
            driver.passed(name, limit_s=PATIENCE_S)


def create_everywhere(groups: TwoFailoverGroups, topic: str, *, message_type: str = "NORMAL") -> None:
    """A topic of both broker groups, in the routes of both masters."""
    masters = [master for group in GROUPS if (master := groups.master(group))]
    for master in masters:
        asyncio.run(create_topic(master, topic, queues=4, message_type=message_type))
    for master in masters:
        wait_for_both(client_endpoint(master), topic)


def wait_for_both(address: str, topic: str) -> None:
    """The route that this broker gives has both broker groups."""
    wait_until(
        lambda: asyncio.run(routed_groups(address, topic)) == set(GROUPS),
        limit_s=PATIENCE_S,
        what="the route has both groups",
    )


def each_has_one_queue(masters: Mapping[str, str], topic: str, bodies: list[bytes]) -> None:
    """Of the message groups `group-0` to `group-9` each has these bodies, all of them in one queue. `masters`: client
    planes by broker group."""
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)
    found: dict[str, list[bytes]] = defaultdict(list)
    for group, address in masters.items():
        for message in asyncio.run(_all_of(address, topic, group)):
            system = message.system_properties
            places[system.message_group].add((group, system.queue_id))
            found[system.message_group].append(message.body)
    names = [f"group-{number}" for number in range(10)]
    assert {name: sorted(found[name]) for name in found} == dict.fromkeys(names, sorted(bodies))
    assert {name: len(places[name]) for name in places} == dict.fromkeys(names, 1)
    assert len(set().union(*places.values())) > 1, "they are spread over queues"


async def _all_of(address: str, topic: str, broker_name: str) -> list[definition.Message]:
    """Each message of a broker group, in the hands of an ordinary consumer group."""
    found: list[definition.Message] = []
    async with RawClient(address) as client:
        request = receive_request(topic, broker_name=broker_name, poll_ms=1_000, invisible_ms=600_000)
        while messages := (await client.receive(request)).messages:
            found += messages
    return found


async def routed_groups(address: str, topic: str) -> set[str]:
    """Broker groups in the route that this broker gives."""
    async with RawClient(address) as client:
        return {row.broker.name for row in (await client.query_route(topic)).message_queues}

"""What official clients show on two broker groups that fail over: a killed master, and a start beside a dead group.

The programs' scenarios are called `change_of_master` and `dead_master`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tools.official_clients import driver_environment

from contract.client_api.raw_client import RawClient
from e2e.driver import Driver
from support.cluster_processes import wait_until
from support.topic_admin import create_topic
from support.two_failover_groups import GROUPS, TwoFailoverGroups, client_endpoint

__all__ = ["LIMIT_S", "Program", "create_everywhere"]

LIMIT_S: Final = 110


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
            driver.wait_waiting(name, limit_s=LIMIT_S)
            killed = groups.kill_master("broker-a")
            assert groups.wait_master("broker-a", in_sync=1) is not killed
            driver.resume(name)
            driver.passed(name, limit_s=LIMIT_S)

    def starts_beside_a_dead_group(self, groups: TwoFailoverGroups) -> None:
        """The route has no dead row, and clients start."""
        name = "dead_master"
        create_everywhere(groups, name)
        access_point = client_endpoint(groups.members("broker-a")[0])
        assert asyncio.run(_routed_groups(access_point, name)) == set(GROUPS)
        for member in groups.members("broker-b"):
            member.kill()
        wait_until(
            lambda: asyncio.run(_routed_groups(access_point, name)) == {"broker-a"},
            limit_s=30,
            what="the route has no dead row",
        )
        with self.at(groups.endpoints) as driver:
            driver.start(name)
            driver.passed(name, limit_s=LIMIT_S)


def create_everywhere(groups: TwoFailoverGroups, topic: str, *, message_type: str = "NORMAL") -> None:
    """A topic of both broker groups."""
    for group in GROUPS:
        master = groups.master(group)
        assert master is not None
        asyncio.run(create_topic(master, topic, queues=4, message_type=message_type))


async def _routed_groups(address: str, topic: str) -> set[str]:
    async with RawClient(address) as client:
        return {row.broker.name for row in (await client.query_route(topic)).message_queues}

"""Scenarios 21, 28, 48, 50, 52 to 54 and 56 with the official Java client: clusters, changes of master, long leases."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.official_clients import build, driver_environment

from demo.official_client import install_official_client
from e2e.on_clusters import LIMIT_S, Program, create_everywhere, each_has_one_queue
from support.cluster_processes import ProcessCluster, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from support.two_failover_groups import GROUPS, TwoFailoverGroups, client_endpoint, two_failover_groups

PYTHON_SCRIPTS = Path(__file__).parent.parent / "official_python" / "scripts"
LONG_S = 260
# Leases last for minutes, and the first test builds the program.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def command() -> list[str]:
    return build("java")


@pytest.fixture
def program(command: list[str], tmp_path: Path) -> Program:
    return Program("java", command, tmp_path)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoFailoverGroups]:
    with two_failover_groups(tmp_path / "cluster") as running:
        yield running


def test_52_54_nothing_acknowledged_is_lost_and_push_goes_on_when_a_master_is_killed(
    program: Program, groups: TwoFailoverGroups
) -> None:
    program.lives_through_a_killed_master(groups)


def test_53_clients_start_while_a_broker_group_is_dead(program: Program, groups: TwoFailoverGroups) -> None:
    program.starts_beside_a_dead_group(groups)


def test_21_a_recall_at_a_broker_that_does_not_have_the_message(program: Program, groups: TwoFailoverGroups) -> None:
    owner, other = (groups.master(group) for group in GROUPS)
    assert owner is not None
    assert other is not None
    asyncio.run(create_topic(owner, "recalled", queues=2, message_type="MIXED"))
    # The client recalls at its access point.
    with program.at(client_endpoint(other)) as driver:
        driver.start("recalled")
        driver.passed("recalled", limit_s=LIMIT_S)


def test_28_a_message_group_of_two_languages_has_one_queue(
    program: Program, groups: TwoFailoverGroups, tmp_path: Path
) -> None:
    create_everywhere(groups, "one_queue", message_type="FIFO")
    with program.at(groups.endpoints) as driver:
        driver.start("one_queue")
        driver.passed("one_queue", limit_s=LIMIT_S)
    asyncio.run(send_by_python(groups.endpoints, tmp_path))
    masters = {group: client_endpoint(master) for group in GROUPS if (master := groups.master(group))}
    each_has_one_queue(masters, "one_queue", [b"java", b"python"])


async def send_by_python(endpoints: str, folder: Path) -> None:
    """One message for each of the same ten message groups."""
    process = await asyncio.create_subprocess_exec(
        install_official_client() / "bin" / "python",
        PYTHON_SCRIPTS / "produce.py",
        *("--endpoint", endpoints, "--topic", "one_queue", "--groups", "10", "--bodies", *(["python"] * 10)),
        env={**driver_environment("java"), "HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        await process.communicate()
    assert process.returncode == 0


def test_48_50_leases_are_renewed_while_their_client_lives_and_no_longer(program: Program, tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "cluster") as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER", "consumeFromEarliest": "true"})
        for topic in ("slow_handler", "held"):
            asyncio.run(create_topic(broker, topic))
        with program.at(client_endpoint(broker)) as living:
            living.start("slow_handler")
            with program.at(client_endpoint(broker), "killed") as killed:
                killed.start("held")
                killed.wait_waiting("held", limit_s=LIMIT_S)
                living.start("taken_over")
                living.wait_waiting("taken_over", limit_s=LIMIT_S)
                os.kill(killed.pid, signal.SIGKILL)
            living.resume("taken_over")
            living.passed("taken_over", limit_s=LONG_S)
            living.passed("slow_handler", limit_s=LONG_S)


def test_56_a_sender_is_told_that_no_slave_has_its_message(program: Program, tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "cluster") as cluster:
        cluster.add_name_server()
        master = cluster.add_broker(settings={"consumeFromEarliest": "true"})
        slave = cluster.add_broker(broker_id=1)
        wait_until(
            lambda: asyncio.run(broker_status(master)).slaves != [], limit_s=PATIENCE_S, what="the slave follows"
        )
        asyncio.run(create_topic(master, "no_slave"))
        slave.kill()
        with program.at(client_endpoint(master)) as driver:
            driver.start("no_slave")
            driver.wait_waiting("no_slave", limit_s=LIMIT_S)
            slave.start()
            driver.resume("no_slave")
            driver.passed("no_slave", limit_s=LIMIT_S)

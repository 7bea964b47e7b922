"""Scenarios 28, 52 to 54 and 56 with the official Java client: two broker groups, changes of master, missing slaves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.official_clients import build, driver_environment

from contract.client_api.raw_client import RawClient
from demo.official_client import install_official_client
from e2e.driver import Driver
from support.api_requests import receive_request
from support.cluster_processes import ProcessCluster, wait_until
from support.topic_admin import broker_status, create_topic
from support.two_failover_groups import GROUPS, TwoFailoverGroups, client_endpoint, two_failover_groups
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition

PYTHON_SCRIPTS = Path(__file__).parent.parent / "official_python" / "scripts"
LIMIT_S = 110
pytestmark = pytest.mark.timeout(400)  # the first test builds the program


@pytest.fixture(scope="module")
def command() -> list[str]:
    return build("java")


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoFailoverGroups]:
    with two_failover_groups(tmp_path) as running:
        yield running


def program(command: list[str], endpoints: str, folder: Path) -> Driver:
    return Driver(
        [*command, "--endpoint", endpoints], environment=driver_environment("java"), log_path=folder / "java.log"
    )


def create_everywhere(groups: TwoFailoverGroups, topic: str, *, message_type: str = "NORMAL") -> None:
    for group in GROUPS:
        master = groups.master(group)
        assert master is not None
        asyncio.run(create_topic(master, topic, queues=4, message_type=message_type))


def test_52_54_nothing_acknowledged_is_lost_and_push_goes_on_when_a_master_is_killed(
    command: list[str], groups: TwoFailoverGroups, tmp_path: Path
) -> None:
    create_everywhere(groups, "change_of_master")
    with program(command, groups.endpoints, tmp_path) as driver:
        driver.start("change_of_master")
        driver.wait_waiting("change_of_master", limit_s=LIMIT_S)
        killed = groups.kill_master("broker-a")
        assert groups.wait_master("broker-a", in_sync=1) is not killed
        driver.resume("change_of_master")
        driver.passed("change_of_master", limit_s=LIMIT_S)


def test_53_clients_start_while_a_broker_group_is_dead(
    command: list[str], groups: TwoFailoverGroups, tmp_path: Path
) -> None:
    create_everywhere(groups, "dead_master")
    access_point = groups.members("broker-a")[0]
    rows = asyncio.run(routed_groups(client_endpoint(access_point), "dead_master"))
    assert rows == set(GROUPS)
    for member in groups.members("broker-b"):
        member.kill()
    wait_until(
        lambda: asyncio.run(routed_groups(client_endpoint(access_point), "dead_master")) == {"broker-a"},
        limit_s=30,
        what="the route has no dead row",
    )
    with program(command, groups.endpoints, tmp_path) as driver:
        driver.start("dead_master")
        driver.passed("dead_master", limit_s=LIMIT_S)


async def routed_groups(address: str, topic: str) -> set[str]:
    async with RawClient(address) as client:
        return {row.broker.name for row in (await client.query_route(topic)).message_queues}


def test_28_a_message_group_of_two_languages_has_one_queue(
    command: list[str], groups: TwoFailoverGroups, tmp_path: Path
) -> None:
    create_everywhere(groups, "one_queue", message_type="FIFO")
    with program(command, groups.endpoints, tmp_path) as driver:
        driver.start("one_queue")
        driver.passed("one_queue", limit_s=LIMIT_S)
    asyncio.run(send_by_python(groups.endpoints, tmp_path))
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for group in GROUPS:
        master = groups.master(group)
        assert master is not None
        for message in asyncio.run(all_of(client_endpoint(master), "one_queue", group)):
            system = message.system_properties
            places[system.message_group].add((group, system.queue_id))
            bodies[system.message_group].append(message.body)
    assert {name: sorted(found) for name, found in bodies.items()} == {
        f"group-{number}": [b"java", b"python"] for number in range(10)
    }
    assert {name: len(found) for name, found in places.items()} == {f"group-{number}": 1 for number in range(10)}
    assert len({place for found in places.values() for place in found}) > 1, "they are spread over queues"


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


async def all_of(address: str, topic: str, broker_name: str) -> list[definition.Message]:
    """Each message of a broker group, in the hands of an ordinary consumer group."""
    found: list[definition.Message] = []
    async with RawClient(address) as client:
        request = receive_request(topic, broker_name=broker_name, poll_ms=1_000, invisible_ms=600_000)
        while messages := (await client.receive(request)).messages:
            found += messages
    return found


def test_56_a_sender_is_told_that_no_slave_has_its_message(command: list[str], tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker(settings={"consumeFromEarliest": "true"})
        slave = cluster.add_broker(broker_id=1)
        wait_until(lambda: asyncio.run(broker_status(master)).slaves != [], limit_s=30, what="the slave follows")
        asyncio.run(create_topic(master, "no_slave"))
        slave.kill()
        with program(command, client_endpoint(master), tmp_path) as driver:
            driver.start("no_slave")
            driver.wait_waiting("no_slave", limit_s=LIMIT_S)
            slave.start()
            driver.resume("no_slave")
            driver.passed("no_slave", limit_s=LIMIT_S)

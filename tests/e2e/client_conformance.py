"""The client API's conformance scenarios with one official client, against a master and its slave in processes.

A module per language has a subclass of `ClientConformance` that names the language; its program is in the same folder.
Logs of clients and brokers are kept in build/clients/logs/<language>.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Final

import grpc
import psutil
import pytest
from tools.official_clients import CLIENTS, build, driver_environment

from e2e.driver import Driver
from e2e.scenarios import ALONE, LACKING, SIDE_BY_SIDE, Scenario
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.guarded_broker import guarded_broker, put_user
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc

# The slowest scenario ends a push consumer in the middle of a 20 s poll and then looks for dead letters.
MASTER: Final = "broker-a-0"
USER: Final = "access-key"
SECRET: Final = "secret-key"
UNAUTHORIZED: Final = re.compile("40100|unauthorized", re.IGNORECASE)


@pytest.mark.timeout(600)  # the first test builds the program
class ClientConformance:
    """Not collected by itself: its name does not begin with Test."""

    language: ClassVar[str]
    # Whether a client that was stopped closes its connections, or leaves them to the end of its process.
    closes_connections: ClassVar[bool] = True
    # Whether a client that gets no route says with which code.
    tells_codes_of_routes: ClassVar[bool] = True

    @pytest.fixture(scope="class")
    @classmethod
    def command(cls) -> list[str]:
        """What runs the program."""
        return build(cls.language)

    @pytest.fixture(scope="class")
    @classmethod
    def logs(cls) -> Path:
        folder = CLIENTS / "logs" / cls.language
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, command: list[str], logs: Path) -> Iterator[ProcessCluster]:
        settings = {"consumeFromEarliest": "true"}
        with ProcessCluster(logs / "cluster") as cluster:
            cluster.add_name_server()
            master = cluster.add_broker(settings=settings)
            cluster.add_broker(broker_id=1, settings=settings)
            wait_until(lambda: _status(master).slaves != [], limit_s=PATIENCE_S, what="the slave follows")
            asyncio.run(_create_topics_and_groups(master, [*SIDE_BY_SIDE, *ALONE]))
            yield cluster
        for store in logs.glob("cluster/broker-*"):
            shutil.rmtree(store)

    @pytest.fixture(scope="class")
    @classmethod
    def driver(cls, command: list[str], cluster: ProcessCluster, logs: Path) -> Iterator[Driver]:
        """The program, running all asked-for scenarios that may run at the same time."""
        with cls._driver(command, cluster, logs / "side_by_side.log") as driver:
            yield driver

    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, request: pytest.FixtureRequest, driver: Driver) -> Driver:
        """Started when the first of them is asked for, so that the others' waits pass at the same time."""
        asked = {
            item.callspec.params.get("scenario")
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.cls is request.cls and hasattr(item, "callspec")
        }
        for scenario in SIDE_BY_SIDE:
            if scenario in asked and scenario.name not in LACKING.get(cls.language, ()):
                driver.start(scenario.name)
        return driver

    def test_09_started_and_stopped_clients_are_forgotten(
        self, command: list[str], cluster: ProcessCluster, logs: Path
    ) -> None:
        master = cluster.brokers[MASTER]
        with self._driver(command, cluster, logs / "start_stop.log") as driver:
            driver.start("start_stop")
            driver.passed("start_stop", limit_s=PATIENCE_S)
            wait_until(lambda: _status(master).client_count == 0, limit_s=2, what="the broker forgets the clients")
            if self.closes_connections:
                port = master.ports["grpcServerPort"]
                wait_until(
                    lambda: not _is_connected(driver.pid, port), limit_s=PATIENCE_S, what="the connections are closed"
                )

    @pytest.mark.parametrize("scenario", SIDE_BY_SIDE, ids=lambda scenario: scenario.name)
    def test(self, started: Driver, scenario: Scenario) -> None:
        if scenario.name in LACKING.get(self.language, ()):
            pytest.skip("the client has no means for it")
        started.passed(scenario.name, limit_s=PATIENCE_S)

    def test_55_clients_live_through_a_killed_and_restarted_master(
        self, command: list[str], cluster: ProcessCluster, logs: Path
    ) -> None:
        master = cluster.brokers[MASTER]
        with self._driver(command, cluster, logs / "master_restart.log") as driver:
            driver.start("master_restart")
            driver.wait_waiting("master_restart", limit_s=PATIENCE_S)
            master.kill()
            driver.resume("master_restart")
            time.sleep(1)  # some sends must meet a dead master
            master.start()
            driver.passed("master_restart", limit_s=150)

    def test_58_credentials(self, command: list[str], logs: Path) -> None:
        """The programs sign with `access-key` and `secret-key` always."""
        scenario = "round_trip"
        with guarded_broker(logs / "guarded", {USER: SECRET}, super_users=[USER]) as broker:
            asyncio.run(create_topic(broker, scenario))
            with self._driver_at(command, broker, logs / "right_key.log") as driver:
                driver.start(scenario)
                driver.passed(scenario, limit_s=PATIENCE_S)
            asyncio.run(put_user(broker, USER, password="another-secret"))
            with self._driver_at(command, broker, logs / "wrong_key.log") as driver:
                driver.start(scenario)
                refused = driver.refused(scenario, limit_s=PATIENCE_S)
            # Java's says it in what it prints of the causes.
            told = refused + (logs / "wrong_key.log").read_text(errors="replace")
            assert UNAUTHORIZED.search(told) or not self.tells_codes_of_routes
            assert "another secret key" in broker.log_path.read_text()

    @classmethod
    def _driver(cls, command: list[str], cluster: ProcessCluster, log_path: Path) -> Driver:
        return cls._driver_at(command, cluster.brokers[MASTER], log_path)

    @classmethod
    def _driver_at(cls, command: list[str], broker: ServiceProcess, log_path: Path) -> Driver:
        endpoint = f"127.0.0.1:{broker.ports['grpcServerPort']}"
        environment = driver_environment(cls.language)
        return Driver([*command, "--endpoint", endpoint], environment=environment, log_path=log_path)


def _is_connected(pid: int, port: int) -> bool:
    return any(each.raddr and each.raddr.port == port for each in psutil.Process(pid).net_connections("tcp"))


def _status(broker: ServiceProcess) -> pb.GetBrokerStatusResponse:
    return asyncio.run(broker_status(broker))


async def _create_topics_and_groups(master: ServiceProcess, scenarios: Iterable[Scenario]) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['listenPort']}") as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        for scenario in scenarios:
            await create_topic(master, scenario.name, queues=scenario.queues, message_type=scenario.message_type)
            group = pb.UpdateSubscriptionGroupRequest(
                group=scenario.name,
                consume_message_orderly=scenario.ordered,
                retry_max_times=scenario.retries,
                consume_enable=True,
            )
            await stub.UpdateSubscriptionGroup(group, timeout=PATIENCE_S)

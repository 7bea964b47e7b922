"""Scenarios 21, 28, 52, 54 and 55 with the official Python client: two broker groups, changes of master, a restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from contract.client_api.raw_client import RawClient
from e2e.official_python.conftest import SCRIPTS, RunAt
from e2e.on_clusters import each_has_one_queue, wait_for_both
from support.api_requests import message
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from support.two_failover_groups import GROUPS, client_endpoint, two_failover_groups
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition

TOPIC = "orders"
# A send has three attempts of 3 s each, on a machine that does nothing else.
SEND_LIMIT_S = 60


@pytest.fixture
async def two_masters(tmp_path: Path) -> AsyncIterator[list[ServiceProcess]]:
    """Of two broker groups without slaves."""
    settings = {"brokerRole": "ASYNC_MASTER", "consumeFromEarliest": "true"}
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        yield [cluster.add_broker(name, settings=settings) for name in GROUPS]


async def test_21_a_recall_at_a_broker_that_does_not_have_the_message(
    two_masters: list[ServiceProcess], run_at: RunAt
) -> None:
    owner, other = two_masters
    await create_topic(owner, "reminders", message_type="DELAY")
    # The client recalls at its access point.
    result = await run_at(client_endpoint(other), "delay", "--topic", "reminders")
    assert result["recalled"] == result["recalled_id"]
    assert result["bodies"] == ["kept"]
    assert "40400" in result["again"]


async def test_28_a_message_group_has_one_queue_whoever_sends_and_wherever(
    two_masters: list[ServiceProcess], run_at: RunAt
) -> None:
    topic = "one_queue"
    addresses = [client_endpoint(broker) for broker in two_masters]
    for broker in two_masters:
        await create_topic(broker, topic, queues=4, message_type="FIFO")
    for address in addresses:
        await asyncio.to_thread(wait_for_both, address, topic)
    arguments = ("--topic", topic, "--groups", "10", "--bodies", *(["python"] * 10))
    assert len((await run_at(addresses[0], "produce", *arguments))["message_ids"]) == 10
    # Other languages hash otherwise: some would choose the one broker group, some the other.
    for address in addresses:
        async with RawClient(address) as client:
            for number in range(10):
                answer = await client.send(message(topic, b"raw", message_group=f"group-{number}"))
                assert answer.status.code == definition.OK
    masters = dict(zip(GROUPS, addresses, strict=True))
    await asyncio.to_thread(each_has_one_queue, masters, topic, [b"python", b"raw", b"raw"])


async def test_a_simple_consumer_asks_both_broker_groups_in_turn(
    two_masters: list[ServiceProcess], run_at: RunAt
) -> None:
    first, second = two_masters
    for broker in two_masters:
        await create_topic(broker, TOPIC, queues=8)
    for broker in two_masters:
        await asyncio.to_thread(wait_for_both, client_endpoint(broker), TOPIC)
    # The producer takes turns, too: one message for each group.
    sent = await run_at(client_endpoint(first), "produce", "--count", "2")
    assert len(sent["message_ids"]) == 2
    result = await run_at(client_endpoint(second), "consume", "--await-s", "1", "--empty-polls", "2")
    assert sorted(one["id"] for one in result["messages"]) == sorted(sent["message_ids"])
    assert len(result["polls"]) <= 4, "two that give one message each, at different groups, and two that are empty"


class Told:
    """A running script of the folder, and the lines that it printed so far."""

    def __init__(self, python: Path, folder: Path, name: str, endpoint: str, *arguments: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(str(python), str(SCRIPTS / f"{name}.py"), "--endpoint", endpoint, "--topic", TOPIC),
                    *arguments,
                ],
                # The client logs below the home folder.
                env={**os.environ, "HOME": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits; AssertionError with the script's own words if it ends before."""

        def is_so() -> bool:
            assert self.process.poll() is None or holds(), f"{what}: it ended: {self.log.read_text()}"
            return holds()

        wait_until(is_so, limit_s=PATIENCE_S, what=what)

    def end(self) -> None:
        """Ends its standard input, and waits for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self._reader.join()

    def ids(self) -> list[str]:
        """Of all messages that lines name."""
        return [line["id"] for line in list(self.lines) if line.get("id")]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))


def test_52_54_nothing_acknowledged_is_lost_and_push_goes_on_when_a_master_is_killed(
    official_python: Path, tmp_path: Path
) -> None:
    with two_failover_groups(tmp_path / "cluster") as groups:
        for group in GROUPS:
            master = groups.wait_master(group, in_sync=2)
            asyncio.run(create_topic(master, TOPIC, queues=4))
        with (
            Told(official_python, tmp_path, "push", groups.endpoints) as push,
            Told(official_python, tmp_path, "send_on", groups.endpoints) as sender,
        ):
            for group in GROUPS:
                began = len(sender.ids())
                sender.until(lambda began=began: len(sender.ids()) > began + 30, "it sends")
                killed = groups.kill_master(group)
                assert groups.wait_master(group, in_sync=1) is not killed
                began = len(sender.ids())
                sender.until(lambda began=began: len(sender.ids()) > began + 30, "it sends again")
                killed.start()
                groups.wait_master(group, in_sync=2)
            sender.end()
            acknowledged = set(sender.ids())
            slowest = max(sender.lines, key=lambda line: float(line["seconds"]))
            assert slowest["seconds"] < SEND_LIMIT_S, slowest
            push.until(lambda: acknowledged <= set(push.ids()), "all that was acknowledged is handled")


def test_55_clients_go_on_when_their_broker_was_killed_and_started_again(official_python: Path, tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "cluster") as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER", "consumeFromEarliest": "true"})
        asyncio.run(create_topic(broker, TOPIC))
        endpoint = client_endpoint(broker)
        with (
            Told(official_python, tmp_path, "push", endpoint) as push,
            Told(official_python, tmp_path, "send_on", endpoint) as sender,
        ):
            push.until(lambda: len(push.ids()) > 20, "messages are handled")
            broker.kill()
            broker.start()
            # For minutes from here on its clients send no settings, and both go on.
            began = len(sender.ids())
            sender.until(lambda: len(sender.ids()) > began + 30, "it sends again")
            sender.end()
            acknowledged = set(sender.ids())
            push.until(lambda: acknowledged <= set(push.ids()), "all that was acknowledged is handled")
            # Heartbeats come every 10 s.
            wait_until(
                lambda: _connected(broker) == {"PUSH_CONSUMER"},
                limit_s=PATIENCE_S,
                what="its heartbeats made it known again",
            )


def _connected(broker: ServiceProcess) -> set[str]:
    """Kinds of clients the broker knows."""

    async def ask() -> set[str]:
        async with grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['listenPort']}") as channel:
            stub = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(channel)
            answer = await stub.ListClients(pb.ListClientsRequest(), timeout=PATIENCE_S)
            return {client.client_type for client in answer.clients}

    return asyncio.run(ask())

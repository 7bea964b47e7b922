"""The command line on real brokers: what it says it did is so, with half of the cluster away, and through tunnels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from support.cluster_processes import ProcessCluster, wait_until
from support.kubernetes_release import pod
from support.running_time import PATIENCE_S, run_program
from tandemmq.cli.app import app
from tandemmq.cli.cluster_address import ClusterTarget
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, connection_on
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.release import way_to_pods
from tandemmq.service.kubernetes_api import PodStream

_LIMIT_S = 120.0


class _Commands:
    """A cluster of two groups, the first with a slave, used through the command line."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster

    def invoke(self, *words: str) -> Result:
        """One command in this process, which spares its start; whatever comes of it."""
        return CliRunner().invoke(app, [*words, "--namesrv", self.cluster.namesrv_addr])

    def run(self, *words: str) -> str:
        """Standard output of a command that succeeds."""
        result = self.invoke(*words)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def refusal(self, *words: str) -> CommandError:
        """How a command fails."""
        error = self.invoke(*words).exception
        assert isinstance(error, CommandError), repr(error)
        return error

    def process(self, *words: str, stdin: str = "") -> str:
        """Standard output of a command that reads its standard input, or writes for a long time."""
        result = run_program(
            [sys.executable, "-m", "tandemmq.cli", *words, "--namesrv", self.cluster.namesrv_addr],
            input=stdin,
            limit_s=_LIMIT_S,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def document(self, *words: str) -> Any:
        """What it prints for programs."""
        return json.loads(self.run(*words, "-o", "json"))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Commands]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.add_name_server()
        cluster.add_name_server()
        settings = {"brokerClusterName": "Test", "consumeFromEarliest": "true"}
        cluster.add_broker("broker-a", settings=settings)
        cluster.add_broker("broker-a", broker_id=1, settings=settings)
        cluster.add_broker("broker-b", settings=settings | {"brokerRole": "ASYNC_MASTER"})
        found = _Commands(cluster)
        wait_until(lambda: found.invoke("status").exit_code == 0, limit_s=_LIMIT_S, what="the cluster is healthy")
        yield found


def test_topic_is_made_read_and_removed(commands: _Commands) -> None:
    assert "created with 2 queues" in commands.run("topic", "create", "orders", "--queues", "2")
    topic = commands.document("topic", "describe", "orders")
    assert [broker["read_queue_count"] for broker in topic["summary"]["brokers"]] == [2, 2]
    assert topic["routes_agree"]
    assert [route["queues"][0]["broker_name"] for route in topic["routes"]] == ["broker-a", "broker-a"]
    assert "orders" in commands.run("topicList").splitlines()
    commands.run("deleteTopic", "-c", "Test", "-t", "orders", "--yes")
    assert commands.refusal("topic", "describe", "orders").exit_code == 1


def test_message_is_sent_found_by_each_of_its_names_and_its_copies_agree(commands: _Commands) -> None:
    commands.run("topic", "create", "letters", "--queues", "1", "--broker", "broker-a")
    sent = commands.document("send", "letters", '{"a": 1}', "--key", "k1", "--tag", "t", "--property", "x=y")
    wait_until(
        lambda: bool(commands.document("message", "query", "letters", "--key", "k1")["messages"]),
        limit_s=_LIMIT_S,
        what="the key is indexed",
    )
    detail = commands.document("message", "show", sent["message_id"])
    message = detail["message"]
    assert (message["tag"], message["keys"], message["properties"]["x"]) == ("t", ["k1"], "y")
    assert message["body_text"] == '{"a": 1}'
    assert {copy["broker"]: copy["equal"] for copy in detail["copies"]}["broker-a:1"] is True
    place = ("--topic", "letters", "--broker", "broker-a", "--queue", "0", "--offset", str(sent["queue_offset"]))
    assert commands.document("message", "show", *place)["message"]["message_id"] == sent["message_id"]
    assert sent["message_id"] in commands.run("queryMsgByKey", "-t", "letters", "-k", "k1")
    offset_id = message["offset_message_id"]
    assert f"OffsetID:            {offset_id}" in commands.run("queryMsgById", "-t", "letters", "-i", offset_id)


def test_group_reads_again_what_it_is_reset_to(commands: _Commands) -> None:
    commands.process("produce", "repeated", stdin="".join(f"{number}\n" for number in range(20)))
    read = ("consume", "repeated", "--group", "again", "--count", "20", "--idle-timeout", "60")
    first = sorted(commands.process(*read).splitlines())
    assert len(first) == 20
    assert commands.document("group", "describe", "again")["summary"]["lag"] == 0
    commands.run("group", "reset", "again", "repeated", "--to", "earliest", "--dry-run")
    assert commands.document("group", "describe", "again")["summary"]["lag"] == 0
    assert "come again" in commands.run("group", "reset", "again", "repeated", "--to", "1h", "--yes")
    assert commands.document("group", "describe", "again")["summary"]["lag"] == 20
    assert sorted(commands.process(*read).splitlines()) == first
    assert "#Diff Total" in commands.run("consumerProgress")
    commands.run("resetOffsetByTime", "-g", "again", "-t", "repeated", "-s", "0000000000001", "--yes")
    assert "Consume Diff Total: 20" in commands.run("consumerProgress", "-g", "again")
    commands.run("group", "delete", "again", "--yes")
    assert commands.refusal("group", "describe", "again").exit_code == 1


def test_tail_shows_what_comes_in_from_now_on(commands: _Commands) -> None:
    commands.process("produce", "stream", stdin="before\n")
    command = [sys.executable, "-m", "tandemmq.cli", "tail", "stream", "--count", "1"]
    command += ["--namesrv", commands.cluster.namesrv_addr]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        try:
            deadline = time.monotonic() + _LIMIT_S
            # It says nothing until something comes: so something comes until it has.
            while tail.poll() is None and time.monotonic() < deadline:
                commands.run("send", "stream", "after")
            assert tail.stdout is not None
            assert tail.stdout.read().rstrip().endswith("after")
        finally:
            tail.kill()


def test_setting_is_changed_until_the_next_start(commands: _Commands) -> None:
    commands.run("broker", "config", "set", "broker-b", "fileReservedTime=13", "--yes")
    found = commands.document("broker", "config", "get", "broker-b", "--key", "fileReservedTime")
    assert (found[0]["value"], found[0]["origin"]) == ("13", "changed")
    refused = commands.refusal("updateBrokerConfig", "-b", "broker-b", "-k", "brokerName", "-v", "x", "--yes")
    assert refused.exit_code == 2
    assert any(event["source"] == "broker-b:0" for event in commands.document("events")["events"])


def test_producers_are_sent_elsewhere_and_back(commands: _Commands) -> None:
    commands.run("topic", "create", "both", "--queues", "1")
    commands.run("wipeWritePerm", "-b", "broker-b", "--yes")
    routes = commands.document("topic", "routes", "both")["routes"]
    permissions = {queues["broker_name"]: queues["permission"] for route in routes for queues in route["queues"]}
    assert permissions == {"broker-a": 6, "broker-b": 4}
    commands.run("broker", "write-permission", "broker-b", "on", "--yes")


def test_replication_is_shown_and_checked(commands: _Commands) -> None:
    groups = {group["broker_name"]: group for group in commands.document("ha", "status", "--interval", "0.5")}
    assert groups["broker-a"]["slaves"][0]["slave"] == "broker-a:1"
    assert groups["broker-b"]["slaves"] == []
    assert "#InSyncSlaveNum\t1" in commands.run("haStatus", "-b", "broker-a")
    for check in ("health", "nameservers", "replication", "lag"):
        assert commands.run("check", check).startswith(f"TANDEMMQ {check.upper()} OK")


def test_half_a_cluster_is_told_and_changed_no_further(commands: _Commands) -> None:
    broker = commands.cluster.brokers["broker-b-0"]
    server = commands.cluster.name_servers[1]
    server.kill()
    # It hangs: the NameServer still knows it.
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        listed = commands.invoke("topic", "list", "-o", "json")
        assert listed.exit_code == 0
        assert [each["subject"] for each in json.loads(listed.stdout)["unseen"]] == ["broker-b:0"]
        assert "broker-b:0" in commands.refusal("topic", "create", "never").problem
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    broker.kill()
    try:
        assert commands.invoke("check", "nameservers").exit_code == 1
        assert commands.invoke("check", "health").exit_code == 2
        # Half a cluster takes messages all the same.
        commands.run("send", "letters", "still")
    finally:
        server.start()
        broker.start()
    wait_until(lambda: commands.invoke("status").exit_code == 0, limit_s=_LIMIT_S, what="all are back")


class _LoopbackPods:
    """Pods whose ports are processes on loopback: every stream is a connection to where the pod's process listens."""

    is_inside = False

    def __init__(self, listens_at: dict[str, str]) -> None:
        self._listens_at = listens_at
        self.streams: list[tuple[str, int]] = []

    async def open_stream(self, pod: str, port: int) -> PodStream:
        self.streams.append((pod, port))
        return PodStream(_Forward(socket.create_connection((self._listens_at[pod], port), timeout=PATIENCE_S)), port)


class _Forward:
    """The part of the Kubernetes client's PortForward that is used."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        self._connected = connected

    def socket(self, port: int) -> socket.socket:
        return self._connected

    def close(self) -> None:
        self._connected.close()


def test_cluster_whose_names_only_pods_know_is_operated_through_tunnels(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        server = cluster.add_name_server()
        # At the address that the name it advertises stands for nobody listens.
        settings = {"brokerRole": "ASYNC_MASTER", "brokerIP1": "localhost", "bindAddress": "127.0.0.2"}
        broker = cluster.add_broker("broker-a", settings=settings)
        ports = {"grpc-client": broker.ports["grpcServerPort"], "grpc-metadata": broker.ports["listenPort"]}
        pods = [
            pod("mq-nameserver-0", component="nameserver", ports={"grpc": server.ports["listenPort"]}),
            pod("localhost", ports=ports),
        ]
        network = _LoopbackPods({"mq-nameserver-0": "127.0.0.1", "localhost": "127.0.0.2"})

        @contextlib.asynccontextmanager
        async def through_tunnels(target: ClusterTarget) -> AsyncIterator[ClusterConnection]:
            async with way_to_pods(network, pods) as way, connection_on(way) as connection:
                yield connection

        def run(*words: str) -> Result:
            return CliRunner().invoke(app, words, obj=ClusterChoice(connect=through_tunnels))

        wait_until(lambda: run("status").exit_code == 0, limit_s=_LIMIT_S, what="the broker is registered")
        assert run("topic", "create", "orders", "--queues", "1").exit_code == 0
        sent = run("send", "orders", "hello", "-o", "json")
        assert sent.exit_code == 0, sent.output
        found = run("message", "query", "orders")
        assert json.loads(sent.stdout)["message_id"] in found.stdout
        assert {stream[1] for stream in network.streams} == {*ports.values(), server.ports["listenPort"]}

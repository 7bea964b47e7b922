"""`tandemmq doctor` and `tandemmq smoke` on a cluster of real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.running_time import run_program

_START_LIMIT_S = 600.0
_COMMAND_LIMIT_S = 120.0


class _Cluster:
    """A cluster in a folder that does not mend itself, used through the command line only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._output = folder.with_suffix(".out")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self._command(
                    "up", "--free-ports", "--no-live", "--no-restart", "--set", f"mappedFileSizeCommitLog={16 << 20}"
                ),
                stdout=output,
                stderr=output,
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One command against this cluster."""
        return run_program(self._command(*arguments), limit_s=_COMMAND_LIMIT_S)

    def checks(self) -> list[dict[str, str]]:
        """What the doctor finds, fine or not."""
        found = self.run("doctor", "--json")
        assert found.returncode in (0, 1), found.stderr
        checks: list[dict[str, str]] = json.loads(found.stdout)["checks"]
        return checks

    def member(self, name: str) -> dict[str, Any]:
        document = json.loads((self.folder / "cluster.json").read_text())
        found: dict[str, Any] = next(each for each in document["members"] if each["name"] == name)
        return found

    def until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Polls; fails with the cluster's own output when the limit passes."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, self._output.read_text() + self.run("doctor").stdout
            assert self.process.poll() is None, self._output.read_text()
            time.sleep(0.2)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tandemmq.cli", *words, "--data", str(self.folder)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    started = _Cluster(tmp_path_factory.mktemp("doctor") / "cluster")
    try:
        started.until(lambda: started.run("doctor").returncode == 0, _START_LIMIT_S)
        yield started
    finally:
        try:
            started.run("down")
        finally:
            # What it started it stops, whatever became of the command.
            started.process.terminate()
            started.process.wait()


def test_doctor_looks_at_every_broker_from_here_and_through_its_own_eyes(cluster: _Cluster) -> None:
    by_area: dict[str, set[str]] = {}
    for check in cluster.checks():
        # How full this machine's disk is, is not the cluster's affair.
        assert check["verdict"] in ("ok", "note") or check["area"] == "disk", check
        by_area.setdefault(check["area"], set()).add(check["subject"])
    brokers = {"broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1"}
    assert brokers < by_area["ports"]
    assert brokers == by_area["peers"]
    assert brokers == by_area["disk"]
    assert by_area["clock"] == {"brokers"}


def test_messages_come_back_as_they_were_sent(cluster: _Cluster) -> None:
    for _ in range(2):
        done = cluster.run("smoke", "--count", "50")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("smoke: 50 sent in ")
        assert "to broker-a, broker-b, 50 received, compared and acknowledged" in done.stdout


def test_access_point_is_where_clients_ask_for_routes(cluster: _Cluster) -> None:
    port = cluster.member("broker-b")["ports"]["grpcServerPort"]
    done = cluster.run("smoke", "--count", "20", "--access-point", f"127.0.0.1:{port}", "--topic", "other")
    assert done.returncode == 0, done.stderr
    failed = cluster.run("smoke", "--count", "20", "--access-point", "127.0.0.1:1", "--timeout", "2s")
    assert failed.returncode == 1
    assert "messages came back within 2 s" in failed.stderr
    assert "127.0.0.1:1" in failed.stderr


def test_lost_slave_is_a_problem_with_a_remedy(cluster: _Cluster) -> None:
    os.kill(int(cluster.member("broker-a-s")["pid"]), signal.SIGKILL)

    def is_seen() -> bool:
        found = cluster.run("doctor", "--json")
        problems = [check for check in json.loads(found.stdout)["checks"] if check["verdict"] == "problem"]
        remedies = {check["subject"]: check["remedy"] for check in problems}
        is_slave_told = bool(remedies.get("broker-a:1"))
        # Sends fail until the in-sync set is the master alone; from then on nobody could take over.
        is_master_told = bool(remedies.get("broker-a:0") or remedies.get("broker group broker-a"))
        return is_slave_told and is_master_told and found.returncode == 1

    cluster.until(is_seen, _COMMAND_LIMIT_S)


def test_doctor_that_sees_nothing_says_so() -> None:
    blind = run_program(
        [sys.executable, "-m", "tandemmq.cli", "doctor", "--namesrv", "127.0.0.1:1"], limit_s=_COMMAND_LIMIT_S
    )
    assert blind.returncode == 2
    assert "no NameServer answers" in blind.stderr
    assert "--kube" in blind.stderr

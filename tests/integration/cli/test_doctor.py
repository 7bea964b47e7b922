"""`tandemmq doctor` and `tandemmq smoke` on a cluster of real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from support.local_cluster import COMMAND_LIMIT_S, LocalCluster, local_cluster
from support.running_time import PATIENCE_S, run_program


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Does not mend itself."""
    with local_cluster(tmp_path_factory.mktemp("doctor") / "cluster", "--no-restart") as started:
        started.until(lambda: started.run("doctor").returncode == 0, PATIENCE_S)
        yield started


def _checks(cluster: LocalCluster) -> list[dict[str, str]]:
    """What the doctor finds, fine or not."""
    found = cluster.run("doctor", "--json")
    assert found.returncode in (0, 1), found.stderr
    checks: list[dict[str, str]] = json.loads(found.stdout)["checks"]
    return checks


def test_doctor_looks_at_every_broker_from_here_and_through_its_own_eyes(cluster: LocalCluster) -> None:
    by_area: dict[str, set[str]] = {}
    for check in _checks(cluster):
        # How full this machine's disk is, is not the cluster's affair.
        assert check["verdict"] in ("ok", "note") or check["area"] == "disk", check
        by_area.setdefault(check["area"], set()).add(check["subject"])
    brokers = {"broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1"}
    assert brokers < by_area["ports"]
    assert brokers == by_area["peers"]
    assert brokers == by_area["disk"]
    assert by_area["clock"] == {"brokers"}


def test_messages_come_back_as_they_were_sent(cluster: LocalCluster) -> None:
    for _ in range(2):
        done = cluster.run("smoke", "--count", "50")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("smoke: 50 sent in ")
        assert "to broker-a, broker-b, 50 received, compared and acknowledged" in done.stdout


def test_access_point_is_where_clients_ask_for_routes(cluster: LocalCluster) -> None:
    port = cluster.member("broker-b")["ports"]["grpcServerPort"]
    done = cluster.run("smoke", "--count", "20", "--access-point", f"127.0.0.1:{port}", "--topic", "other")
    assert done.returncode == 0, done.stderr
    failed = cluster.run("smoke", "--count", "20", "--access-point", "127.0.0.1:1", "--timeout", "2s")
    assert failed.returncode == 1
    assert "messages came back within 2 s" in failed.stderr
    assert "127.0.0.1:1" in failed.stderr


def test_lost_slave_is_a_problem_with_a_remedy(cluster: LocalCluster) -> None:
    os.kill(int(cluster.member("broker-a-s")["pid"]), signal.SIGKILL)

    def is_seen() -> bool:
        found = cluster.run("doctor", "--json")
        problems = [check for check in json.loads(found.stdout)["checks"] if check["verdict"] == "problem"]
        remedies = {check["subject"]: check["remedy"] for check in problems}
        is_slave_told = bool(remedies.get("broker-a:1"))
        # Sends fail until the in-sync set is the master alone; from then on nobody could take over.
        is_master_told = bool(remedies.get("broker-a:0") or remedies.get("broker group broker-a"))
        return is_slave_told and is_master_told and found.returncode == 1

    cluster.until(is_seen)


def test_doctor_that_sees_nothing_says_so() -> None:
    blind = run_program(
        [sys.executable, "-m", "tandemmq.cli", "doctor", "--namesrv", "127.0.0.1:1"], limit_s=COMMAND_LIMIT_S
    )
    assert blind.returncode == 2
    assert "no NameServer answers" in blind.stderr
    assert "--kube" in blind.stderr

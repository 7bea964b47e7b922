"""`tandemmq up` and what one does with it, as real processes on free ports."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml

from support.local_cluster import COMMAND_LIMIT_S, LocalCluster, local_cluster
from support.running_time import PATIENCE_S

_LINES = [f"line {number}" for number in range(200)]
_STARTED = """
import signal, sys
from tandemmq.cli.__main__ import main
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("started", file=sys.stderr, flush=True)
main()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("local") / "cluster", "--tracing") as started:
        yield started


def _start(
    cluster: LocalCluster, *arguments: str, stdout: int, stdin: int | IO[str] = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """A command, to be waited for, once the interpreter runs: while it starts, Ctrl-C is told of by Python."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTED, *arguments, "--data", str(cluster.folder)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    return process


def _healthy(cluster: LocalCluster) -> bool:
    return cluster.run("status").returncode == 0


def test_cluster_becomes_healthy_and_says_so_in_json(cluster: LocalCluster) -> None:
    cluster.until(lambda: _healthy(cluster))
    document = json.loads(cluster.run("status", "--json").stdout)
    assert document["healthy"], document["findings"]
    assert [f"{broker['broker_name']}:{broker['broker_id']}" for broker in document["brokers"]] == [
        "broker-a:0",
        "broker-a:1",
        "broker-b:0",
        "broker-b:1",
    ]
    assert all(len(server["brokers"]) == 4 for server in document["name_servers"])


def test_second_start_in_the_same_folder_is_refused(cluster: LocalCluster) -> None:
    refused = cluster.run("up")
    assert refused.returncode == 2
    assert "a cluster already runs" in refused.stderr


def test_lines_come_out_as_they_went_in(cluster: LocalCluster) -> None:
    sent = cluster.run("produce", "round-trip", stdin="\n".join(_LINES) + "\n")
    assert sent.returncode == 0, sent.stderr
    assert "topic round-trip did not exist; created on broker-a, broker-b" in sent.stderr
    assert "200 acknowledged, 0 failed" in sent.stderr
    got = cluster.run(
        "consume", "round-trip", "--group", "round-trip-readers", "--count", "200", "--idle-timeout", "60"
    )
    assert got.returncode == 0, got.stderr
    assert sorted(got.stdout.splitlines()) == sorted(_LINES)
    again = cluster.run("consume", "round-trip", "--group", "round-trip-readers", "--idle-timeout", "1")
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.parametrize(
    "words", ["consume piped --group piped-readers", "status", "topic list -o json", "printMsg -t piped", "events"]
)
def test_reader_that_has_enough_ends_a_command_without_a_word(cluster: LocalCluster, words: str) -> None:
    assert cluster.run("produce", "piped", stdin="\n".join(_LINES) + "\n").returncode == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        process = _start(cluster, *words.split(), stdout=write_end)
        _, errors = process.communicate(timeout=COMMAND_LIMIT_S)
    finally:
        os.close(write_end)
    # A consumer tells how much it received.
    assert errors == "" or re.fullmatch(r"0 received, 0/s\n", errors)
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("words", ["consume awaited --group awaited-readers", "tail piped", "status", "smoke"])
def test_ctrl_c_at_any_moment_ends_a_command_without_a_traceback(cluster: LocalCluster, words: str) -> None:
    for after_s in (0.0, 0.3, 0.6, 1.0, 1.5):
        process = _start(cluster, *words.split(), stdout=subprocess.DEVNULL)
        # Not for something: wherever it is by then.
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=COMMAND_LIMIT_S)
        assert "Traceback" not in errors, (after_s, errors)
        # `status` says by 1 that something is wrong, as it may be on a busy machine.
        assert process.returncode in (0, -signal.SIGINT, *[1] * (words == "status")), (after_s, errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_stopped_produce_has_not_sent_is_told(
    cluster: LocalCluster, number: signal.Signals, tmp_path: Path
) -> None:
    """`produce < file && rm file` keeps the file, and the remedy sends the rest."""
    lines, topic = [f"line {each}" for each in range(20_000)], f"stopped-{number.name}"
    (tmp_path / "input").write_text("\n".join(lines))
    with (tmp_path / "input").open() as source:
        process = _start(cluster, "produce", topic, "--rate", "200", stdout=subprocess.DEVNULL, stdin=source)
        ends = re.compile("problem: the command was stopped before the end of its input\ncause: +([0-9,]+) line")
        # It sends by then, mostly; else there is nothing to tell.
        time.sleep(random.uniform(1, 5))
        process.send_signal(number)
        _, errors = process.communicate(timeout=COMMAND_LIMIT_S)
    if process.returncode == -number:
        assert "Traceback" not in errors
        return
    assert process.returncode == 1, errors
    told = ends.search(errors)
    assert told, errors
    taken = int(told[1].replace(",", ""))
    assert f"tail -n +{taken + 1} FILE" in errors
    got = cluster.run("consume", topic, "--group", topic, "--idle-timeout", "10")
    assert sorted(got.stdout.splitlines()) == sorted(lines[:taken])


def test_prometheus_is_told_of_every_member_and_finds_metrics_there(cluster: LocalCluster) -> None:
    scraped = yaml.safe_load((cluster.folder / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert {name: len(found) for name, found in targets.items()} == {"nameserver": 2, "broker": 4, "admin": 1}
    for kind, name in (
        ("nameserver", "rocketmq_nameserver_registered_brokers"),
        ("broker", "rocketmq_broker_info"),
        ("admin", "rocketmq_cluster_healthy"),
    ):
        for target in targets[kind]:
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=COMMAND_LIMIT_S) as answer:
                assert f"\n{name}" in answer.read().decode(), target


def test_admin_page_is_where_the_cluster_says(cluster: LocalCluster) -> None:
    with urllib.request.urlopen(f"{cluster.record()['admin_url']}readyz", timeout=COMMAND_LIMIT_S) as answer:
        assert answer.status == 200


def test_topics_and_groups_are_made_shown_and_removed(cluster: LocalCluster) -> None:
    assert cluster.run("topic", "create", "orders", "--queues", "3", "--type", "FIFO").returncode == 0
    assert "broker-a:3/3 broker-b:3/3" in cluster.run("topic", "list").stdout
    assert "FIFO" in cluster.run("topic", "describe", "orders").stdout
    assert cluster.run("group", "create", "billing", "--ordered").returncode == 0
    assert "billing" in cluster.run("group", "list").stdout
    assert cluster.run("topic", "delete", "orders", "--yes").returncode == 0
    assert cluster.run("topic", "describe", "orders").returncode == 1


def test_killed_master_comes_back_and_nothing_acknowledged_is_missing(cluster: LocalCluster) -> None:
    assert cluster.run("produce", "survivors", stdin="\n".join(_LINES)).returncode == 0
    killed = cluster.member("broker-a")["pid"]
    os.kill(killed, signal.SIGKILL)
    cluster.until(lambda: cluster.member("broker-a")["pid"] not in (0, killed))
    cluster.until(lambda: _healthy(cluster))
    got = cluster.run("consume", "survivors", "--group", "readers", "--count", "200", "--idle-timeout", "60")
    assert got.returncode == 0, got.stderr
    assert sorted(got.stdout.splitlines()) == sorted(_LINES)


def test_down_stops_everything_and_keeps_the_data(cluster: LocalCluster) -> None:
    pids = [int(member["pid"]) for member in cluster.record()["members"]]
    stopped = cluster.run("down")
    assert stopped.returncode == 0, stopped.stderr
    assert cluster.process.wait(timeout=PATIENCE_S) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not (cluster.folder / "cluster.json").exists()
    assert (cluster.folder / "store" / "broker-a" / "commitlog").is_dir()
    assert "nothing runs" in cluster.run("down").stdout

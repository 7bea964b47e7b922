"""`tandemmq restore-kept-tail` on a cluster in memory, and on files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from support.cli_cluster import FakeCluster
from support.fake_cluster import KEPT_TAIL
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED


def test_tails_are_listed_with_why_they_were_cut_off() -> None:
    cluster = FakeCluster()
    shown = cluster.run("restore-kept-tail")
    assert KEPT_TAIL.name in shown
    assert "it differs from the master's" in shown
    [listed] = json.loads(cluster.run("restore-kept-tail", "-o", "json"))["tails"]
    assert (listed["broker"], listed["start_offset"]) == ("broker-a:1", 4_096)
    for more in ((), ("--all", "--dry-run"), ("--all", "--yes")):
        none = cluster.run("restore-kept-tail", "--broker", "broker-b:1", *more)
        assert none == "no tail was cut off and kept\n", more


def test_a_dry_run_says_what_is_missing_and_what_cannot_be_helped() -> None:
    cluster = FakeCluster()
    planned = cluster.invoke("restore-kept-tail", "--all", "--dry-run")
    assert planned.exit_code == EXIT_FAILED
    assert "MISSING" in planned.stdout
    assert "topic gone does not exist" in planned.stdout
    assert "message LOST of topic orders" in planned.stdout
    assert not cluster.operations.cluster.restored


def test_it_asks_before_it_stores_anything() -> None:
    cluster = FakeCluster()
    assert "nobody can be asked" in str(cluster.failure("restore-kept-tail", KEPT_TAIL.name))
    assert not cluster.operations.cluster.restored


def test_what_is_missing_is_stored_once() -> None:
    cluster = FakeCluster()
    words = ("restore-kept-tail", KEPT_TAIL.name, "--broker", "broker-a:1", "--yes", "-o", "json")
    [first] = json.loads(cluster.invoke(*words).stdout)
    assert (first["held_count"], first["stored_count"], len(first["messages"])) == (1, 1, 2)
    [again] = json.loads(cluster.invoke(*words).stdout)
    assert (again["held_count"], again["stored_count"], len(again["messages"])) == (2, 0, 1)


def test_a_tail_that_is_not_there() -> None:
    failure = FakeCluster().failure("restore-kept-tail", "nothing", "--yes")
    assert "there is no kept tail nothing" in str(failure)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with the kept tail of a log: three messages, the second damaged."""
    disk = SimulatedDisk(random.Random(1))
    broker = new_store(disk)
    broker.load()
    for number in range(4):
        broker.put(outgoing_message(keys=(f"ID-{number}",)))
        broker.write_appended()
    size = broker.end_offset // 4
    kept = broker.truncate(size, reason="for a test")
    assert kept is not None
    (tmp_path / "kept-tails").mkdir()
    for path in disk.paths():
        if path.startswith("kept-tails/"):
            (tmp_path / path).write_bytes(disk.read_file(path) or b"")
    damaged = bytearray((tmp_path / kept.path).read_bytes())
    damaged[size + 89] ^= 1
    (tmp_path / kept.path).write_bytes(damaged)
    return tmp_path


def test_tails_in_a_folder_are_listed_and_restored(store: Path) -> None:
    cluster = FakeCluster()
    assert "for a test" in cluster.run("restore-kept-tail", "--store", str(store))
    words = ("restore-kept-tail", "--store", str(store), "--all", "--yes", "-o", "json")
    assert cluster.failure(*words).exit_code == EXIT_REFUSED, "nobody said which group they are of"
    (store / "replica.json").write_text(json.dumps({"brokerName": "broker-a"}))
    [report] = json.loads(cluster.invoke(*words).stdout)
    assert "message ID-2 of topic" in report["unreadable"][0]["reason"]
    assert len(cluster.operations.cluster.restored_from_files) == 2
    [file] = (store / "kept-tails").glob("*.log")
    assert "for a test" in cluster.run("restore-kept-tail", "--store", str(file))


def test_a_folder_without_tails_and_one_that_is_not_there(tmp_path: Path) -> None:
    cluster = FakeCluster()
    assert cluster.run("restore-kept-tail", "--store", str(tmp_path)) == "no tail was cut off and kept\n"
    assert "there is no folder" in str(cluster.failure("restore-kept-tail", "--store", str(tmp_path / "none")))
    (tmp_path / "x.log").write_bytes(b"")
    assert "is no name of a kept tail" in str(cluster.failure("restore-kept-tail", "--store", str(tmp_path / "x.log")))

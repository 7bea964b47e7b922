"""States in which replicas are found without anything being wrong: none of them is reported."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from broker.files import PosixDisk
from mqcore.audit.record_check import check_records
from mqcore.audit.replica_store import ReplicaStore
from mqcore.storage import MessageStore
from support.audit_stores import (
    AUDIT_OPTIONS,
    append_messages,
    copy_group,
    make_master,
    open_group,
    open_store,
    replicate,
)
from support.folder_audit import audit_folders
from support.messages import STORE_HOST
from support.replica_folders import open_replica
from support.store_samples import END_OFFSET
from support.store_samples import STORE as JAVA_STORE
from support.stores import ManualClock, flush_all


def check_all(store: ReplicaStore) -> None:
    """Nothing is wrong with a replica by itself."""
    assert not check_records(store, store.facts.min_offset, store.facts.end_offset).findings


def killed_copy(folder: Path, copy: Path, *, flushed: bool) -> ReplicaStore:
    """What a kill -9 leaves of a store in the middle of its work."""
    clock = ManualClock()
    running = open_store(folder, clock)
    append_messages(running, clock, 0, 300)
    if flushed:
        flush_all(running)
        append_messages(running, clock, 300, 150)
    shutil.copytree(folder, copy)
    running.close()
    return open_replica(copy)


@pytest.mark.parametrize("flushed", [False, True])
def test_killed_store(flushed: bool, tmp_path: Path) -> None:
    store = killed_copy(tmp_path / "store", tmp_path / "killed", flushed=flushed)
    assert store.facts.is_running
    assert (store.facts.queues_offset > 0) == flushed
    check_all(store)


def test_store_that_was_killed_and_started_again(tmp_path: Path) -> None:
    killed_copy(tmp_path / "store", tmp_path / "killed", flushed=True)
    clock = ManualClock(now_ms=1_700_000_100_000)
    store = open_store(tmp_path / "killed", clock)
    append_messages(store, clock, 500, 100)
    store.close()
    check_all(open_replica(tmp_path / "killed"))


def test_killed_slave_that_ends_within_a_record(tmp_path: Path) -> None:
    make_master(tmp_path / "0", messages=200)
    master = open_replica(tmp_path / "0")
    slave = open_store(tmp_path / "slave", ManualClock())
    slave.append_raw(0, bytes(master.read_log(0, 100_123)))
    while slave.dispatch():
        pass
    flush_all(slave)
    shutil.copytree(tmp_path / "slave", tmp_path / "1")
    slave.close()
    shutil.copytree(tmp_path / "0" / "config", tmp_path / "1" / "config")
    store = open_replica(tmp_path / "1")
    assert 99_000 < store.facts.end_offset <= 100_123
    check_all(store)
    assert not audit_folders([tmp_path / "0", tmp_path / "1"]).findings


def test_slave_that_is_behind(equal_group: list[Path], tmp_path: Path) -> None:
    replicate(equal_group[0], tmp_path / "1", end_offset=open_replica(equal_group[0]).facts.end_offset // 2)
    assert not audit_folders([equal_group[0], tmp_path / "1", equal_group[2]]).findings


def test_slave_that_joined_late(equal_group: list[Path], tmp_path: Path) -> None:
    replicate(equal_group[0], tmp_path / "1", from_offset=2 * AUDIT_OPTIONS.commit_log_file_bytes)
    late = open_replica(tmp_path / "1")
    assert late.facts.min_offset == 2 * AUDIT_OPTIONS.commit_log_file_bytes
    check_all(late)
    assert not audit_folders([equal_group[0], tmp_path / "1"]).findings


def test_master_whose_first_file_expired(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    (folders[0] / "commitlog" / f"{0:020d}").unlink()
    assert not audit_folders(folders).findings


def test_topic_that_was_deleted(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    shutil.rmtree(folder / "consumequeue" / "logs")
    topics = folder / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"logs"', '"other"'))
    check_all(open_replica(folder))


def test_topic_that_was_deleted_and_made_again(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    clock = ManualClock(now_ms=1_700_000_100_000)
    store = open_store(folder, clock)
    store.queues.remove_topic("logs")
    append_messages(store, clock, 1000, 60)
    store.close()
    check_all(open_replica(folder))


def test_broker_without_an_index(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    shutil.rmtree(folder / "index")
    check_all(open_replica(folder))


def test_store_of_a_java_broker() -> None:
    store = open_replica(JAVA_STORE)
    assert store.facts.end_offset == END_OFFSET
    result = check_records(store, 0, END_OFFSET)
    assert result.records == 249
    assert not result.findings


@pytest.mark.parametrize("seed", range(4))
def test_log_that_is_checked_in_parts(seed: int, equal_group: list[Path]) -> None:
    store = open_group(equal_group)[0]
    chance = random.Random(seed)
    end = store.facts.end_offset
    cuts = sorted({0, end, *(chance.randrange(end) for _ in range(9))})
    parts = [check_records(store, start, stop) for start, stop in pairwise(cuts)]
    assert sum(part.records for part in parts) == check_records(store, 0, end).records
    assert not [finding for part in parts for finding in part.findings]


def test_table_of_delay_levels_that_was_changed(tmp_path: Path) -> None:
    """With messages of before and of after in one queue."""
    clock = ManualClock()
    for first, levels in enumerate(((2000, 7000, 60_000), (3000, 9000, 65_000))):
        options = replace(AUDIT_OPTIONS, delay_levels_ms=levels)
        store = MessageStore(PosixDisk(tmp_path), clock, options, store_host=STORE_HOST, process_id=4711)
        store.load()
        append_messages(store, clock, first * 200, 200)
        store.close()
    check_all(open_replica(tmp_path))

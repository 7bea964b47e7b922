"""States in which replicas are found without anything being wrong: none of them is reported."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

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
from support.messages import STORE_HOST, outgoing_message
from support.replica_folders import open_replica
from support.store_samples import END_OFFSET
from support.store_samples import STORE as JAVA_STORE
from support.stores import ManualClock, flush_all
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE
from tandemmq.core.storage.message_store import MessageStore


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


def test_slave_that_was_killed_while_it_was_behind(equal_group: list[Path], tmp_path: Path) -> None:
    replicate(equal_group[0], tmp_path / "1", end_offset=open_replica(equal_group[0]).facts.end_offset // 2)
    (tmp_path / "1" / "abort").touch()
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
    for queue_id in store.queues.ids_of("logs"):
        queue = store.queues.get("logs", queue_id)
        assert queue is not None
        queue.truncate(0)
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


def put(store: MessageStore, clock: ManualClock, count: int, *, queue_id: int = 0, body_bytes: int = 100) -> None:
    """Messages that are all alike but for their ids."""
    for number in range(count):
        key = f"{store.end_offset:016X}{number:016X}"
        message = outgoing_message(topic="orders", queue_id=queue_id, body=b"x" * body_bytes, keys=(key,))
        assert store.put(message).status.name == "PUT_OK"
        clock.now_ms += 3


def copy_without_first_files(folder: Path, copy: Path, count: int) -> None:
    """Its oldest files have expired, and with them files of its ConsumeQueues."""
    shutil.copytree(folder, copy)
    (copy / QUEUE_ENDS_FILE).unlink()  # As retention does before.
    for path in sorted((copy / "commitlog").iterdir())[:count]:
        path.unlink()
    store = open_store(copy, ManualClock())
    while store.trim_queues():
        pass
    store.close()


def test_clock_that_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    for first, step_ms in ((0, 3_600_000), (200, 100_000_000_000), (400, 0)):
        append_messages(store, clock, first, 200)
        clock.now_ms -= step_ms
    store.close()
    check_all(open_replica(tmp_path))


def test_record_that_fills_a_file_to_its_last_byte(tmp_path: Path) -> None:
    """But for the head of the blank, which is always there."""
    clock = ManualClock()
    store = open_store(tmp_path / "0", clock)
    put(store, clock, 1)
    head_bytes = store.end_offset - 100
    while store.segment_bytes - store.end_offset > 3000:
        put(store, clock, 1, body_bytes=1000)
    put(store, clock, 1, body_bytes=store.segment_bytes - store.end_offset - 8 - head_bytes)
    assert store.end_offset == store.segment_bytes - 8
    put(store, clock, 5)
    store.close()
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    audit = audit_folders([tmp_path / "0", tmp_path / "1"])
    assert not audit.compared
    assert not audit.checked


def test_queue_whose_messages_have_all_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path / "0", clock)
    put(store, clock, 250, queue_id=2)
    put(store, clock, 700, body_bytes=1000)
    store.close()
    copy_without_first_files(tmp_path / "0", tmp_path / "1", 2)
    store = open_store(tmp_path / "1", clock)
    put(store, clock, 20, queue_id=2)
    store.close()
    check_all(open_replica(tmp_path / "1"))
    for order in (("0", "1"), ("1", "0")):
        found = audit_folders([tmp_path / name for name in order])
        assert not found.checked
        # A slave may not delete before its master does.
        due = (
            {FindingKind.TAIL_EXTRA, FindingKind.SEGMENT_MISSING}
            if order[0] == "0"
            else {FindingKind.ON_FEWER_REPLICAS}
        )
        assert {finding.kind for finding in found.compared} == due


@pytest.mark.parametrize("tail_bytes", [3, 40, 700])
def test_killed_in_the_middle_of_a_record(tail_bytes: int, tmp_path: Path) -> None:
    store = killed_copy(tmp_path / "store", tmp_path / "killed", flushed=True)
    end = store.facts.end_offset
    head = (1500).to_bytes(4, "big") + b"\xda\xa3\x20\xa7" + bytes(20) + end.to_bytes(8, "big")
    half = (head + random.Random(1).randbytes(700))[:tail_bytes]
    with (tmp_path / "killed" / store.segment_path(end)).open("r+b") as file:
        file.seek(end % store.facts.segment_bytes)
        file.write(half)
    torn = open_replica(tmp_path / "killed")
    assert torn.facts.end_offset == end
    check_all(torn)
    restarted = open_store(tmp_path / "killed", ManualClock(now_ms=1_700_000_100_000))
    restarted.close()
    check_all(open_replica(tmp_path / "killed"))


def test_bytes_of_a_former_tail_lie_behind_the_end(equal_group: list[Path], tmp_path: Path) -> None:
    """What RocketMQ leaves when it cuts a slave back."""
    replicate(equal_group[0], tmp_path / "1", end_offset=open_replica(equal_group[0]).facts.end_offset - 30_000)
    slave, master = open_replica(tmp_path / "1"), open_replica(equal_group[0])
    end = slave.facts.end_offset
    with (tmp_path / "1" / slave.segment_path(end)).open("r+b") as file:
        file.seek(end % slave.facts.segment_bytes)
        file.write(bytes(master.read_log(end - 20_000, end))[777:])
    assert open_replica(tmp_path / "1").facts.end_offset == end
    check_all(open_replica(tmp_path / "1"))
    (tmp_path / "1" / "abort").touch()
    assert not audit_folders([equal_group[0], tmp_path / "1"]).findings

"""Where logs begin and end: what is a loss, and what only looks like one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.audit_stores import copy_group, make_group, make_master, open_group, replicate
from tandemmq.core.audit.equality import (
    BoundRules,
    SeenReplica,
    common_range,
    layers,
    missing_messages,
)
from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.replication.log_history import LogRange

HOUR_MS = 3_600_000
STORED_MS = 1_700_000_000_000
"""When the first message of these stores was stored."""
YOUNG = BoundRules(file_reserved_ms=72 * HOUR_MS, now_ms=STORED_MS + HOUR_MS)
OLD = BoundRules(file_reserved_ms=72 * HOUR_MS, now_ms=STORED_MS + 100 * HOUR_MS)


def shorter_slave(equal_group: list[Path], folder: Path) -> list[Path]:
    """A group whose slave holds half of the log."""
    replicate(equal_group[0], folder, end_offset=open_group(equal_group)[0].facts.end_offset // 2)
    return [equal_group[0], folder]


def running(stores: dict[int, ReplicaStore], *broker_ids: int) -> dict[int, ReplicaStore]:
    """The same, of which some still run."""
    return {
        broker_id: ReplicaStore(store.files, replace(store.facts, is_running=broker_id in broker_ids))
        for broker_id, store in stores.items()
    }


def seen(stores: dict[int, ReplicaStore], broker_id: int) -> dict[int, SeenReplica]:
    """What an earlier run saw of one replica."""
    facts = stores[broker_id].facts
    return {broker_id: SeenReplica(facts.min_offset, facts.end_offset, facts.end_offset)}


def without_oldest_file(folder: Path) -> None:
    """As an accident, or retention, leaves it."""
    min((folder / "commitlog").iterdir()).unlink()


def kinds(findings: list[Finding]) -> list[tuple[FindingKind, int | None, int | None]]:
    return [(finding.kind, finding.broker_id, finding.source_broker_id) for finding in findings]


def test_common_range_is_what_all_hold_that_hold_anything(equal_group: list[Path], tmp_path: Path) -> None:
    stores = open_group([*shorter_slave(equal_group, tmp_path / "1"), tmp_path / "nothing"])
    assert common_range(store.facts for store in stores.values()) == LogRange(0, stores[1].facts.end_offset)
    assert common_range([]) == LogRange(0, 0)


def test_layers_are_held_by_the_same_replicas(equal_group: list[Path], tmp_path: Path) -> None:
    stores = open_group([*shorter_slave(equal_group, tmp_path / "1"), equal_group[2]])
    half, end = stores[1].facts.end_offset, stores[0].facts.end_offset
    assert layers(store.facts for store in stores.values()) == [
        (LogRange(0, half), frozenset({0, 1, 2})),
        (LogRange(half, end), frozenset({0, 2})),
    ]


def test_running_slave_that_is_behind_is_no_finding(equal_group: list[Path], tmp_path: Path) -> None:
    stores = running(open_group(shorter_slave(equal_group, tmp_path / "1")), 1)
    assert not missing_messages(stores, rules=BoundRules())
    assert missing_messages(stores, rules=BoundRules(max_lag_bytes=1000))


@pytest.mark.parametrize("replicas", [2, 3])
def test_messages_that_a_stopped_slave_lacks_are_told_in_one_finding(
    replicas: int, equal_group: list[Path], tmp_path: Path
) -> None:
    stores = open_group([*shorter_slave(equal_group, tmp_path / "1"), equal_group[2]][:replicas])
    (finding,) = missing_messages(stores, rules=BoundRules())
    assert kinds([finding]) == [(FindingKind.ON_FEWER_REPLICAS, 1, 0)]
    assert (finding.start_offset, finding.end_offset) == (stores[1].facts.end_offset, stores[0].facts.end_offset)
    assert finding.messages > 400
    assert None not in (finding.message_id, finding.last_message_id)
    who = "on replica 0 only" if replicas == 2 else "on replicas 0, 2 and not here"
    assert f"{finding.messages} messages are {who}" in finding.detail


def test_replica_without_a_log_lacks_everything(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    for broker_id in (0, 1):
        shutil.move(folders[broker_id] / "commitlog", tmp_path / "aside")
        (finding,) = missing_messages(open_group(folders), rules=BoundRules())
        shutil.move(tmp_path / "aside", folders[broker_id] / "commitlog")
        assert kinds([finding]) == [(FindingKind.SEGMENT_MISSING, broker_id, 1 - broker_id)]
        assert finding.messages > 800


def test_log_that_ends_before_what_an_earlier_run_saw_lost_its_tail(equal_group: list[Path], tmp_path: Path) -> None:
    stores = running(open_group(shorter_slave(equal_group, tmp_path / "1")), 0, 1)
    end = stores[1].facts.end_offset
    (finding,) = missing_messages(stores, seen={1: SeenReplica(0, stores[0].facts.end_offset)}, rules=BoundRules())
    assert kinds([finding]) == [(FindingKind.TAIL_MISSING, 1, 0)]
    assert finding.start_offset == end
    assert finding.end_offset == stores[0].facts.end_offset
    assert finding.messages > 400
    other_disk = {1: SeenReplica(0, stores[0].facts.end_offset, disk_id="another")}
    with_disk = {
        broker_id: ReplicaStore(store.files, replace(store.facts, disk_id="this"))
        for broker_id, store in stores.items()
    }
    assert not missing_messages(with_disk, seen=other_disk, rules=BoundRules())


@pytest.mark.parametrize("kept_bytes", [0, -1])
def test_what_was_cut_and_is_kept_is_not_lost(equal_group: list[Path], tmp_path: Path, kept_bytes: int) -> None:
    """As a slave does with what it has beyond its master."""
    folders = copy_group(equal_group[:2], tmp_path)
    end = open_group(folders)[1].facts.end_offset
    path = folders[1] / "kept-tails" / f"{end:020d}-1700000001000.log"
    path.write_bytes(bytes(700 + kept_bytes))
    seen = {1: SeenReplica(0, end + 700, verified_offset=end)}
    found = missing_messages(open_group(folders), seen=seen, rules=BoundRules())
    assert kinds(found) == ([(FindingKind.TAIL_MISSING, 1, None)] if kept_bytes else [])
    seen = {1: SeenReplica(0, end + 700, verified_offset=end + 1)}
    assert missing_messages(open_group(folders), seen=seen, rules=BoundRules())


def test_broker_may_cut_what_nobody_else_had(equal_group: list[Path], tmp_path: Path) -> None:
    """It failed over, and another master began below its end."""
    stores = running(open_group(shorter_slave(equal_group, tmp_path / "1")), 0, 1)
    long, end = stores[0].facts.end_offset, stores[1].facts.end_offset
    live = BoundRules(live=frozenset({0, 1}))
    assert not missing_messages(stores, seen={1: SeenReplica(0, long, verified_offset=end)}, rules=live)
    assert missing_messages(stores, seen={1: SeenReplica(0, long, verified_offset=end + 1)}, rules=live)


def test_slave_that_lost_its_oldest_file(equal_group: list[Path], tmp_path: Path) -> None:
    """It deletes what its master has deleted, and no more."""
    folders = copy_group(equal_group[:2], tmp_path)
    without_oldest_file(folders[1])
    (finding,) = missing_messages(open_group(folders), rules=BoundRules())
    assert kinds([finding]) == [(FindingKind.SEGMENT_MISSING, 1, 0)]
    assert finding.start_offset == 0
    assert finding.messages > 100


def test_master_that_lacks_its_oldest_file(equal_group: list[Path], tmp_path: Path) -> None:
    """It is the first to delete; who saw it young knows better."""
    folders = copy_group(equal_group[:2], tmp_path)
    before = seen(open_group(folders), 0)
    without_oldest_file(folders[0])
    stores = open_group(folders)
    assert not missing_messages(stores, rules=YOUNG)
    assert not missing_messages(stores, seen=before, rules=OLD)
    (finding,) = missing_messages(stores, seen=before, rules=YOUNG)
    assert kinds([finding]) == [(FindingKind.SEGMENT_MISSING, 0, 1)]


def test_oldest_file_that_nobody_has_any_more(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    stores = open_group(folders)
    before = seen(stores, 0) | seen(stores, 1)
    for folder in folders:
        without_oldest_file(folder)
    stores = open_group(folders)
    assert not missing_messages(stores, seen=before, rules=OLD)
    assert kinds(missing_messages(stores, seen=before, rules=YOUNG)) == [
        (FindingKind.SEGMENT_MISSING, broker_id, None) for broker_id in (0, 1)
    ]


def test_a_log_that_is_as_long_and_holds_nothing_is_no_source(equal_group: list[Path], tmp_path: Path) -> None:
    """Its ConsumeQueues know how long it was."""
    folders = copy_group(equal_group[:2], tmp_path)
    replicate(equal_group[0], tmp_path / "2", end_offset=open_group(equal_group)[0].facts.end_offset // 2)
    for path in sorted((folders[0] / "commitlog").iterdir())[1:]:
        path.write_bytes(bytes(path.stat().st_size))
    found = missing_messages(open_group([*folders, tmp_path / "2"]), rules=BoundRules())
    (finding,) = [own for own in found if own.broker_id == 2]
    assert kinds([finding]) == [(FindingKind.ON_FEWER_REPLICAS, 2, 1)]
    assert f"{finding.messages} messages are on replica 1 only" in finding.detail


def test_slave_beyond_its_master(tmp_path: Path) -> None:
    make_master(tmp_path / "long", messages=120)
    make_master(tmp_path / "short", messages=100)
    stores = open_group([tmp_path / "short", tmp_path / "long"])
    (finding,) = missing_messages(stores, rules=BoundRules())
    assert (finding.kind, finding.broker_id, finding.verdict) == (FindingKind.TAIL_EXTRA, 1, Verdict.MASTER_RULE)
    assert finding.messages == 20
    assert finding.start_offset == stores[0].facts.end_offset
    assert "20 messages are on replica 1 only" in finding.detail


def test_two_slaves_beyond_their_master_are_one_finding_that_blames_nobody(tmp_path: Path) -> None:
    for name, messages in (("master", 100), ("one", 120), ("other", 120)):
        make_master(tmp_path / name, messages=messages)
    stores = open_group([tmp_path / name for name in ("master", "one", "other")])
    (finding,) = missing_messages(stores, rules=BoundRules())
    assert (finding.kind, finding.broker_id, finding.verdict) == (FindingKind.TAIL_EXTRA, None, Verdict.UNDECIDED)
    assert "20 messages are on replicas 1, 2 and not on the master" in finding.detail


def test_master_is_not_always_the_one_with_id_0(tmp_path: Path) -> None:
    make_master(tmp_path / "long", messages=120)
    make_master(tmp_path / "short", messages=100)
    stores = running(open_group([tmp_path / "long", tmp_path / "short"]), 0, 1)
    assert not missing_messages(stores, rules=BoundRules())
    found = missing_messages(stores, rules=BoundRules(master_id=1))
    assert [(finding.kind, finding.broker_id) for finding in found] == [(FindingKind.TAIL_EXTRA, 0)]
    assert not missing_messages(stores, rules=BoundRules(master_id=None))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("change", ["cut", "doubled", "halved", "longer"])
def test_files_of_another_length_than_those_of_the_other_replicas(
    tmp_path: Path, replicas: int, victim: int, change: str
) -> None:
    """They fit each other, and no broker of the group starts with them; no record is lost."""
    folders = make_group(tmp_path, replicas=replicas, messages=60 if change in ("cut", "longer") else 600)
    files = sorted((folders[victim] / "commitlog").iterdir())
    whole = b"".join(path.read_bytes() for path in files)
    size = len(whole) // len(files)
    length = {"cut": len(whole.rstrip(b"\0")) + 300, "doubled": 2 * size, "halved": size // 2, "longer": 2 * size}[
        change
    ]
    for path in files:
        path.unlink()
    for start in range(0, len(whole), length):
        data = whole[start : start + length] if change == "cut" else whole[start : start + length].ljust(length, b"\0")
        (folders[victim] / "commitlog" / f"{start:020d}").write_bytes(data)
        if change == "cut":
            break
    told = missing_messages(open_group(folders), rules=BoundRules())
    found = [own for own in told if own.cause is Cause.OTHER_LENGTH]
    assert [own.kind for own in found] == [FindingKind.SEGMENT_SIZE]
    # Of one file that is twice as long nobody can tell.
    assert found[0].broker_id == (None if change == "longer" else victim)

"""What lies beside the log: who is right by it, what is wrong with it, and what only looks wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from support.audit_stores import copy_group
from support.replica_folders import FolderFiles, open_replica
from support.store_samples import STORE as JAVA_STORE
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.replica_store import NotShown, ReplicaUnreadable
from tandemmq.core.audit.side_files import (
    SideFacts,
    doubtful_ranges,
    forks,
    read_side_facts,
    remembered_ends,
    resting_master,
    side_findings,
)
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, Epoch, LogHistory, LogRange, ReplicaRecord


@pytest.fixture
def group(equal_group: list[Path], tmp_path: Path) -> list[Path]:
    """Two replicas, to be changed."""
    return copy_group(equal_group[:2], tmp_path / "group")


def facts_of(folders: list[Path]) -> dict[int, SideFacts]:
    return {
        broker_id: SideFacts.from_json(read_side_facts(open_replica(folder).files, broker_id).to_json())
        for broker_id, folder in enumerate(folders)
    }


def find(folders: list[Path], differing: Mapping[int, list[LogRange]] | None = None) -> list[Finding]:
    logs = {broker_id: open_replica(folder, broker_id=broker_id).facts for broker_id, folder in enumerate(folders)}
    return side_findings("broker-a", facts_of(folders), logs, {}, differing or {})


def write_epochs(folder: Path, *epochs: Epoch) -> None:
    (folder / EPOCH_FILE).write_text(LogHistory.of(epochs).to_text())


def test_files_that_fit_are_no_findings(group: list[Path]) -> None:
    assert find(group) == []


def test_stores_of_java_brokers_have_none_of_these(group: list[Path]) -> None:
    for folder in group:
        for name in (REPLICA_FILE, EPOCH_FILE):
            (folder / name).unlink()
        for path in (folder / "config").iterdir():
            if not path.name.endswith(("topics.json", "Group.json", "Offset.json")):
                path.unlink()
    assert find(group) == []


def test_a_slave_that_does_not_know_the_newest_epoch_yet(group: list[Path]) -> None:
    end = open_replica(group[0]).facts.end_offset
    for folder, epochs in zip(group, ([Epoch(1, 0), Epoch(2, end)], [Epoch(1, 0)])):
        write_epochs(folder, *epochs)
    assert find(group) == []


def test_epochs_that_name_two_writers_of_equal_bytes(group: list[Path]) -> None:
    write_epochs(group[1], Epoch(1, 0))
    (finding,) = find(group)
    assert (finding.kind, finding.broker_id, finding.source_broker_id) == (FindingKind.EPOCHS_WRONG, 1, 0)
    assert finding.verdict is Verdict.EPOCHS
    assert find(group, {1: [LogRange(0, 1 << 40)]}) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_an_epoch_of_which_nobody_ever_heard_is_one_too_many(group: list[Path], victim: int) -> None:
    """Who follows a master writes that down before it takes a byte of it."""
    end = open_replica(group[0]).facts.end_offset
    epochs = LogHistory.from_text((group[0] / EPOCH_FILE).read_text()).epochs
    write_epochs(group[victim], *epochs, Epoch(5, end - 4_000))
    (finding,) = find(group)
    assert (finding.kind, finding.broker_id, finding.source_broker_id) == (FindingKind.EPOCHS_WRONG, victim, 1 - victim)
    # A member that promised it had heard: then the shorter file is the older one.
    for folder in group:
        record = ReplicaRecord.from_json((folder / REPLICA_FILE).read_text())
        (folder / REPLICA_FILE).write_text(replace(record, promised_epoch=5).to_json())
        (finding,) = find(group)
        assert (finding.broker_id, finding.source_broker_id) == (1 - victim, victim)
        (folder / REPLICA_FILE).write_text(record.to_json())


def test_an_epoch_too_many_between_others_is_one_that_nobody_knows_the_right_one_of(group: list[Path]) -> None:
    end = open_replica(group[0]).facts.end_offset
    epochs = LogHistory.from_text((group[0] / EPOCH_FILE).read_text()).epochs
    write_epochs(group[1], *epochs[:2], Epoch(3, end // 2 - 2_000), *epochs[2:])
    (finding,) = find(group)
    assert (finding.broker_id, finding.verdict) == (None, Verdict.UNDECIDED)


def test_logs_that_went_different_ways(group: list[Path]) -> None:
    logs = {broker_id: open_replica(folder, broker_id=broker_id).facts for broker_id, folder in enumerate(group)}
    write_epochs(group[0], Epoch(1, 0))
    write_epochs(group[1], Epoch(1, 0), Epoch(2, 5_000))
    facts = facts_of(group)
    (fork,) = forks(facts, logs)
    assert (fork.broker_id, fork.source_broker_id, fork.start_offset, fork.later_epoch) == (0, 1, 5_000, 2)
    assert doubtful_ranges(facts, logs) == [LogRange(5_000, logs[0].end_offset)]


def test_a_disk_id_belongs_to_one_replica(group: list[Path]) -> None:
    shutil.copyfile(group[0] / REPLICA_FILE, group[1] / REPLICA_FILE)
    (finding,) = find(group)
    assert (finding.kind, finding.broker_id) == (FindingKind.DISK_ID_WRONG, 1)


def test_the_last_master_is_who_was_followed_last(group: list[Path]) -> None:
    assert resting_master(facts_of(group)) == 0
    for folder in group:
        record = ReplicaRecord.from_json((folder / REPLICA_FILE).read_text())
        newer = replace(record, promised_epoch=5, promised_to="1" * 32)
        (folder / REPLICA_FILE).write_text(newer.to_json())
    assert resting_master(facts_of(group)) == 1


def test_members_remember_how_far_a_log_went(group: list[Path]) -> None:
    end = open_replica(group[0]).facts.end_offset
    assert remembered_ends(facts_of(group)) == {0: (end, 1), 1: (end, 0)}
    # What a later epoch may have cut counts no more.
    write_epochs(group[1], Epoch(1, 0), Epoch(5, end))
    assert remembered_ends(facts_of(group)) == {0: (end, 1)}


@pytest.mark.parametrize("value", [1.5, None, "x", [], {}, [1], {"f": [1.5, 2]}, {"f": [1]}])
@pytest.mark.parametrize("name", ["bootId", "believedMs", "monotonicMs", "misdated"])
def test_a_clock_that_no_broker_writes(group: list[Path], name: str, value: object) -> None:
    """Also where a reader makes a number of it."""
    path = group[1] / "config" / "retentionClock.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"written by": "a later version"}))
    assert find(group) == []
    path.write_text(json.dumps(values | {name: value}))
    is_right = (name, value) in (("misdated", {}), ("bootId", "x"))
    assert [own.broker_id for own in find(group)] == [1] * (not is_right)


def test_a_table_that_only_rocketmq_reads_and_nobody_shows_ends_no_audit(tmp_path: Path) -> None:
    """Our broker goes on with a store of RocketMQ's, and shows what it reads itself. A folder that does not give it is
    not read."""
    problem: type[ReplicaUnreadable] = NotShown

    class Shown(FolderFiles):
        def read(self, path: str, offset: int, length: int) -> bytes:
            if path == "config/consumerFilter.json":
                raise problem("PERMISSION_DENIED")
            return super().read(path, offset, length)

    shutil.copytree(JAVA_STORE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config" / "consumerOrderInfo.json").write_bytes(b"")
    problems = dict(read_side_facts(Shown(tmp_path), 0).unreadable)
    assert list(problems) == ["config/consumerOrderInfo.json"]
    problem = ReplicaUnreadable
    with pytest.raises(ReplicaUnreadable):
        read_side_facts(Shown(tmp_path), 0)

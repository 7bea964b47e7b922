"""Brokers as a run meets them: a change of master between two questions is no finding, and a lie is caught."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.audit_stores import copy_group, make_group
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.store_damage import DAMAGES
from tandemmq.consistency.audit import AuditReport, audit, new_run_id
from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.consistency.tasks import DescribeTask, DigestTask, Replica, Task, TaskAnswer
from tandemmq.core.audit.run_summary import Outcome
from tandemmq.core.replication.log_history import REPLICA_FILE, ReplicaRecord
from tandemmq.service.settings import load_settings


class _Brokers(InlineRunner):
    """Folders in the place of running brokers; from a given description on, the group is in a later epoch."""

    def __init__(self, *, fails_over_at: int) -> None:
        super().__init__()
        self._fails_over_at = fails_over_at
        self._described = 0

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        answers = super().run([_of_folders(task) for task in tasks], label=label)
        return [
            self._as_running(answer) if isinstance(task, DescribeTask) else answer
            for task, answer in zip(tasks, answers)
        ]

    def _as_running(self, answer: TaskAnswer) -> TaskAnswer:
        self._described += 1
        facts = answer.values["facts"] | {"is_running": True}
        side = dict(answer.values["side"])
        if self._described > self._fails_over_at:
            side["epochs"] = [*side["epochs"], (9, facts["end_offset"])]
        return replace(answer, values=answer.values | {"facts": facts, "side": side})


def _of_folders(task: Any) -> Any:
    changes: dict[str, Any] = {}
    if hasattr(task, "spec"):
        changes["spec"] = replace(task.spec, kind=SourceKind.FOLDER)
    if hasattr(task, "replica"):
        changes["replica"] = _folder(task.replica)
    if hasattr(task, "replicas"):
        changes["replicas"] = tuple(map(_folder, task.replicas))
    return replace(task, **changes)


def _folder(replica: Replica) -> Replica:
    return replace(replica, spec=replace(replica.spec, kind=SourceKind.FOLDER))


def _run(folders: list[Path], results: Path, *, fails_over_at: int) -> AuditReport:
    return _run_with(folders, results, _Brokers(fails_over_at=fails_over_at))


def _run_with(folders: list[Path], results: Path, runner: InlineRunner) -> AuditReport:
    settings = load_settings(
        ConsistencySettings,
        environ={},
        overrides=["secondLookPause=0", "extentBytes=64KiB", f"results={results}", "path=unused", "tier=quick"],
    )
    specs = tuple(
        SourceSpec("broker-a", broker_id, SourceKind.BROKER, str(folder)) for broker_id, folder in enumerate(folders)
    )
    return audit(
        settings,
        Discovery("test", specs),
        runner=runner,
        results=ResultsStore(str(results)),
        run_id=new_run_id(datetime.now(UTC), random.Random(1)),
        progress=Progress(in_flight=lambda: 0, shown=False),
    )


@pytest.mark.parametrize("fails_over", [False, True])
def test_what_two_masters_said_is_no_finding(equal_group: list[Path], tmp_path: Path, fails_over: bool) -> None:
    folders = copy_group(equal_group[:2], tmp_path / "broker-a")
    DAMAGES["extra-tail"].apply(folders, random.Random(3))

    report = _run(folders, tmp_path / "results", fails_over_at=2 if fails_over else 1_000)

    (group,) = report.summary.groups
    assert group.outcome is (Outcome.INCOMPLETE if fails_over else Outcome.DIVERGED)
    assert bool(report.findings) is not fails_over
    assert ("master changed" in group.problem) is fails_over


class _Liars(_Brokers):
    """The slave tells digests of what it should hold, and gives the bytes that it does hold."""

    def __init__(self, sound: Path) -> None:
        super().__init__(fails_over_at=1_000)
        self._sound = sound

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        return super().run([self._lied(task) for task in tasks], label=label)

    def _lied(self, task: Any) -> Any:
        if type(task) is not DigestTask or task.replica.facts.broker_id != 1:
            return task
        spec = replace(task.replica.spec, location=str(self._sound))
        return replace(task, replica=replace(task.replica, spec=spec))


@pytest.mark.parametrize("lies", [False, True])
def test_a_broker_that_lies_about_its_digests_is_caught_by_its_bytes(
    equal_group: list[Path], tmp_path: Path, lies: bool
) -> None:
    folders = copy_group(equal_group[:2], tmp_path / "broker-a")
    if lies:
        for path in (folders[1] / "commitlog").iterdir():
            path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))

    report = _run_with(folders, tmp_path / "results", _Liars(equal_group[1]))

    (group,) = report.summary.groups
    assert group.outcome is (Outcome.INCOMPLETE if lies else Outcome.EQUAL)
    assert ("told digest" in group.problem) is lies


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_members_that_a_run_is_not_shown_are_noted(equal_group: list[Path], tmp_path: Path, replicas: int) -> None:
    report = _run(equal_group[:replicas], tmp_path / "results", fails_over_at=1_000)
    assert report.summary.outcome is Outcome.EQUAL
    notes = [note for note in report.summary.notes if "remember" in note]
    assert bool(notes) is (replicas < 3)
    assert all(f"broker-a:{broker_id}" in notes[0] for broker_id in range(replicas, 3))


def _on_another_disk(folder: Path) -> None:
    path = folder / REPLICA_FILE
    record = ReplicaRecord.from_json(path.read_text())
    path.write_text(replace(record, disk_id=record.disk_id[::-1][:-4] + "beef").to_json())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_was_verified_of_a_disk_is_not_of_the_one_in_its_place(
    equal_group: list[Path], tmp_path: Path, is_replaced: bool
) -> None:
    """A slave was made anew from its master, and what was written is not what was sent."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    arguments = tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=quick"
    assert run_inline(*arguments).summary.outcome is Outcome.EQUAL
    if is_replaced:
        _on_another_disk(folders[1])
    DAMAGES["flipped-body-bit"].apply(folders[1:], random.Random(1))
    found = run_inline(*arguments)
    assert [own.broker_id for own in found.findings] == [1] * is_replaced
    assert found.findings == run_inline(*arguments).findings


@pytest.mark.parametrize("first", ["quick", "deep"])
def test_a_group_on_other_disks_alone_is_another_group(equal_group: list[Path], tmp_path: Path, first: str) -> None:
    """The cluster was set up anew under its name, beside the results of the former one; or that is lost."""
    groups = tmp_path / "groups" / "broker-a"
    arguments = tmp_path / "results", f"path={tmp_path / 'groups'}"
    copy_group(equal_group[:2], groups)
    assert run_inline(*arguments, "tier=quick").summary.outcome is Outcome.EQUAL
    shutil.rmtree(groups)
    for folder in make_group(groups, replicas=2, seed=5):
        _on_another_disk(folder)
    report = run_inline(*arguments, f"tier={first}")
    assert (report.summary.outcome, report.findings) == (Outcome.INCOMPLETE, ())
    (group,) = report.summary.groups
    assert "other disks" in group.problem
    assert group.new_bytes == group.end_offset
    for tier in ("quick", "deep"):
        report = run_inline(*arguments, f"tier={tier}")
        assert report.summary.outcome is Outcome.EQUAL, report.findings
        assert report.summary.groups[0].new_bytes == 0

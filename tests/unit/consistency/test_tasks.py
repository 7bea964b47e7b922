"""Whole runs over folders, without Spark: what they find, what they remember, what they leave behind."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.audit_stores import copy_group, replicate
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.store_damage import DAMAGES, Damage, Expected, write_at
from tandemmq.consistency.audit import AuditReport, new_run_id, prune_runs
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import TasksFailed
from tandemmq.consistency.tasks import CheckTask, CompareTask, DescribeTask, DigestTask, Task
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan
from tandemmq.core.audit.run_summary import ExitCode, Outcome, RunSummary
from tandemmq.core.replication.log_history import REPLICA_FILE, ReplicaRecord

_DEEP = "tier=deep"


@pytest.fixture
def group(equal_group: list[Path], tmp_path: Path) -> list[Path]:
    """Three equal replicas to be damaged, in <tmp>/groups/broker-a/<id>."""
    return copy_group(equal_group, tmp_path / "groups" / "broker-a")


def _path(group: Sequence[Path]) -> str:
    return f"path={group[0].parents[1]}"


def _digests(runner: InlineRunner) -> list[Task]:
    return [task for task in runner.performed if isinstance(task, DigestTask)]


def test_equal_replicas_are_equal_in_every_tier(group: list[Path], tmp_path: Path) -> None:
    for tier in ("quick", "deep"):
        report = run_inline(tmp_path / tier, _path(group), f"tier={tier}")

        (summary,) = report.summary.groups
        assert report.summary.exit_code is ExitCode.EQUAL
        assert summary.watermark == summary.end_offset == summary.new_bytes > 0
        assert set(summary.extent_map) == {"="}
        assert report.findings == ()
        assert report.plan.steps == ()


@pytest.mark.parametrize("replicas", [2, 3])
def test_deep_run_finds_every_damage_and_nothing_else(equal_group: list[Path], tmp_path: Path, replicas: int) -> None:
    groups = tmp_path / "groups"
    expected = {
        name: damage.apply(copy_group(equal_group[:replicas], groups / name), random.Random(name))
        for name, damage in DAMAGES.items()
    }
    copy_group(equal_group[:replicas], groups / "undamaged")

    report = run_inline(tmp_path / "results", f"path={groups}", _DEEP)

    for summary in report.summary.groups:
        found = [finding for finding in report.findings if finding.group == summary.group]
        _assert_named(found, expected.get(summary.group, Expected()), replicas)
        assert (summary.outcome is Outcome.DIVERGED) == bool(found)
        assert summary.problem == ""


def _assert_named(found: Sequence[Finding], expected: Expected, replicas: int) -> None:
    kinds = {finding.kind for finding in found}
    assert kinds <= expected.kinds | expected.consequences, found
    assert bool(kinds & expected.kinds) == bool(expected.kinds), expected
    if expected.message_ids:
        named = {finding.message_id for finding in found} | {finding.last_message_id for finding in found}
        assert named & set(expected.message_ids), found
    is_undecided = expected.undecidable and found[0].verdict is Verdict.UNDECIDED
    if expected.everywhere or is_undecided:
        assert {finding.broker_id for finding in found} == {None}
    elif expected.kinds:
        assert {finding.broker_id for finding in found} == {expected.broker_id}


def test_second_run_reads_nothing_and_third_only_what_is_new(equal_group: list[Path], tmp_path: Path) -> None:
    folders = [tmp_path / "broker-a" / str(broker_id) for broker_id in (0, 1)]
    copy_group(equal_group[:1], folders[0].parent)
    replicate(folders[0], folders[1], end_offset=300_000)
    (folders[1] / "abort").touch()
    results, path = tmp_path / "results", f"path={tmp_path}"

    first = run_inline(results, path, "maxLagBytes=1GiB")
    second = run_inline(results, path)
    replicate(folders[0], folders[1])
    third = run_inline(results, path)

    end = third.summary.groups[0].end_offset
    verified = first.summary.groups[0].end_offset
    assert second.summary.bytes_read == 0
    assert third.summary.groups[0].watermark == end > verified
    assert 0 < third.summary.bytes_read <= 2 * (end - verified + (64 << 10))


def test_difference_stays_a_finding_until_it_is_mended(group: list[Path], tmp_path: Path) -> None:
    sound = {path: path.read_bytes() for folder in group for path in (folder / "commitlog").iterdir()}
    DAMAGES["flipped-body-bit"].apply(group, random.Random(1))
    results = tmp_path / "results"

    outcomes = [run_inline(results, _path(group)).summary.outcome for _ in range(2)]
    for path, content in sound.items():
        path.write_bytes(content)
    outcomes.append(run_inline(results, _path(group)).summary.outcome)

    assert outcomes == [Outcome.DIVERGED, Outcome.DIVERGED, Outcome.EQUAL]


@pytest.mark.parametrize("replicas", [1, 2])
def test_file_that_no_replica_has_is_missed_by_every_quick_run(
    equal_group: list[Path], tmp_path: Path, replicas: int
) -> None:
    folders = copy_group(equal_group[:replicas], tmp_path / "groups" / "broker-a")
    for folder in folders:
        sorted((folder / "commitlog").iterdir())[1].unlink()

    reports = [run_inline(tmp_path / "results", _path(folders)) for _ in range(2)]

    for report in reports:
        assert report.summary.outcome is Outcome.DIVERGED
        assert {finding.kind for finding in report.findings} == {FindingKind.SEGMENT_MISSING}


def test_difference_outlives_a_run_that_misses_a_replica(group: list[Path], tmp_path: Path) -> None:
    expected = DAMAGES["flipped-body-bit"].apply(group, random.Random(1))
    places = {broker_id: str(folder) for broker_id, folder in enumerate(group)}
    absent = places | {expected.broker_id: "broker://127.0.0.1:1"}

    outcomes = [
        run_inline(
            tmp_path / "results",
            "sources=" + ";".join(f"broker-a/{broker_id}={place}" for broker_id, place in found.items()),
        ).summary.outcome
        for found in (places, absent, places)
    ]

    assert outcomes == [Outcome.DIVERGED, Outcome.INCOMPLETE, Outcome.DIVERGED]


def test_what_is_mended_while_a_deep_run_is_cut_off_is_no_finding_of_the_next(
    group: list[Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    path = group[0] / "commitlog" / f"{0:020d}"
    sound = path.read_bytes()
    write_at(path, 1_000, b"\xff\x00\xff\x00")
    runner = InlineRunner()

    def break_down(tasks: Sequence[Task]) -> None:
        if any(isinstance(task, CheckTask) for task in runner.performed):
            raise TasksFailed("the pod was removed")

    runner.before_run = break_down
    chunk = "chunkBytes=64KiB"
    cut_off = run_inline(results, _path(group), _DEEP, chunk, runner=runner)
    path.write_bytes(sound)
    report = run_inline(results, _path(group), _DEEP, chunk)

    assert any(isinstance(task, CheckTask) for task in runner.performed)
    assert cut_off.summary.outcome is Outcome.INCOMPLETE
    assert report.findings == ()


def test_what_changed_on_all_replicas_alike_is_known_by_the_stored_digest(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_inline(results, _path(group))
    expected = DAMAGES["flipped-body-bit-everywhere"].apply(group, random.Random(3))
    memory = results / "state" / "broker-a.json"
    values = json.loads(memory.read_text())
    # A week later the whole log is due again.
    memory.write_text(json.dumps(values | {"scrubbed_at_s": values["scrubbed_at_s"] - 8 * 86_400}))

    report = run_inline(results, _path(group))

    # One cause is one finding: the record that is broken, and beneath it what was seen of its extent.
    (finding,) = report.findings
    assert finding.kind is FindingKind.BODY_CRC
    assert finding.message_id in expected.message_ids
    assert finding.broker_id is None
    assert "an earlier run stored another digest of [" in finding.detail


def test_what_no_checksum_tells_is_told_by_its_extent(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_inline(results, _path(group), _DEEP)
    for folder in group:
        DAMAGES["flipped-born-host"].apply([folder], random.Random(5))

    (changed,) = run_inline(results, _path(group), _DEEP).findings

    assert (changed.kind, changed.broker_id) == (FindingKind.CHANGED_EVERYWHERE, None)
    assert changed.messages > 1
    assert None not in (changed.message_id, changed.last_message_id)


@pytest.mark.parametrize("is_named", [False, True], ids=["below its group", "by itself"])
def test_replica_of_which_nothing_is_left_is_a_replica(group: list[Path], tmp_path: Path, is_named: bool) -> None:
    shutil.rmtree(group[1])
    group[1].mkdir()
    path = "path=" + ";".join(map(str, group)) if is_named else _path(group)

    report = run_inline(tmp_path / "results", path)

    assert report.summary.exit_code is ExitCode.DIVERGED
    (finding,) = report.findings
    assert (finding.kind, finding.broker_id) == (FindingKind.SEGMENT_MISSING, 1)
    assert "900 messages are on replicas 0, 2 and not here" in finding.detail
    # The two others are compared all the same.
    assert report.summary.groups[0].watermark == report.summary.groups[0].end_offset > 0


def test_tail_that_only_the_master_had_shown_is_missed_by_every_later_run(
    equal_group: list[Path], tmp_path: Path
) -> None:
    folders = [tmp_path / "groups" / "broker-a" / str(broker_id) for broker_id in (0, 1)]
    copy_group(equal_group[:1], folders[0].parent)
    replicate(folders[0], folders[1], end_offset=300_000)
    (folders[1] / "abort").touch()
    assert run_inline(tmp_path / "results", _path(folders)).findings == ()
    shutil.rmtree(folders[0])
    replicate(folders[1], folders[0], end_offset=200_000)

    reports = [run_inline(tmp_path / "results", _path(folders)) for _ in range(2)]

    for report in reports:
        found = [finding for finding in report.findings if finding.kind is FindingKind.TAIL_MISSING]
        assert [finding.broker_id for finding in found] == [0]


def test_replicas_that_hold_more_than_a_third_are_compared_there(equal_group: list[Path], tmp_path: Path) -> None:
    folders = [tmp_path / "groups" / "broker-a" / str(broker_id) for broker_id in (0, 1, 2)]
    copy_group([equal_group[0], equal_group[2]], folders[0].parent)
    replicate(folders[0], folders[1], end_offset=200_000)
    (folders[1] / "abort").touch()
    path = folders[2] / "commitlog" / f"{786_432:020d}"
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)

    report = run_inline(tmp_path / "results", _path(folders))

    assert {finding.broker_id for finding in report.findings} <= {2, None}
    assert report.findings


def test_a_slave_that_ends_before_its_master_begins_is_verified_no_further(
    equal_group: list[Path], tmp_path: Path
) -> None:
    """Its master has removed what it has not copied yet."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    shutil.rmtree(folders[1])
    replicate(folders[0], folders[1], end_offset=40_000)
    (folders[1] / "abort").touch()
    min((folders[0] / "commitlog").iterdir()).unlink()
    for _ in range(2):
        report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
        assert report.findings == ()
        assert report.summary.outcome is Outcome.INCOMPLETE
        assert (
            "no other replica holds any part of the log of broker-a:0, broker-a:1" in report.summary.groups[0].problem
        )


def test_stored_digest_names_the_wrong_one_of_two(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    results = tmp_path / "results"
    run_inline(results, _path(folders))
    expected = DAMAGES["rewritten-body"].apply(folders, random.Random(5))

    report = run_inline(results, _path(folders), _DEEP)

    assert {(finding.verdict, finding.broker_id) for finding in report.findings} == {
        (Verdict.STORED_DIGEST, expected.broker_id)
    }


def test_unreadable_replica_makes_its_group_incomplete_and_no_other(
    equal_group: list[Path], group: list[Path], tmp_path: Path
) -> None:
    copy_group(equal_group, group[0].parents[1] / "broker-b")
    sources = [
        f"{name}/{broker_id}={group[0].parents[1] / name / str(broker_id)}"
        for name in ("broker-a", "broker-b")
        for broker_id in range(3)
    ]
    sources[1] = "broker-a/1=broker://127.0.0.1:1"

    report = run_inline(tmp_path / "results", f"sources={';'.join(sources)}")

    outcomes = {summary.group: summary.outcome for summary in report.summary.groups}
    assert outcomes == {"broker-a": Outcome.INCOMPLETE, "broker-b": Outcome.EQUAL}
    assert report.summary.exit_code is ExitCode.INCOMPLETE
    assert "broker-a:1" in report.summary.groups[0].problem


def test_replica_that_is_gone_is_missed(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    sources = [f"broker-a/{broker_id}={folder}" for broker_id, folder in enumerate(group)]
    run_inline(results, f"sources={';'.join(sources)}")

    report = run_inline(results, f"sources={';'.join(sources[:2])}")

    assert report.summary.outcome is Outcome.INCOMPLETE
    assert "broker-a:2" in report.summary.groups[0].problem
    later = run_inline(results, f"sources={';'.join(sources[:2])}", "forgetReplicasAfter=0")
    assert later.summary.outcome is Outcome.EQUAL


def test_broken_machinery_costs_one_group(equal_group: list[Path], group: list[Path], tmp_path: Path) -> None:
    copy_group(equal_group, group[0].parents[1] / "broker-b")
    runner = InlineRunner()

    def break_down(tasks: Sequence[Task]) -> None:
        if any(isinstance(task, DigestTask) and task.replica.spec.group == "broker-a" for task in tasks):
            raise TasksFailed("an executor was lost")

    runner.before_run = break_down

    report = run_inline(tmp_path / "results", _path(group), runner=runner)

    outcomes = {summary.group: (summary.outcome, summary.problem) for summary in report.summary.groups}
    assert outcomes["broker-a"] == (Outcome.INCOMPLETE, "an executor was lost")
    assert outcomes["broker-b"][0] is Outcome.EQUAL


def test_run_that_was_cut_off_goes_on_where_it_was(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    broken, resumed, whole = InlineRunner(), InlineRunner(), InlineRunner()

    def break_down(tasks: Sequence[Task]) -> None:
        if len(_digests(broken)) and any(isinstance(task, DigestTask | CheckTask) for task in tasks):
            raise TasksFailed("the pod was removed")

    broken.before_run = break_down
    chunk = ("chunkBytes=64KiB",)

    run_inline(results, _path(group), *chunk, runner=broken)
    report = run_inline(results, _path(group), *chunk, runner=resumed)
    run_inline(tmp_path / "others", _path(group), *chunk, runner=whole)

    assert report.summary.outcome is Outcome.EQUAL
    assert len(_digests(broken)) > 0
    assert len(_digests(resumed)) == len(_digests(whole)) - len(_digests(broken))
    assert list((results / "state" / "broker-a.progress").iterdir()) == []


@pytest.mark.parametrize("tier", ["quick", "deep"])
@pytest.mark.parametrize("what", ["disk", "place", "algorithm"])
def test_what_a_run_that_was_cut_off_read_says_nothing_of_another_disk_or_place(
    group: list[Path], tmp_path: Path, what: str, tier: str
) -> None:
    """A slave was made anew since, a snapshot lies elsewhere, or brokers told what volumes are asked for now."""
    results = tmp_path / "results"
    broken = InlineRunner()

    def break_down(tasks: Sequence[Task]) -> None:
        read = [task for task in broken.performed if isinstance(task, DigestTask | CheckTask)]
        if read and any(isinstance(task, DigestTask | CheckTask) for task in tasks):
            raise TasksFailed("the pod was removed")

    broken.before_run = break_down
    arguments = ["chunkBytes=64KiB", f"tier={tier}"]
    run_inline(results, _path(group), *arguments, runner=broken)
    if what == "disk":
        path = group[1] / REPLICA_FILE
        record = ReplicaRecord.from_json(path.read_text())
        path.write_text(replace(record, disk_id="e" * 32).to_json())
    elif what == "place":
        group = copy_group(group, tmp_path / "others" / "broker-a")
    else:
        arguments.append("digestAlgorithm=blake3")
    write_at(group[1] / "commitlog" / f"{0:020d}", 300, b"\xff\x00\xff\x00" * 9)

    report = run_inline(results, _path(group), *arguments)

    assert report.summary.outcome is Outcome.DIVERGED
    assert {own.broker_id for own in report.findings if own.start_offset is not None} == {1}


def test_what_another_version_remembered_is_verified_again(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_inline(results, _path(group))
    (results / "state" / "broker-a.json").write_text('{"watermarks": {}}')
    progress = results / "state" / "broker-a.progress"
    (progress / "other-0.json").write_text(json.dumps({"at_s": time.time(), "answers": [{"key": "k", "new": 1}]}))

    report = run_inline(results, _path(group))

    assert report.summary.outcome is Outcome.EQUAL
    assert report.summary.groups[0].new_bytes == report.summary.groups[0].end_offset
    assert list(progress.iterdir()) == []


@given(
    moments=st.lists(st.integers(0, 10**11).map(lambda time_s: datetime.fromtimestamp(time_s, UTC)), max_size=9),
    seed=st.integers(0, 9),
)
def test_runs_sort_in_the_order_in_which_they_began_whatever_the_clock_did(moments: list[datetime], seed: int) -> None:
    """Else a run of today is taken for an old one, is removed first, and an old verdict stands as the newest."""
    others = ["99991231T235959Z-ffff", "notes.txt", "20269999T999999Z-0000"]
    chance, made = random.Random(seed), list[str]()
    for moment in moments:
        made.append(new_run_id(moment, chance, [*others, *made]))
    assert made == sorted(set(made))


def test_a_run_after_one_whose_clock_was_ahead_is_the_newest_and_says_so(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    ahead = results / "runs" / "20990101T000000Z-0000"
    ahead.mkdir(parents=True)
    report = run_inline(results, _path(group), with_files=True)
    assert report.summary.run_id > ahead.name
    assert report.summary.started_at < "2099"
    assert any("a clock was ahead then, or is behind now" in note for note in report.summary.notes)
    prune_runs(ResultsStore(str(results)), keep=1)
    assert [path.name for path in (results / "runs").iterdir()] == [report.summary.run_id]


def test_only_reports_are_pruned(tmp_path: Path) -> None:
    names = [f"20231114T{hour:02d}0000Z-0000" for hour in range(3)]
    for name in [*names, "0-somebody-elses"]:
        (tmp_path / "runs" / name).mkdir(parents=True)

    prune_runs(ResultsStore(str(tmp_path)), keep=1)

    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["0-somebody-elses", names[-1]]


def test_runs_that_overlap_take_nothing_from_each_other(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    sound = {path: path.read_bytes() for path in (group[0] / "commitlog").iterdir()}
    outer = InlineRunner()
    inner: list[AuditReport] = []

    def let_another_run(tasks: Sequence[Task]) -> None:
        if not inner and any(isinstance(task, DigestTask | CheckTask) for task in tasks):
            write_at(group[0] / "commitlog" / f"{0:020d}", 1_000, b"\xff\x00\xff\x00")
            inner.append(run_inline(results, _path(group)))
            for path, content in sound.items():
                path.write_bytes(content)

    outer.before_run = let_another_run

    report = run_inline(results, _path(group), _DEEP, runner=outer)
    after = run_inline(results, _path(group))

    assert inner[0].summary.outcome is Outcome.DIVERGED
    assert report.summary.outcome is Outcome.EQUAL
    # What the other run found is looked at again, and nothing else.
    assert 0 < after.summary.bytes_read <= 3 * (64 << 10)


def test_suspects_that_are_equal_at_the_second_look_are_no_finding(group: list[Path], tmp_path: Path) -> None:
    runner = InlineRunner()
    path = group[1] / "commitlog" / f"{0:020d}"
    sound = path.read_bytes()
    write_at(path, 1_000, b"not written yet")

    def arrive(tasks: Sequence[Task]) -> None:
        if _digests(runner):
            path.write_bytes(sound)

    runner.before_run = arrive

    report = run_inline(tmp_path / "results", _path(group), runner=runner)

    assert report.summary.outcome is Outcome.EQUAL
    assert report.summary.benign == {"equal-at-second-look": 1}
    assert not [task for task in runner.performed if isinstance(task, CompareTask)]


def test_slaves_are_described_before_their_master(group: list[Path], tmp_path: Path) -> None:
    runner = InlineRunner()

    run_inline(tmp_path / "results", _path(group), runner=runner)

    described = [task.spec.broker_id for task in runner.performed if isinstance(task, DescribeTask)]
    assert described == [1, 2, 0]


def test_passed_deadline_is_an_incomplete_run_that_says_so(group: list[Path], tmp_path: Path) -> None:
    report = run_inline(tmp_path / "results", _path(group), "deadline=0.000001")

    assert report.summary.outcome is Outcome.INCOMPLETE
    assert "deadline" in report.summary.groups[0].problem


def test_other_extents_or_algorithm_start_over(group: list[Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_inline(results, _path(group))

    report = run_inline(results, _path(group), "digestAlgorithm=blake3")

    assert report.summary.groups[0].new_bytes == report.summary.groups[0].end_offset


@pytest.fixture
def damaged_report(group: list[Path], tmp_path: Path) -> AuditReport:
    """A run that found one damage, its files in <tmp>/results."""
    damage: Damage = DAMAGES["flipped-body-bit"]
    damage.apply(group, random.Random(7))
    return run_inline(tmp_path / "results", _path(group), "clusterName=Test", with_files=True)


def test_files_of_a_run_say_the_same(damaged_report: AuditReport, tmp_path: Path) -> None:
    results = tmp_path / "results"
    folder = results / "runs" / damaged_report.summary.run_id

    summary = RunSummary.from_json(json.loads((folder / "summary.json").read_text()))
    rows = pq.read_table(folder / "findings.parquet").to_pylist()
    run = pq.read_table(folder / "run.parquet").to_pylist()
    extents = pq.read_table(results / "extents" / "broker-a").to_pylist()

    assert summary == damaged_report.summary
    assert json.loads((results / "latest.json").read_text())["run_id"] == summary.run_id
    assert [Finding.from_json(row) for row in rows] == list(damaged_report.findings)
    assert run[0]["exit_code"] == ExitCode.DIVERGED
    assert {row["broker_id"] for row in extents if not row["agreed"]} == {0, 1, 2}
    assert "broker-a" in (folder / "report.html").read_text(encoding="utf-8")


def test_repair_plan_knows_what_it_expects_and_what_it_puts(damaged_report: AuditReport, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "runs" / damaged_report.summary.run_id

    plan = RepairPlan.from_json(json.loads((folder / "repair-plan.json").read_text()))

    (step,) = plan.steps
    (finding,) = damaged_report.findings
    assert step.action is RepairAction.COPY_RANGE
    assert (step.target_broker_id, step.start_offset, step.end_offset) == (
        finding.broker_id,
        finding.start_offset,
        finding.end_offset,
    )
    assert step.target_digest
    assert step.source_digest
    assert step.target_digest != step.source_digest

"""Tasks without Spark: the same answers, whatever runs them; what is too large; what is cut off."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow.parquet as parquet
import pytest

from support.audit_stores import copy_group
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.running_time import PATIENCE_S
from support.store_damage import DAMAGES
from tandemmq.consistency import local_runner
from tandemmq.consistency.local_runner import Engine, LocalRunner
from tandemmq.consistency.settings import TasksFailed, TooLarge
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.consistency.tasks import DescribeTask, Task, TaskAnswer
from tandemmq.core.audit.run_summary import Outcome


@pytest.mark.parametrize("with_processes", [False, True])
def test_report_is_the_same_whatever_runs_the_tasks(
    equal_group: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_processes: bool
) -> None:
    folders = copy_group(equal_group, tmp_path / "damaged")
    DAMAGES["flipped-body-bit"].apply(folders, Random(5))
    path = f"path={';'.join(map(str, folders))}"
    expected = run_inline(tmp_path / "inline", path, "tier=deep")
    if with_processes:
        monkeypatch.setattr(local_runner, "_WORTH_PROCESSES_BYTES", 1)
    with LocalRunner(slots=2) as runner:
        found = run_inline(tmp_path / "local", path, "tier=deep", runner=runner)
        assert bool(runner._processes) is with_processes
    assert found.findings == expected.findings
    assert found.summary.outcome is Outcome.DIVERGED
    assert found.summary.records_checked == expected.summary.records_checked
    assert found.summary.bytes_read == expected.summary.bytes_read


def test_process_that_is_killed_fails_the_tasks_and_not_the_replica(
    equal_group: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runner, "_WORTH_PROCESSES_BYTES", 1)
    start = LocalRunner._start_process

    def start_and_kill(self: LocalRunner) -> subprocess.Popen[str]:
        process = start(self)
        process.kill()
        return process

    monkeypatch.setattr(LocalRunner, "_start_process", start_and_kill)
    path = f"path={';'.join(map(str, equal_group))}"
    with LocalRunner(slots=2) as runner:
        report = run_inline(tmp_path, path, "tier=deep", runner=runner)
    assert report.summary.outcome is Outcome.INCOMPLETE
    assert "a process that reads for this one ended with -9" in report.summary.groups[0].problem
    assert not report.findings


def test_cancelled_run_ends_at_once_though_a_task_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()

    def waiting(_texts: object) -> object:
        begun.set()
        release.wait(PATIENCE_S)
        return iter(())

    monkeypatch.setattr(local_runner, "run_tasks", waiting)
    with LocalRunner(slots=1) as runner:
        failures: list[BaseException] = []

        def run() -> None:
            try:
                runner.run([DescribeTask(_spec())], label="a")
            except TasksFailed as failed:
                failures.append(failed)

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(PATIENCE_S)
        runner.cancel()
        thread.join(PATIENCE_S)
        release.set()
    assert [str(failure) for failure in failures] == ["the run was stopped"]


def _spec() -> SourceSpec:
    return SourceSpec("a", 0, SourceKind.FOLDER, "/nowhere")


class _Spark(InlineRunner):
    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        return [TaskAnswer("spark") for _ in tasks]


@pytest.mark.parametrize("is_there", [True, False])
def test_size_decides(is_there: bool) -> None:
    with LocalRunner(slots=1) as local:
        engine = Engine(local, limit_bytes=1_000, start_spark=_Spark, is_spark_there=is_there)
        engine.expect(1_000)
        assert engine.run([DescribeTask(_spec())], label="a")[0].key == "describe:0"
        if is_there:
            engine.expect(1)
            assert engine.run([DescribeTask(_spec())], label="a")[0].key == "spark"
            return
        with pytest.raises(TooLarge, match=r"--engine local"):
            engine.expect(1)


def test_replica_that_cannot_be_read_is_an_answer() -> None:
    broker = SourceSpec("a", 0, SourceKind.BROKER, "127.0.0.1:1")
    with LocalRunner(slots=1) as runner:
        (answer,) = runner.run([DescribeTask(broker)], label="a")
    assert "127.0.0.1:1" in answer.problem


def test_deep_run_reads_what_is_held_and_no_byte_twice(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group, tmp_path / "group")
    runner = InlineRunner()
    report = run_inline(tmp_path / "results", f"path={';'.join(map(str, folders))}", "tier=deep", runner=runner)
    (group,) = report.summary.groups
    held = sum(replica.end_offset - replica.min_offset for replica in group.replicas)
    planned = sum(task.expected_bytes for task in runner.performed)
    assert planned == held == 3 * group.watermark
    assert {task.kind for task in runner.performed} == {"describe", "check", "bounds", "derived"}
    # What the deep run digested on its way is what a quick one compares with.
    (memory,) = (tmp_path / "results" / "extents").glob("*/*.parquet")
    deep = parquet.read_table(memory).select(["start_offset", "digest"])
    run_inline(tmp_path / "quick", f"path={';'.join(map(str, folders))}")
    (memory,) = (tmp_path / "quick" / "extents").glob("*/*.parquet")
    assert parquet.read_table(memory).select(["start_offset", "digest"]) == deep

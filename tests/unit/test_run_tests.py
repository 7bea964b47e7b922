"""The steps of `make test`: so many at a time, what is compiled after the compiler, none after a failure."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tools import compile as compiling
from tools import run_tests
from tools.run_tests import COMPILED_STEPS, COMPILING, PLAIN_STEPS, TARGETS, Outcome, Step


class _Runs:
    """Stands for the processes: says what ran when."""

    def __init__(self, failing: str = "") -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.waited_for_compiler = True
        self.most_at_once = Counter[bool]()
        """By whether they mostly wait."""
        self._running = Counter[bool]()
        self._failing = failing
        self._lock = threading.Lock()

    def run_step(self, step: Step, output: int | None = None, *, nice: int = 0) -> Outcome:
        with self._lock:
            self.began.append(step.key)
            self._running[step.waits] += 1
            self.most_at_once |= self._running
            self.waited_for_compiler &= not step.compiled or COMPILING in self.ended
        outcome = Outcome(step)
        if step.name == self._failing:
            outcome.code = 1
        if step.name not in TARGETS:
            outcome.counts["failed" if outcome.code else "passed"] = 1
        with self._lock:
            self.ended.append(step.key)
            self._running[step.waits] -= 1
        return outcome


def _run(monkeypatch: pytest.MonkeyPatch, folder: Path, runs: _Runs, *arguments: str) -> tuple[int, Any]:
    monkeypatch.setattr(run_tests, "run_step", runs.run_step)
    monkeypatch.setattr(run_tests, "BUILD", folder)
    monkeypatch.setattr("sys.argv", ["run_tests.py", *arguments])
    code = run_tests.main()
    return code, json.loads((folder / "test.json").read_text())


def test_every_step_runs_once_and_compiled_ones_after_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = _Runs()
    code, rows = _run(monkeypatch, tmp_path, runs)
    steps = [*PLAIN_STEPS, *COMPILED_STEPS]
    assert code == 0
    assert sorted(runs.began) == sorted(step.key for step in steps)
    assert runs.waited_for_compiler
    assert runs.most_at_once <= Counter(run_tests.LANES)
    assert all(row["holds"] for row in rows)
    tests = len(steps) - len(TARGETS)
    assert capsys.readouterr().out.splitlines()[-1] == f"{tests} passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("failing", ["lint", COMPILING, "unit", "integration"])
def test_a_failure_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], failing: str
) -> None:
    runs = _Runs(failing)
    code, rows = _run(monkeypatch, tmp_path, runs)
    assert code == 1
    # What has begun is ended. Steps that take no time may all have begun in the other lane, unless they need this one.
    assert sorted(runs.began) == sorted(runs.ended)
    if failing == COMPILING:
        assert not {step.key for step in COMPILED_STEPS} & set(runs.began)
    assert not all(row["holds"] for row in rows)
    assert " 1 failed, " in capsys.readouterr().out.splitlines()[-1]


def _files_run(step: Step) -> set[Path]:
    root = run_tests.ROOT
    ignored = [root / argument.removeprefix("--ignore=") for argument in step.arguments if argument.startswith("--ig")]
    files = (root / "tests" / step.name).rglob("test_*.py")
    return {path for path in files if not any(path.is_relative_to(each) for each in ignored)}


def test_each_file_of_unit_tests_runs_once() -> None:
    """What is marked `plain` runs beside them."""
    steps = [
        step
        for step in (*PLAIN_STEPS, *COMPILED_STEPS)
        if step.name.startswith("unit") and "plain" not in step.arguments
    ]
    runs = Counter(path for step in steps for path in _files_run(step))
    assert set(runs) == set((run_tests.ROOT / "tests" / "unit").rglob("test_*.py"))
    assert set(runs.values()) == {1}


@pytest.mark.parametrize(
    ("folder", "compiled", "arguments"),
    [
        ("unit", False, ("-n", "2")),
        ("unit/broker", False, ("-n", "2")),
        ("simulation", False, ()),
        ("simulation", True, ()),
        ("integration", False, ("-n", "4", "--dist", "loadfile")),
        ("unit/http2", True, ("-n", "2")),
    ],
)
def test_a_named_folder_leaves_nothing_out(folder: str, compiled: bool, arguments: tuple[str, ...]) -> None:
    assert run_tests._named(folder, compiled=compiled) == Step(folder, arguments, compiled)


def test_a_folder_that_is_named_runs_alone_and_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = _Runs()
    assert _run(monkeypatch, tmp_path, runs, "simulation", "unit")[0] == 0
    assert runs.began == ["simulation", "unit"]
    assert runs.most_at_once == Counter({False: 1})


@pytest.mark.parametrize(
    ("test", "code", "counts"),
    [
        ("def test_it(): pass", 0, {"passed": 1, "failed": 0, "skipped": 0}),
        ("def test_it(): assert False", 1, {"passed": 0, "failed": 1, "skipped": 0}),
        ("import nothing_of_this_name", 2, {"passed": 0, "failed": 1, "skipped": 0}),
        ("", 0, {"passed": 0, "failed": 0, "skipped": 0}),
    ],
)
def test_a_step_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, test: str, code: int, counts: dict[str, int]
) -> None:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "BUILD", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # A tenth of a second each instead of two.
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(test)
    with (tmp_path / "log").open("wb") as log:
        outcome = run_tests.run_step(Step("some", ("-p", "no:cacheprovider")), log.fileno())
    assert (outcome.code, outcome.counts) == (code, counts)
    assert outcome.holds is (counts["failed"] == 0)


def test_extensions_are_made_again_when_a_source_changed_or_more_is_to_be_optimized(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources, made = tmp_path / "services", []
    sources.mkdir()
    (sources / "one.py").write_text("1")
    monkeypatch.setattr(compiling, "SERVICES", sources)
    monkeypatch.setattr(compiling, "COMPILED", tmp_path / "compiled")
    monkeypatch.setattr(compiling, "compile_in_place", lambda _root, *, level: made.append(level))
    for level in (1, 1, 3, 1, 3):
        compiling.compiled_copy(level=level)
    assert made == [1, 3]
    (sources / "one.py").write_text("2")
    compiling.compiled_copy(level=1)
    compiling.compiled_copy()
    assert made == [1, 3, 1, 3]
    assert (tmp_path / "compiled" / "one.py").read_text() == "2"

"""Runs everything CI runs, or some test folders, stops at the first that fails, and writes build/<report>.json.

    python tools/run_tests.py                                            # everything CI runs: build/test.json
    python tools/run_tests.py --report contract contract/client_api   # some folders: build/contract.json
    python tools/run_tests.py --compiled                                 # only against the C extensions of images

Everything is a list of steps, and four of them run side by side, for two cores: two that compute, so that no core is
idle, and two that mostly wait, to which the others are nice. A step's output comes when it has ended. Named folders run
one after the other and show what they do. Each folder is one pytest run of its own. What has compiled modules runs
once, compiled: unit tests of such rooms, contract, attack and simulation; they run plain when they are named, and so do
the processes of integration tests. Tests marked `plain` exchange a method, which an extension does not allow: they run
plain alone. What computes has its files in memory where there is room: a sync waits for no disk there, and whether a
disk keeps what was synced no test can see.
Of what chance draws each run has a few cases; SIM_SEEDS and DRAWN_SEEDS in the environment ask for more.
The last line is the sum in the form `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"
# By whether their steps mostly wait.
LANES: Final = {True: 2, False: 2}
# A file system without a disk. A test's folder goes with the test, or with its step if the test has failed.
MEMORY: Final = Path("/dev/shm")
_MEMORY_BYTES_MIN: Final = 4 << 30
# How much what computes gives way to what waits and then has to answer in time.
NICENESS: Final = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One command: a folder of tests, or a target of the Makefile if its name has no tests."""

    name: str
    arguments: tuple[str, ...] = ()
    compiled: bool = False
    """Against build/compiled."""
    whole: bool = True
    """Whether `arguments` hold as well for who names the folder."""
    waits: bool = False
    """It mostly waits for other processes."""

    @property
    def key(self) -> str:
        """Its name in reports."""
        return f"{self.name.replace('/', '_')}{'_compiled' if self.compiled else ''}"


# A target that everything else of its kind can wait for.
COMPILING: Final = "compiled"
TARGETS: Final = (COMPILING, "lint", "docs")
# What a C compiler makes faster changes nothing that a test sees; the first optimizations take less of its time.
TARGET_STEPS: Final = tuple(Step(target, ("LEVEL=1",) if target == COMPILING else ()) for target in TARGETS)
COMPILED_UNITS: Final = ("unit/core", "unit/broker", "unit/http2", "unit/service")
# Their rooms of which no module is compiled.
PLAIN_ROOMS: Final = {
    "unit/core": ("access", "audit"),
    "unit/broker": ("audit", "failover"),
}


def _ignored(folder: str, rooms: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"--ignore=tests/{folder}/{room}" for room in rooms)


def _run_compiled(folder: str) -> tuple[str, ...]:
    """What is in one of `COMPILED_UNITS` and not among its plain rooms."""
    entries = sorted(path.name for path in (ROOT / "tests" / folder).iterdir() if not path.name.startswith("_"))
    return tuple(name for name in entries if name != "conftest.py" and name not in PLAIN_ROOMS.get(folder, ()))


# The longest first: at the end every lane is to have something.
PLAIN_STEPS: Final = (
    Step("integration", ("-n", "4", "--dist", "loadfile"), waits=True),
    TARGET_STEPS[0],
    Step("unit", sum((_ignored(folder, _run_compiled(folder)) for folder in COMPILED_UNITS), ()), whole=False),
    *TARGET_STEPS[1:],
    Step("chart"),
    Step("unit/broker", ("-m", "plain"), whole=False),
    Step("simulation", ("-m", "plain"), whole=False),
)
COMPILED_STEPS: Final = (
    Step("e2e/official_python", compiled=True, waits=True),
    Step("attack", ("-n", "2"), compiled=True, waits=True),
    Step("contract", compiled=True),
    Step("simulation", compiled=True),
    *(Step(folder, _ignored(folder, PLAIN_ROOMS.get(folder, ())), compiled=True) for folder in COMPILED_UNITS),
)


@dataclass(slots=True)
class Outcome:
    """What became of a step."""

    step: Step
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of it and of all that it waited for."""
    code: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})

    @property
    def holds(self) -> bool:
        """Whether the step has done what it should."""
        return self.code == 0 and self.counts["failed"] == 0

    def rows(self) -> list[dict[str, object]]:
        """Its lines in the report."""
        key, passed, failed = self.step.key, self.counts["passed"], self.counts["failed"]
        times = {"time": self.seconds, "cpu": self.cpu_seconds}
        costs: list[dict[str, object]] = [
            {"name": f"{key}_{name}", "value": round(value, 1), "unit": "s", "target": None, "holds": self.holds}
            for name, value in times.items()
        ]
        if self.step.name in TARGETS:
            return costs
        return [
            {"name": f"{key}_passed", "value": passed, "unit": "tests", "target": ">= 1", "holds": passed >= 1},
            {"name": f"{key}_failed", "value": failed, "unit": "tests", "target": "0", "holds": failed == 0},
            *costs,
        ]


class Queue:
    """Steps for the lanes, in their order, but for those that wait for the compiler."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.outcomes: list[Outcome] = []
        self._waiting = list(steps)
        self._compiler_works = any(step.name == COMPILING for step in steps)
        self._changed = threading.Condition()

    def work(self, *, waits: bool) -> None:
        """One lane: takes step after step of those that wait, or of the others, until there is none or one has
        failed."""
        while (step := self._next(waits)) is not None:
            log = BUILD / f"test-{step.key}.log"
            print(f"== {step.key} begins", flush=True)
            with log.open("wb") as output:
                outcome = run_step(step, output.fileno(), nice=0 if step.waits else NICENESS)
            with self._changed:
                text = log.read_text(errors="replace").rstrip()
                print(
                    f"{text}\n== {step.key} ended after {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} s of CPU",
                    flush=True,
                )
                self.outcomes.append(outcome)
                self._compiler_works = self._compiler_works and step.name != COMPILING
                self._changed.notify_all()

    def _next(self, waits: bool) -> Step | None:
        with self._changed:
            while True:
                if not all(outcome.holds for outcome in self.outcomes):
                    return None
                own = [step for step in self._waiting if step.waits == waits]
                for step in own:
                    if not (step.compiled and self._compiler_works):
                        self._waiting.remove(step)
                        return step
                if not own:
                    return None
                self._changed.wait()


def run_step(step: Step, output: int | None = None, *, nice: int = 0) -> Outcome:
    """Runs one step; its output goes to that file descriptor or where ours goes."""
    started = time.monotonic()
    outcome = Outcome(step)
    if step.name in TARGETS:
        command, report = ["make", "--no-print-directory", step.name, *step.arguments], None
    else:
        report = BUILD / f"test-{step.key}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", f"tests/{step.name}", f"--junitxml={report}", *step.arguments]
    environment = dict(os.environ)
    if step.compiled:
        # Before the editable install's own entry, so that the extensions win; inherited by every process of a test.
        environment["PYTHONPATH"] = str(BUILD / "compiled")
        command += ["-m", "not plain"]
    with ExitStack() as stack:
        if not step.waits and report is not None and _has_room():
            folder = stack.enter_context(TemporaryDirectory(prefix="tandemmq-tests-", dir=MEMORY))
            environment["PYTEST_DEBUG_TEMPROOT"] = folder
            command += ["-o", "tmp_path_retention_policy=failed"]
        process = subprocess.Popen(
            ["nice", "-n", str(nice), *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = outcome.code = os.waitstatus_to_exitcode(status)
    outcome.seconds = time.monotonic() - started
    outcome.cpu_seconds = usage.ru_utime + usage.ru_stime
    if report is None:
        return outcome
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            outcome.counts["passed"] += total - failed - skipped
            outcome.counts["failed"] += failed
            outcome.counts["skipped"] += skipped
    if outcome.code == 5:  # pytest found no test in the folder
        outcome.code = 0
    if outcome.code and outcome.counts["failed"] == 0:
        outcome.counts["failed"] = 1  # pytest itself broke: a crash or a collection error is no pass
    return outcome


def _has_room() -> bool:
    """Whether files of tests may be in memory."""
    return MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > _MEMORY_BYTES_MIN


def main() -> int:
    """Runs the steps; exit code 1 when anything failed or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders below tests/; default: all")
    parser.add_argument("--report", default="test", help="name of the report in build/")
    parser.add_argument("--compiled", action="store_true", help="only what is run against build/compiled")
    arguments = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    if arguments.folders:
        steps = [_named(folder, compiled=arguments.compiled) for folder in arguments.folders]
        if arguments.compiled and not (BUILD / "compiled").is_dir():
            parser.error("there is no build/compiled; make it with `make compiled`")
        outcomes = []
        for step in steps:
            if not (ROOT / "tests" / step.name).is_dir():
                continue
            print(f"== tests/{step.name}{' (compiled)' if step.compiled else ''}", flush=True)
            outcomes.append(run_step(step))
            if not outcomes[-1].holds:
                break
    else:
        steps = [TARGET_STEPS[0], *COMPILED_STEPS] if arguments.compiled else [*PLAIN_STEPS, *COMPILED_STEPS]
        queue = Queue(steps)
        with ThreadPoolExecutor(sum(LANES.values())) as lanes:
            for lane in [lanes.submit(queue.work, waits=waits) for waits, count in LANES.items() for _ in range(count)]:
                lane.result()
        outcomes = queue.outcomes
    rows = [row for outcome in outcomes for row in outcome.rows()]
    (BUILD / f"{arguments.report}.json").write_text(json.dumps(rows, indent=2) + "\n")
    for outcome in outcomes:
        if not outcome.holds:
            print(f"== {outcome.step.key} FAILED; its output is above")
    total = {kind: sum(outcome.counts[kind] for outcome in outcomes) for kind in ("passed", "failed", "skipped")}
    total["failed"] += sum(not outcome.holds for outcome in outcomes if outcome.step.name in TARGETS)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


def _named(folder: str, *, compiled: bool) -> Step:
    """The step of a folder that somebody names: it runs whole, less what cannot be run compiled, and on both cores."""
    steps = [step for step in (*PLAIN_STEPS, *COMPILED_STEPS) if step.name == folder]
    arguments = next((step.arguments for step in steps if step.whole and step.compiled == compiled), ())
    spreads_itself = folder == "simulation" or any(step.waits for step in steps)
    spread = ("-n", "2") if steps and not spreads_itself else ()
    return Step(folder, (*spread, *arguments), compiled)


if __name__ == "__main__":
    raise SystemExit(main())

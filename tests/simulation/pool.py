"""Runs many seeds on all cores and says everything about the first that fails."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from simulation.checkers import Violation
from simulation.cluster import Cluster, RunReport, run
from simulation.plants import Plant, planted, steered
from simulation.run_settings import RunSettings
from simulation.shell_seams import in_simulation


@dataclass(frozen=True, slots=True)
class SeedFailure:
    """Why a seed failed, for whoever replays it."""

    sentence: str
    settings: str
    events: tuple[str, ...]
    details: str
    """The traceback, when it was no checker that spoke."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One seed's outcome: a report or a failure."""

    seed: int
    seconds: float
    report: RunReport | None
    failure: SeedFailure | None


@dataclass(slots=True)
class Totals:
    """Sums over many seeds."""

    seeds: int = 0
    failed: int = 0
    acknowledged: int = 0
    lost_as_expected: int = 0
    delivered: int = 0
    virtual_ms: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, result: SeedResult) -> None:
        """Counts one outcome."""
        self.seeds += 1
        if result.report is None:
            self.failed += 1
            return
        report = result.report
        self.acknowledged += report.acknowledged
        self.lost_as_expected += report.lost_as_expected
        self.delivered += report.delivered
        self.virtual_ms += report.virtual_ms
        self.events += report.events
        self.faults += report.faults
        self.statuses += report.statuses


def run_one(
    seed: int,
    plant: Plant | None = None,
    steer_for: Plant | None = None,
    failover: bool = False,
    few_faults: bool = False,
) -> SeedResult:
    """Runs one seed; a failure is a value. With `steer_for` it goes where that bug would be, and without the bug.

    `failover`: its group fails over, also where the seed has fixed roles. `few_faults`: see `RunSettings`.
    """
    started = time.perf_counter()
    drawn = RunSettings.draw(seed)
    drawn = drawn.with_failover() if failover else drawn
    settings = steered(drawn.with_few_faults() if few_faults else drawn, steer_for or plant)
    cluster = Cluster(settings)
    report, failure = None, None
    # A run's millions of short-lived objects seldom form cycles: looking for them all the time takes a sixth of it.
    gc.disable()
    try:
        with in_simulation(), planted(plant):
            report = run(cluster)
    except Exception as error:
        # The root of a run: whatever ends it is its outcome, and is told with its seed.
        details = "" if isinstance(error, Violation) else _cause(error)
        failure = SeedFailure(str(error), str(settings), tuple(cluster.journal.tail()), details)
    finally:
        gc.enable()
    return SeedResult(seed, time.perf_counter() - started, report, failure)


@contextmanager
def seed_processes() -> Iterator[Executor]:
    """As many processes as there are cores, which have the product imported: for `run_seeds`, as often as one likes."""
    # spawn: a forked child would share the parent's threads and imported state.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as processes:
        yield processes


def run_seeds(
    seeds: Iterable[int],
    processes: Executor,
    *,
    plant: Plant | None = None,
    steer_for: Plant | None = None,
    failover: bool = False,
    few_faults: bool = False,
) -> Iterator[SeedResult]:
    """Outcomes in order of their completion. Who has seen enough stops: no seed waits in a queue then."""
    waiting = iter(seeds)
    running: set[Future[SeedResult]] = set()
    while True:
        for seed in islice(waiting, (os.cpu_count() or 1) - len(running)):
            running.add(processes.submit(run_one, seed, plant, steer_for, failover, few_faults))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    return "".join(traceback.format_exception(cause))

"""A cache with a reader in a test's hands, and runs of the consistency job the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import structlog

from support.cluster_states import healthy_cluster
from support.manual_time import ManualTime
from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.cluster_state import ClusterState, ExpectedBroker, Finding
from tandemmq.admin.consistency_runs import ConsistencyRuns, ResultsUnavailable
from tandemmq.core.audit.run_summary import RunSummary


class FakeReader:
    """Gives `state`; keeps what it was asked to remember."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.remembered: list[str] = []

    async def read(self, remembered: Iterable[ExpectedBroker] = ()) -> ClusterState:
        self.remembered = [f"{broker.broker_name}:{broker.broker_id}" for broker in remembered]
        return self.state


def cached(
    state: ClusterState | None = None,
    *,
    clock: ManualTime | None = None,
    forget_after_ms: int = 60_000,
    more_findings: Callable[[], Iterable[Finding]] = tuple,
) -> tuple[CachedCluster, FakeReader, ManualTime]:
    """A cache that has read nothing yet."""
    clock = clock or ManualTime()
    reader = FakeReader(state or healthy_cluster())
    log = structlog.get_logger()
    cluster = CachedCluster(
        cast("Any", reader), clock=clock, log=log, forget_after_ms=forget_after_ms, more_findings=more_findings
    )
    return cluster, reader, clock


class FakeResults:
    """Gives `runs`, or refuses with `error`."""

    def __init__(self, *runs: RunSummary) -> None:
        self.runs = list(runs)
        self.error = ""

    def read(self) -> list[RunSummary]:
        """The runs it was given, newest first."""
        if self.error:
            raise ResultsUnavailable(self.error)
        return sorted(self.runs, key=lambda run: run.run_id, reverse=True)


def consistency_of(
    *runs: RunSummary, clock: ManualTime, overdue_after_ms: int = 7_200_000
) -> tuple[ConsistencyRuns, FakeResults]:
    """Runs that have been read once."""
    results = FakeResults(*runs)
    consistency = ConsistencyRuns(results, clock=clock, log=structlog.get_logger(), overdue_after_ms=overdue_after_ms)
    consistency.read_once()
    return consistency, results

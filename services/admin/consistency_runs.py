"""The runs of the consistency job as everybody is shown them, read in the background."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final

from structlog.typing import FilteringBoundLogger

from admin.cluster_state import Finding
from admin.consistency_results import ResultsPlace, ResultsUnavailable
from admin.consistency_state import ConsistencyReading, diagnose_consistency, standings
from mqcore.clock import Clock

__all__ = ["ConsistencyRuns"]

_PAUSE_S: Final = 10.0


class ConsistencyRuns:
    """Reads a place every ten seconds. Without a place there is nothing to read and nothing to tell."""

    def __init__(
        self, place: ResultsPlace | None, *, clock: Clock, log: FilteringBoundLogger, overdue_after_ms: int
    ) -> None:
        self._place = place
        self._clock = clock
        self._log = log
        self._overdue_after_ms = overdue_after_ms
        self._began_ms = clock.monotonic_ms()
        self._latest: ConsistencyReading | None = None

    @property
    def is_watched(self) -> bool:
        """Whether there is a place at all."""
        return self._place is not None

    @property
    def latest(self) -> ConsistencyReading | None:
        """The newest reading; None before the first."""
        return self._latest

    async def keep_reading(self) -> None:
        """Reads until cancelled."""
        if self._place is None:
            return
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="consistency-results") as thread:
            while True:
                # With what is bound to every log line of this process.
                await loop.run_in_executor(thread, copy_context().run, self.read_once)
                await asyncio.sleep(_PAUSE_S)

    def read_once(self) -> ConsistencyReading | None:
        """One reading; blocks."""
        if self._place is None:
            return None
        before = self._latest
        error = ""
        try:
            runs = tuple(self._place.read())
        except ResultsUnavailable as failure:
            error = str(failure)
            runs = before.runs if before is not None else ()
        if error and (before is None or not before.error):
            self._log.warning("consistency_results_unread", reason=error)
        if runs and (before is None or not before.runs or before.runs[0].run_id != runs[0].run_id):
            run = runs[0]
            self._log.info(
                "consistency_run_seen", run=run.run_id, tier=str(run.tier), outcome=str(run.outcome), runs=len(runs)
            )
        reading = ConsistencyReading(
            runs=runs,
            standings=before.standings if before is not None and before.runs == runs else standings(runs),
            error=error,
            watched_ms=self._clock.monotonic_ms() - self._began_ms,
            overdue_after_ms=self._overdue_after_ms,
        )
        self._latest = reading
        return reading

    def findings(self) -> list[Finding]:
        """What an operator should know by the newest reading."""
        if self._latest is None:
            return []
        return diagnose_consistency(self._latest, now_wall_ms=self._clock.wall_ms())

"""A run of the consistency job in this process: everything of it but Spark and the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

from support.inline_runner import InlineRunner
from tandemmq.consistency.audit import AuditReport, audit, new_run_id, write_report
from tandemmq.consistency.discovery import discover
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.tasks import TaskRunner
from tandemmq.service.settings import load_settings

_random = Random(20_261_121)


def run_inline(
    results: Path, *overrides: str, runner: TaskRunner | None = None, with_files: bool = False
) -> AuditReport:
    """One run with settings as `key=value`. `with_files`: what it leaves behind is written too."""
    store = ResultsStore(str(results))
    settings = load_settings(
        ConsistencySettings,
        environ={},
        overrides=["secondLookPause=0", "extentBytes=64KiB", "chunkBytes=1MiB", f"results={results}", *overrides],
    )
    now = datetime.now(UTC)
    report = audit(
        settings,
        discover(settings),
        runner=runner or InlineRunner(),
        results=store,
        run_id=new_run_id(now, _random, store.names("runs")),
        progress=Progress(in_flight=lambda: 0, shown=False),
    )
    if with_files:
        write_report(store, report)
    return report

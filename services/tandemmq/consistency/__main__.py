"""`mqconsistency`: one run of the consistency job.

Exit codes: 0 all replicas are equal, 2 they are not, 3 not all could be read, 1 the job itself broke or was called
wrongly. In a CronJob's pod that makes the state of the Job.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Final

from tandemmq.consistency.discovery import discover
from tandemmq.consistency.settings import (
    ConsistencyError,
    ConsistencySettings,
    EngineKind,
    ProgressKind,
    SparkUnusable,
)
from tandemmq.core.access.identity import Role
from tandemmq.core.audit.repair_plan import RepairPlan
from tandemmq.core.audit.run_summary import RunSummary
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.logging import configure_logging, get_logger
from tandemmq.service.service_tls import check_service_tls, tell_children
from tandemmq.service.settings import VERSION, check_folder_writable, effective_settings, settings_of_command_line

if TYPE_CHECKING:
    from tandemmq.consistency.tasks import TaskRunner

_EXIT_BROKEN: Final = 1
_NEEDED: Final = ("pyarrow", "xxhash", "numpy")
_SPARK: Final = "pyspark"
_QUIET: Final = "WARNING"


def main() -> None:
    """Reads the settings, verifies, reports, exits."""
    try:
        settings = settings_of_command_line(
            ConsistencySettings,
            program="mqconsistency",
            description="Proves that all replicas of every broker group hold the same log, and says what differs.",
            arguments=sys.argv[1:],
            environ=os.environ,
            check=lambda loaded: [
                *_place_problems(loaded),
                *check_service_tls(loaded, Role.CONSISTENCY, clock=SystemClock()),
            ],
        )
    except SystemExit as ended:
        # 2 says that replicas differ; a mistyped setting must not.
        sys.exit(_EXIT_BROKEN if ended.code else 0)
    quiet = {"LOG_LEVEL": _QUIET} if settings.progress is ProgressKind.PERSON else {}
    configure_logging(quiet | os.environ, service="consistency")
    # Workers and executors read replicas, too.
    tell_children(settings, os.environ)
    try:
        summary = _run(settings)
    except ConsistencyError as error:
        sys.stderr.write(f"mqconsistency: {error}\n")
        sys.exit(_EXIT_BROKEN)
    sys.exit(int(summary.exit_code))


def _run(settings: ConsistencySettings) -> RunSummary:
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise SparkUnusable(f"{' and '.join(missing)} not installed: pip install 'tandemmq[consistency]'")
    # Here, so that a mistyped setting is told without waiting for them.
    from tandemmq.consistency.audit import audit, new_run_id, prune_runs, write_report
    from tandemmq.consistency.progress import Progress
    from tandemmq.consistency.results_store import ResultsStore

    stop = _StopOnSignals()
    log = get_logger()
    # Before Java starts, which is the slow part.
    discovery = discover(settings)
    results = ResultsStore(settings.results)
    run_id = new_run_id(datetime.now(UTC), Random(), results.names("runs"))
    log.info("run_starting", run_id=run_id, version=VERSION, settings=effective_settings(settings))
    with _runner(settings) as (runner, application_id):
        stop.ends(runner)
        with Progress(in_flight=runner.bytes_done, kind=settings.progress) as progress:
            report = audit(
                settings,
                discovery,
                runner=runner,
                results=results,
                run_id=run_id,
                application_id=application_id,
                progress=progress,
                is_stopping=stop.is_set,
            )
    summary = report.summary
    place = write_report(results, report)
    prune_runs(results, keep=settings.keep_runs)
    _announce(summary, settings, report.plan)
    log.info(
        "run_finished",
        run_id=run_id,
        outcome=str(summary.outcome),
        findings=summary.findings_total,
        read_bytes=summary.bytes_read,
        seconds=summary.duration_seconds,
        report=place,
    )
    return summary


@contextmanager
def _runner(settings: ConsistencySettings) -> Iterator[tuple[TaskRunner, str]]:
    """What runs the tasks, by the setting `engine`, and Spark's name of the run if it is Spark from the start."""
    with ExitStack() as running:

        def start_spark() -> tuple[TaskRunner, str]:
            if not _is_installed(_SPARK):
                raise SparkUnusable(
                    f"{_SPARK} is not installed: pip install 'tandemmq[consistency]', or choose engine=local"
                )
            from tandemmq.consistency.spark_session import SparkRunner, running_spark

            context = running.enter_context(running_spark(settings, os.environ))
            runner = SparkRunner(context)
            get_logger().info("spark_started", application=context.applicationId, slots=runner.slots)
            return runner, str(context.applicationId)

        is_cluster = settings.engine is EngineKind.AUTO and not settings.runs_locally
        if settings.engine is EngineKind.SPARK or is_cluster:
            yield start_spark()
            return
        from tandemmq.consistency.local_runner import Engine, LocalRunner

        local = running.enter_context(LocalRunner())
        if settings.engine is EngineKind.LOCAL:
            yield local, ""
            return
        engine = Engine(
            local,
            limit_bytes=settings.local_max_bytes,
            start_spark=lambda: start_spark()[0],
            is_spark_there=_is_installed(_SPARK),
        )
        yield engine, ""


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class _StopOnSignals:
    """The first SIGTERM or SIGINT ends what runs, so that the report has what was found out so far; the second ends
    the process. From the start on: one that comes while Spark starts is heeded, too.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._runner: TaskRunner | None = None
        self._listen()

    def ends(self, runner: TaskRunner) -> None:
        """It is what runs from now on."""
        self._runner = runner
        # Spark has taken SIGINT for itself.
        self._listen()

    def is_set(self) -> bool:
        return self._stopping.is_set()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        if self._stopping.is_set():
            os._exit(_EXIT_BROKEN)
        self._stopping.set()
        if self._runner is not None:
            # Not here: the thread that is interrupted may be talking to the JVM itself.
            threading.Thread(target=self._runner.cancel, name="cancel", daemon=True).start()


def _announce(summary: RunSummary, settings: ConsistencySettings, plan: RepairPlan) -> None:
    if settings.kubernetes_events or settings.kubernetes_results or settings.pushgateway_url:
        from tandemmq.consistency.cluster_report import announce

        announce(summary, settings, plan)


def _place_problems(settings: ConsistencySettings) -> list[str]:
    if settings.results_folder is None:
        return []
    return check_folder_writable("results", settings.results_folder)


if __name__ == "__main__":
    main()

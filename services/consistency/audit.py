"""The run: all groups side by side, then what they add up to, what would repair it, and what is left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Final

from consistency.collation import by_weight
from consistency.discovery import Discovery
from consistency.errors import TasksFailed
from consistency.group_audit import AuditOptions, GroupAudit, GroupResult
from consistency.group_store import GroupStore
from consistency.planning import ScrubOptions
from consistency.progress import Progress
from consistency.results_store import ResultsStore
from consistency.settings import ConsistencySettings
from consistency.source_files.source_spec import SourceSpec
from consistency.spark_runner import TaskRunner
from consistency.tasks import FingerprintTask, Replica
from mqcore.audit.findings import Finding
from mqcore.audit.repair_plan import RepairPlan, plan_repair
from mqcore.audit.run_summary import FINDINGS_LISTED_MAX, GroupSummary, Outcome, ReplicaSummary, RunSummary
from mqcore.replication.log_history import LogRange
from mqservice.logging import get_logger

__all__ = ["AuditReport", "audit", "new_run_id"]

_UNKNOWN_DIGEST: Final = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that a run found out."""

    summary: RunSummary
    findings: tuple[Finding, ...]
    plan: RepairPlan


def new_run_id(now: datetime, random: Random) -> str:
    """Sorts by time; two runs of one second are told apart."""
    return f"{now:%Y%m%dT%H%M%SZ}-{random.getrandbits(16):04x}"


def audit(
    settings: ConsistencySettings,
    discovery: Discovery,
    *,
    runner: TaskRunner,
    results: ResultsStore,
    run_id: str,
    application_id: str = "",
    progress: Progress,
    is_stopping: Callable[[], bool] = lambda: False,
) -> AuditReport:
    """Verifies all groups. Raises ResultsUnusable; whatever else goes wrong is part of the report."""
    started = datetime.now(UTC)
    started_s, cpu_started_s = time.monotonic(), time.process_time()

    def is_over() -> bool:
        return is_stopping() or 0 < settings.deadline <= time.monotonic() - started_s

    groups = discovery.by_group()
    progress.groups(len(groups))
    options = _options(settings)

    def one_group(group: str, specs: Sequence[SourceSpec]) -> GroupResult:
        store = GroupStore(results, group, run_id=run_id)
        if is_over():
            return _unfinished(group, specs, "the deadline came before its turn")
        try:
            result = GroupAudit(
                group,
                specs,
                options,
                runner=runner,
                store=store,
                progress=progress,
                run_id=run_id,
                is_over=is_over,
            ).run()
        except TasksFailed as error:
            get_logger().error("group_failed", broker_name=group, reason=str(error))
            result = _unfinished(group, specs, str(error))
        progress.group_done(len(result.findings))
        return result

    with ThreadPoolExecutor(settings.groups_at_once, thread_name_prefix="group") as threads:
        found = list(threads.map(one_group, groups, groups.values()))
    findings = tuple(sorted((finding for result in found for finding in result.findings), key=by_weight))
    plan, notes = _repair_plan(run_id, discovery.cluster, findings, found, runner)
    finished = datetime.now(UTC)
    cpu_seconds = sum(result.cpu_seconds for result in found) + time.process_time() - cpu_started_s
    summary = RunSummary(
        run_id=run_id,
        tier=settings.tier,
        cluster=discovery.cluster,
        started_at=_moment(started),
        finished_at=_moment(finished),
        outcome=_outcome(result.summary.outcome for result in found),
        groups=tuple(result.summary for result in found),
        findings=findings[:FINDINGS_LISTED_MAX],
        findings_total=len(findings),
        findings_by_kind=dict(Counter(str(finding.kind) for finding in findings)),
        benign=dict(_summed(result.benign for result in found)),
        bytes_read=sum(replica.bytes_read for result in found for replica in result.summary.replicas),
        records_checked=sum(result.records for result in found),
        duration_seconds=round(time.monotonic() - started_s, 3),
        cpu_seconds=round(cpu_seconds, 3),
        spark_application_id=application_id,
        only_groups=tuple(sorted(settings.group_names)),
        notes=(*discovery.notes, *(note for result in found for note in result.notes), *notes),
    )
    return AuditReport(summary, findings, plan)


def _options(settings: ConsistencySettings) -> AuditOptions:
    return AuditOptions(
        tier=settings.tier,
        algorithm=settings.digest_algorithm,
        extent_bytes=settings.extent_bytes,
        chunk_bytes=settings.chunk_bytes,
        max_lag_bytes=settings.max_lag_bytes,
        scrub=ScrubOptions(settings.scrub_window, settings.scrub_budget_bytes),
        second_look_pause_s=settings.second_look_pause,
        forget_replicas_after_s=settings.forget_replicas_after,
    )


def _unfinished(group: str, specs: Sequence[SourceSpec], problem: str) -> GroupResult:
    replicas = tuple(ReplicaSummary(spec.broker_id, spec.location, Outcome.INCOMPLETE) for spec in specs)
    return GroupResult(GroupSummary(group, Outcome.INCOMPLETE, replicas, problem=problem))


def _outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """A group that was left out is not proven equal, and a run must not sound as if it were."""
    found = set(outcomes)
    if Outcome.DIVERGED in found:
        return Outcome.DIVERGED
    return Outcome.INCOMPLETE if found & {Outcome.INCOMPLETE, Outcome.SKIPPED} else Outcome.EQUAL


def _repair_plan(
    run_id: str, cluster: str, findings: Sequence[Finding], found: Sequence[GroupResult], runner: TaskRunner
) -> tuple[RepairPlan, list[str]]:
    """The plan with digests of what it expects and puts. It is made twice: first to learn of which ranges, and then,
    when tasks have read those, for good.
    """
    wanted: dict[tuple[str, int, LogRange], str] = {}

    def note(group: str, broker_id: int, log_range: LogRange) -> str:
        wanted[group, broker_id, log_range] = _UNKNOWN_DIGEST
        return _UNKNOWN_DIGEST

    plan = plan_repair(run_id, cluster, findings, note)
    if not wanted:
        return plan, []
    replicas: Mapping[tuple[str, int], Replica] = {
        (result.summary.group, broker_id): replica for result in found for broker_id, replica in result.replicas.items()
    }
    places = [place for place in wanted if place[:2] in replicas]
    tasks = [FingerprintTask(replicas[group, broker_id], (log_range,)) for group, broker_id, log_range in places]
    try:
        answers = runner.run(tasks, label="repair-plan")
    except TasksFailed as error:
        return plan, [f"the repair plan has no digests and cannot be carried out: {error}"]
    for place, answer in zip(places, answers):
        if not answer.problem:
            wanted[place] = answer.values["digests"][0]

    def look_up(group: str, broker_id: int, log_range: LogRange) -> str:
        return wanted.get((group, broker_id, log_range), _UNKNOWN_DIGEST)

    return plan_repair(run_id, cluster, findings, look_up), []


def _summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

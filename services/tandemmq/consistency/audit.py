"""The run: all groups side by side, then what they add up to, what would repair it, and what is left behind."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import pyarrow as pa

from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.group_audit import AuditOptions, GroupAudit, GroupResult
from tandemmq.consistency.planning import ScrubOptions
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import GroupStore, ResultsStore
from tandemmq.consistency.settings import ConsistencySettings, TasksFailed
from tandemmq.consistency.source_files.posix_files import SourceSpec
from tandemmq.consistency.tasks import FingerprintTask, Replica, TaskRunner
from tandemmq.core.audit.causes import by_weight
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.repair_plan import RepairPlan, plan_repair
from tandemmq.core.audit.run_summary import FINDINGS_LISTED_MAX, GroupSummary, Outcome, ReplicaSummary, RunSummary
from tandemmq.core.replication.log_history import LogRange
from tandemmq.service.logging import get_logger

_UNKNOWN_DIGEST: Final = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that a run found out."""

    summary: RunSummary
    findings: tuple[Finding, ...]
    plan: RepairPlan


_STAMP: Final = "%Y%m%dT%H%M%SZ"
_STAMP_LENGTH: Final = 16
_AHEAD_TOLD: Final = timedelta(minutes=5)


def new_run_id(now: datetime, random: Random, known: Iterable[str] = ()) -> str:
    """Sorts by time, and behind all `known` ones: where a clock was ahead, or two runs began within one second, they
    are told in the order in which they began all the same."""
    newest = max((began for name in known if (began := _began(name)) is not None), default=None)
    moment = now.replace(microsecond=0)
    if newest is not None and newest >= moment:
        moment = newest + timedelta(seconds=1)
    return f"{moment:{_STAMP}}-{random.getrandbits(16):04x}"


def _began(run_id: str) -> datetime | None:
    """When a run began, by its id; None for what is no run's."""
    try:
        began = datetime.strptime(run_id[:_STAMP_LENGTH], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return began if _RUN_ID.fullmatch(run_id) and began.year < MAXYEAR else None


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
    found += [
        _unfinished(group, (), problem)
        for group, problem in _absent_groups(settings, discovery, results, run_id=run_id, now_s=started.timestamp())
    ]
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
        notes=(
            *discovery.notes,
            *_notes_of_clocks(run_id, started),
            *(note for result in found for note in result.notes),
            *notes,
        ),
    )
    return AuditReport(summary, findings, plan)


def _notes_of_clocks(run_id: str, started: datetime) -> Iterator[str]:
    began = _began(run_id)
    if began is not None and began - started > _AHEAD_TOLD:
        yield (
            f"an earlier run began later than this one, by its clock, so that this one is called {run_id} to be the "
            "newest: a clock was ahead then, or is behind now"
        )


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
        file_reserved_ms=settings.file_reserved_time * 3_600_000,
    )


def _absent_groups(
    settings: ConsistencySettings, discovery: Discovery, results: ResultsStore, *, run_id: str, now_s: float
) -> Iterator[tuple[str, str]]:
    """Groups of this cluster that earlier runs saw and nobody names now, with words for each: away as a whole, they are
    not proven equal."""
    if not settings.name_servers:
        return
    earlier = {
        group.group
        for summary in earlier_summaries(results, before=run_id)
        if summary.cluster == discovery.cluster
        for group in summary.groups
    }
    absent = earlier - discovery.by_group().keys()
    for group in sorted(absent & set(settings.group_names) if settings.group_names else absent):
        store = GroupStore(results, group, run_id=run_id)
        memory = store.load_memory(algorithm=settings.digest_algorithm, extent_bytes=settings.extent_bytes)
        seen_s = max(memory.seen_at_s.values(), default=0.0)
        if now_s - seen_s <= settings.forget_replicas_after:
            remedy = f"if it was removed for good, delete {store.memory_path}"
            yield group, f"it took part in earlier runs, and no NameServer knows a broker of it; {remedy}"


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

    masters = {result.summary.group: result.summary.master_id for result in found}
    running = {
        result.summary.group: sorted(result.replicas)
        for result in found
        if result.replicas and all(replica.spec.is_broker for replica in result.replicas.values())
    }
    plan = plan_repair(run_id, cluster, findings, note, masters=masters, running=running)
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

    return plan_repair(run_id, cluster, findings, look_up, masters=masters, running=running), []


def _summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


# What a run leaves for people and programs; see results_store for where.

FINDINGS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("severity", pa.string()),
        ("kind", pa.string()),
        ("group", pa.string()),
        ("verdict", pa.string()),
        ("detail", pa.string()),
        ("broker_id", pa.int64()),
        ("source_broker_id", pa.int64()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int64()),
        ("queue_offset", pa.int64()),
        ("message_id", pa.string()),
        ("store_timestamp_ms", pa.int64()),
        ("messages", pa.int64()),
        ("last_message_id", pa.string()),
        ("file", pa.string()),
        ("end_queue_offset", pa.int64()),
    ]
)
_RUN_COLUMNS: Final = (
    "run_id",
    "tier",
    "cluster",
    "started_at",
    "finished_at",
    "outcome",
    "findings_total",
    "bytes_read",
    "records_checked",
    "duration_seconds",
    "cpu_seconds",
    "spark_application_id",
)
_EARLIER_SHOWN: Final = 30
_RUN_ID: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")


def write_report(results: ResultsStore, report: AuditReport) -> str:
    """All files of a run; returns where the report for people is. Written last, latest.json makes it count."""
    from tandemmq.consistency.report import render_report

    summary = report.summary
    folder = f"runs/{summary.run_id}"
    values = summary.to_json()
    results.write_table(f"{folder}/findings.parquet", _findings_table(summary.run_id, report.findings))
    results.write_table(f"{folder}/run.parquet", _run_table(summary))
    results.write_json(f"{folder}/repair-plan.json", report.plan.to_json())
    html = render_report(summary, earlier=earlier_summaries(results, before=summary.run_id))
    results.write(f"{folder}/report.html", html.encode())
    results.write_json(f"{folder}/summary.json", values)
    results.write_json("latest.json", values)
    return results.path_of(f"{folder}/report.html")


def earlier_summaries(results: ResultsStore, *, before: str) -> list[RunSummary]:
    """The last runs, oldest first. One that cannot be read is none."""
    found = []
    for run_id in [name for name in results.names("runs") if name < before][-_EARLIER_SHOWN:]:
        values = results.read_json(f"runs/{run_id}/summary.json")
        try:
            if values is not None:
                found.append(RunSummary.from_json(values))
        except ValueError:
            continue
    return found


def prune_runs(results: ResultsStore, *, keep: int) -> None:
    """Removes the reports of the oldest runs, and nothing that is none."""
    for run_id in [name for name in results.names("runs") if _RUN_ID.fullmatch(name)][:-keep]:
        results.remove(f"runs/{run_id}")


def _findings_table(run_id: str, findings: Sequence[Finding]) -> pa.Table:
    rows: list[dict[str, Any]] = [finding.to_json() | {"run_id": run_id} for finding in findings]
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def _run_table(summary: RunSummary) -> pa.Table:
    values = summary.to_json()
    row = {name: values[name] for name in _RUN_COLUMNS} | {
        "groups": len(summary.groups),
        "replicas": sum(len(group.replicas) for group in summary.groups),
        "new_bytes": sum(group.new_bytes for group in summary.groups),
        "scrubbed_bytes": sum(group.scrubbed_bytes for group in summary.groups),
        "exit_code": int(summary.exit_code),
    }
    return pa.Table.from_pylist(
        [{name: str(value) if name in ("tier", "outcome") else value for name, value in row.items()}]
    )

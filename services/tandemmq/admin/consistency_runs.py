"""The runs of the consistency job: shown to everybody, read in the background; and started when an operator asks."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.cluster_state import Finding, Severity
from tandemmq.admin.operations.questions import invalid, not_found, refused, unavailable
from tandemmq.admin.operations.values import Verification, VerificationState
from tandemmq.admin.settings import AdminSettings
from tandemmq.core.audit.findings import KINDS, FindingKind, Verdict, is_of_deep_runs
from tandemmq.core.audit.findings import Finding as ReplicaFinding
from tandemmq.core.audit.run_summary import ExitCode, GroupSummary, Outcome, RunSummary, Tier
from tandemmq.core.clock import Clock
from tandemmq.service.kubernetes_api import (
    COMPONENT_LABEL,
    AccessDenied,
    Document,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectMissing,
    api_of_pod,
)

# Where the consistency job leaves its runs for this service: a folder, or a ConfigMap of the release.
#
# The job and this service share no code but the summary's format and no connection: a run is written once and read
# here within seconds. What is unchanged is not parsed again.

RUNS_MAX: Final = 30
"""Newest runs that are read and kept in memory; of a thousand groups each takes some 3 MB."""
CONFIG_MAP_PREFIX: Final = "configmap:"
"""Before the name of a ConfigMap, where a folder could be meant as well."""
_SUMMARY_BYTES_MAX: Final = 32 << 20


class ResultsUnavailable(Exception):
    """The place does not answer, or refuses. Worth trying again; nothing is known of the runs meanwhile."""


class ResultsPlace(Protocol):
    """Runs of the consistency job. Calls block, so they are made on a thread."""

    def read(self) -> list[RunSummary]:
        """The newest RUNS_MAX runs, newest first; what is no summary is left out. Raises ResultsUnavailable."""


def results_place(setting: str, *, namespace: str) -> ResultsPlace | None:
    """By the setting consistencyResults; None when it is empty."""
    if not setting:
        return None
    if setting.startswith(CONFIG_MAP_PREFIX):
        return ConfigMapResults(setting.removeprefix(CONFIG_MAP_PREFIX), namespace=namespace)
    return FolderResults(Path(setting))


class FolderResults:
    """`runs/<run id>/summary.json` in the job's results folder. One thread."""

    def __init__(self, folder: Path) -> None:
        self._runs_folder = folder / "runs"
        self._parsed: dict[str, RunSummary] = {}

    def read(self) -> list[RunSummary]:
        """See `ResultsPlace`. A folder that is not there yet has no runs."""
        try:
            names = sorted((entry.name for entry in self._runs_folder.iterdir()), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ResultsUnavailable(f"{self._runs_folder}: {error.strerror or error}") from error
        found: dict[str, RunSummary] = {}
        for name in names:
            summary = self._parsed.get(name) or self._parse(name)
            if summary is not None:
                found[name] = summary
            if len(found) == RUNS_MAX:
                break
        self._parsed = found
        return list(found.values())

    def _parse(self, name: str) -> RunSummary | None:
        path = self._runs_folder / name / "summary.json"
        try:
            if path.stat().st_size > _SUMMARY_BYTES_MAX:
                return None
            return _summary(path.read_bytes())
        except OSError:
            # A run that has begun writes its summary last; one that is removed now is gone.
            return None


class ConfigMapResults:
    """Keys of a ConfigMap, each a run's summary in JSON. Needs the right to get that ConfigMap. One thread."""

    def __init__(self, name: str, *, namespace: str, read_data: Callable[[], dict[str, str]] | None = None) -> None:
        """`namespace` empty: this pod's own. `read_data` reads it another way than a pod does."""
        self._name = name
        self._namespace = namespace
        self._read_data = read_data or self._data
        self._parsed: dict[str, tuple[str, RunSummary | None]] = {}
        self._api: KubernetesApi | None = None

    def read(self) -> list[RunSummary]:
        """See `ResultsPlace`. A ConfigMap that is not there yet has no runs."""
        data = self._read_data()
        parsed = {}
        for key, text in data.items():
            known = self._parsed.get(key)
            parsed[key] = known if known is not None and known[0] == text else (text, _summary(text))
        self._parsed = parsed
        found = (summary for _, summary in parsed.values() if summary is not None)
        return sorted(found, key=lambda run: run.run_id, reverse=True)[:RUNS_MAX]

    def _data(self) -> dict[str, str]:
        try:
            if self._api is None:
                self._api = api_of_pod(self._namespace)
            return dict(self._api.read(Kind.CONFIG_MAP, self._name).get("data") or {})
        except ObjectMissing:
            return {}
        except KubernetesUnavailable as error:
            raise ResultsUnavailable(f"ConfigMap {self._name}: {error}") from error


def _summary(text: str | bytes) -> RunSummary | None:
    """None for what is no summary, or one of a version that this one does not read."""
    try:
        return RunSummary.from_json(json.loads(text))
    except (ValueError, AttributeError):
        return None


# What the runs of the consistency job mean for the cluster now. Values only.
#
# A finding stands until a later run that could see it finds its group equal. A quick run compares bytes and metadata;
# what is alike on all replicas, and the files derived from the log, only a deep one sees: so the newest quick run does
# not answer those findings of the last deep run.

_TOLD: Final = frozenset({Outcome.EQUAL, Outcome.DIVERGED})
_AHEAD_MS: Final = 300_000
# Problems of one cluster that are told one by one; a page of thousands tells nobody anything.
_PROBLEMS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What stands against one group now."""

    group: str
    # The run that looked at it last, successfully or not, and what it said.
    run: RunSummary
    summary: GroupSummary
    findings: tuple[ReplicaFinding, ...]
    # Beyond those listed.
    unlisted: int


@dataclass(frozen=True, slots=True)
class ConsistencyReading:
    """The runs as they were read last."""

    # Newest first.
    runs: tuple[RunSummary, ...]
    # What they mean, by group name.
    standings: tuple[GroupStanding, ...]
    # Why they could not be read just now; the runs are those read before.
    error: str
    # The service runs so long and has seen no other runs.
    watched_ms: int
    # A run is missed when none has ended for so long; 0: never.
    overdue_after_ms: int

    def newest(self, tier: Tier) -> RunSummary | None:
        return next((run for run in self.runs if run.tier is tier), None)

    def find(self, run_id: str) -> RunSummary | None:
        """A run by its id; `latest` is the newest."""
        if run_id == "latest":
            return self.runs[0] if self.runs else None
        return next((run for run in self.runs if run.run_id == run_id), None)

    def overdue_ms(self, now_wall_ms: int) -> int | None:
        """How long ago the last run ended if that is too long, or how long none was seen; None: not overdue."""
        if not self.overdue_after_ms:
            return None
        is_dated = self.runs and not is_ahead(self.runs[0], now_wall_ms)
        silent_ms = now_wall_ms - finished_at_ms(self.runs[0]) if is_dated else self.watched_ms
        return silent_ms if silent_ms > self.overdue_after_ms else None


def finished_at_ms(run: RunSummary) -> int:
    """Wall clock; 0 if it cannot be told."""
    try:
        return round(datetime.fromisoformat(run.finished_at).timestamp() * 1_000)
    except ValueError:
        return 0


def is_ahead(run: RunSummary, now_wall_ms: int) -> bool:
    """Whether it ended later than now, and by more than clocks differ: nobody knows how long ago that was."""
    return finished_at_ms(run) > now_wall_ms + _AHEAD_MS


@dataclass(frozen=True, slots=True)
class _Look:
    """What one run said of one group."""

    run: RunSummary
    summary: GroupSummary
    findings: tuple[ReplicaFinding, ...]


def standings(runs: Sequence[RunSummary]) -> tuple[GroupStanding, ...]:
    """Of all groups that the newest run of either tier over all groups knows, or one over some, by name.

    `runs` newest first.
    """
    whole = [next((run for run in runs if run.tier is tier and not run.only_groups), None) for tier in Tier]
    telling = [run for run in runs if run.only_groups or run in whole]
    looks: dict[str, list[_Look]] = {group.group: [] for run in telling for group in run.groups}
    for run in runs:
        findings: dict[str, list[ReplicaFinding]] = {}
        for finding in run.findings:
            findings.setdefault(finding.group, []).append(finding)
        for group in run.groups:
            if group.group in looks:
                looks[group.group].append(_Look(run, group, tuple(findings.get(group.group, ()))))
    return tuple(_standing(name, looks[name]) for name in sorted(looks))


def _standing(name: str, looks: Sequence[_Look]) -> GroupStanding:
    findings: tuple[ReplicaFinding, ...] = ()
    unlisted = 0
    told = [look for look in looks if look.summary.outcome in _TOLD]
    if told:
        findings = told[0].findings
        unlisted = max(0, told[0].summary.findings - len(findings))
        deep = next((look for look in told if look.run.tier is Tier.DEEP), None)
        if deep is not None and deep is not told[0]:
            findings += tuple(each for each in deep.findings if _is_for_deep_runs(each) and each not in findings)
    return GroupStanding(name, looks[0].run, looks[0].summary, findings, unlisted)


def _is_for_deep_runs(finding: ReplicaFinding) -> bool:
    """Whether a quick run would not see it."""
    if finding.kind is FindingKind.BODY_CRC:
        # Bit rot on one replica is a difference; on all of them it is none.
        return finding.broker_id is None
    return is_of_deep_runs(finding.kind, finding.verdict)


def subject_of(finding: ReplicaFinding) -> str:
    """`broker-a:1`, as findings about brokers have it; the group when no replica is named."""
    return f"broker group {finding.group}" if finding.broker_id is None else f"{finding.group}:{finding.broker_id}"


def remedy_of(finding: ReplicaFinding) -> str:
    """What to do first."""
    if finding.verdict is Verdict.UNDECIDED:
        return "nothing tells who is right; docs/operations/consistency.md says how to decide"
    return KINDS[finding.kind].remedy


def diagnose_consistency(reading: ConsistencyReading, *, now_wall_ms: int) -> list[Finding]:
    """What an operator should know, problems first."""
    problems = [finding for each in reading.standings for finding in _problems_of(each)]
    rest = len(problems) - _PROBLEMS_MAX
    if rest > 0:
        problems = problems[:_PROBLEMS_MAX]
        problems.append(
            _problem("cluster", f"has {rest:,} more kinds of differences between replicas", "see the report")
        )
    return [*problems, *_notes(reading, now_wall_ms)]


def _problem(subject: str, problem: str, remedy: str) -> Finding:
    return Finding(Severity.PROBLEM, subject, problem, remedy)


def _problems_of(standing: GroupStanding) -> Iterator[Finding]:
    """One for each replica and kind."""
    by_kind: dict[tuple[str, FindingKind], list[ReplicaFinding]] = {}
    for finding in standing.findings:
        by_kind.setdefault((subject_of(finding), finding.kind), []).append(finding)
    for (subject, kind), found in by_kind.items():
        meaning = KINDS[kind]
        times = f"{meaning.title}, {len(found):,} times" if len(found) > 1 else meaning.title
        yield _problem(subject, f"differs from its replicas: {times} ({_first(found[0])})", remedy_of(found[0]))
    if standing.unlisted or (standing.summary.outcome is Outcome.DIVERGED and not standing.findings):
        count = max(1, standing.unlisted)
        yield _problem(
            f"broker group {standing.group}",
            f"has {count:,} more differences between its replicas than are listed here",
            f"see the report of run {standing.run.run_id}",
        )


def _first(finding: ReplicaFinding) -> str:
    """Whose message, in short."""
    parts = [finding.topic] if finding.topic else []
    parts += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    parts += [f"offset {finding.queue_offset}"] if finding.queue_offset is not None else []
    parts += [finding.message_id] if finding.message_id else []
    return " ".join(parts) if parts else finding.detail


def _notes(reading: ConsistencyReading, now_wall_ms: int) -> Iterator[Finding]:
    if reading.error:
        yield Finding(
            Severity.NOTE,
            "consistency job",
            f"has results that cannot be read ({reading.error})",
            "check consistencyResults and the rights to it",
        )
    if reading.runs and is_ahead(reading.runs[0], now_wall_ms):
        yield Finding(
            Severity.NOTE,
            "consistency job",
            f"ended its last run, {reading.runs[0].run_id}, at a time that is still to come: its age is not known",
            "set right the clock of the machine that runs it, or of this one; the next run counts as newer in any case",
        )
    overdue_ms = reading.overdue_ms(now_wall_ms)
    if overdue_ms is not None and not reading.error:
        hours = overdue_ms / 3_600_000
        yield Finding(
            Severity.NOTE,
            "consistency job",
            f"has not ended a run for {hours:.1f} hours" if reading.runs else "has never run",
            "look at its schedule and its last Job (docs/operations/consistency.md)",
        )
    unread = [each for each in reading.standings if each.summary.outcome is Outcome.INCOMPLETE]
    for each in unread[:_PROBLEMS_MAX]:
        yield Finding(
            Severity.NOTE,
            f"broker group {each.group}",
            f"could not be compared by run {each.run.run_id} ({each.summary.problem or 'not every replica was read'})",
            "mend what keeps the replica from being read; the next run takes it up again",
        )


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


# Starts a run of the consistency job when an operator asks for one, and knows how far it is.
#
# Beside a local cluster the run is a process of this machine, which tells its progress line by line. On Kubernetes it
# is a Job made of the CronJob that the chart installed, so it has that one's image, account, volumes and results; how
# far it is only its log says. One run at a time: a second one would read the same bytes at the same moment.

_NEEDED: Final = ("tandemmq.consistency", "pyarrow", "xxhash", "numpy")
_STOP_LIMIT_S: Final = 10.0
"""After SIGTERM the job ends with a report of what it knows by then."""
_JOB_LOOK_S: Final = 3.0
_LINE_BYTES_MAX: Final = 1 << 20
_COMPONENT: Final = "consistency"
_TIER_LABEL: Final = "tandemmq.io/tier"
_STARTED_BY: Final = "tandemmq-admin"
# A pod that found something ends with a code that fails its Job: Kubernetes knows no other way to show it.
_CODES: Final = {str(int(code)): code.name.lower() for code in ExitCode}
_COUNTS: Final = {
    "groups_done": "groups_done",
    "groups": "groups_total",
    "read_bytes": "read_bytes",
    "planned_bytes": "planned_bytes",
    "seconds_left": "seconds_left",
    "findings": "findings",
}
"""By the job's name of it."""


class Starter(Protocol):
    def state(self) -> Verification:
        """The run that was asked for last."""

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        """Starts one. Raises OperationFailed: REFUSED while one is running, or where none can be started."""

    async def keep(self) -> None:
        """Looks after runs until cancelled, which ends those that are processes of ours."""


def starter_of(settings: AdminSettings, *, clock: Clock, log: FilteringBoundLogger) -> Starter | None:
    """By the settings; None where nothing says where a run would leave its results."""
    results = settings.consistency_results
    if settings.consistency_cron_jobs:
        return JobStarter(settings.consistency_cron_jobs, namespace=settings.kubernetes_namespace, clock=clock, log=log)
    if not results or results.startswith(CONFIG_MAP_PREFIX):
        return None
    return ProcessStarter(settings.name_servers, results, clock=clock, log=log)


def _refuse_second(now: Verification) -> None:
    if now.state is VerificationState.RUNNING:
        raise refused(f"a {now.tier} run is in progress: {now.name}", remedy="wait until it has ended")


class ProcessStarter:
    """`Starter` of processes of this machine. One event loop."""

    def __init__(
        self,
        name_servers: Sequence[str],
        results: str,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        command: Sequence[str] = (),
    ) -> None:
        """`command` in place of the job's own, without its settings."""
        self._settings = [f"namesrvAddr={';'.join(name_servers)}", f"results={results}", "progress=program"]
        self._clock = clock
        self._log = log
        self._command = tuple(command)
        self._state = Verification()
        self._asked = asyncio.Event()

    def state(self) -> Verification:
        return self._state

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        _refuse_second(self._state)
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing and not self._command:
            raise refused(
                "the consistency job is not installed beside this service",
                cause=f"there is no module {', '.join(missing)}",
                remedy="pip install 'tandemmq[consistency]'",
            )
        wanted = Verification(VerificationState.RUNNING, "", tier, tuple(groups), self._clock.wall_ms())
        if not dry_run:
            self._state = wanted
            self._asked.set()
        return wanted

    async def keep(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._run(self._state)

    async def _run(self, wanted: Verification) -> None:
        command = list(self._command or (sys.executable, "-m", "tandemmq.consistency"))
        settings = [*self._settings, f"tier={wanted.tier}"]
        settings += [f"groups={','.join(wanted.groups)}"] if wanted.groups else []
        for setting in settings:
            command += ["--set", setting]
        # What says where to read is said above; the rest of this service's environment holds for the job, too.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TANDEMMQ_")}
        self._log.info("consistency_run_starting", tier=str(wanted.tier), groups=list(wanted.groups))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=_LINE_BYTES_MAX,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._end(VerificationState.FAILED, problem=f"{command[0]} does not start: {error.strerror}")
            return
        try:
            said = await self._follow(process)
            # It has closed its output: it ends.
            await process.wait()
        finally:
            await _ended(process)
        code = process.returncode if process.returncode is not None else -1
        outcome = _CODES.get(str(code), "")
        if outcome:
            self._end(VerificationState.ENDED, outcome=outcome)
        else:
            self._end(VerificationState.FAILED, problem=said or f"it ended with code {code}")

    async def _follow(self, process: asyncio.subprocess.Process) -> str:
        """Reads what it says until it ends; the last line that is no progress."""
        assert process.stdout is not None, "made with a pipe"
        said = ""
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # Longer than any of ours.
                continue
            if not line:
                return said
            try:
                values = json.loads(line)
            except ValueError:
                said = line.decode(errors="replace").strip() or said
                continue
            if isinstance(values, dict):
                self._note(values)

    def _note(self, values: Mapping[str, Any]) -> None:
        if values.get("event") == "run_starting":
            self._state = replace(self._state, name=str(values.get("run_id", "")))
        elif values.get("event") == "progress":
            counts = {own: values.get(name) for name, own in _COUNTS.items()}
            counted: dict[str, Any] = {own: count for own, count in counts.items() if isinstance(count, int)}
            self._state = replace(self._state, **counted)

    def _end(self, state: VerificationState, *, outcome: str = "", problem: str = "") -> None:
        self._state = replace(
            self._state, state=state, outcome=outcome, problem=problem, ended_ms=self._clock.wall_ms()
        )
        self._log.info("consistency_run_ended", run=self._state.name, outcome=outcome, problem=problem)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ends a process that runs, in order if it can."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
    await process.wait()


class JobStarter:
    """`Starter` of Jobs. Needs the rights to get the CronJobs, and to create, get and list Jobs."""

    def __init__(
        self,
        cron_jobs: str,
        *,
        namespace: str,
        clock: Clock,
        log: FilteringBoundLogger,
        api: KubernetesApi | None = None,
    ) -> None:
        """`cron_jobs`: the CronJobs are called this, a hyphen and the tier. `namespace` empty: this pod's own."""
        self._cron_jobs = cron_jobs
        self._namespace = namespace
        self._clock = clock
        self._log = log
        self._api = api
        self._state = Verification()
        self._asked = asyncio.Event()
        self._starting = asyncio.Lock()

    def state(self) -> Verification:
        return self._state

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        """See Starter. A Job is its CronJob's: it takes all groups, and needs no CronJob that is not suspended."""
        if groups:
            raise invalid(
                "groups: a run on Kubernetes takes all groups that its CronJob is set to take",
                remedy="leave them out, or run tandemmq verify --group",
            )
        async with self._starting:
            _refuse_second(self._state)
            try:
                name = await asyncio.to_thread(self._create, tier, dry_run=dry_run)
            except AccessDenied as denied:
                raise refused(
                    "this service may not start the job",
                    cause=str(denied),
                    remedy="set admin.kubernetes.startConsistency in the chart, or kubectl create job "
                    f"--from=cronjob/{self._cron_jobs}-{tier} NAME",
                ) from denied
            except ObjectMissing as missing:
                raise not_found(
                    f"there is no CronJob {self._cron_jobs}-{tier}",
                    cause=str(missing),
                    remedy="the chart makes it with consistency.enabled and runner: CronJob",
                ) from missing
            except KubernetesUnavailable as error:
                raise unavailable("the Job was not created", cause=str(error)) from error
            wanted = Verification(VerificationState.RUNNING, name, tier, (), self._clock.wall_ms())
            if not dry_run:
                self._state = wanted
                self._log.info("consistency_run_starting", tier=str(tier), job=name)
                self._asked.set()
            return wanted

    async def keep(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._state.state is VerificationState.RUNNING:
                await asyncio.sleep(_JOB_LOOK_S)
                await asyncio.to_thread(self.look)

    def look(self) -> None:
        """How the Job stands; blocks. Who does not answer now will."""
        try:
            status = self._connected().read(Kind.JOB, self._state.name).get("status") or {}
        except ObjectMissing:
            self._end(VerificationState.FAILED, problem="the Job was removed")
            return
        except KubernetesUnavailable as error:
            self._state = replace(self._state, problem=str(error))
            return
        conditions = {
            str(each.get("type")): str(each.get("message", ""))
            for each in status.get("conditions") or ()
            if each.get("status") == "True"
        }
        if "Complete" in conditions:
            self._end(VerificationState.ENDED, outcome="equal")
        elif "Failed" in conditions:
            message = conditions["Failed"]
            outcome = next((name for code, name in _CODES.items() if f"exit code {code} " in f"{message} "), "")
            state = VerificationState.ENDED if outcome else VerificationState.FAILED
            self._end(state, outcome=outcome, problem="" if outcome else message)
        else:
            self._state = replace(self._state, problem="")

    def _create(self, tier: Tier, *, dry_run: bool) -> str:
        """The name of the Job. Raises OperationFailed while another one runs, whoever started it."""
        api = self._connected()
        cron_job = api.read(Kind.CRON_JOB, f"{self._cron_jobs}-{tier}")
        labels = dict((cron_job.get("metadata") or {}).get("labels") or {})
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if key != _TIER_LABEL)
        active = [job for job in api.list(Kind.JOB, selector) if (job.get("status") or {}).get("active")]
        if active:
            raise refused(f"a run is in progress: {active[0]['metadata']['name']}", remedy="wait until it has ended")
        if dry_run:
            return ""
        created = api.create(Kind.JOB, _job(cron_job, labels | {COMPONENT_LABEL: _COMPONENT, _TIER_LABEL: str(tier)}))
        return str(created["metadata"]["name"])

    def _connected(self) -> KubernetesApi:
        if self._api is None:
            self._api = api_of_pod(self._namespace)
        return self._api

    def _end(self, state: VerificationState, *, outcome: str = "", problem: str = "") -> None:
        self._state = replace(
            self._state, state=state, outcome=outcome, problem=problem, ended_ms=self._clock.wall_ms()
        )
        self._log.info("consistency_run_ended", job=self._state.name, outcome=outcome, problem=problem)


def _job(cron_job: Document, labels: Mapping[str, str]) -> Document:
    """As `kubectl create job --from` makes it: the CronJob owns it, and its history limits remove it."""
    metadata = cron_job["metadata"]
    template = cron_job["spec"]["jobTemplate"]
    own = template.get("metadata") or {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "labels": {**labels, **(own.get("labels") or {})},
            "annotations": {
                **(own.get("annotations") or {}),
                "cronjob.kubernetes.io/instantiate": "manual",
                "tandemmq.io/started-by": _STARTED_BY,
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": template["spec"],
    }

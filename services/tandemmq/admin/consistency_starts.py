"""Starts a run of the consistency job when an operator asks for one, and knows how far it is.

Beside a local cluster the run is a process of this machine, which tells its progress line by line. On Kubernetes it is
a Job made of the CronJob that the chart installed, so it has that one's image, account, volumes and results; how far it
is only its log says. One run at a time: a second one would read the same bytes at the same moment.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.consistency_runs import CONFIG_MAP_PREFIX
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import Verification, VerificationState
from tandemmq.admin.settings import AdminSettings
from tandemmq.core.audit.run_summary import ExitCode, Tier
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

__all__ = ["JobStarter", "ProcessStarter", "Starter", "starter_of"]

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
    """What a run is started with."""

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
        raise OperationFailed(
            FailureKind.REFUSED, f"a {now.tier} run is in progress: {now.name}", remedy="wait until it has ended"
        )


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
        """See Starter."""
        return self._state

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        """See Starter."""
        _refuse_second(self._state)
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing and not self._command:
            raise OperationFailed(
                FailureKind.REFUSED,
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
        """See Starter."""
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
        """See Starter."""
        return self._state

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        """See Starter. A Job is its CronJob's: it takes all groups, and needs no CronJob that is not suspended."""
        if groups:
            raise OperationFailed(
                FailureKind.INVALID,
                "groups: a run on Kubernetes takes all groups that its CronJob is set to take",
                remedy="leave them out, or run tandemmq verify --group",
            )
        async with self._starting:
            _refuse_second(self._state)
            try:
                name = await asyncio.to_thread(self._create, tier, dry_run=dry_run)
            except AccessDenied as denied:
                raise OperationFailed(
                    FailureKind.REFUSED,
                    "this service may not start the job",
                    cause=str(denied),
                    remedy="set admin.kubernetes.startConsistency in the chart, or kubectl create job "
                    f"--from=cronjob/{self._cron_jobs}-{tier} NAME",
                ) from denied
            except ObjectMissing as missing:
                raise OperationFailed(
                    FailureKind.NOT_FOUND,
                    f"there is no CronJob {self._cron_jobs}-{tier}",
                    cause=str(missing),
                    remedy="the chart makes it with consistency.enabled and runner: CronJob",
                ) from missing
            except KubernetesUnavailable as error:
                raise OperationFailed(FailureKind.UNAVAILABLE, "the Job was not created", cause=str(error)) from error
            wanted = Verification(VerificationState.RUNNING, name, tier, (), self._clock.wall_ms())
            if not dry_run:
                self._state = wanted
                self._log.info("consistency_run_starting", tier=str(tier), job=name)
                self._asked.set()
            return wanted

    async def keep(self) -> None:
        """See Starter."""
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
            raise OperationFailed(
                FailureKind.REFUSED,
                f"a run is in progress: {active[0]['metadata']['name']}",
                remedy="wait until it has ended",
            )
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

"""Runs that are asked for: a process beside the service, or a Job of the CronJob; one at a time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import structlog

from support.manual_time import ManualTime
from support.running_time import PATIENCE_S, until
from tandemmq.admin.consistency_runs import JobStarter, ProcessStarter
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import Verification, VerificationState
from tandemmq.core.audit.run_summary import Tier
from tandemmq.service.kubernetes_api import AccessDenied, Kind, KubernetesApi, KubernetesUnavailable, ObjectMissing

_LOG = structlog.get_logger()

# Says what the job says, then waits for its end on a file.
_JOB = """
import json, pathlib, sys, time
values = dict(each.split("=", 1) for flag, each in zip(sys.argv[1::2], sys.argv[2::2]))
assert values["progress"] == "program" and values["namesrvAddr"] == "a:1;b:2", values
folder = pathlib.Path(values["results"])
print(json.dumps({"event": "run_starting", "run_id": "20261124T000000Z-0001"}), flush=True)
print(json.dumps({"event": "progress", "groups_done": 1, "groups": 3, "read_bytes": 40, "planned_bytes": 100,
                  "seconds_left": None, "findings": 2}), flush=True)
(folder / "begun").write_text(f"{values['tier']} {values.get('groups')}")
while not (folder / "end").exists():
    time.sleep(0.01)
print((folder / "end").read_text(), flush=True)
sys.exit(int((folder / "code").read_text()))
"""


@asynccontextmanager
async def _kept(starter: ProcessStarter) -> AsyncIterator[None]:
    keeping = asyncio.create_task(starter.keep())
    try:
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def _until(state: Callable[[], Verification], holds: Callable[[Verification], bool]) -> Verification:
    await until(lambda: holds(state()))
    return state()


@pytest.mark.parametrize(
    ("code", "expected", "outcome", "problem"),
    [
        (0, VerificationState.ENDED, "equal", ""),
        (2, VerificationState.ENDED, "diverged", ""),
        (3, VerificationState.ENDED, "incomplete", ""),
        (1, VerificationState.FAILED, "", "mqconsistency: no replica was found"),
    ],
)
async def test_process_tells_how_far_it_is_and_its_code_what_it_found(
    tmp_path: Any, code: int, expected: VerificationState, outcome: str, problem: str
) -> None:
    command = (sys.executable, "-c", _JOB)
    starter = ProcessStarter(("a:1", "b:2"), str(tmp_path), clock=ManualTime(), log=_LOG, command=command)
    async with _kept(starter):
        assert (await starter.start(Tier.DEEP, ("x", "y"), dry_run=True)).state is VerificationState.RUNNING
        assert starter.state().state is VerificationState.NONE
        await starter.start(Tier.DEEP, ("x", "y"), dry_run=False)
        running = await _until(starter.state, lambda state: state.read_bytes > 0)
        assert (running.name, running.groups_done, running.groups_total) == ("20261124T000000Z-0001", 1, 3)
        assert (running.planned_bytes, running.seconds_left, running.findings) == (100, 0, 2)
        with pytest.raises(OperationFailed, match="in progress") as refused:
            await starter.start(Tier.QUICK, (), dry_run=False)
        assert refused.value.kind is FailureKind.REFUSED
        await asyncio.to_thread(_write_when_begun, tmp_path, code)
        ended = await _until(starter.state, lambda state: state.state is not VerificationState.RUNNING)
        assert (ended.state, ended.outcome, ended.problem) == (expected, outcome, problem)
        assert (tmp_path / "begun").read_text() == "deep x,y"
        # And then another one.
        (tmp_path / "end").unlink()
        await starter.start(Tier.QUICK, (), dry_run=False)


def _write_when_begun(folder: Any, code: int) -> None:
    (folder / "code").write_text(str(code))
    (folder / "new").write_text("mqconsistency: no replica was found")
    (folder / "new").rename(folder / "end")


async def test_process_ends_with_the_service(tmp_path: Any) -> None:
    command = (sys.executable, "-c", _JOB)
    starter = ProcessStarter(("a:1", "b:2"), str(tmp_path), clock=ManualTime(), log=_LOG, command=command)
    async with asyncio.timeout(PATIENCE_S), _kept(starter):
        await starter.start(Tier.QUICK, (), dry_run=False)
        await _until(starter.state, lambda state: state.read_bytes > 0)
    # It was waited for, or this would not come to an end: nothing ever writes the file that the job waits for.


async def test_job_that_does_not_start_is_told() -> None:
    starter = ProcessStarter((), "results", clock=ManualTime(), log=_LOG, command=("/nowhere/python",))
    async with _kept(starter):
        await starter.start(Tier.QUICK, (), dry_run=False)
        ended = await _until(starter.state, lambda state: state.state is VerificationState.FAILED)
    assert "does not start: No such file" in ended.problem


class _Api:
    """What a namespace holds."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        self.failure: KubernetesUnavailable | None = None

    def read(self, kind: Kind, name: str) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        if kind is Kind.JOB:
            if name not in self.jobs:
                raise ObjectMissing("404")
            return self.jobs[name]
        assert name in ("mq-consistency-quick", "mq-consistency-deep")
        labels = {"app.kubernetes.io/instance": "mq", "tandemmq.io/tier": name[15:]}
        spec = {"jobTemplate": {"spec": {"backoffLimit": 0}}}
        return {"metadata": {"name": name, "uid": "u1", "labels": labels}, "spec": spec}

    def list(self, kind: Kind, selector: str) -> list[dict[str, Any]]:
        assert (kind, selector) == (Kind.JOB, "app.kubernetes.io/instance=mq")
        return list(self.jobs.values())

    def create(self, kind: Kind, document: dict[str, Any]) -> dict[str, Any]:
        assert kind is Kind.JOB
        name = f"{document['metadata']['generateName']}x7{len(self.jobs)}"
        self.created.append(document)
        self.jobs[name] = {"metadata": {"name": name}, "status": {"active": 1}}
        return self.jobs[name]


def _starter(api: _Api) -> JobStarter:
    return JobStarter("mq-consistency", namespace="ns", clock=ManualTime(), log=_LOG, api=cast("KubernetesApi", api))


async def test_job_is_made_of_its_cron_job_and_followed() -> None:
    api = _Api()
    starter = _starter(api)
    await starter.start(Tier.DEEP, (), dry_run=True)
    assert not api.created
    started = await starter.start(Tier.DEEP, (), dry_run=False)
    (job,) = api.created
    assert job["spec"] == {"backoffLimit": 0}
    assert job["metadata"]["labels"]["tandemmq.io/tier"] == "deep"
    assert job["metadata"]["ownerReferences"][0]["uid"] == "u1"
    starter.look()
    assert starter.state().state is VerificationState.RUNNING
    with pytest.raises(OperationFailed, match="in progress"):
        await starter.start(Tier.QUICK, (), dry_run=False)
    api.failure = KubernetesUnavailable("the API server does not answer")
    starter.look()
    assert (starter.state().state, starter.state().problem) == (
        VerificationState.RUNNING,
        "the API server does not answer",
    )
    api.failure = None
    message = "Container consistency for pod ns/a failed with exit code 2 matching FailJob rule at index 1"
    api.jobs[started.name]["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": message}]}
    starter.look()
    assert (starter.state().state, starter.state().outcome) == (VerificationState.ENDED, "diverged")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"conditions": [{"type": "Complete", "status": "True"}]}, (VerificationState.ENDED, "equal", "")),
        (
            {"conditions": [{"type": "Failed", "status": "True", "message": "Job was active longer than deadline"}]},
            (VerificationState.FAILED, "", "Job was active longer than deadline"),
        ),
        (None, (VerificationState.FAILED, "", "the Job was removed")),
    ],
)
async def test_how_a_job_can_end(status: Any, expected: tuple[VerificationState, str, str]) -> None:
    api = _Api()
    starter = _starter(api)
    started = await starter.start(Tier.QUICK, (), dry_run=False)
    if status is None:
        del api.jobs[started.name]
    else:
        api.jobs[started.name]["status"] = status
    starter.look()
    assert (starter.state().state, starter.state().outcome, starter.state().problem) == expected


async def test_job_that_somebody_else_started_is_in_the_way() -> None:
    api = _Api()
    api.jobs["mq-consistency-quick-29"] = {"metadata": {"name": "mq-consistency-quick-29"}, "status": {"active": 1}}
    with pytest.raises(OperationFailed, match="mq-consistency-quick-29"):
        await _starter(api).start(Tier.QUICK, (), dry_run=False)
    assert not api.created


@pytest.mark.parametrize(
    ("failure", "kind", "remedy"),
    [
        (AccessDenied("403: may not create jobs"), FailureKind.REFUSED, "startConsistency"),
        (ObjectMissing("404"), FailureKind.NOT_FOUND, "runner: CronJob"),
        (KubernetesUnavailable("no route"), FailureKind.UNAVAILABLE, ""),
    ],
)
async def test_why_no_job_is_created(failure: KubernetesUnavailable, kind: FailureKind, remedy: str) -> None:
    api = _Api()
    api.failure = failure
    starter = _starter(api)
    with pytest.raises(OperationFailed) as refused:
        await starter.start(Tier.QUICK, (), dry_run=False)
    assert refused.value.kind is kind
    assert remedy in refused.value.remedy
    assert starter.state().state is VerificationState.NONE

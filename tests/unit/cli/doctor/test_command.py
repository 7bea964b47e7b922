"""What the doctor says of the consistency job: nothing where nobody asked for it, else what it found last."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from support.audit_summaries import diverged_run, equal_run
from tandemmq.cli.cluster_address import ClusterAddress, ClusterTarget
from tandemmq.cli.commands.checks import RESULTS_VARIABLE
from tandemmq.cli.doctor.checks import Check, Verdict
from tandemmq.cli.doctor.command import audit_checks
from tandemmq.core.audit.run_summary import RunSummary

ADDRESS = ClusterAddress(("127.0.0.1:9876",))


def _leave(folder: Path, run: RunSummary) -> None:
    place = folder / "runs" / run.run_id
    place.mkdir(parents=True)
    (place / "summary.json").write_text(json.dumps(run.to_json()))


def _checks(target: ClusterTarget) -> list[Check]:
    return asyncio.run(audit_checks(target))


def test_replicas_that_the_last_run_found_different_are_a_problem_with_its_remedy(tmp_path: Path) -> None:
    _leave(tmp_path / "consistency", diverged_run())
    found = _checks(ClusterTarget(ADDRESS, "--data", data=tmp_path))
    assert {check.verdict for check in found} == {Verdict.PROBLEM}
    assert all(check.area == "audit" and check.fact and check.remedy for check in found)


def test_equal_replicas_are_told_with_the_run_that_saw_them(tmp_path: Path) -> None:
    _leave(tmp_path / "consistency", equal_run())
    assert _checks(ClusterTarget(ADDRESS, "--data", data=tmp_path)) == [
        Check("audit", "replicas", Verdict.OK, f"equal in run {equal_run().run_id}")
    ]


def test_a_folder_that_was_never_audited_and_a_cluster_whose_runs_nobody_knows_are_nothing_to_tell(
    tmp_path: Path,
) -> None:
    assert _checks(ClusterTarget(ADDRESS, "--data", data=tmp_path)) == []
    assert _checks(ClusterTarget(ADDRESS, "--namesrv")) == []


def test_an_admin_pod_knows_by_its_environment_where_runs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path))
    (found,) = _checks(ClusterTarget(ADDRESS, "--namesrv"))
    assert (found.verdict, found.fact) == (Verdict.NOTE, "has not ended a run yet")
    _leave(tmp_path, diverged_run())
    assert Verdict.PROBLEM in {check.verdict for check in _checks(ClusterTarget(ADDRESS, "--namesrv"))}


def test_a_cluster_that_is_named_by_its_folder_is_not_judged_by_another_one_s_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave(tmp_path / "other", diverged_run())
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path / "other"))
    _leave(tmp_path / "data" / "consistency", equal_run())
    (found,) = _checks(ClusterTarget(ADDRESS, "--data", data=tmp_path / "data"))
    assert found.verdict is Verdict.OK


def test_runs_that_cannot_be_read_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESULTS_VARIABLE, "configmap:mq-consistency")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "")
    (found,) = _checks(ClusterTarget(ADDRESS, "--namesrv"))
    assert (found.verdict, found.fact.startswith("not looked at: ")) == (Verdict.NOTE, True)

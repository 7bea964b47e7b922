"""The job as an operator runs it: a process with Spark in it, its exit code, its files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.audit_stores import copy_group
from support.cluster_processes import wait_until
from support.consistency_job import run_job
from support.inline_audit import run_inline
from support.running_time import PATIENCE_S
from support.store_damage import DAMAGES
from support.written_stores import WrittenStore, change_replicas
from tandemmq.consistency.audit import FINDINGS_SCHEMA
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.run_summary import ExitCode, Outcome

_SMALL = {
    "secondLookPause": "0",
    "extentBytes": "64KiB",
    "chunkBytes": "256KiB",
    "sparkMaster": "local[2]",
    "engine": "spark",
}


def test_job_names_the_damaged_message_and_clears_the_other_group(equal_group: list[Path], tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    copy_group(equal_group[:2], groups / "sound")
    expected = DAMAGES["flipped-body-bit"].apply(copy_group(equal_group, groups / "damaged"), random.Random(2))

    run = run_job(tmp_path / "results", {"path": str(groups), "tier": "deep", **_SMALL}, log=tmp_path / "job.log")

    assert run.summary.exit_code is ExitCode.DIVERGED
    assert run.group("sound").outcome is Outcome.EQUAL
    (finding,) = run.findings
    assert (finding.kind, finding.group, finding.broker_id) == (FindingKind.BODY_CRC, "damaged", expected.broker_id)
    assert finding.message_id in expected.message_ids
    assert run.summary.spark_application_id.startswith("local-")
    assert run.summary.records_checked > 0
    assert (run.folder / "report.html").stat().st_size > 1_000


def test_spark_says_of_drawn_changes_what_is_said_without_it(tmp_path: Path) -> None:
    """Groups of one run, each changed in some places."""
    groups = tmp_path / "groups"
    for seed in range(14):
        store, folders = WrittenStore(seed % 3), [groups / f"group-{seed}" / str(own) for own in range(1 + seed % 3)]
        for folder in folders:
            store.write(folder)
        change_replicas(store, folders, random.Random(f"spark/{seed}"), count=1 + seed % 4)
    run = run_job(tmp_path / "results", {"path": str(groups), "tier": "deep", **_SMALL}, log=tmp_path / "job.log")
    other = run_inline(tmp_path / "inline", f"path={groups}", "tier=deep", "chunkBytes=256KiB")
    assert run.summary.spark_application_id
    assert [own.outcome for own in run.summary.groups] == [own.outcome for own in other.summary.groups]
    assert len(run.findings) > 10
    # A table of findings has not all of a finding's fields.
    assert sorted(map(_told, run.findings)) == sorted(map(_told, other.findings))


def _told(finding: Finding) -> str:
    values = finding.to_json()
    return str({name: values[name] for name in FINDINGS_SCHEMA.names if name in values})


@pytest.mark.parametrize("when", ["run_starting", "spark_started"])
def test_stopped_job_reports_what_it_has(equal_group: list[Path], tmp_path: Path, when: str) -> None:
    copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    settings = {"path": str(tmp_path / "groups"), "results": str(tmp_path / "results"), **_SMALL, "rateLimit": "10000"}
    command = [sys.executable, "-m", "tandemmq.consistency"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    log = tmp_path / "job.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as job:
        told = f'"event": "{when}"'.encode()
        wait_until(lambda: told in log.read_bytes(), limit_s=PATIENCE_S, what=when)
        job.send_signal(signal.SIGTERM)
        code = job.wait(timeout=PATIENCE_S)

    assert code == ExitCode.INCOMPLETE, log.read_text()
    assert list((tmp_path / "results" / "runs").glob("*/summary.json"))

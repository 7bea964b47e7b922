"""Runs the consistency job in a process of its own, as an operator does, and reads what it left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as parquet

from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.run_summary import ExitCode, GroupSummary, RunSummary

JOB_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run that came to a verdict."""

    seconds: float
    summary: RunSummary
    findings: list[Finding]
    """All of them, not only those in summary.json."""
    folder: Path
    """runs/<run id> of its results: report.html and repair-plan.json."""

    def group(self, name: str) -> GroupSummary:
        """One group's part."""
        return next(group for group in self.summary.groups if group.group == name)

    def findings_in(self, group: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.group == group]

    @property
    def clean_bytes(self) -> int:
        """Read of groups in which nothing was found, over all their replicas."""
        return sum(
            replica.bytes_read for group in self.summary.groups if not group.findings for replica in group.replicas
        )


def run_job(results: Path, settings: Mapping[str, str], *, log: Path, limit_s: float = JOB_LIMIT_S) -> JobRun:
    """One run on this machine. AssertionError with the end of its log when it broke, and told nothing."""
    command = [sys.executable, "-m", "tandemmq.consistency"]
    for key, value in {"results": str(results), **settings}.items():
        command += ["--set", f"{key}={value}"]
    log.parent.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    with log.open("ab") as output:
        start = output.tell()
        code = subprocess.run(command, stdout=output, stderr=output, timeout=limit_s, check=False).returncode
    seconds = time.monotonic() - started_s
    if code not in set(ExitCode):
        text = log.read_bytes()[start:].decode(errors="replace")
        raise AssertionError(f"the consistency job ended with {code}; {log}:\n{text[-4_000:]}")
    summary = RunSummary.from_json(json.loads((results / "latest.json").read_text()))
    assert summary.exit_code == code, f"exit code {code}, but the summary says {summary.exit_code}"
    folder = results / "runs" / summary.run_id
    return JobRun(seconds, summary, _findings(folder / "findings.parquet"), folder)


def _findings(path: Path) -> list[Finding]:
    if not path.exists():
        return []
    return [Finding.from_json(row) for row in parquet.read_table(path).to_pylist()]

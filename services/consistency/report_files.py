"""What a run leaves for people and programs; see results_store for where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from consistency.audit import AuditReport
from consistency.results_store import ResultsStore
from mqcore.audit.findings import Finding
from mqcore.audit.run_summary import RunSummary

__all__ = ["earlier_summaries", "prune_runs", "write_report"]

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
    from consistency.report import render_report

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

"""Summaries of runs, as the consistency job would write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, ReplicaSummary, RunSummary, Tier

GIB = 1 << 30


def replica(broker_id: int, **changed: Any) -> ReplicaSummary:
    """A sound one of 4 GiB."""
    values: dict[str, Any] = {
        "broker_id": broker_id,
        "source": f"broker-a-{broker_id}:10911",
        "outcome": Outcome.EQUAL,
        "end_offset": 4 * GIB,
        "bytes_read": GIB,
    }
    return ReplicaSummary(**(values | changed))


def equal_group(name: str = "broker-a", **changed: Any) -> GroupSummary:
    """A master and a slave: half verified earlier, a quarter now."""
    values: dict[str, Any] = {
        "group": name,
        "outcome": Outcome.EQUAL,
        "replicas": (replica(0), replica(1)),
        "end_offset": 4 * GIB,
        "new_bytes": GIB,
        "watermark": 3 * GIB,
        "extent_map": "o" * 128 + "=" * 64 + "." * 64,
    }
    return GroupSummary(**(values | changed))


def finding(kind: FindingKind = FindingKind.BODY_CRC, group: str = "broker-a", **changed: Any) -> Finding:
    """A message of `orders` that slave 1 holds wrong."""
    values: dict[str, Any] = {
        "kind": kind,
        "group": group,
        "verdict": Verdict.CHECKSUM,
        "detail": "body CRC 0x1f2e3d4c, stored 0x1f2e3d4d",
        "broker_id": 1,
        "source_broker_id": 0,
        "start_offset": 2 * GIB,
        "end_offset": 2 * GIB + 1_200,
        "topic": "orders",
        "queue_id": 3,
        "queue_offset": 12_345,
        "message_id": "7F00000100002A9F0000018C3B2F0001",
        "store_timestamp_ms": 1_700_000_000_123,
    }
    return Finding(**(values | changed))


def run_of(groups: Sequence[GroupSummary], findings: Sequence[Finding] = (), **changed: Any) -> RunSummary:
    """A run whose outcome is the worst of its groups'."""
    outcomes = {group.outcome for group in groups}
    worst = next(
        (each for each in (Outcome.DIVERGED, Outcome.INCOMPLETE, Outcome.EQUAL) if each in outcomes), Outcome.EQUAL
    )
    by_kind: dict[str, int] = {}
    for each in findings:
        by_kind[str(each.kind)] = by_kind.get(str(each.kind), 0) + 1
    values: dict[str, Any] = {
        "run_id": "20261121T220000Z-1f3a",
        "tier": Tier.QUICK,
        "cluster": "DefaultCluster",
        "started_at": "2026-11-21T22:00:00Z",
        "finished_at": "2026-11-21T22:00:42Z",
        "outcome": worst,
        "groups": tuple(groups),
        "findings": tuple(findings),
        "findings_total": len(findings),
        "findings_by_kind": by_kind,
        "bytes_read": 2 * GIB * len(groups),
        "duration_seconds": 42.0,
        "cpu_seconds": 6.5,
    }
    return RunSummary(**(values | changed))


def equal_run(**changed: Any) -> RunSummary:
    """Two groups, nothing wrong."""
    return run_of([equal_group("broker-a"), equal_group("broker-b")], **changed)


def diverged_run(**changed: Any) -> RunSummary:
    """broker-a's slave holds one message wrong; broker-b is sound."""
    wrong = equal_group(
        "broker-a",
        outcome=Outcome.DIVERGED,
        findings=1,
        replicas=(replica(0), replica(1, outcome=Outcome.DIVERGED, findings=1)),
        extent_map="o" * 128 + "x" + "=" * 63 + "." * 64,
    )
    return run_of([wrong, equal_group("broker-b")], [finding()], **changed)

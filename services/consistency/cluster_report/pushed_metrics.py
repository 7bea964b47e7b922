"""A run in Prometheus' terms, for a Pushgateway. Names and labels are the admin service's; cluster and tier are the
grouping key, so that a quick run leaves the figures of the last deep one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, pushadd_to_gateway
from prometheus_client.exposition import default_handler

from mqcore.audit.run_summary import Outcome, RunSummary

__all__ = ["push", "run_registry"]

_JOB: Final = "tandemmq-consistency"
_LIMIT_S: Final = 10.0


_Handler = Callable[[str, str, float | None, list[tuple[str, str]], bytes], Callable[[], None]]


def push(summary: RunSummary, url: str, *, handler: _Handler = default_handler) -> None:
    """Replaces what the gateway has by these names. Raises OSError when the gateway does not answer or refuses."""
    pushadd_to_gateway(
        url,
        job=_JOB,
        registry=run_registry(summary),
        grouping_key={"cluster": summary.cluster, "tier": str(summary.tier)},
        timeout=_LIMIT_S,
        handler=handler,
    )


def run_registry(summary: RunSummary) -> CollectorRegistry:
    """The metrics of one run."""
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"tandemmq_consistency_{name}", meaning, labels, registry=registry)

    finished = datetime.fromisoformat(summary.finished_at).timestamp()
    gauge("last_run_timestamp_seconds", "When the last run of the job ended.").set(finished)
    if summary.outcome is Outcome.EQUAL:
        # Left away otherwise: what the gateway has of an earlier run stays.
        gauge("last_success_timestamp_seconds", "When the last run ended that found all replicas equal.").set(finished)
    outcome = gauge("outcome", "1 for the outcome of the last run.", "outcome")
    for each in Outcome:
        outcome.labels(str(each)).set(summary.outcome is each)
    gauge("run_duration_seconds", "How long the last run took.").set(summary.duration_seconds)
    gauge("read_bytes", "Bytes the last run read, over all replicas.").set(summary.bytes_read)
    findings = gauge(
        "findings", "Findings that stand; 0 without a kind for a group that has none.", "broker_group", "kind"
    )
    for (group, kind), count in _findings_by_group(summary).items():
        findings.labels(group, kind).set(count)
    verified = gauge("verified_bytes", "Bytes of the group's log the last run compared.", "broker_group")
    watermark = gauge("watermark_offset", "Everything below was compared once.", "broker_group")
    for each_group in summary.groups:
        verified.labels(each_group.group).set(each_group.new_bytes + each_group.scrubbed_bytes)
        watermark.labels(each_group.group).set(each_group.watermark)
    return registry


def _findings_by_group(summary: RunSummary) -> Counter[tuple[str, str]]:
    """Of listed findings; a group with more than are listed has the rest without a kind."""
    counts: Counter[tuple[str, str]] = Counter((finding.group, str(finding.kind)) for finding in summary.findings)
    listed = Counter(finding.group for finding in summary.findings)
    for group in summary.groups:
        if group.findings > listed[group.group] or not listed[group.group]:
            counts[group.group, ""] = max(0, group.findings - listed[group.group])
    return counts

"""What `kubectl describe statefulset` and `kubectl get events` say of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqcore.audit.findings import KINDS, Finding
from mqcore.audit.run_summary import GroupSummary, Outcome, RunSummary

__all__ = ["EVENTS_MAX", "BrokerStatefulSet", "broker_stateful_set", "event_document", "outcome_events"]

# A release has two StatefulSets for each group; one run must not flood the events of its namespace.
EVENTS_MAX: Final = 200
_MESSAGE_MAX: Final = 1_000  # of 1,024 that Kubernetes takes
_COMPONENT: Final = "tandemmq-consistency"
_REASONS: Final = {
    Outcome.DIVERGED: ("Warning", "ReplicasDiverged"),
    Outcome.INCOMPLETE: ("Warning", "ReplicasUnread"),
    Outcome.EQUAL: ("Normal", "ReplicasEqual"),
}


@dataclass(frozen=True, slots=True)
class BrokerStatefulSet:
    """A StatefulSet of brokers."""

    name: str
    uid: str
    broker_group: str
    # master or slave.
    home_role: str


def broker_stateful_set(document: Mapping[str, Any]) -> BrokerStatefulSet:
    """From a StatefulSet of apps/v1."""
    template = document.get("spec", {}).get("template", {}).get("metadata", {})
    labels = {**(document["metadata"].get("labels") or {}), **(template.get("labels") or {})}
    return BrokerStatefulSet(
        name=document["metadata"]["name"],
        uid=document["metadata"].get("uid", ""),
        broker_group=labels.get("tandemmq.io/broker-group", ""),
        home_role=labels.get("tandemmq.io/home-role", ""),
    )


def outcome_events(summary: RunSummary, sets: Sequence[BrokerStatefulSet], *, namespace: str) -> list[dict[str, Any]]:
    """Events of v1, bad news first, at most EVENTS_MAX. Skipped groups have none: nothing is known of them."""
    order = list(_REASONS)
    groups = [group for group in summary.groups if group.outcome in _REASONS]
    events = [
        event_document(summary, found, _REASONS[group.outcome], _message(summary, group), namespace=namespace)
        for group in sorted(groups, key=lambda group: (order.index(group.outcome), group.group))
        for found in _concerned(summary, group, sets)
    ]
    return events[:EVENTS_MAX]


def _concerned(
    summary: RunSummary, group: GroupSummary, sets: Sequence[BrokerStatefulSet]
) -> Iterator[BrokerStatefulSet]:
    """The group's sets; if it diverged only those of replicas that are named, as far as any is."""
    of_group = [each for each in sets if each.broker_group == group.group]
    named = {
        "master" if finding.broker_id == 0 else "slave"
        for finding in _findings(summary, group)
        if finding.broker_id is not None
    }
    for found in of_group:
        if group.outcome is not Outcome.DIVERGED or not named or found.home_role in named:
            yield found


def _findings(summary: RunSummary, group: GroupSummary) -> list[Finding]:
    return [finding for finding in summary.findings if finding.group == group.group]


def _message(summary: RunSummary, group: GroupSummary) -> str:
    end = f"Run {summary.run_id}."
    if group.outcome is Outcome.EQUAL:
        verified = group.new_bytes + group.scrubbed_bytes
        return (
            f"{len(group.replicas)} replicas are equal up to byte {group.watermark}; {verified} bytes compared. {end}"
        )
    if group.outcome is Outcome.INCOMPLETE:
        return f"{group.problem or 'not every replica could be read'}. {end}"[:_MESSAGE_MAX]
    text = f"{group.findings} findings."
    for finding in _findings(summary, group)[:3]:
        text += f" {_where(finding)}: {KINDS[finding.kind].title} ({finding.detail})."
    return f"{text[: _MESSAGE_MAX - len(end) - 1]} {end}"


def _where(finding: Finding) -> str:
    who = "nobody named" if finding.broker_id is None else f"broker id {finding.broker_id}"
    what = [finding.topic] if finding.topic else []
    what += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    what += [f"offset {finding.queue_offset}"] if finding.queue_offset is not None else []
    what += [finding.message_id] if finding.message_id else []
    return ", ".join([who, " ".join(what)]) if what else who


def event_document(
    summary: RunSummary, found: BrokerStatefulSet, reason: tuple[str, str], message: str, *, namespace: str
) -> dict[str, Any]:
    """One Event of v1."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{found.name}.consistency-", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": found.name,
            "namespace": namespace,
            "uid": found.uid,
        },
        "type": reason[0],
        "reason": reason[1],
        "message": message,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": summary.finished_at,
        "lastTimestamp": summary.finished_at,
        "count": 1,
    }

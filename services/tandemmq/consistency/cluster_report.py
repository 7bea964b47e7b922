"""The end of a run: whoever watches the cluster is told. What cannot be told is a warning, never a failed run."""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http.client import HTTPException
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Gauge, pushadd_to_gateway
from prometheus_client.exposition import default_handler
from structlog.typing import FilteringBoundLogger

from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.core.audit.findings import KINDS, Finding
from tandemmq.core.audit.repair_plan import RepairPlan
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, RunSummary, Tier
from tandemmq.service.kubernetes_api import (
    GROUP_LABEL,
    HOME_ROLE_LABEL,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectMissing,
    api_of_pod,
    is_in_pod,
)
from tandemmq.service.logging import get_logger

# What `kubectl describe statefulset` and `kubectl get events` say of a run.

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
        broker_group=labels.get(GROUP_LABEL, ""),
        home_role=labels.get(HOME_ROLE_LABEL, ""),
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
        if len(group.replicas) == 1:
            return f"One replica, and none to compare it with; {verified} bytes read. {end}"
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


# The few things a run reads and writes at the API server. Calls block; every one may raise KubernetesUnavailable.


class KubernetesObjects(Protocol):
    def broker_stateful_sets(self) -> list[BrokerStatefulSet]:
        """All that carry a broker group's label."""

    def create_event(self, document: Mapping[str, Any]) -> None: ...

    def config_map_data(self, name: str) -> dict[str, str] | None:
        """Its data; None if there is no such ConfigMap."""

    def change_config_map(self, name: str, data: Mapping[str, str | None]) -> None:
        """Sets keys, and removes those that are None; makes the ConfigMap if there is none."""


class ApiServerObjects:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def broker_stateful_sets(self) -> list[BrokerStatefulSet]:
        return [broker_stateful_set(item) for item in self._api.list(Kind.STATEFUL_SET, GROUP_LABEL)]

    def create_event(self, document: Mapping[str, Any]) -> None:
        self._api.create(Kind.EVENT, document)

    def config_map_data(self, name: str) -> dict[str, str] | None:
        try:
            return dict(self._api.read(Kind.CONFIG_MAP, name).get("data") or {})
        except ObjectMissing:
            return None

    def change_config_map(self, name: str, data: Mapping[str, str | None]) -> None:
        try:
            self._api.patch(Kind.CONFIG_MAP, name, {"data": dict(data)})
        except ObjectMissing:
            made = {key: text for key, text in data.items() if text is not None}
            self._api.create(Kind.CONFIG_MAP, {"metadata": {"name": name}, "data": made})


# A run in Prometheus' terms, for a Pushgateway. Names and labels are the admin service's; cluster and tier are the
# grouping key, so that a quick run leaves the figures of the last deep one.

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


# A run's summary, cut to what fits into a ConfigMap.
#
# An object of Kubernetes holds 1 MiB, and every reader of the ConfigMap gets all of it. So a summary gives up, in this
# order, what can be had elsewhere: findings beyond the first fifty, the pictures of sound groups, their replicas, the
# sound groups themselves, then all groups and findings. Outcome, counts and figures stay; a note tells what went.

FINDINGS_MAX: Final = 50
RUNS_KEPT: Final = 8
# Hourly runs of one tier would push the weekly one of another out.
_KEPT_OF_EACH_TIER: Final = 2
_SOUND: Final = frozenset({Outcome.EQUAL, Outcome.SKIPPED})

_Cut = Callable[[RunSummary], RunSummary]


def short_summary(summary: RunSummary, *, bytes_max: int) -> str:
    """JSON of at most `bytes_max` bytes as far as the bare figures of a run fit into it."""
    text = ""
    for candidate in _candidates(summary):
        text = json.dumps(candidate.to_json(), separators=(",", ":"))
        if len(text) <= bytes_max:
            break
    return text


def shortened(text: str, *, bytes_max: int) -> str | None:
    """A stored summary cut down further; None if it is none that this version reads."""
    if len(text.encode()) <= bytes_max:
        return text
    try:
        return short_summary(RunSummary.from_json(json.loads(text)), bytes_max=bytes_max)
    except (ValueError, AttributeError):
        return None


def kept_runs(tiers: Mapping[str, Tier | None]) -> frozenset[str]:
    """Of runs by id those to keep: the newest, and the newest of each tier."""
    newest_first = sorted(tiers, reverse=True)
    kept = set(newest_first[:RUNS_KEPT])
    for tier in Tier:
        kept |= set([run_id for run_id in newest_first if tiers[run_id] is tier][:_KEPT_OF_EACH_TIER])
    return frozenset(kept)


def _candidates(summary: RunSummary) -> Iterator[RunSummary]:
    cuts: tuple[_Cut, ...] = (_few_findings, _no_sound_maps, _no_sound_replicas, _no_sound_groups, _nothing_but_figures)
    for cut in cuts:
        summary = cut(summary)
        yield summary


def _few_findings(summary: RunSummary) -> RunSummary:
    return replace(summary, findings=summary.findings[:FINDINGS_MAX])


def _no_sound_maps(summary: RunSummary) -> RunSummary:
    return _sound_groups_as(summary, lambda group: replace(group, extent_map=""))


def _no_sound_replicas(summary: RunSummary) -> RunSummary:
    return _sound_groups_as(summary, lambda group: replace(group, replicas=()))


def _no_sound_groups(summary: RunSummary) -> RunSummary:
    kept = tuple(group for group in summary.groups if group.outcome not in _SOUND)
    left_out = len(summary.groups) - len(kept)
    return _noted(replace(summary, groups=kept), f"{left_out:,} equal or skipped groups are left out here.")


def _nothing_but_figures(summary: RunSummary) -> RunSummary:
    return _noted(
        replace(summary, groups=(), findings=()),
        "Groups and findings are left out here; the report of the run has them.",
    )


def _sound_groups_as(summary: RunSummary, change: Callable[[GroupSummary], GroupSummary]) -> RunSummary:
    groups = tuple(change(group) if group.outcome in _SOUND else group for group in summary.groups)
    return replace(summary, groups=groups)


def _noted(summary: RunSummary, note: str) -> RunSummary:
    return replace(summary, notes=(*summary.notes, note))


# Of 1 MiB that an object may have; the newest may take more than each of the older ones.
_NEWEST_BYTES_MAX: Final = 256 << 10
_OLDER_BYTES_MAX: Final = 20 << 10
# Beside a run's id: its repair plan. One with more steps is in the results only; many steps are a disk to be replaced.
_PLAN_SUFFIX: Final = ".plan"
_PLAN_BYTES_MAX: Final = 64 << 10
_PLANS_KEPT: Final = 2


def announce(summary: RunSummary, settings: ConsistencySettings, plan: RepairPlan | None = None) -> None:
    """Tells what `settings` ask for. Blocks, a minute at most; raises nothing."""
    log = get_logger()
    if settings.kubernetes_events or settings.kubernetes_results:
        if is_in_pod():
            _tell_kubernetes(summary, settings, plan, log)
        else:
            log.warning("kubernetes_not_told", reason="this process runs in no pod")
    if settings.pushgateway_url:
        try:
            push(summary, settings.pushgateway_url)
        except (OSError, HTTPException, ssl.SSLError, ValueError) as error:
            log.warning("pushgateway_not_told", url=settings.pushgateway_url, reason=str(error))


def _tell_kubernetes(
    summary: RunSummary, settings: ConsistencySettings, plan: RepairPlan | None, log: FilteringBoundLogger
) -> None:
    try:
        api = api_of_pod(settings.kubernetes_namespace)
    except KubernetesUnavailable as error:
        log.warning("kubernetes_not_told", reason=str(error))
        return
    announcement = Announcement(ApiServerObjects(api), namespace=api.namespace, log=log)
    if settings.kubernetes_results:
        announcement.store(summary, settings.kubernetes_results, plan)
    if settings.kubernetes_events:
        announcement.tell_events(summary, stateful_set_prefix=settings.stateful_set_prefix)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a run leaves in one namespace."""

    objects: KubernetesObjects
    namespace: str
    log: FilteringBoundLogger

    def store(self, summary: RunSummary, config_map: str, plan: RepairPlan | None = None) -> None:
        """Puts the summary and the plan into the ConfigMap and removes those that are too old."""
        try:
            stored = self.objects.config_map_data(config_map) or {}
            changes = stored_runs(summary, stored, plan)
            self.objects.change_config_map(config_map, changes)
        except KubernetesUnavailable as error:
            self.log.warning("summary_not_stored", config_map=config_map, reason=str(error))

    def tell_events(self, summary: RunSummary, *, stateful_set_prefix: str) -> None:
        """Makes the Events; ends at the first that is refused, as the next would be."""
        told = 0
        try:
            sets = [each for each in self.objects.broker_stateful_sets() if each.name.startswith(stateful_set_prefix)]
            for event in outcome_events(summary, sets, namespace=self.namespace):
                self.objects.create_event(event)
                told += 1
        except KubernetesUnavailable as error:
            self.log.warning("events_not_told", told=told, reason=str(error))


def stored_runs(summary: RunSummary, stored: dict[str, str], plan: RepairPlan | None = None) -> dict[str, str | None]:
    """Changes to the ConfigMap's data: this run added, older ones shortened, the oldest removed."""
    changes: dict[str, str | None] = {summary.run_id: short_summary(summary, bytes_max=_NEWEST_BYTES_MAX)}
    changes |= _stored_plans(summary.run_id, stored, plan)
    runs = {key: text for key, text in stored.items() if not key.endswith(_PLAN_SUFFIX)}
    tiers = {run_id: _tier_of(text) for run_id, text in runs.items()} | {summary.run_id: summary.tier}
    kept = kept_runs(tiers)
    for run_id, text in runs.items():
        if run_id == summary.run_id:
            continue
        short = shortened(text, bytes_max=_OLDER_BYTES_MAX) if run_id in kept else None
        if short != text:
            changes[run_id] = short
    return changes


def _stored_plans(run_id: str, stored: dict[str, str], plan: RepairPlan | None) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    if plan is not None and plan.steps:
        text = json.dumps(plan.to_json(), separators=(",", ":"))
        if len(text) <= _PLAN_BYTES_MAX:
            changes[run_id + _PLAN_SUFFIX] = text
    plans = sorted({key for key in stored if key.endswith(_PLAN_SUFFIX)} | set(changes))
    return changes | dict.fromkeys(plans[:-_PLANS_KEPT])


def _tier_of(text: str) -> Tier | None:
    # Written without spaces by `short_summary`; parsing a quarter megabyte for one word would be much.
    return next((tier for tier in Tier if f'"tier":"{tier}"' in text), None)

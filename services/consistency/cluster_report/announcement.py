"""The end of a run: whoever watches the cluster is told. What cannot be told is a warning, never a failed run."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from structlog.typing import FilteringBoundLogger

from consistency.cluster_report.kubernetes_objects import (
    ApiServerObjects,
    KubernetesObjects,
    KubernetesUnavailable,
    is_in_pod,
    own_namespace,
)
from consistency.cluster_report.outcome_events import outcome_events
from consistency.cluster_report.pushed_metrics import push
from consistency.cluster_report.short_summary import kept_runs, short_summary, shortened
from consistency.settings import ConsistencySettings
from mqcore.audit.repair_plan import RepairPlan
from mqcore.audit.run_summary import RunSummary, Tier
from mqservice.logging import get_logger

__all__ = ["Announcement", "announce"]

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
        namespace = settings.kubernetes_namespace or own_namespace()
        announcement = Announcement(ApiServerObjects(namespace), namespace=namespace, log=log)
    except (KubernetesUnavailable, OSError) as error:
        log.warning("kubernetes_not_told", reason=str(error))
        return
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

"""Looks at a release for `tandemmq doctor --kube` and judges pods, volumes, placement, budgets, revisions, labels."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tandemmq.cli.doctor.checks import Check, Verdict
from tandemmq.cli.kube.rollout import GroupState, broker_groups
from tandemmq.core.routing.values import parse_address
from tandemmq.service.kubernetes_api import GROUP_LABEL, AccessDenied

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerState, ClusterState
    from tandemmq.cli.kube.release import (
        ClaimState,
        DisruptionBudgetState,
        KubernetesCluster,
        PodState,
        StatefulSetState,
    )

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class ReleaseLook:
    """What Kubernetes told of a release. A kind that may not be listed is empty; `denied` names it with the reason."""

    name: str
    stateful_sets: list[StatefulSetState]
    pods: list[PodState]
    claims: list[ClaimState]
    budgets: list[DisruptionBudgetState]
    denied: dict[str, str] = field(default_factory=dict)


async def look_at_release(cluster: KubernetesCluster, release: str) -> ReleaseLook:
    """KubernetesUnavailable when the API server does not answer; a missing right for one kind is part of the result."""
    denied: dict[str, str] = {}

    async def allowed(kind: str, call: Awaitable[list[ItemT]]) -> list[ItemT]:
        try:
            return await call
        except AccessDenied as error:
            denied[kind] = str(error)
            return []

    return ReleaseLook(
        name=release,
        stateful_sets=await allowed("statefulsets", cluster.stateful_sets(release)),
        pods=await allowed("pods", cluster.pods(release)),
        claims=await allowed("persistentvolumeclaims", cluster.claims(release)),
        budgets=await allowed("poddisruptionbudgets", cluster.disruption_budgets(release)),
        denied=denied,
    )


def check_release(look: ReleaseLook, state: ClusterState | None) -> list[Check]:
    """Everything looked at; role labels are compared with what the brokers say themselves, if `state` has that."""
    groups = broker_groups(look.stateful_sets, look.pods)
    return [
        *_denied(look),
        *_release(look),
        *_pods(look),
        *_claims(look),
        *_placement(look),
        *_budgets(look, groups),
        *_revisions(groups),
        *(_role_labels(look, state) if state is not None else ()),
    ]


def pod_of(broker: BrokerState, pods: list[PodState]) -> PodState | None:
    """The pod a broker runs in: the one its advertised host name begins with."""
    parsed = parse_address(broker.metadata_endpoint)
    first = parsed.host.split(".")[0] if parsed is not None else ""
    return next((pod for pod in pods if first and pod.name == first), None)


def _denied(look: ReleaseLook) -> Iterator[Check]:
    for kind, reason in look.denied.items():
        yield Check(
            "kubernetes",
            kind,
            Verdict.NOTE,
            f"not looked at: {reason}",
            "run it as a user who may list them; the admin pod's account has few rights on purpose",
        )


def _release(look: ReleaseLook) -> Iterator[Check]:
    if not look.stateful_sets and not look.pods and not look.denied:
        yield Check(
            "kubernetes",
            f"release {look.name}",
            Verdict.PROBLEM,
            "has neither StatefulSets nor pods here",
            "name the release with --release and its namespace with --namespace; `helm list -A` shows both",
        )


def _pods(look: ReleaseLook) -> Iterator[Check]:
    for stateful_set in look.stateful_sets:
        if "pods" in look.denied:
            break
        there = {pod.name for pod in look.pods}
        missing = [
            name for index in range(stateful_set.replicas) if (name := stateful_set.pod_name(index)) not in there
        ]
        if missing:
            yield Check(
                "pods",
                stateful_set.name,
                Verdict.PROBLEM,
                f"{', '.join(missing)} is not there",
                f"kubectl describe statefulset {stateful_set.name}: its events say why it makes no pod",
            )
    # Jobs that are over are no members.
    members = [pod for pod in look.pods if pod.phase != "Succeeded" and pod.component]
    for pod in members:
        if not pod.ready:
            yield Check(
                "pods",
                pod.name,
                Verdict.PROBLEM,
                f"is not ready ({pod.phase}): {pod.not_ready_reason}",
                _pod_remedy(pod),
            )
        elif pod.restart_count:
            killed = pod.last_end == "OOMKilled"
            yield Check(
                "pods",
                pod.name,
                Verdict.WARNING if killed else Verdict.NOTE,
                f"was restarted {pod.restart_count} time(s)" + (f", last end: {pod.last_end}" if pod.last_end else ""),
                "raise its memory limit" if killed else f"kubectl logs {pod.name} --previous says how it ended",
            )
    ready = [pod for pod in members if pod.ready]
    if ready and len(ready) == len(members):
        yield Check("pods", f"release {look.name}", Verdict.OK, f"all {len(ready)} pods are ready")


def _pod_remedy(pod: PodState) -> str:
    reason = pod.not_ready_reason
    if "Unschedulable" in reason:
        return (
            "no node may take it: members of a group never share one, and a volume may bind it to its node. "
            "Add a node, bring the old one back, or lower its requests"
        )
    if "ImagePull" in reason or "ErrImage" in reason:
        return "check image, tag and pull secrets in the values"
    if pod.broken:
        return f"kubectl logs {pod.name} --previous; a broker says at its end what is wrong with its settings"
    return f"kubectl logs {pod.name}; a slave is ready once it has caught up, a broker once its store is recovered"


def _claims(look: ReleaseLook) -> Iterator[Check]:
    unbound = [claim for claim in look.claims if claim.phase != "Bound"]
    for claim in unbound:
        yield Check(
            "volumes",
            claim.name,
            Verdict.PROBLEM,
            f"is {claim.phase} ({claim.size}, storage class {claim.storage_class or 'default'})",
            f"kubectl describe pvc {claim.name}: is there such a storage class, and has it room?",
        )
    if look.claims and not unbound:
        yield Check("volumes", f"release {look.name}", Verdict.OK, f"all {len(look.claims)} claims are bound")


def _placement(look: ReleaseLook) -> Iterator[Check]:
    """Members of one broker group, and the NameServers, on nodes of their own: one node must not take them all."""
    parties: dict[str, list[PodState]] = {}
    for pod in look.pods:
        if pod.node and pod.phase == "Running" and (pod.broker_group or pod.component == "nameserver"):
            name = f"broker group {pod.broker_group}" if pod.broker_group else "NameServers"
            parties.setdefault(name, []).append(pod)
    for name, pods in sorted(parties.items()):
        nodes = {pod.node for pod in pods}
        if len(pods) > 1 and len(nodes) < len(pods):
            by_node = "; ".join(
                f"{node}: {', '.join(pod.name for pod in pods if pod.node == node)}" for node in sorted(nodes)
            )
            shared_by_all = len(nodes) == 1
            is_group = name != "NameServers"
            yield Check(
                "placement",
                name,
                Verdict.PROBLEM if is_group else (Verdict.WARNING if shared_by_all else Verdict.NOTE),
                f"members share a node ({by_node}): its loss takes all of them",
                "leave the chart's anti-affinity at hard, and have as many nodes as a group has members",
            )
        else:
            yield Check("placement", name, Verdict.OK, f"on {', '.join(sorted(nodes))}")


def _budgets(look: ReleaseLook, groups: list[GroupState]) -> Iterator[Check]:
    if "poddisruptionbudgets" in look.denied:
        return
    for group in groups:
        subject = f"broker group {group.name}"
        budget = next((each for each in look.budgets if each.match_labels.get(GROUP_LABEL) == group.name), None)
        if budget is None:
            yield Check(
                "budgets",
                subject,
                Verdict.WARNING,
                "has no PodDisruptionBudget: a drain of two nodes may take all its members",
                "leave the chart's podDisruptionBudget on",
            )
        elif budget.disruptions_allowed == 0 and all(pod.ready for pod in group.pods.values()):
            yield Check(
                "budgets",
                subject,
                Verdict.WARNING,
                f"{budget.name} allows no disruption ({budget.current_healthy} of {budget.expected_pods} healthy)",
                "a drain of a node would wait for ever; see maxUnavailable of the budget",
            )
        else:
            yield Check("budgets", subject, Verdict.OK, f"{budget.disruptions_allowed} member(s) may be evicted now")


def _revisions(groups: list[GroupState]) -> Iterator[Check]:
    waiting = [group.name for group in groups if group.outdated]
    if waiting:
        yield Check(
            "revisions",
            "brokers",
            Verdict.WARNING,
            f"{', '.join(waiting)} runs an older revision than the release asks for",
            "fine while an upgrade is under way; else `tandemmq rollout` renews them through the gate",
        )
    elif groups:
        yield Check("revisions", "brokers", Verdict.OK, "all run the newest revision")


def _role_labels(look: ReleaseLook, state: ClusterState) -> Iterator[Check]:
    for broker in state.brokers:
        pod = pod_of(broker, look.pods)
        if pod is None or broker.status is None:
            continue
        role = "slave" if broker.status.role == "SLAVE" else "master"
        if pod.role != role:
            yield Check(
                "labels",
                pod.name,
                Verdict.WARNING if pod.role else Verdict.NOTE,
                f"label tandemmq.io/role is {pod.role or 'missing'}, the broker is a {role}",
                "the admin service sets it within seconds: see whether it runs and may patch pods",
            )

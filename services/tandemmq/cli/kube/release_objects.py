"""What Kubernetes says of a release, as small values, and the one thing changed in it: a StatefulSet's partition.

Objects are read as the API server's JSON and turned into the few facts that matter here by pure functions, so that a
test can feed them what `kubectl get -o json` prints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tandemmq.service.kubernetes_api import (
    COMPONENT_LABEL,
    GROUP_LABEL,
    HOME_ROLE_LABEL,
    INSTANCE_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
    Document,
    Kind,
    KubernetesApi,
    PodStream,
    api_of_user,
)

__all__ = [
    "ApiServerCluster",
    "ClaimState",
    "DisruptionBudgetState",
    "KubernetesCluster",
    "PodState",
    "StatefulSetState",
    "claim_state",
    "disruption_budget_state",
    "open_cluster",
    "pod_state",
    "stateful_set_state",
]

# As the chart gives a pod its certificate.
_CERTIFICATE_VOLUME: Final = "service-tls"
_TLS_MODE_VARIABLE: Final = "TANDEMMQ_SERVICE_TLS_MODE"
_ENFORCING: Final = "enforcing"
# Waiting reasons that the same revision of a pod does not get over by itself, or not soon.
_BROKEN_REASONS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


@dataclass(frozen=True, slots=True)
class StatefulSetState:
    """One StatefulSet. Pod `i` of it, counted from 0, is called `<name>-<first_ordinal + i>`."""

    name: str
    # Empty when the label is missing.
    component: str
    broker_group: str
    home_role: str
    replicas: int
    first_ordinal: int
    # Pods whose index is below it keep `current_revision`.
    partition: int
    update_type: str
    # False while the controller has not looked at the last change of the object: the status is that of before.
    observed: bool
    current_revision: str
    update_revision: str
    updated_replicas: int
    ready_replicas: int

    def pod_name(self, index: int) -> str:
        """Name of pod `index`, 0 to `replicas` - 1."""
        return f"{self.name}-{self.first_ordinal + index}"


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the release."""

    name: str
    component: str
    broker_group: str
    home_role: str
    # What the admin service wrote on it: master, slave or empty.
    role: str
    # Name of the controller: a StatefulSet, a ReplicaSet, a Job.
    owner: str
    revision: str
    node: str
    ip: str
    phase: str
    ready: bool
    # Every container has passed its startup probe.
    started: bool
    terminating: bool
    restart_count: int
    # Why the last container ended, empty if none did: `OOMKilled`, `Error (137)`.
    last_end: str
    # Why it is not ready, in words; empty when it is.
    not_ready_reason: str
    # True when waiting is no use: it crashes in a loop, its image cannot be had, no node may take it.
    broken: bool
    # Container ports by name.
    ports: Mapping[str, int]
    # Secret with the certificate it shows; empty: it takes calls without one.
    certificate_secret: str = ""


@dataclass(frozen=True, slots=True)
class ClaimState:
    """One PersistentVolumeClaim."""

    name: str
    # Bound, Pending or Lost.
    phase: str
    # Granted if bound, else asked for; as Kubernetes writes it: 10Gi.
    size: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class DisruptionBudgetState:
    """One PodDisruptionBudget."""

    name: str
    match_labels: Mapping[str, str]
    disruptions_allowed: int
    current_healthy: int
    desired_healthy: int
    expected_pods: int


class KubernetesCluster(Protocol):
    """One namespace of a cluster. Every call may raise KubernetesUnavailable and AccessDenied."""

    @property
    def namespace(self) -> str:
        """The namespace."""
        ...

    async def releases(self) -> list[str]:
        """Names of the TandemMQ releases that have StatefulSets here, ordered."""
        ...

    async def stateful_sets(self, release: str) -> list[StatefulSetState]:
        """Those of a release, ordered by name."""
        ...

    async def pods(self, release: str) -> list[PodState]:
        """Those of a release, ordered by name."""
        ...

    async def claims(self, release: str) -> list[ClaimState]:
        """Those of a release, ordered by name."""
        ...

    async def disruption_budgets(self, release: str) -> list[DisruptionBudgetState]:
        """Those of a release, ordered by name."""
        ...

    async def set_partition(self, stateful_set: str, partition: int) -> None:
        """Lets the StatefulSet bring its pods from index `partition` up to its newest revision. Idempotent."""
        ...


class ApiServerCluster:
    """The real one: each call on a thread."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self._api.namespace

    @property
    def is_inside(self) -> bool:
        """True in a pod of this cluster: addresses of pods can be dialled."""
        return self._api.is_inside

    async def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection to a port inside a pod, through the API server. Needs the right to create pods/portforward."""
        return await asyncio.to_thread(self._api.open_stream, pod, port)

    async def releases(self) -> list[str]:
        """Names of the releases."""
        documents = await asyncio.to_thread(self._api.list, Kind.STATEFUL_SET, f"{NAME_LABEL}=tandemmq")
        return sorted({name for document in documents if (name := _labels(document).get(INSTANCE_LABEL))})

    async def stateful_sets(self, release: str) -> list[StatefulSetState]:
        """Those of a release."""
        return list(map(stateful_set_state, await self._list(Kind.STATEFUL_SET, release)))

    async def pods(self, release: str) -> list[PodState]:
        """Those of a release."""
        return list(map(pod_state, await self._list(Kind.POD, release)))

    async def claims(self, release: str) -> list[ClaimState]:
        """Those of a release."""
        return list(map(claim_state, await self._list(Kind.PERSISTENT_VOLUME_CLAIM, release)))

    async def disruption_budgets(self, release: str) -> list[DisruptionBudgetState]:
        """Those of a release."""
        return list(map(disruption_budget_state, await self._list(Kind.POD_DISRUPTION_BUDGET, release)))

    async def config_map(self, name: str) -> dict[str, str]:
        """Data of a ConfigMap. KubernetesUnavailable, also when there is none."""
        return dict((await asyncio.to_thread(self._api.read, Kind.CONFIG_MAP, name)).get("data") or {})

    async def secret(self, name: str) -> Document:
        """A Secret. KubernetesUnavailable, also when there is none."""
        return await asyncio.to_thread(self._api.read, Kind.SECRET, name)

    async def set_partition(self, stateful_set: str, partition: int) -> None:
        """Changes the partition and nothing else."""
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
        changes = {"spec": {"updateStrategy": strategy}}
        await asyncio.to_thread(self._api.patch, Kind.STATEFUL_SET, stateful_set, changes)

    async def _list(self, kind: Kind, release: str) -> list[Document]:
        documents = await asyncio.to_thread(self._api.list, kind, f"{INSTANCE_LABEL}={release}")
        return sorted(documents, key=lambda document: str(document["metadata"]["name"]))


async def open_cluster(namespace: str | None, *, context: str | None = None) -> ApiServerCluster:
    """As kubectl connects, or as a pod does: see `api_of_user`. Raises KubernetesUnavailable."""
    return ApiServerCluster(await asyncio.to_thread(api_of_user, namespace or "", context=context or ""))


# Documents to values


def stateful_set_state(document: Document) -> StatefulSetState:
    """From a StatefulSet of apps/v1."""
    spec, status = document["spec"], document.get("status") or {}
    strategy = spec.get("updateStrategy") or {}
    labels = {**_labels(document), **(_get(spec, "template", "metadata", "labels") or {})}
    return StatefulSetState(
        name=document["metadata"]["name"],
        component=labels.get(COMPONENT_LABEL, ""),
        broker_group=labels.get(GROUP_LABEL, ""),
        home_role=labels.get(HOME_ROLE_LABEL, ""),
        replicas=1 if spec.get("replicas") is None else int(spec["replicas"]),
        first_ordinal=int(_get(spec, "ordinals", "start") or 0),
        partition=int(_get(strategy, "rollingUpdate", "partition") or 0),
        update_type=strategy.get("type") or "RollingUpdate",
        observed=int(status.get("observedGeneration") or 0) >= int(document["metadata"].get("generation") or 0),
        current_revision=status.get("currentRevision") or "",
        update_revision=status.get("updateRevision") or "",
        updated_replicas=int(status.get("updatedReplicas") or 0),
        ready_replicas=int(status.get("readyReplicas") or 0),
    )


def pod_state(document: Document) -> PodState:
    """From a Pod of v1."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    labels = _labels(document)
    containers: list[Document] = status.get("containerStatuses") or []
    inits: list[Document] = status.get("initContainerStatuses") or []
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    waiting = [reason for each in (*inits, *containers) if (reason := _get(each, "state", "waiting", "reason"))]
    unschedulable = conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"
    owners = metadata.get("ownerReferences") or ()
    return PodState(
        name=metadata["name"],
        component=labels.get(COMPONENT_LABEL, ""),
        broker_group=labels.get(GROUP_LABEL, ""),
        home_role=labels.get(HOME_ROLE_LABEL, ""),
        role=labels.get(ROLE_LABEL, ""),
        owner=next((each["name"] for each in owners if each.get("controller")), ""),
        revision=labels.get("controller-revision-hash", ""),
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        phase=status.get("phase") or "Unknown",
        ready=ready,
        started=bool(containers) and all(each.get("started") for each in containers),
        terminating=metadata.get("deletionTimestamp") is not None,
        restart_count=sum(int(each.get("restartCount") or 0) for each in containers),
        last_end=next((end for each in containers if (end := _last_end(each))), ""),
        not_ready_reason="" if ready else _not_ready_reason(metadata, status, conditions, (*inits, *containers)),
        broken=unschedulable or any(reason in _BROKEN_REASONS for reason in waiting),
        ports={
            port["name"]: int(port["containerPort"])
            for container in spec.get("containers") or ()
            for port in container.get("ports") or ()
            if port.get("name")
        },
        certificate_secret=_certificate_secret(spec),
    )


def _certificate_secret(spec: Document) -> str:
    containers: list[Document] = spec.get("containers") or []
    variables = [variable for each in containers[:1] for variable in each.get("env") or ()]
    if _ENFORCING not in (each.get("value") for each in variables if each["name"] == _TLS_MODE_VARIABLE):
        return ""
    volumes = (each for each in spec.get("volumes") or () if each["name"] == _CERTIFICATE_VOLUME)
    return next((_get(each, "secret", "secretName") or "" for each in volumes), "")


def claim_state(document: Document) -> ClaimState:
    """From a PersistentVolumeClaim of v1."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    return ClaimState(
        name=document["metadata"]["name"],
        phase=status.get("phase") or "Pending",
        size=_get(status, "capacity", "storage") or _get(spec, "resources", "requests", "storage") or "",
        storage_class=spec.get("storageClassName") or "",
    )


def disruption_budget_state(document: Document) -> DisruptionBudgetState:
    """From a PodDisruptionBudget of policy/v1."""
    status = document.get("status") or {}
    return DisruptionBudgetState(
        name=document["metadata"]["name"],
        match_labels=dict(_get(document.get("spec") or {}, "selector", "matchLabels") or {}),
        disruptions_allowed=int(status.get("disruptionsAllowed") or 0),
        current_healthy=int(status.get("currentHealthy") or 0),
        desired_healthy=int(status.get("desiredHealthy") or 0),
        expected_pods=int(status.get("expectedPods") or 0),
    )


def _not_ready_reason(
    metadata: Document,
    status: Document,
    conditions: Mapping[str, Document],
    containers: Sequence[Document],
) -> str:
    """The most telling thing Kubernetes knows: deletion, scheduling, a waiting or ended container, the probe."""
    if metadata.get("deletionTimestamp") is not None:
        return "is being deleted"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'not scheduled')}: {scheduled.get('message', '')}".strip(": ")
    for container in containers:
        waiting = _get(container, "state", "waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            text = f"{container['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
            end = _last_end(container)
            return f"{text}; it ended with {end}" if end else text
    for container in containers:
        ended = _get(container, "state", "terminated")
        if ended and ended.get("exitCode"):
            return f"{container['name']} ended: {_end(ended)}"
    ready = conditions.get("Ready", {})
    return str(status.get("reason") or ready.get("message") or ready.get("reason") or status.get("phase") or "unknown")


def _last_end(container: Document) -> str:
    ended = _get(container, "lastState", "terminated")
    return _end(ended) if ended else ""


def _end(terminated: Document) -> str:
    reason, code = terminated.get("reason") or "Error", terminated.get("exitCode")
    return reason if reason == "OOMKilled" else f"{reason} ({code})"


def _labels(document: Document) -> dict[str, str]:
    return dict(document["metadata"].get("labels") or {})


def _get(document: Document, *path: str) -> Any:
    """The value at `path`, or None where any step is missing."""
    found: Any = document
    for step in path:
        if not found:
            return None
        found = found.get(step)
    return found

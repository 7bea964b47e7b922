"""Keeps the label `tandemmq.io/role` on the brokers' pods as the brokers themselves say it.

Which role a broker holds is state, not configuration, so it stands in no template; `kubectl get pods -L
tandemmq.io/role` shows it, and a Service may select by it. A pod is a broker's when its name is the first part of the
host name that the broker advertises. A broker that does not answer keeps the label it has: nobody knows better. Only
`master` it loses, once another member of its group answers as master.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.core.routing.values import host_of
from tandemmq.service.kubernetes_api import (
    COMPONENT_LABEL,
    GROUP_LABEL,
    INSTANCE_LABEL,
    ROLE_LABEL,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectMissing,
    api_of_pod,
)

_PAUSE_S: Final = 5.0
_PAUSE_AFTER_FAILURE_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    labels: Mapping[str, str]


class Pods(Protocol):
    """The pods of one release's brokers. Calls block; each may raise KubernetesUnavailable."""

    def list_brokers(self) -> list[Pod]:
        """Pods of this release with component=broker."""

    def set_label(self, pod_name: str, key: str, value: str) -> None:
        """Sets one label. A pod that is gone meanwhile is no error."""


class RoleLabels:
    """Compares what brokers say with what their pods show, and mends the difference."""

    def __init__(self, pods: Pods, *, log: FilteringBoundLogger) -> None:
        self._pods = pods
        self._log = log

    async def keep(self, cluster: CachedCluster) -> None:
        """Labels every few seconds until cancelled; pauses longer while Kubernetes does not answer."""
        loop = asyncio.get_running_loop()
        failures = 0
        with ThreadPoolExecutor(1, thread_name_prefix="kubernetes") as thread:
            while True:
                if cluster.latest is not None:
                    try:
                        await loop.run_in_executor(thread, self.label, cluster.latest.state)
                    except KubernetesUnavailable as error:
                        failures += 1
                        if failures == 1:
                            self._log.warning("role_labels_failed", reason=str(error))
                    else:
                        if failures:
                            self._log.info("role_labels_work_again", failures=failures)
                        failures = 0
                await asyncio.sleep(min(_PAUSE_S * 2 ** min(failures, 8), _PAUSE_AFTER_FAILURE_MAX_S))

    def label(self, state: ClusterState) -> dict[str, str]:
        """One comparison; blocks. Returns the labels that were changed, by pod. Raises KubernetesUnavailable."""
        roles = roles_by_pod(state)
        changed = {}
        pods = self._pods.list_brokers()
        with_master = {pod.labels.get(GROUP_LABEL) for pod in pods if roles.get(pod.name) == "master"} - {None}
        for pod in pods:
            role = roles.get(pod.name)
            if role is None and pod.labels.get(ROLE_LABEL) == "master" and pod.labels.get(GROUP_LABEL) in with_master:
                role = "slave"
            if role is not None and pod.labels.get(ROLE_LABEL) != role:
                self._pods.set_label(pod.name, ROLE_LABEL, role)
                changed[pod.name] = role
                self._log.info("pod_role_labelled", pod=pod.name, role=role, before=pod.labels.get(ROLE_LABEL, ""))
        return changed


def roles_by_pod(state: ClusterState) -> dict[str, str]:
    """`master` or `slave` by pod name, for brokers that answer and advertise a name rather than an address."""
    roles = {}
    for broker in state.brokers:
        pod_name = _pod_name(broker.metadata_endpoint)
        if broker.status is not None and pod_name:
            roles[pod_name] = "slave" if broker.status.role == "SLAVE" else "master"
    return roles


def _pod_name(endpoint: str) -> str:
    host = host_of(endpoint)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[0]
    return ""


class KubernetesPods:
    """The real pods, by the pod's own ServiceAccount: get, list and patch pods of its namespace."""

    def __init__(self, *, instance: str, namespace: str) -> None:
        """Either may be empty: then it is this pod's own."""
        self._instance = instance
        self._namespace = namespace
        self._api: KubernetesApi | None = None

    def list_brokers(self) -> list[Pod]:
        api = self._connected()
        selector = f"{COMPONENT_LABEL}=broker,{INSTANCE_LABEL}={self._instance}"
        items = [item["metadata"] for item in api.list(Kind.POD, selector, from_cache=True)]
        return [Pod(name=item["name"], labels=item.get("labels") or {}) for item in items]

    def set_label(self, pod_name: str, key: str, value: str) -> None:
        with contextlib.suppress(ObjectMissing):
            self._connected().patch(Kind.POD, pod_name, {"metadata": {"labels": {key: value}}})

    def _connected(self) -> KubernetesApi:
        if self._api is None:
            api = api_of_pod(self._namespace)
            self._instance = self._instance or _own_instance(api)
            self._api = api
        return self._api


def _own_instance(api: KubernetesApi) -> str:
    # A pod's host name is its name.
    labels = api.read(Kind.POD, socket.gethostname())["metadata"].get("labels") or {}
    if not labels.get(INSTANCE_LABEL):
        raise KubernetesUnavailable(f"this pod has no label {INSTANCE_LABEL}; set kubernetesInstance")
    return str(labels[INSTANCE_LABEL])

"""Keeps the label `tandemmq.io/role` on the brokers' pods as the brokers themselves say it.

Which role a broker holds is state, not configuration, so it stands in no template; `kubectl get pods -L
tandemmq.io/role` shows it, and a Service may select by it. A pod is a broker's when its name is the first part of the
host name that the broker advertises. A broker that does not answer keeps the label it has: nobody knows better.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.cluster_state import ClusterState

__all__ = ["ROLE_LABEL", "KubernetesPods", "Pod", "Pods", "PodsUnavailable", "RoleLabels", "roles_by_pod"]

ROLE_LABEL: Final = "tandemmq.io/role"
_INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
_COMPONENT_SELECTOR: Final = "app.kubernetes.io/component=broker"
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Connect and read, in seconds.
_API_TIMEOUT_S: Final = (3.0, 10.0)
# A release has a handful of broker pods; more than this is somebody else's label.
_PODS_MAX: Final = 1_000
_PAUSE_S: Final = 5.0
_PAUSE_AFTER_FAILURE_MAX_S: Final = 60.0


class PodsUnavailable(Exception):
    """Kubernetes did not answer or refused. Worth trying again; the reason is for the log."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A broker's pod."""

    name: str
    labels: Mapping[str, str]


class Pods(Protocol):
    """The pods of one release's brokers. Calls block, so they are made on a thread; each may raise PodsUnavailable."""

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
                    except PodsUnavailable as error:
                        failures += 1
                        if failures == 1:
                            self._log.warning("role_labels_failed", reason=str(error))
                    else:
                        if failures:
                            self._log.info("role_labels_work_again", failures=failures)
                        failures = 0
                await asyncio.sleep(min(_PAUSE_S * 2 ** min(failures, 8), _PAUSE_AFTER_FAILURE_MAX_S))

    def label(self, state: ClusterState) -> dict[str, str]:
        """One comparison; blocks. Returns the labels that were changed, by pod. Raises PodsUnavailable."""
        roles = roles_by_pod(state)
        changed = {}
        for pod in self._pods.list_brokers():
            role = roles.get(pod.name)
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
    host = endpoint.rpartition(":")[0].strip("[]")
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
        self._api: Any = None

    def list_brokers(self) -> list[Pod]:
        """See `Pods`."""
        with _Translated("list the pods"):
            api = self._connected()
            found = api.list_namespaced_pod(
                self._namespace,
                label_selector=f"{_COMPONENT_SELECTOR},{_INSTANCE_LABEL}={self._instance}",
                # The API server's own memory will do: a label may be late by a moment.
                resource_version="0",
                limit=_PODS_MAX,
                _request_timeout=_API_TIMEOUT_S,
                # Making its thousand objects of a few pods, again and again, would be most of what this process does.
                _preload_content=False,
            )
            items = [item["metadata"] for item in json.loads(found.data)["items"]]
        return [Pod(name=item["name"], labels=item.get("labels") or {}) for item in items]

    def set_label(self, pod_name: str, key: str, value: str) -> None:
        """See `Pods`."""
        with _Translated(f"label pod {pod_name}", ignored_status=404):
            self._connected().patch_namespaced_pod(
                pod_name,
                self._namespace,
                {"metadata": {"labels": {key: value}}},
                _request_timeout=_API_TIMEOUT_S,
                _preload_content=False,
            )

    def _connected(self) -> Any:
        if self._api is None:
            # Here and not above: the client takes seconds and 90 MB to load, which only pods should pay.
            from kubernetes import client, config

            load_configuration: Any = config.load_incluster_config
            load_configuration()
            api = client.CoreV1Api()
            if not self._namespace:
                self._namespace = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            if not self._instance:
                self._instance = self._own_instance(api)
            self._api = api
        return self._api

    def _own_instance(self, api: Any) -> str:
        # A pod's host name is its name.
        pod = api.read_namespaced_pod(socket.gethostname(), self._namespace, _request_timeout=_API_TIMEOUT_S)
        instance = (pod.metadata.labels or {}).get(_INSTANCE_LABEL, "")
        if not instance:
            raise PodsUnavailable(f"this pod has no label {_INSTANCE_LABEL}; set kubernetesInstance")
        return str(instance)


class _Translated:
    """Turns what the Kubernetes client raises into PodsUnavailable."""

    def __init__(self, what: str, *, ignored_status: int = 0) -> None:
        self._what = what
        self._ignored_status = ignored_status

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, PodsUnavailable):
            return False
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        if isinstance(error, ApiException):
            if error.status == self._ignored_status:
                return True
            hint = "; the ServiceAccount needs get, list and patch on pods" if error.status in (401, 403) else ""
            raise PodsUnavailable(f"cannot {self._what}: {error.status} {error.reason}{hint}") from error
        if isinstance(error, (HTTPError, ConfigException, OSError)):
            raise PodsUnavailable(f"cannot {self._what}: {error}") from error
        return False

"""The few things a run reads and writes at the API server. Calls block; every one may raise KubernetesUnavailable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from consistency.cluster_report.outcome_events import BrokerStatefulSet, broker_stateful_set

__all__ = ["ApiServerObjects", "KubernetesObjects", "KubernetesUnavailable", "is_in_pod", "own_namespace"]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_GROUP_LABEL: Final = "tandemmq.io/broker-group"
# Connect and read, in seconds.
_TIMEOUT_S: Final = (3.0, 10.0)
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = (401, 403)


class KubernetesUnavailable(Exception):
    """The API server did not answer, or refused; the text says what was asked. The run itself is done all the same."""


class KubernetesObjects(Protocol):
    """Objects of one namespace."""

    def broker_stateful_sets(self) -> list[BrokerStatefulSet]:
        """All that carry a broker group's label."""

    def create_event(self, document: Mapping[str, Any]) -> None:
        """An Event of v1."""

    def config_map_data(self, name: str) -> dict[str, str] | None:
        """Its data; None if there is no such ConfigMap."""

    def change_config_map(self, name: str, data: Mapping[str, str | None]) -> None:
        """Sets keys, and removes those that are None; makes the ConfigMap if there is none."""


def is_in_pod() -> bool:
    """Whether this process has a ServiceAccount."""
    return (SERVICE_ACCOUNT / "token").exists()


def own_namespace() -> str:
    """Of this pod."""
    return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()


class ApiServerObjects:
    """The real ones, by the pod's own ServiceAccount."""

    def __init__(self, namespace: str) -> None:
        # Here and not above: the client takes a second and 90 MB to load, which only pods should pay.
        from kubernetes import client, config

        load_configuration: Any = config.load_incluster_config
        with _Translated("read the ServiceAccount's configuration"):
            load_configuration()
        self._namespace = namespace
        self._core: Any = client.CoreV1Api()
        self._apps: Any = client.AppsV1Api()

    def broker_stateful_sets(self) -> list[BrokerStatefulSet]:
        """See `KubernetesObjects`."""
        with _Translated("list the StatefulSets"):
            found = self._apps.list_namespaced_stateful_set(
                self._namespace, label_selector=_GROUP_LABEL, _request_timeout=_TIMEOUT_S, _preload_content=False
            )
            return [broker_stateful_set(item) for item in json.loads(found.data)["items"]]

    def create_event(self, document: Mapping[str, Any]) -> None:
        """See `KubernetesObjects`."""
        with _Translated(f"create an Event on {document['involvedObject']['name']}"):
            self._core.create_namespaced_event(
                self._namespace, document, _request_timeout=_TIMEOUT_S, _preload_content=False
            )

    def config_map_data(self, name: str) -> dict[str, str] | None:
        """See `KubernetesObjects`."""
        from kubernetes.client import ApiException

        with _Translated(f"get the ConfigMap {name}"):
            try:
                found = self._core.read_namespaced_config_map(
                    name, self._namespace, _request_timeout=_TIMEOUT_S, _preload_content=False
                )
            except ApiException as error:
                if error.status == _NOT_FOUND:
                    return None
                raise
            return dict(json.loads(found.data).get("data") or {})

    def change_config_map(self, name: str, data: Mapping[str, str | None]) -> None:
        """See `KubernetesObjects`."""
        from kubernetes.client import ApiException

        with _Translated(f"change the ConfigMap {name}"):
            try:
                self._core.patch_namespaced_config_map(
                    name,
                    self._namespace,
                    {"data": dict(data)},
                    # Without it the client says JSON patch, which is a list of operations.
                    _content_type="application/merge-patch+json",
                    _request_timeout=_TIMEOUT_S,
                    _preload_content=False,
                )
                return
            except ApiException as error:
                if error.status != _NOT_FOUND:
                    raise
            made = {"metadata": {"name": name}, "data": {key: text for key, text in data.items() if text is not None}}
            self._core.create_namespaced_config_map(
                self._namespace, made, _request_timeout=_TIMEOUT_S, _preload_content=False
            )


class _Translated:
    """Turns what the Kubernetes client raises into KubernetesUnavailable."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        if isinstance(error, ApiException):
            hint = "; the ServiceAccount may not" if error.status in _FORBIDDEN else ""
            raise KubernetesUnavailable(f"cannot {self._what}: {error.status} {error.reason}{hint}") from error
        if isinstance(error, (HTTPError, ConfigException, OSError, ValueError)):
            raise KubernetesUnavailable(f"cannot {self._what}: {error}") from error

"""The one way to the Kubernetes API server: the `kubernetes` client, its answers as plain JSON, its errors as ours.

The package is imported at the first connection only: it takes half a second and 40 MB, and most processes never need
it. Its own classes are passed over for the same reason: a list of pods takes longer to become objects than to arrive.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = [
    "COMPONENT_LABEL",
    "GROUP_LABEL",
    "HOME_ROLE_LABEL",
    "INSTANCE_LABEL",
    "NAME_LABEL",
    "ROLE_LABEL",
    "AccessDenied",
    "Document",
    "Kind",
    "KubernetesApi",
    "KubernetesUnavailable",
    "ObjectConflict",
    "ObjectMissing",
    "PodStream",
    "api_of_pod",
    "api_of_user",
    "is_in_pod",
]

# Labels of the chart's objects.
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
GROUP_LABEL: Final = "tandemmq.io/broker-group"
HOME_ROLE_LABEL: Final = "tandemmq.io/home-role"
ROLE_LABEL: Final = "tandemmq.io/role"

Document: TypeAlias = Mapping[str, Any]
"""An object as the API server writes it, keys in camelCase."""

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Connect and read. The API server answers lists of a namespace within milliseconds, or is away.
_TIMEOUT_S: Final = (5.0, 10.0)
# The client would say JSON patch, which is a list of operations.
_MERGE_PATCH: Final = "application/merge-patch+json"


class KubernetesUnavailable(Exception):
    """The API server did not answer, or refused; the text says why. Trying again may help."""


class AccessDenied(KubernetesUnavailable):
    """The API server knows us and refuses (401, 403). Trying again does not help; the text names verb and resource."""


class ObjectMissing(KubernetesUnavailable):
    """There is no object of that name (404)."""


class ObjectConflict(KubernetesUnavailable):
    """The object is another version than the one to replace, or the one to create is there (409). Nothing changed."""


class Kind(StrEnum):
    """Kinds of objects, as the client spells them in the names of its methods."""

    CONFIG_MAP = "config_map"
    EVENT = "event"
    LEASE = "lease"
    PERSISTENT_VOLUME_CLAIM = "persistent_volume_claim"
    POD = "pod"
    POD_DISRUPTION_BUDGET = "pod_disruption_budget"
    STATEFUL_SET = "stateful_set"


class KubernetesApi:
    """One namespace. Calls block, from any thread; every one may raise KubernetesUnavailable."""

    def __init__(
        self, configuration: Any, namespace: str, *, is_inside: bool, timeout_s: tuple[float, float] = _TIMEOUT_S
    ) -> None:
        """`timeout_s`: to connect, and for each part of an answer."""
        from kubernetes import client

        self._configuration = configuration
        self._timeout_s = timeout_s
        self.namespace: Final = namespace
        self.is_inside: Final = is_inside
        """True in a pod of this cluster: addresses of pods can be dialled."""
        self._connection = connection = client.ApiClient(configuration)
        core = client.CoreV1Api(connection)
        self._apis: dict[Kind, Any] = dict.fromkeys(Kind, core) | {
            Kind.LEASE: client.CoordinationV1Api(connection),
            Kind.STATEFUL_SET: client.AppsV1Api(connection),
            Kind.POD_DISRUPTION_BUDGET: client.PolicyV1Api(connection),
        }

    def list(self, kind: Kind, selector: str, *, from_cache: bool = False) -> Sequence[Document]:
        """Objects whose labels match. With `from_cache` as the API server remembers them: cheap, and a moment late."""
        options = {"resource_version": "0"} if from_cache else {}
        return self._ask("list", kind, label_selector=selector, **options).get("items") or ()

    def read(self, kind: Kind, name: str) -> Document:
        """One object. Raises ObjectMissing."""
        return self._ask("read", kind, name)

    def patch(self, kind: Kind, name: str, changes: Document) -> None:
        """Merges `changes` into the object; None removes a key. Raises ObjectMissing. Idempotent."""
        self._ask("patch", kind, name, body=changes, _content_type=_MERGE_PATCH)

    def create(self, kind: Kind, document: Document) -> Document:
        """A new object, as it is stored. Raises ObjectConflict: there is one."""
        return self._ask("create", kind, body=document)

    def replace(self, kind: Kind, name: str, document: Document) -> Document:
        """The object in place of the one of `document`'s resourceVersion, as it is stored. Raises ObjectMissing and
        ObjectConflict."""
        return self._ask("replace", kind, name, body=document)

    def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection to a port inside a pod, through the API server. Needs the right to create pods/portforward."""
        from kubernetes import client, stream

        # An ApiClient of its own: the call replaces a method of it for as long as it lasts.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        forward: Any = stream.portforward
        call = core.connect_get_namespaced_pod_portforward
        return PodStream(_translated(lambda: forward(call, pod, self.namespace, ports=str(port))), port)

    def close(self) -> None:
        """Closes the connections that no call uses."""
        self._connection.rest_client.pool_manager.clear()

    def _ask(self, verb: str, kind: Kind, *names: str, **options: Any) -> Document:
        api = self._apis[kind]
        method = getattr(type(api), f"{verb}_namespaced_{kind}")
        # Newer versions make their own objects of a document first: those lose fields that they do not know, and write
        # a full second without the fraction that a Lease must have.
        call = getattr(method, "raw_function", method)
        response = _translated(
            lambda: call(
                api,
                *names,
                namespace=self.namespace,
                _preload_content=False,
                _request_timeout=self._timeout_s,
                **options,
            )
        )
        body = bytes(response.data)
        # Some versions of the client raise for it, others leave it to those who want no objects.
        if int(response.status) >= 300:
            raise _refusal(int(response.status), body)
        try:
            document = json.loads(body)
        except ValueError as error:
            raise KubernetesUnavailable(f"the API server answered no JSON: {body[:100]!r}") from error
        if not isinstance(document, dict):
            raise KubernetesUnavailable("the API server answered no object")
        return document


class PodStream:
    """One connection to a port of a pod."""

    def __init__(self, forward: Any, port: int) -> None:
        self._forward = forward
        self._port = port

    def dup(self) -> socket.socket:
        """The near end, the caller's to close."""
        return socket.socket(fileno=os.dup(self._forward.socket(self._port).fileno()))

    def close(self) -> None:
        """Ends the connection."""
        self._forward.close()


def is_in_pod() -> bool:
    """Whether this process has a ServiceAccount."""
    return (_SERVICE_ACCOUNT / "token").exists()


def api_of_pod(namespace: str = "", *, time_limit_s: float | None = None) -> KubernetesApi:
    """By the pod's own ServiceAccount, in its own namespace unless another is named. Raises KubernetesUnavailable.

    With `time_limit_s` each step of a call ends within it, and no call is sent twice.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    load: Any = config.load_incluster_config
    _configured(lambda: load(configuration))
    timeout_s = _TIMEOUT_S
    if time_limit_s is not None:
        # A replacement that is sent again after its answer was lost would meet its own first copy, and call it a
        # conflict.
        configuration.retries = False
        timeout_s = (time_limit_s, time_limit_s)
    return KubernetesApi(configuration, namespace or _own_namespace(), is_inside=True, timeout_s=timeout_s)


def api_of_user(namespace: str = "", *, context: str = "") -> KubernetesApi:
    """As kubectl connects; in a pod, unless a context is named, as the pod does. Raises KubernetesUnavailable.

    The namespace is the one given, else the pod's own, else the kubeconfig context's, else `default`.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    # Whoever waits asks again by himself, and says so meanwhile.
    configuration.retries = False
    # Half of this package is annotated.
    loading: Any = config
    if not context and is_in_pod():
        _configured(lambda: loading.load_incluster_config(configuration))
        return KubernetesApi(configuration, namespace or _own_namespace(), is_inside=True)
    _configured(lambda: loading.load_kube_config(context=context or None, client_configuration=configuration))
    contexts, active = _configured(loading.list_kube_config_contexts)
    chosen = next((each for each in contexts if each["name"] == context), active)
    found = chosen.get("context", {}).get("namespace") or "default"
    return KubernetesApi(configuration, namespace or found, is_inside=False)


def _own_namespace() -> str:
    return str(_configured(lambda: (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()))


def _configured(load: Callable[[], Any]) -> Any:
    from kubernetes.config import ConfigException

    try:
        return load()
    except (ConfigException, OSError) as error:
        raise KubernetesUnavailable(f"no usable configuration: {error}") from error


def _translated(call: Callable[[], Any]) -> Any:
    """The one place where the client's errors become ours."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return call()
    except ApiException as error:
        raise _refusal(int(error.status or 0), error.body or error.reason or "") from error
    except (HTTPError, OSError) as error:
        raise KubernetesUnavailable(f"the API server does not answer: {error}") from error


def _refusal(status: int, body: str | bytes) -> KubernetesUnavailable:
    text = body if isinstance(body, str) else body.decode(errors="replace")
    try:
        text = str(json.loads(text).get("message") or text)
    except (ValueError, AttributeError):
        pass
    text = f"{status}: {' '.join(text.split())[:400]}"
    if status in (401, 403):
        return AccessDenied(text)
    if status == 409:
        return ObjectConflict(text)
    return ObjectMissing(text) if status == 404 else KubernetesUnavailable(text)

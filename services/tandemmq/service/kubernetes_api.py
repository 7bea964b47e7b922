"""The one way to the Kubernetes API server: its answers as plain JSON, its errors as ours.

In a pod it is asked by HTTPS with the ServiceAccount's token and the standard library alone: what a broker, the admin
and the hooks of a chart want is five verbs. The `kubernetes` client would take seconds and 100 MB of each of them.
Outside it is what reads a kubeconfig, with all its ways to log in, and opens streams to pods.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, urlencode

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
# A list of operations is another kind of patch, and what the client would say.
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON: Final = "application/json"


def annotations_of(document: Document) -> dict[str, Any]:
    """Those of an object; empty where it has none, or is none."""
    return dict((document.get("metadata") or {}).get("annotations") or {})


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
    CRON_JOB = "cron_job"
    ENDPOINT_SLICE = "endpoint_slice"
    EVENT = "event"
    JOB = "job"
    LEASE = "lease"
    PERSISTENT_VOLUME_CLAIM = "persistent_volume_claim"
    POD = "pod"
    POD_DISRUPTION_BUDGET = "pod_disruption_budget"
    SECRET = "secret"
    STATEFUL_SET = "stateful_set"


class _Question(NamedTuple):
    """One call. `name` is empty for a list and for an object to create."""

    verb: str
    kind: Kind
    name: str = ""
    selector: str = ""
    from_cache: bool = False
    body: Document | None = None


class _Connection(Protocol):
    """To one API server, from any thread."""

    def ask(self, question: _Question, namespace: str) -> tuple[int, bytes]:
        """Status and body; KubernetesUnavailable when there is none."""

    def open_stream(self, pod: str, namespace: str, port: int) -> PodStream:
        """See `KubernetesApi`."""

    def close(self) -> None:
        """Closes what no call uses."""


class KubernetesApi:
    """One namespace. Calls block, from any thread; every one may raise KubernetesUnavailable."""

    def __init__(self, connection: _Connection, namespace: str, *, is_inside: bool) -> None:
        self._connection = connection
        self.namespace: Final = namespace
        self.is_inside: Final = is_inside
        """True in a pod of this cluster: addresses of pods can be dialled."""

    def list(self, kind: Kind, selector: str, *, from_cache: bool = False) -> Sequence[Document]:
        """Objects whose labels match. With `from_cache` as the API server remembers them: cheap, and a moment late."""
        return self._ask(_Question("list", kind, selector=selector, from_cache=from_cache)).get("items") or ()

    def read(self, kind: Kind, name: str) -> Document:
        """One object. Raises ObjectMissing."""
        return self._ask(_Question("read", kind, name))

    def patch(self, kind: Kind, name: str, changes: Document) -> None:
        """Merges `changes` into the object; None removes a key. Raises ObjectMissing. Idempotent."""
        self._ask(_Question("patch", kind, name, body=changes))

    def create(self, kind: Kind, document: Document) -> Document:
        """A new object, as it is stored. Raises ObjectConflict: there is one."""
        return self._ask(_Question("create", kind, body=document))

    def replace(self, kind: Kind, name: str, document: Document) -> Document:
        """The object in place of the one of `document`'s resourceVersion, as it is stored. Raises ObjectMissing and
        ObjectConflict."""
        return self._ask(_Question("replace", kind, name, body=document))

    def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection to a port inside a pod, through the API server, for who is outside. Needs the right to create
        pods/portforward."""
        return self._connection.open_stream(pod, self.namespace, port)

    def close(self) -> None:
        """Closes the connections that no call uses."""
        self._connection.close()

    def _ask(self, question: _Question) -> Document:
        status, body = self._connection.ask(question, self.namespace)
        if status >= 300:
            raise _refusal(status, body)
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
        self._forward.close()


# In a pod.

_HOST_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
_PORT_VARIABLE: Final = "KUBERNETES_SERVICE_PORT"
_METHODS: Final = {"list": "GET", "read": "GET", "patch": "PATCH", "create": "POST", "replace": "PUT"}
_PATHS: Final = {
    Kind.CONFIG_MAP: ("/api/v1", "configmaps"),
    Kind.CRON_JOB: ("/apis/batch/v1", "cronjobs"),
    Kind.ENDPOINT_SLICE: ("/apis/discovery.k8s.io/v1", "endpointslices"),
    Kind.EVENT: ("/api/v1", "events"),
    Kind.JOB: ("/apis/batch/v1", "jobs"),
    Kind.LEASE: ("/apis/coordination.k8s.io/v1", "leases"),
    Kind.PERSISTENT_VOLUME_CLAIM: ("/api/v1", "persistentvolumeclaims"),
    Kind.POD: ("/api/v1", "pods"),
    Kind.POD_DISRUPTION_BUDGET: ("/apis/policy/v1", "poddisruptionbudgets"),
    Kind.SECRET: ("/api/v1", "secrets"),
    Kind.STATEFUL_SET: ("/apis/apps/v1", "statefulsets"),
}
_IDLE_CONNECTIONS_MAX: Final = 4


class _PodConnection:
    """HTTPS by the pod's ServiceAccount. No call is sent twice."""

    def __init__(self, timeout_s: tuple[float, float]) -> None:
        """`timeout_s`: to connect, and for each part of an answer. Raises KubernetesUnavailable: this is no pod."""
        self._timeout_s = timeout_s
        host, port = os.environ.get(_HOST_VARIABLE, ""), os.environ.get(_PORT_VARIABLE, "")
        if not host or not port.isdigit():
            raise KubernetesUnavailable(f"no usable configuration: {_HOST_VARIABLE} and {_PORT_VARIABLE} are not set")
        self._address = (host, int(port))
        self._token()
        self._idle: deque[http.client.HTTPConnection] = deque()

    def ask(self, question: _Question, namespace: str) -> tuple[int, bytes]:
        base, plural = _PATHS[question.kind]
        path = f"{base}/namespaces/{quote(namespace)}/{plural}" + (f"/{quote(question.name)}" if question.name else "")
        query = {"labelSelector": question.selector, "resourceVersion": "0" if question.from_cache else ""}
        if given := {key: value for key, value in query.items() if value}:
            path += f"?{urlencode(given)}"
        # The token is renewed in its file every hour or so.
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": _JSON}
        if question.body is not None:
            headers["Content-Type"] = _MERGE_PATCH if question.verb == "patch" else _JSON
        body = None if question.body is None else json.dumps(question.body).encode()
        try:
            connection = self._connected()
        except (OSError, http.client.HTTPException) as error:
            raise KubernetesUnavailable(f"the API server does not answer: {error}") from error
        try:
            connection.request(_METHODS[question.verb], path, body=body, headers=headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise KubernetesUnavailable(f"the API server does not answer: {error}") from error
        if response.will_close or len(self._idle) >= _IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def open_stream(self, pod: str, namespace: str, port: int) -> PodStream:
        """See `_Connection`: who is inside has no need of it."""
        raise KubernetesUnavailable(f"dial port {port} of pod {pod}, namespace {namespace}, at the pod's address")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connected(self) -> http.client.HTTPConnection:
        while self._idle:
            # Taken by one thread only.
            connection = self._idle.pop()
            # What can be read before a question is the end.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        connection = _dial(*self._address, connect_limit_s=self._timeout_s[0])
        assert connection.sock is not None, "it is connected"
        connection.sock.settimeout(self._timeout_s[1])
        return connection

    def _token(self) -> str:
        try:
            return (_SERVICE_ACCOUNT / "token").read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise KubernetesUnavailable(f"no usable configuration: {error}") from error


def _dial(host: str, port: int, *, connect_limit_s: float) -> http.client.HTTPConnection:
    context = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT / "ca.crt"))
    connection = http.client.HTTPSConnection(host, port, timeout=connect_limit_s, context=context)
    connection.connect()
    return connection


# As a user.


class _ClientConnection:
    """The `kubernetes` client. Its own classes are passed over: a list of pods takes longer to become objects than to
    arrive."""

    def __init__(self, configuration: Any) -> None:
        from kubernetes import client

        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        core = client.CoreV1Api(self._client)
        self._apis: dict[Kind, Any] = dict.fromkeys(Kind, core) | {
            Kind.CRON_JOB: client.BatchV1Api(self._client),
            Kind.ENDPOINT_SLICE: client.DiscoveryV1Api(self._client),
            Kind.JOB: client.BatchV1Api(self._client),
            Kind.LEASE: client.CoordinationV1Api(self._client),
            Kind.STATEFUL_SET: client.AppsV1Api(self._client),
            Kind.POD_DISRUPTION_BUDGET: client.PolicyV1Api(self._client),
        }

    def ask(self, question: _Question, namespace: str) -> tuple[int, bytes]:
        call = getattr(self._apis[question.kind], f"{question.verb}_namespaced_{question.kind}")
        options: dict[str, Any] = {"namespace": namespace, "_preload_content": False, "_request_timeout": _TIMEOUT_S}
        if question.verb == "list":
            options["label_selector"] = question.selector
        if question.from_cache:
            options["resource_version"] = "0"
        if question.body is not None:
            options["body"] = question.body
        if question.verb == "patch":
            options["_content_type"] = _MERGE_PATCH
        response = _translated(lambda: call(*([question.name] if question.name else []), **options))
        # Some versions of the client raise for a refusal, others leave it to those who want no objects.
        return int(response.status), bytes(response.data)

    def open_stream(self, pod: str, namespace: str, port: int) -> PodStream:
        from kubernetes import client, stream

        # An ApiClient of its own: the call replaces a method of it for as long as it lasts.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        forward: Any = stream.portforward
        call = core.connect_get_namespaced_pod_portforward
        return PodStream(_translated(lambda: forward(call, pod, namespace, ports=str(port))), port)

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()


def is_in_pod() -> bool:
    """Whether this process has a ServiceAccount."""
    return (_SERVICE_ACCOUNT / "token").exists()


def api_of_pod(namespace: str = "", *, time_limit_s: float | None = None) -> KubernetesApi:
    """By the pod's own ServiceAccount, in its own namespace unless another is named. Raises KubernetesUnavailable.

    With `time_limit_s` each step of a call ends within it.
    """
    timeout_s = _TIMEOUT_S if time_limit_s is None else (time_limit_s, time_limit_s)
    return KubernetesApi(_PodConnection(timeout_s), namespace or _own_namespace(), is_inside=True)


def api_of_user(namespace: str = "", *, context: str = "") -> KubernetesApi:
    """As kubectl connects; in a pod, unless a context is named, as the pod does. Raises KubernetesUnavailable.

    The namespace is the one given, else the pod's own, else the kubeconfig context's, else `default`.
    """
    if not context and is_in_pod():
        return api_of_pod(namespace)
    from kubernetes import client, config

    configuration = client.Configuration()
    # Whoever waits asks again by himself, and says so meanwhile.
    configuration.retries = False
    # Half of this package is annotated.
    loading: Any = config
    _configured(lambda: loading.load_kube_config(context=context or None, client_configuration=configuration))
    contexts, active = _configured(loading.list_kube_config_contexts)
    chosen = next((each for each in contexts if each["name"] == context), active)
    found = chosen.get("context", {}).get("namespace") or "default"
    return KubernetesApi(_ClientConnection(configuration), namespace or found, is_inside=False)


def _own_namespace() -> str:
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise KubernetesUnavailable(f"no usable configuration: {error}") from error


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

"""Which release a command means: --release, the context's, $TANDEMMQ_RELEASE, or the only one of the namespace.
And what Kubernetes says of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, Self

import typer

from tandemmq.cli.cluster_address import ClusterAddress, KubernetesPlace
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.core.routing.values import parse_address
from tandemmq.service.kubernetes_api import (
    COMPONENT_LABEL,
    GROUP_LABEL,
    HOME_ROLE_LABEL,
    INSTANCE_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
    AccessDenied,
    Document,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    PodStream,
    api_of_user,
)

if TYPE_CHECKING:
    from tandemmq.core.audit.run_summary import RunSummary

_RELEASE_VARIABLE: Final = "TANDEMMQ_RELEASE"

ReleaseOption = Annotated[
    str | None,
    typer.Option(
        "--release",
        metavar="NAME",
        help=f"Helm release. Default: the context's, else ${_RELEASE_VARIABLE}, else the only TandemMQ release in the "
        "namespace.",
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Default: the context's, else this pod's own, else the kubeconfig context's.",
    ),
]
KubeContextOption = Annotated[
    str | None,
    typer.Option(
        "--kube-context", metavar="NAME", help="kubeconfig context. Default: the context's, else the current one."
    ),
]


def place_of(
    place: KubernetesPlace, *, release: str | None, namespace: str | None, kube_context: str | None
) -> KubernetesPlace:
    """The place with what single options say otherwise."""
    return KubernetesPlace(
        context=kube_context or place.context,
        namespace=namespace or place.namespace,
        release=release or place.release,
    )


async def connect(place: KubernetesPlace) -> ApiServerCluster:
    """CommandError when there is no way to a Kubernetes."""
    try:
        return await open_cluster(place.namespace or None, context=place.context or None)
    except KubernetesUnavailable as error:
        raise Refused(
            "no Kubernetes to ask",
            cause=str(error),
            remedy="set KUBECONFIG, or run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
        ) from error


async def find_release(cluster: KubernetesCluster, release: str | None) -> str:
    """The release's name. CommandError when none is named and there is not exactly one, or nothing may be asked."""
    if named := release or os.environ.get(_RELEASE_VARIABLE):
        return named
    try:
        found = await cluster.releases()
    except KubernetesUnavailable as error:
        raise Refused(
            "no release is named, and Kubernetes does not tell which there are",
            cause=str(error),
            remedy="name it with --release" + (", and see your rights" if isinstance(error, AccessDenied) else ""),
        ) from error
    if len(found) != 1:
        raise Refused(
            f"namespace {cluster.namespace} has {len(found)} TandemMQ releases",
            cause=", ".join(found),
            remedy="name one with --release, or another namespace with --namespace",
        )
    return found[0]


# What the consistency job of a release in Kubernetes has found, read through the API server.


async def runs_of_release(place: KubernetesPlace, config_map: str = "") -> Sequence[RunSummary]:
    """The newest runs in a ConfigMap, newest first; without a name in the one the chart gives the release.

    CommandError when it cannot be read.
    """
    from tandemmq.admin.consistency_runs import ConfigMapResults

    kubernetes = await connect(place)
    name = config_map or f"{await find_release(kubernetes, place.release or None)}-consistency"
    data = await config_map_data(
        kubernetes, name, remedy="does the release have consistency.enabled? Name another with --results"
    )
    return ConfigMapResults(name, namespace=kubernetes.namespace, read_data=lambda: data).read()


async def config_map_data(kubernetes: ApiServerCluster, name: str, *, remedy: str) -> dict[str, str]:
    """What it holds. CommandError with `remedy` when it cannot be read."""
    try:
        return await kubernetes.config_map(name)
    except KubernetesUnavailable as error:
        raise Refused(
            f"ConfigMap {name} cannot be read", cause=str(error), remedy=f"{remedy}, and see your rights"
        ) from error


# Where a port of a pod is dialled: at the pod itself from inside the cluster, else through the API server.

# As the chart names the container ports.
CLIENT_PORT_NAME: Final = "grpc-client"
METADATA_PORT_NAME: Final = "grpc-metadata"
NAME_SERVER_PORT_NAMES: Final = ("grpc", "grpc-nameserver", "nameserver")
_HOME_ROLE_AND_NUMBER: Final = re.compile(r"-(?:master|slave)-\d+$")
"""What a broker's pod has behind the name of its group's Service."""
# As the chart ends the names of Secrets with certificates.
_NAME_SERVER_SUFFIX: Final = "-nameserver"
_ADMIN_SUFFIX: Final = "-admin"
_CHUNK_BYTES: Final = 64 << 10


def address_of(pod: PodState, port_name: str) -> str:
    """`ip:port` of a pod. CommandError when the pod has no such port."""
    return f"[{pod.ip}]:{_port(pod, port_name)}" if ":" in pod.ip else f"{pod.ip}:{_port(pod, port_name)}"


class PodNetwork(Protocol):
    """The way to pods: `ApiServerCluster` has it."""

    @property
    def is_inside(self) -> bool:
        """True where addresses of pods can be dialled."""
        ...

    async def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection through the API server. Raises KubernetesUnavailable."""
        ...


class PodAddresses:
    """Finds addresses to dial. An async context manager: tunnels through the API server end with its block.

    By address and not by name: a pod that was made anew has another one at once, while names are cached on the way.
    """

    def __init__(self, cluster: PodNetwork) -> None:
        self._cluster = cluster
        self._tunnels: dict[tuple[str, int], str] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def find(self, pod: PodState, port_name: str) -> str:
        """host:port for this port of the pod; a tunnel's end on loopback when we are outside."""
        if self._cluster.is_inside:
            return address_of(pod, port_name)
        key = (pod.name, _port(pod, port_name))
        if key not in self._tunnels:
            self._tunnels[key] = await self._listen(*key)
        return self._tunnels[key]

    async def _listen(self, pod: str, port: int) -> str:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._relay(pod, port, reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        self._stack.callback(server.close)
        host, local_port = server.sockets[0].getsockname()[:2]
        return f"{host}:{local_port}"

    async def _relay(self, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await self._cluster.open_stream(pod, port)
        except KubernetesUnavailable:
            # Whoever dialled sees a closed connection, which is what an unreachable broker looks like.
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(sock=stream.dup())
            try:
                async with asyncio.TaskGroup() as tasks:
                    there = tasks.create_task(_copy(reader, far_writer))
                    back = tasks.create_task(_copy(far_reader, writer))
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
            finally:
                far_writer.close()
        finally:
            stream.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _port(pod: PodState, name: str) -> int:
    port = pod.ports.get(name)
    if port is None:
        raise CommandError(
            f"pod {pod.name} has no port named {name}",
            cause=f"it has {', '.join(sorted(pod.ports)) or 'none'}",
            remedy="is it a pod of this chart? See --release",
        )
    return port


# The way to a release in Kubernetes: by the pods' own addresses from inside, else through the API server.


@dataclass(frozen=True, slots=True)
class ReleaseWay:
    """The NameServers of a release, and where an address its members advertise is dialled from here."""

    address: ClusterAddress
    # None: the address itself.
    dial: Callable[[str], str] | None = None


@contextlib.asynccontextmanager
async def way_to_place(place: KubernetesPlace) -> AsyncIterator[ReleaseWay]:
    """Finds the release and its pods. CommandError when Kubernetes cannot be asked or no NameServer pod is there."""
    kubernetes = await connect(place)
    release = await find_release(kubernetes, place.release or None)
    try:
        pods = await kubernetes.pods(release)
    except KubernetesUnavailable as error:
        raise Refused("Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`") from error
    async with certificate_of(kubernetes, pods), way_to_pods(kubernetes, pods) as way:
        if not way.address.name_servers:
            raise CommandError(
                f"release {release} in namespace {kubernetes.namespace} has no NameServer pod with an address",
                cause=f"it has {len(pods)} pods",
                remedy=f"see `tandemmq doctor --kube --release {release}`",
            )
        yield way


@contextlib.asynccontextmanager
async def certificate_of(kubernetes: ApiServerCluster, pods: Sequence[PodState]) -> AsyncIterator[None]:
    """Calls within the block show the release's certificate for people, if its services take nobody without one and
    the environment names no other. CommandError when its Secret cannot be read."""
    secrets = (pod.certificate_secret for pod in pods if pod.component == "nameserver")
    server_secret = next((secret for secret in secrets if secret.endswith(_NAME_SERVER_SUFFIX)), "")
    if os.environ.get("TANDEMMQ_SERVICE_TLS_PATH"):
        from tandemmq.cli.local.certificates import refuse_unusable_certificate

        refuse_unusable_certificate()
        server_secret = ""
    if not server_secret:
        yield
        return
    # Here: reading certificates takes a library that most commands can do without.
    from tandemmq.cli.kube.certificate_secrets import show_certificate

    name = server_secret.removesuffix(_NAME_SERVER_SUFFIX) + _ADMIN_SUFFIX
    try:
        document = await kubernetes.secret(name)
    except KubernetesUnavailable as error:
        raise Refused(
            f"the release takes nobody without a certificate, and Secret {name}, which has one, cannot be read",
            cause=str(error),
            remedy="have the right to get that Secret, name the folder of another certificate in "
            "$TANDEMMQ_SERVICE_TLS_PATH, or run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
        ) from error
    async with show_certificate(name, document):
        yield


@contextlib.asynccontextmanager
async def way_to_pods(network: PodNetwork, pods: Sequence[PodState]) -> AsyncIterator[ReleaseWay]:
    """The way to these pods; tunnels through the API server end with the block.

    A broker advertises a name of its pod inside the cluster: the pod is told by the name's first part, and the port is
    the one of the pod. In a group that fails over clients are told a Service of the group instead, which leads to the
    master: its pods are called so, and more behind. Whichever of them is dialled passes on what is the master's.
    """
    there = [pod for pod in pods if pod.ip and not pod.terminating]
    servers = [(pod, port) for pod in there if pod.component == "nameserver" and (port := _name_server_port(pod))]
    if network.is_inside:
        yield ReleaseWay(ClusterAddress(tuple(address_of(pod, port) for pod, port in servers)))
        return
    async with PodAddresses(network) as addresses:
        wanted = [*servers]
        for pod in there:
            if pod.component == "broker":
                wanted += [(pod, name) for name in (METADATA_PORT_NAME, CLIENT_PORT_NAME) if name in pod.ports]
        tunnels = {(pod.name, pod.ports[name]): await addresses.find(pod, name) for pod, name in wanted}

        # The master last: it takes the group's name.
        for pod in sorted(there, key=lambda pod: pod.role == "master"):
            group = _HOME_ROLE_AND_NUMBER.sub("", pod.name)
            if pod.component == "broker" and CLIENT_PORT_NAME in pod.ports:
                client_port = pod.ports[CLIENT_PORT_NAME]
                tunnels[group, client_port] = tunnels[pod.name, client_port]

        def through_tunnel(address: str) -> str:
            parsed = parse_address(address)
            return tunnels.get((parsed.host.split(".")[0], parsed.port), address) if parsed is not None else address

        yield ReleaseWay(
            ClusterAddress(tuple(f"{pod.name}:{pod.ports[port]}" for pod, port in servers)), through_tunnel
        )


def _name_server_port(pod: PodState) -> str:
    return next((name for name in NAME_SERVER_PORT_NAMES if name in pod.ports), "")


# What Kubernetes says of a release, as small values, and the one thing changed in it: a StatefulSet's partition.
#
# Objects are read as the API server's JSON and turned into the few facts that matter here by pure functions, so that a
# test can feed them what `kubectl get -o json` prints.

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
    name: str
    # Bound, Pending or Lost.
    phase: str
    # Granted if bound, else asked for; as Kubernetes writes it: 10Gi.
    size: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class DisruptionBudgetState:
    name: str
    match_labels: Mapping[str, str]
    disruptions_allowed: int
    current_healthy: int
    expected_pods: int


class KubernetesCluster(Protocol):
    """One namespace of a cluster. Every call may raise KubernetesUnavailable and AccessDenied."""

    @property
    def namespace(self) -> str: ...

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
        return self._api.namespace

    @property
    def is_inside(self) -> bool:
        """True in a pod of this cluster: addresses of pods can be dialled."""
        return self._api.is_inside

    async def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection to a port inside a pod, through the API server. Needs the right to create pods/portforward."""
        return await asyncio.to_thread(self._api.open_stream, pod, port)

    async def releases(self) -> list[str]:
        documents = await asyncio.to_thread(self._api.list, Kind.STATEFUL_SET, f"{NAME_LABEL}=tandemmq")
        return sorted({name for document in documents if (name := _labels(document).get(INSTANCE_LABEL))})

    async def stateful_sets(self, release: str) -> list[StatefulSetState]:
        return list(map(stateful_set_state, await self._list(Kind.STATEFUL_SET, release)))

    async def pods(self, release: str) -> list[PodState]:
        return list(map(pod_state, await self._list(Kind.POD, release)))

    async def claims(self, release: str) -> list[ClaimState]:
        return list(map(claim_state, await self._list(Kind.PERSISTENT_VOLUME_CLAIM, release)))

    async def disruption_budgets(self, release: str) -> list[DisruptionBudgetState]:
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

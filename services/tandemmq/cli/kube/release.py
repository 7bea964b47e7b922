"""Which release a command means: --release, the context's, $TANDEMMQ_RELEASE, or the only one of the namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Protocol, Self

import typer

from tandemmq.cli.cluster_address import ClusterAddress, KubernetesPlace
from tandemmq.cli.failure import EXIT_REFUSED, CommandError
from tandemmq.cli.kube.release_objects import ApiServerCluster, KubernetesCluster, PodState, open_cluster
from tandemmq.core.routing.values import parse_address

if TYPE_CHECKING:
    from tandemmq.core.audit.run_summary import RunSummary
    from tandemmq.service.kubernetes_api import PodStream

__all__ = [
    "CLIENT_PORT_NAME",
    "METADATA_PORT_NAME",
    "NAME_SERVER_PORT_NAMES",
    "KubeContextOption",
    "NamespaceOption",
    "PodAddresses",
    "PodNetwork",
    "ReleaseOption",
    "ReleaseWay",
    "address_of",
    "certificate_of",
    "config_map_data",
    "connect",
    "find_release",
    "place_of",
    "runs_of_release",
    "way_to_place",
    "way_to_pods",
]

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
    from tandemmq.service.kubernetes_api import KubernetesUnavailable

    try:
        return await open_cluster(place.namespace or None, context=place.context or None)
    except KubernetesUnavailable as error:
        raise CommandError(
            "no Kubernetes to ask",
            cause=str(error),
            remedy="set KUBECONFIG, or run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
            exit_code=EXIT_REFUSED,
        ) from error


async def find_release(cluster: KubernetesCluster, release: str | None) -> str:
    """The release's name. CommandError when none is named and there is not exactly one, or nothing may be asked."""
    from tandemmq.service.kubernetes_api import AccessDenied, KubernetesUnavailable

    if named := release or os.environ.get(_RELEASE_VARIABLE):
        return named
    try:
        found = await cluster.releases()
    except KubernetesUnavailable as error:
        raise CommandError(
            "no release is named, and Kubernetes does not tell which there are",
            cause=str(error),
            remedy="name it with --release" + (", and see your rights" if isinstance(error, AccessDenied) else ""),
            exit_code=EXIT_REFUSED,
        ) from error
    if len(found) != 1:
        raise CommandError(
            f"namespace {cluster.namespace} has {len(found)} TandemMQ releases",
            cause=", ".join(found),
            remedy="name one with --release, or another namespace with --namespace",
            exit_code=EXIT_REFUSED,
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
    from tandemmq.service.kubernetes_api import KubernetesUnavailable

    try:
        return await kubernetes.config_map(name)
    except KubernetesUnavailable as error:
        raise CommandError(
            f"ConfigMap {name} cannot be read",
            cause=str(error),
            remedy=f"{remedy}, and see your rights",
            exit_code=EXIT_REFUSED,
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        from tandemmq.service.kubernetes_api import KubernetesUnavailable

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
    from tandemmq.service.kubernetes_api import KubernetesUnavailable

    kubernetes = await connect(place)
    release = await find_release(kubernetes, place.release or None)
    try:
        pods = await kubernetes.pods(release)
    except KubernetesUnavailable as error:
        raise CommandError(
            "Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`", exit_code=EXIT_REFUSED
        ) from error
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
    from tandemmq.service.kubernetes_api import KubernetesUnavailable

    secrets = (pod.certificate_secret for pod in pods if pod.component == "nameserver")
    server_secret = next((secret for secret in secrets if secret.endswith(_NAME_SERVER_SUFFIX)), "")
    if not server_secret or os.environ.get("TANDEMMQ_SERVICE_TLS_PATH"):
        yield
        return
    # Here: reading certificates takes a library that most commands can do without.
    from tandemmq.cli.kube.certificate_secrets import show_certificate

    name = server_secret.removesuffix(_NAME_SERVER_SUFFIX) + _ADMIN_SUFFIX
    try:
        document = await kubernetes.secret(name)
    except KubernetesUnavailable as error:
        raise CommandError(
            f"the release takes nobody without a certificate, and Secret {name}, which has one, cannot be read",
            cause=str(error),
            remedy="have the right to get that Secret, name the folder of another certificate in "
            "$TANDEMMQ_SERVICE_TLS_PATH, or run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
            exit_code=EXIT_REFUSED,
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

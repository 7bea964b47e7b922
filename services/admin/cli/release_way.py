"""The way to a release in Kubernetes: by the pods' own addresses from inside, else through the API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from admin.cli.cluster_address import ClusterAddress
from admin.cli.contexts import KubernetesPlace
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.pod_address import (
    CLIENT_PORT_NAME,
    METADATA_PORT_NAME,
    NAME_SERVER_PORT_NAMES,
    PodAddresses,
    PodNetwork,
    address_of,
)
from admin.cli.release_option import connect, find_release
from admin.kubernetes_cluster import KubernetesUnavailable, PodState
from mqcore.routing.values import parse_address

__all__ = ["ReleaseWay", "way_to_place", "way_to_pods"]


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
        raise CommandError(
            "Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`", exit_code=EXIT_REFUSED
        ) from error
    async with way_to_pods(kubernetes, pods) as way:
        if not way.address.name_servers:
            raise CommandError(
                f"release {release} in namespace {kubernetes.namespace} has no NameServer pod with an address",
                cause=f"it has {len(pods)} pods",
                remedy=f"see `tandemmq doctor --kube --release {release}`",
            )
        yield way


@contextlib.asynccontextmanager
async def way_to_pods(network: PodNetwork, pods: Sequence[PodState]) -> AsyncIterator[ReleaseWay]:
    """The way to these pods; tunnels through the API server end with the block.

    A broker advertises a name of its pod inside the cluster: the pod is told by the name's first part, and the port is
    the one of the pod.
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

        def through_tunnel(address: str) -> str:
            parsed = parse_address(address)
            return tunnels.get((parsed.host.split(".")[0], parsed.port), address) if parsed is not None else address

        yield ReleaseWay(
            ClusterAddress(tuple(f"{pod.name}:{pod.ports[port]}" for pod, port in servers)), through_tunnel
        )


def _name_server_port(pod: PodState) -> str:
    return next((name for name in NAME_SERVER_PORT_NAMES if name in pod.ports), "")

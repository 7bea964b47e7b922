"""`tandemmq doctor`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from admin.cli.cluster_address import ClusterAddress, find_cluster
from admin.cli.doctor_checks import check_cluster
from admin.cli.doctor_facts import Check, ClusterLook, Verdict, is_bad
from admin.cli.doctor_kubernetes import ReleaseLook, check_release, look_at_release
from admin.cli.doctor_look import look_at_cluster
from admin.cli.doctor_view import doctor_json, doctor_table
from admin.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from admin.cli.options import DataOption, JsonOption, NamesrvOption
from admin.cli.pod_address import METADATA_PORT_NAME, NAME_SERVER_PORT_NAMES, PodAddresses
from admin.cli.release_option import ContextOption, NamespaceOption, ReleaseOption, connect, find_release
from admin.cli.status_view import table_console
from admin.kubernetes_cluster import ApiServerCluster, KubernetesUnavailable, PodState
from admin.rpc import Channels
from mqcore.routing import parse_address
from mqservice.clock import SystemClock

__all__ = ["doctor"]

_NAMESRV_VARIABLES = ("TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR")


def doctor(
    namesrv: NamesrvOption = None,
    data: DataOption = None,
    kube: Annotated[bool, typer.Option("--kube", help="Look at the Kubernetes objects of the release, too.")] = False,
    release: ReleaseOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    json: JsonOption = False,
) -> None:
    """Check names, ports, replication both ways, clocks, disks and settings, and say how to mend what is wrong.

    Looks from here and through the eyes of every broker. With --kube from outside the cluster, the brokers are asked
    through the Kubernetes API, and nothing is dialled from here.

    Exit code 0: no problem, perhaps warnings. 1: problems, each with a remedy. 2: could not look.

    Examples:

      tandemmq doctor

      tandemmq doctor --kube --namespace mq --release mq

      kubectl exec deploy/mq-admin -- tandemmq doctor --json
    """
    if kube:
        checks = asyncio.run(_with_kubernetes(namesrv, data, release, namespace, context))
    else:
        checks = asyncio.run(_without_kubernetes(find_cluster(namesrv, data)))
    if json:
        typer.echo(doctor_json(checks))
    else:
        table_console().print(doctor_table(checks))
    if any(is_bad(check) for check in checks):
        raise typer.Exit(EXIT_FAILED)


async def _without_kubernetes(cluster: ClusterAddress) -> list[Check]:
    look = await _look(Channels(), cluster, dial_from_here=True)
    _refuse_blindness(look)
    return check_cluster(look)


async def _with_kubernetes(
    namesrv: str | None, data: Path | None, release: str | None, namespace: str | None, context: str | None
) -> list[Check]:
    kubernetes = await connect(namespace, context)
    try:
        name = await find_release(kubernetes, release)
        seen = await look_at_release(kubernetes, name)
    except KubernetesUnavailable as error:
        raise CommandError(
            "Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`", exit_code=EXIT_REFUSED
        ) from error
    is_named = bool(namesrv or data or any(os.environ.get(variable) for variable in _NAMESRV_VARIABLES))
    if is_named or kubernetes.is_inside:
        cluster = find_cluster(namesrv, data) if is_named else _name_servers_in_pods(kubernetes, seen)
        look = await _look(Channels(), cluster, dial_from_here=True)
    else:
        look = await _look_through_api(kubernetes, seen)
    answers = any(server.error is None for server in look.state.name_servers)
    checks = check_release(seen, look.state if answers else None)
    # Pods that do not run explain best why nobody answers.
    return [*checks, *check_cluster(look)] if look.state.name_servers else [*checks, _NO_NAME_SERVER]


async def _look(channels: Channels, cluster: ClusterAddress, *, dial_from_here: bool) -> ClusterLook:
    try:
        return await look_at_cluster(channels, cluster, SystemClock(), dial_from_here=dial_from_here)
    finally:
        await channels.close()


async def _look_through_api(kubernetes: ApiServerCluster, seen: ReleaseLook) -> ClusterLook:
    """Pods are asked through tunnels. Names advertised inside the cluster are told apart by the pod they begin with."""
    async with PodAddresses(kubernetes) as addresses:
        tunnels: dict[str, str] = {}
        name_servers: list[str] = []
        for pod in seen.pods:
            if not pod.ip or pod.terminating:
                continue
            if pod.component == "broker" and METADATA_PORT_NAME in pod.ports:
                tunnels[pod.name] = await addresses.find(pod, METADATA_PORT_NAME)
            elif pod.component == "nameserver" and (port := _name_server_port(pod)):
                tunnels[pod.name] = await addresses.find(pod, port)
                name_servers.append(f"{pod.name}:{pod.ports[port]}")

        def through_tunnel(address: str) -> str:
            parsed = parse_address(address)
            return tunnels.get(parsed.host.split(".")[0], address) if parsed is not None else address

        return await _look(Channels(through_tunnel), ClusterAddress(tuple(name_servers)), dial_from_here=False)


def _name_servers_in_pods(kubernetes: ApiServerCluster, seen: ReleaseLook) -> ClusterAddress:
    """The NameServers of the release by the addresses of their pods, when nothing else names them."""
    ports = [(pod, port) for pod in seen.pods if pod.component == "nameserver" and (port := _name_server_port(pod))]
    return ClusterAddress(tuple(f"{pod.ip}:{pod.ports[port]}" for pod, port in ports if pod.ip))


def _name_server_port(pod: PodState) -> str:
    return next((name for name in NAME_SERVER_PORT_NAMES if name in pod.ports), "")


def _refuse_blindness(look: ClusterLook) -> None:
    """Nothing answers and nothing is known: there is no patient."""
    if look.state.brokers or any(server.error is None for server in look.state.name_servers):
        return
    raise CommandError(
        "no NameServer answers: nothing to look at",
        cause="\n".join(f"{server.address}: {server.error}" for server in look.state.name_servers),
        remedy="name one with --namesrv host:port; for a cluster in Kubernetes add --kube, or run it in the admin pod: "
        "kubectl exec deploy/<release>-admin -- tandemmq doctor",
        exit_code=EXIT_REFUSED,
    )


_NO_NAME_SERVER = Check(
    "health",
    "cluster",
    Verdict.PROBLEM,
    "no NameServer pod could be asked",
    "see the pods above; brokers and clients find each other again when one is back",
)

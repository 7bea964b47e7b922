"""`tandemmq doctor`."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from admin.cli.cluster_address import NAMESRV_VARIABLES, ClusterAddress
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.contexts import KubernetesPlace
from admin.cli.doctor_checks import check_cluster
from admin.cli.doctor_facts import Check, ClusterLook, Verdict, is_bad
from admin.cli.doctor_kubernetes import check_release, look_at_release
from admin.cli.doctor_look import look_at_cluster
from admin.cli.doctor_view import doctor_document, doctor_table
from admin.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from admin.cli.options import JsonOption, OutputOption
from admin.cli.output import OutputFormat, emit
from admin.cli.release_option import (
    KubeContextOption,
    NamespaceOption,
    ReleaseOption,
    connect,
    find_release,
    place_of,
)
from admin.cli.release_way import way_to_pods
from admin.kubernetes_cluster import KubernetesUnavailable
from admin.rpc import Channels
from mqservice.loop_meter import SystemClock

__all__ = ["doctor"]


@with_cluster
def doctor(
    cluster: ClusterChoice,
    kube: Annotated[bool, typer.Option("--kube", help="Look at the Kubernetes objects of the release, too.")] = False,
    release: ReleaseOption = None,
    namespace: NamespaceOption = None,
    kube_context: KubeContextOption = None,
    output: OutputOption = OutputFormat.TABLE,
    json: JsonOption = False,
) -> None:
    """Check names, ports, replication both ways, clocks, disks and settings, and say how to mend what is wrong.

    Looks from here and through the eyes of every broker. With --kube from outside the cluster, the brokers are asked
    through the Kubernetes API, and nothing is dialled from here. A context in Kubernetes implies --kube.

    Exit code 0: no problem, perhaps warnings. 1: problems, each with a remedy. 2: could not look.

    Examples:

      tandemmq doctor

      tandemmq doctor --kube --namespace mq --release mq

      kubectl exec deploy/mq-admin -- tandemmq doctor --json
    """
    where = cluster.target().where
    if kube or isinstance(where, KubernetesPlace):
        place = where if isinstance(where, KubernetesPlace) else KubernetesPlace()
        place = place_of(place, release=release, namespace=namespace, kube_context=kube_context)
        checks = asyncio.run(_with_kubernetes(cluster, place))
    else:
        checks = asyncio.run(_without_kubernetes(where))
    emit(OutputFormat.JSON if json else output, doctor_document(checks), doctor_table(checks))
    if any(is_bad(check) for check in checks):
        raise typer.Exit(EXIT_FAILED)


async def _without_kubernetes(cluster: ClusterAddress) -> list[Check]:
    look = await _look(Channels(), cluster, dial_from_here=True)
    _refuse_blindness(look)
    return check_cluster(look)


async def _with_kubernetes(cluster: ClusterChoice, place: KubernetesPlace) -> list[Check]:
    kubernetes = await connect(place)
    try:
        name = await find_release(kubernetes, place.release or None)
        seen = await look_at_release(kubernetes, name)
    except KubernetesUnavailable as error:
        raise CommandError(
            "Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`", exit_code=EXIT_REFUSED
        ) from error
    if _is_named(cluster):
        look = await _look(Channels(), cluster.address(), dial_from_here=True)
    else:
        # From outside, names advertised inside the cluster would not resolve: the brokers' own eyes must do.
        async with way_to_pods(kubernetes, seen.pods) as way:
            look = await _look(Channels(way.dial), way.address, dial_from_here=kubernetes.is_inside)
    answers = any(server.error is None for server in look.state.name_servers)
    checks = check_release(seen, look.state if answers else None)
    # Pods that do not run explain best why nobody answers.
    return [*checks, *check_cluster(look)] if look.state.name_servers else [*checks, _NO_NAME_SERVER]


def _is_named(cluster: ClusterChoice) -> bool:
    """True when NameServers are said besides the release: they are dialled."""
    return bool(cluster.namesrv or cluster.data) or (
        not cluster.context and any(os.environ.get(variable) for variable in NAMESRV_VARIABLES)
    )


async def _look(channels: Channels, cluster: ClusterAddress, *, dial_from_here: bool) -> ClusterLook:
    try:
        return await look_at_cluster(channels, cluster, SystemClock(), dial_from_here=dial_from_here)
    finally:
        await channels.close()


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

"""Which release a command means: --release, the context's, $TANDEMMQ_RELEASE, or the only one of the namespace."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from admin.cli.contexts import KubernetesPlace
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.kubernetes_cluster import (
    AccessDenied,
    ApiServerCluster,
    KubernetesCluster,
    KubernetesUnavailable,
    open_cluster,
)

__all__ = ["KubeContextOption", "NamespaceOption", "ReleaseOption", "connect", "find_release", "place_of"]

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
        raise CommandError(
            "no Kubernetes to ask",
            cause=str(error),
            remedy="set KUBECONFIG, or run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
            exit_code=EXIT_REFUSED,
        ) from error


async def find_release(cluster: KubernetesCluster, release: str | None) -> str:
    """The release's name. CommandError when none is named and there is not exactly one, or nothing may be asked."""
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

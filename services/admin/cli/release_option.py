"""Which release a command means: --release, else $TANDEMMQ_RELEASE, else the only one in the namespace."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.kubernetes_cluster import (
    AccessDenied,
    ApiServerCluster,
    KubernetesCluster,
    KubernetesUnavailable,
    open_cluster,
)

__all__ = ["ContextOption", "NamespaceOption", "ReleaseOption", "connect", "find_release"]

_RELEASE_VARIABLE: Final = "TANDEMMQ_RELEASE"

ReleaseOption = Annotated[
    str | None,
    typer.Option(
        "--release",
        metavar="NAME",
        help=f"Helm release. Default: ${_RELEASE_VARIABLE}, else the only TandemMQ release in the namespace.",
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Default: this pod's own, else the kubeconfig context's."),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="kubeconfig context. Default: the current one.")
]


async def connect(namespace: str | None, context: str | None) -> ApiServerCluster:
    """CommandError when there is no way to a Kubernetes."""
    try:
        return await open_cluster(namespace, context=context)
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

"""`tandemmq context …`: names for clusters, so that commands need not be told where each time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tandemmq.cli.cluster_address import ClusterAddress, ClusterContext, ContextFile, KubernetesPlace, find_target
from tandemmq.cli.ending import Refused
from tandemmq.cli.options import OutputOption, complete_context
from tandemmq.cli.output import OutputFormat, emit, new_table, or_text, plain_row

context_app = typer.Typer(
    no_args_is_help=True,
    help="Names for clusters: a local folder, NameServers, or a release in Kubernetes.",
)

_NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=complete_context)
]


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    # data, namesrv or kubernetes.
    kind: str
    place: str
    current: bool


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which cluster a command without options would talk to."""

    context: str
    chosen_by: str
    kind: str
    place: str


@context_app.command("list")
def context_list(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the contexts; the one in use has a star.

    Example: tandemmq context list
    """
    contexts = ContextFile().read()
    lines = [
        _Line(name, context.kind, context.place, name == contexts.current)
        for name, context in sorted(contexts.by_name.items())
    ]
    table = new_table("", "context", "kind", "where")
    for line in lines:
        plain_row(table, "*" if line.current else "", line.name, line.kind, line.place)
    emit(output, lines, or_text(table, "no contexts; see tandemmq context add --help"))


@context_app.command("show")
def context_show(output: OutputOption = OutputFormat.TABLE) -> None:
    """Say which cluster a command talks to from here, and why.

    Example: tandemmq context show
    """
    target = find_target(None, None, None)
    if isinstance(target.where, ClusterAddress):
        kind, place = "NameServers", ";".join(target.where.name_servers)
    else:
        kind, place = "kubernetes", ClusterContext(kubernetes=target.where).place
    table = new_table("context", "chosen by", "kind", "where")
    plain_row(table, target.context or "-", target.chosen_by, kind, place)
    emit(output, _Chosen(target.context, target.chosen_by, kind, place), table)


@context_app.command("use")
def context_use(name: _NameArgument) -> None:
    """Have commands talk to this cluster unless they are told otherwise.

    Example: tandemmq context use prod
    """
    file = ContextFile()
    contexts = file.read()
    found = contexts.find(name)
    file.write(replace(contexts, current=name))
    typer.echo(f"context {name} is in use: {found.kind} {found.place}")


@context_app.command("add")
def context_add(
    name: _NameArgument,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data folder of a cluster of `tandemmq up`.")
    ] = None,
    namesrv: Annotated[str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT;…", help="NameServers.")] = None,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="A release in Kubernetes.")] = False,
    kube_context: Annotated[
        str, typer.Option(metavar="NAME", help="kubeconfig context. Default: the current one of each time.")
    ] = "",
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Default: the kubeconfig context's.")] = "",
    release: Annotated[str, typer.Option(metavar="NAME", help="Default: the only one in the namespace.")] = "",
    use: Annotated[bool, typer.Option("--use", help="And use it from now on.")] = False,
) -> None:
    """Add a context, or change it. Commands reach a release in Kubernetes through the API server, as kubectl
    port-forward does; nothing needs to be forwarded by hand.

    Examples:

      tandemmq context add here --data data

      tandemmq context add stage --namesrv "10.0.0.1:9876;10.0.0.2:9876"

      tandemmq context add prod --kubernetes --kube-context prod-eu --namespace mq --release mq --use
    """
    is_kubernetes = kubernetes or bool(kube_context or namespace or release)
    if sum((data is not None, namesrv is not None, is_kubernetes)) != 1:
        raise Refused(
            "a context is one thing: a folder, NameServers, or a release in Kubernetes",
            remedy="give one of --data, --namesrv and --kubernetes",
        )
    if data is not None:
        context = ClusterContext(data=str(data.absolute()))
    elif namesrv is not None:
        find_target(namesrv, None, None)
        context = ClusterContext(namesrv=namesrv)
    else:
        context = ClusterContext(kubernetes=KubernetesPlace(kube_context, namespace, release))
    file = ContextFile()
    contexts = file.read().adding(name, context)
    file.write(replace(contexts, current=name) if use else contexts)
    typer.echo(f"context {name}: {context.kind} {context.place}" + (", in use" if use else ""))


@context_app.command("remove")
def context_remove(name: _NameArgument) -> None:
    """Forget a context; the cluster stays as it is.

    Example: tandemmq context remove stage
    """
    file = ContextFile()
    contexts = file.read().without(name)
    file.write(contexts)
    typer.echo(f"context {name} is forgotten")

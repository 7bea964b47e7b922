"""`tandemmq trace`: where the time of one message went, in every process that had to do with it."""

from __future__ import annotations

import asyncio
import json as json_format
from typing import Annotated, Final

import typer
from rich.console import Console

from admin.cli.cluster_address import ClusterAddress, find_cluster
from admin.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from admin.cli.options import DataOption, JsonOption, NamesrvOption
from admin.cli.trace_view import list_view, trace_view
from admin.cluster_reader import ClusterReader
from admin.cluster_state import BrokerState
from admin.rpc import Channels
from admin.trace_documents import findings_document, list_document
from admin.trace_findings import TraceFindings, TraceList
from admin.trace_reader import TraceReader

__all__ = ["trace"]

_PIPE_COLUMNS: Final = 140
"""Output that goes to a file or a pipe is as wide as that."""


def trace(
    key: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="A message id, a trace id or a whole traceparent; none: the newest traces."
        ),
    ] = "",
    topic: Annotated[
        str, typer.Option(help="Look for the message in this topic only: quicker where there are many.")
    ] = "",
    notable: Annotated[
        bool, typer.Option("--notable", help="Of the newest traces, the slow and failed ones only.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, max=200, help="How many of the newest traces.")] = 20,
    namesrv: NamesrvOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show where the time of one message went: its send in the master, its copy in the slave, its deliveries.

    Brokers remember what they traced lately (traceEnable; slow and failed sends always). Without a trace it says where
    the message lies and which replicas hold it.

    Exit code 0: something is known. 1: nothing is. 2: wrong arguments.

    Examples:

      tandemmq trace 01A2B3C4D5E6F70001061C2F5A00000001

      tandemmq trace

      tandemmq trace --notable --count 5
    """
    cluster = find_cluster(namesrv, data)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    key = key.strip()
    if not key:
        found = asyncio.run(_newest(cluster, count=count, notable_only=notable))
        if json:
            typer.echo(json_format.dumps(list_document(found), indent=2))
        else:
            console.print(list_view(found, console), highlight=False)
        return
    if any(character.isspace() for character in key):
        raise CommandError(f"{key!r} is no id", remedy="give one message id or trace id", exit_code=EXIT_REFUSED)
    findings = asyncio.run(_find(cluster, key, topic=topic))
    if json:
        typer.echo(json_format.dumps(findings_document(findings), indent=2))
    else:
        console.print(trace_view(findings, console), highlight=False)
    if not findings.spans and not findings.copies:
        raise typer.Exit(EXIT_FAILED)


async def _find(cluster: ClusterAddress, key: str, *, topic: str) -> TraceFindings:
    channels = Channels()
    try:
        return await TraceReader(channels).find(await _brokers(channels, cluster), key, topic=topic)
    finally:
        await channels.close()


async def _newest(cluster: ClusterAddress, *, count: int, notable_only: bool) -> TraceList:
    channels = Channels()
    try:
        brokers = await _brokers(channels, cluster)
        return await TraceReader(channels).newest(brokers, count=count, notable_only=notable_only)
    finally:
        await channels.close()


async def _brokers(channels: Channels, cluster: ClusterAddress) -> tuple[BrokerState, ...]:
    state = await ClusterReader(channels, cluster.name_servers, cluster.expected).read()
    if not state.brokers and not any(server.error is None for server in state.name_servers):
        raise CommandError(
            "no NameServer answers",
            cause="; ".join(f"{server.address}: {server.error}" for server in state.name_servers),
            remedy="check --namesrv, or start a cluster with `tandemmq up`",
        )
    return state.brokers

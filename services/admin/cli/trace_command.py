"""`tandemmq trace`: where the time of one message went, in every process that had to do with it."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console

from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.connection import ClusterConnection
from admin.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from admin.cli.options import JsonOption, OutputOption
from admin.cli.output import OutputFormat, emit
from admin.cli.trace_view import list_view, trace_view
from admin.cluster_state import BrokerState
from admin.trace_documents import findings_document, list_document
from admin.trace_findings import TraceFindings, TraceList
from admin.trace_reader import TraceReader

__all__ = ["trace"]

_PIPE_COLUMNS: Final = 140
"""Output that goes to a file or a pipe is as wide as that."""


@with_cluster
def trace(
    cluster: ClusterChoice,
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
    output: OutputOption = OutputFormat.TABLE,
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
    output = OutputFormat.JSON if json else output
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    key = key.strip()
    if not key:
        found = cluster.run(lambda connection: _newest(connection, count=count, notable_only=notable))
        emit(output, list_document(found), list_view(found, console), console)
        return
    if any(character.isspace() for character in key):
        raise CommandError(f"{key!r} is no id", remedy="give one message id or trace id", exit_code=EXIT_REFUSED)
    findings = cluster.run(lambda connection: _find(connection, key, topic=topic))
    emit(output, findings_document(findings), trace_view(findings, console), console)
    if not findings.spans and not findings.copies:
        raise typer.Exit(EXIT_FAILED)


async def _find(connection: ClusterConnection, key: str, *, topic: str) -> TraceFindings:
    return await TraceReader(connection.channels).find(await _brokers(connection), key, topic=topic)


async def _newest(connection: ClusterConnection, *, count: int, notable_only: bool) -> TraceList:
    brokers = await _brokers(connection)
    return await TraceReader(connection.channels).newest(brokers, count=count, notable_only=notable_only)


async def _brokers(connection: ClusterConnection) -> tuple[BrokerState, ...]:
    state = await connection.read_state()
    if not state.brokers and not any(server.error is None for server in state.name_servers):
        raise CommandError(
            "no NameServer answers",
            cause="; ".join(f"{server.address}: {server.error}" for server in state.name_servers),
            remedy="check --namesrv, or start a cluster with `tandemmq up`",
        )
    return state.brokers

"""`tandemmq status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tandemmq.cli.connection import ClusterChoice, refuse_blindness, with_cluster
from tandemmq.cli.failure import EXIT_FAILED
from tandemmq.cli.options import JsonOption, OutputOption
from tandemmq.cli.output import OutputFormat, emit, status_document, status_tables

if TYPE_CHECKING:
    pass


__all__ = ["status"]


@with_cluster
def status(cluster: ClusterChoice, output: OutputOption = OutputFormat.TABLE, json: JsonOption = False) -> None:
    """Show NameServers, brokers, offsets, replication lag, and what is wrong and how to mend it.

    Exit code 0: healthy. 1: degraded, with a line saying why and the remedy. 2: wrong arguments.

    Examples:

      tandemmq status

      tandemmq status --namesrv "10.0.0.1:9876;10.0.0.2:9876" --json
    """
    from tandemmq.admin.cluster_state import diagnose, is_healthy

    state = cluster.read_state()
    output = OutputFormat.JSON if json else output
    if output is OutputFormat.TABLE:
        # Programs get the document: it says the same.
        refuse_blindness(state)
    findings = diagnose(state)
    emit(output, status_document(state, findings), status_tables(state, findings))
    if not is_healthy(findings):
        raise typer.Exit(EXIT_FAILED)

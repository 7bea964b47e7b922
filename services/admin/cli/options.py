"""Options that several commands share, so that they read the same everywhere. Which cluster: see `cluster_choice`."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.completion import complete_context, complete_group, complete_topic
from admin.cli.output import OutputFormat

__all__ = [
    "ContextOption",
    "DryRunOption",
    "GroupArgument",
    "JsonOption",
    "LimitOption",
    "OutputOption",
    "SearchOption",
    "TopicArgument",
    "YesOption",
]

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A cluster by the name `tandemmq context add` gave it.",
        rich_help_panel="Cluster",
        autocompletion=complete_context,
    ),
]
OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="table for people; json and yaml for programs.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and change nothing.")]
SearchOption = Annotated[str, typer.Option("--search", metavar="TEXT", help="Only names with this in them.")]
LimitOption = Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.", autocompletion=complete_topic)]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Group name.", autocompletion=complete_group)]

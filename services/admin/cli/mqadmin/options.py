"""Options as RocketMQ names them, where several of its commands have them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from admin.cli.completion import complete_group, complete_topic
from admin.cli.failure import EXIT_REFUSED, CommandError

__all__ = [
    "BrokerAddrOption",
    "ClusterNameOption",
    "GroupOption",
    "IntervalOption",
    "TopicOption",
    "TrueFalse",
    "note_ignored",
    "refuse",
]


class TrueFalse(StrEnum):
    """A boolean as Java's tools take it: an option with a value."""

    TRUE = "true"
    FALSE = "false"

    @property
    def truth(self) -> bool:
        """The boolean."""
        return self is TrueFalse.TRUE


TopicOption = Annotated[str, typer.Option("--topic", "-t", help="Topic name.", autocompletion=complete_topic)]
GroupOption = Annotated[
    str, typer.Option("--groupName", "-g", help="Consumer group name.", autocompletion=complete_group)
]
ClusterNameOption = Annotated[
    str | None, typer.Option("--clusterName", "-c", help="Cluster name; the NameServers know only one.")
]
BrokerAddrOption = Annotated[
    str | None, typer.Option("--brokerAddr", "-b", help="One broker: host:port, name:id, or its group's name.")
]
IntervalOption = Annotated[
    float, typer.Option("--interval", "-i", min=0, metavar="SECONDS", help="Print again every so often; 0: once.")
]


def note_ignored(options: Iterable[tuple[str, object]], why: str) -> None:
    """On standard error: which options were given and mean nothing here."""
    given = [name for name, value in options if value not in (None, "", False)]
    if given:
        typer.echo(f"note: {', '.join(given)} changes nothing: {why}", err=True)


def refuse(problem: str, *, cause: str = "", remedy: str = "") -> CommandError:
    """Wrong arguments: nothing was done."""
    return CommandError(problem, cause=cause, remedy=remedy, exit_code=EXIT_REFUSED)

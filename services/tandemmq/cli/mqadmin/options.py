"""Options as RocketMQ names them, where several of its commands have them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from tandemmq.cli.ending import Refused, one_line
from tandemmq.cli.options import complete_group, complete_topic
from tandemmq.cli.output import OutputFormat, emit


class TrueFalse(StrEnum):
    """A boolean as Java's tools take it: an option with a value."""

    TRUE = "true"
    FALSE = "false"

    @property
    def truth(self) -> bool:
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


# Lines as RocketMQ's tools print them: fixed columns, and a header whose names begin with #.

_GAP: Final = "  "


class Columns:
    """A table's columns: names and widths in characters, a negative width for numbers on the right."""

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._names = tuple(name for name, _ in columns)
        self._widths = tuple(width for _, width in columns)

    def header(self) -> str:
        return self.line(*self._names)

    def line(self, *cells: object) -> str:
        """A line; what is longer than its column pushes the rest to the right."""
        assert len(cells) == len(self._widths), "a cell for each column"
        padded = [
            text.rjust(-width) if width < 0 else text.ljust(width)
            for text, width in zip((one_line(str(cell)) for cell in cells), self._widths, strict=True)
        ]
        return _GAP.join(padded).rstrip()

    def lines(self, rows: Iterable[Sequence[object]]) -> list[str]:
        return [self.header(), *(self.line(*row) for row in rows)]


def emit_lines(output: OutputFormat, value: object, lines: Iterable[str]) -> None:
    if output is OutputFormat.TABLE:
        for line in lines:
            typer.echo(line)
    else:
        emit(output, value, "")


def human_time(time_ms: int) -> str:
    """2026-11-22 01:02:03,456 in the caller's zone, as UtilAll.timeMillisToHumanString2; empty if it is not known."""
    if time_ms < 0:
        return ""
    try:
        moment = datetime.fromtimestamp(time_ms / 1_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{time_ms % 1_000:03d}"


# What RocketMQ's `-i` does: the same again and again, until Ctrl-C.


async def repeat(action: Callable[[], Awaitable[None]], *, interval_s: float) -> None:
    """Does it once, and then every `interval_s` seconds unless that is 0."""
    from tandemmq.service.settings import stop_requested

    await action()
    if not interval_s:
        return
    with stop_requested() as stop:
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await stop.wait()
                return
            except TimeoutError:
                await action()


def changed_attributes(text: str, known: Iterable[str], *, more: str = "") -> dict[str, str]:
    """RocketMQ's list of changes: `+name=value` sets one, `-name` removes it (an empty value)."""
    names, found = tuple(known), {}
    for part in filter(None, text.split(",")):
        name, _, value = part[1:].partition("=")
        if name not in names or not (part.startswith("-") or (part.startswith("+") and value)):
            remedy = f"give {more}+NAME=VALUE or -NAME, of {', '.join(names)}"
            raise Refused(f"attribute {part!r} is not known here", remedy=remedy)
        found[name] = value if part.startswith("+") else ""
    return found

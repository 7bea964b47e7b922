"""Options that several commands share, so that they read the same everywhere. Which cluster: see `cluster_choice`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final

import typer

from tandemmq.cli.completion import complete_context, complete_group, complete_topic
from tandemmq.cli.failure import EXIT_REFUSED, CommandError
from tandemmq.cli.output import OutputFormat
from tandemmq.service.texts import FORMS, MomentUnreadable, age_text, iso_text, read_moment

__all__ = [
    "MOMENT_HELP",
    "ContextOption",
    "DryRunOption",
    "GroupArgument",
    "JsonOption",
    "LimitOption",
    "OutputOption",
    "SearchOption",
    "TopicArgument",
    "YesOption",
    "aged_text",
    "moment_text",
    "parse_duration_s",
    "parse_moment_ms",
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


# Moments on the command line, as `tandemmq.service.texts` reads them, and as RocketMQ's tools write them.

MOMENT_HELP: Final = FORMS
# yyyy-MM-dd#HH:mm:ss:SSS, in the caller's zone.
_ROCKETMQ = re.compile(r"^(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})$")
_UNKNOWN: Final = "-"


def parse_moment_ms(text: str, *, now_ms: int) -> int:
    """Wall-clock milliseconds. CommandError when it is no moment."""
    try:
        if match := _ROCKETMQ.match(text.strip()):
            local = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}")
            return round(local.timestamp() * 1_000)
        return read_moment(text, now_ms=now_ms)
    except (MomentUnreadable, ValueError, OverflowError, OSError) as error:
        reason = str(error) if isinstance(error, MomentUnreadable) else f"{text!r} is no moment"
        problem, _, _ = reason.partition(";")
        raise CommandError(problem, remedy=f"write {FORMS}", exit_code=EXIT_REFUSED) from error


def moment_text(time_ms: int) -> str:
    """ISO in UTC, to the millisecond; - where it is not known."""
    if time_ms < 0:
        return _UNKNOWN
    try:
        return iso_text(time_ms)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def aged_text(time_ms: int, *, now_ms: int) -> str:
    """The same with its age."""
    return f"{moment_text(time_ms)} ({age_text(now_ms - time_ms)})" if time_ms >= 0 else _UNKNOWN


# Durations on the command line: 90, 90s, 30m, 1h.

_UNITS_S: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|)$")


def parse_duration_s(text: str) -> float:
    """Seconds. A usage error of Typer when it is no duration."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 30m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]

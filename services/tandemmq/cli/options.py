"""Options that several commands share, so that they read the same everywhere. Which cluster: see `cluster_choice`.
And the names that a shell may complete."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from tandemmq.cli.cluster_address import ContextFile
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.output import OutputFormat
from tandemmq.service.texts import FORMS, MomentUnreadable, age_text, iso_text, read_moment

if TYPE_CHECKING:
    from tandemmq.admin.operations.values import PageRequest
    from tandemmq.cli.connection import ClusterChoice, ClusterConnection


def standard_input() -> TextIO:
    """CommandError when it was closed before we started."""
    if sys.stdin is None:
        raise Refused("standard input is closed", remedy="pipe something into this command, or give it a file")
    return sys.stdin


def input_bytes(limit: int) -> bytes:
    """Standard input, as far as `limit`. CommandError when it cannot be read."""
    source = standard_input()
    try:
        return source.buffer.read(limit)
    except OSError as error:
        raise Refused(
            "standard input cannot be read",
            cause=error.strerror or str(error),
            remedy="pipe something into this command, or give it a file",
        ) from error


def at_terminal() -> bool:
    """True when somebody can type, and be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


# Names a shell may complete: topics, groups and brokers of the cluster meant, and contexts.
#
# A cluster that does not answer at once gives none: whoever presses Tab does not wait, and sees no error.

_LIMIT_S: Final = 1.0
_NAMES_MAX: Final = 100


def complete_context(incomplete: str) -> list[str]:
    with contextlib.suppress(CommandError):
        return [name for name in sorted(ContextFile().read().by_name) if name.startswith(incomplete)]
    return []


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(connection: ClusterConnection) -> Sequence[str]:
        operations = await connection.operations()
        return [topic.name for topic in (await operations.topics(search=incomplete, page=_page())).items]

    return _names(ctx, incomplete, names)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(connection: ClusterConnection) -> Sequence[str]:
        operations = await connection.operations()
        return [group.name for group in (await operations.groups(search=incomplete, page=_page())).items]

    return _names(ctx, incomplete, names)


def complete_broker(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(connection: ClusterConnection) -> Sequence[str]:
        return [broker.key for broker in (await connection.read_state()).brokers]

    return _names(ctx, incomplete, names)


def complete_broker_group(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(connection: ClusterConnection) -> Sequence[str]:
        return sorted({broker.broker_name for broker in (await connection.read_state()).brokers})

    return _names(ctx, incomplete, names)


def _page() -> PageRequest:
    from tandemmq.admin.operations.values import PageRequest

    return PageRequest(size=_NAMES_MAX)


def _names(
    ctx: typer.Context, incomplete: str, ask: Callable[[ClusterConnection], Awaitable[Sequence[str]]]
) -> list[str]:
    from tandemmq.admin.operations.questions import OperationFailed

    async def in_time(connection: ClusterConnection) -> Sequence[str]:
        async with asyncio.timeout(_LIMIT_S):
            return await ask(connection)

    quiet = io.StringIO()
    # Whatever is wrong with the cluster is for the command itself to say.
    with contextlib.suppress(CommandError, OperationFailed, OSError, TimeoutError), contextlib.redirect_stderr(quiet):
        return [name for name in _choice(ctx).run(in_time) if name.startswith(incomplete)]
    return []


def _choice(ctx: typer.Context) -> ClusterChoice:
    # At the call: the options that this completes are made from these functions.
    from tandemmq.cli.connection import ClusterChoice

    given = ctx.find_object(ClusterChoice) or ClusterChoice()
    return ClusterChoice(ctx.params.get("namesrv"), ctx.params.get("data"), ctx.params.get("context"), given.connect)


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
        raise Refused(problem, remedy=f"write {FORMS}") from error


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

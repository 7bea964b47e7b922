"""Names a shell may complete: topics, groups and brokers of the cluster meant, and contexts.

A cluster that does not answer at once gives none: whoever presses Tab does not wait, and sees no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from tandemmq.cli.cluster_address import ContextFile
from tandemmq.cli.failure import CommandError

if TYPE_CHECKING:
    from tandemmq.admin.operations.values import PageRequest
    from tandemmq.cli.connection import ClusterChoice, ClusterConnection

__all__ = ["complete_broker", "complete_broker_group", "complete_context", "complete_group", "complete_topic"]

_LIMIT_S: Final = 1.0
_NAMES_MAX: Final = 100


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts."""
    with contextlib.suppress(CommandError):
        return [name for name in sorted(ContextFile().read().by_name) if name.startswith(incomplete)]
    return []


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics."""

    async def names(connection: ClusterConnection) -> Sequence[str]:
        operations = await connection.operations()
        return [topic.name for topic in (await operations.topics(search=incomplete, page=_page())).items]

    return _names(ctx, incomplete, names)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of consumer groups."""

    async def names(connection: ClusterConnection) -> Sequence[str]:
        operations = await connection.operations()
        return [group.name for group in (await operations.groups(search=incomplete, page=_page())).items]

    return _names(ctx, incomplete, names)


def complete_broker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Brokers as name:id."""

    async def names(connection: ClusterConnection) -> Sequence[str]:
        return [broker.key for broker in (await connection.read_state()).brokers]

    return _names(ctx, incomplete, names)


def complete_broker_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of broker groups."""

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

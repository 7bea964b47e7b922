"""Long lists: asked for page by page, up to a limit; and many groups, some at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from tandemmq.cli.connection import ClusterChoice
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.options import at_terminal
from tandemmq.cli.output import tell_unseen

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import ChangeResult, GroupDetail, Page, PageRequest

_PAGE_SIZE: Final = 200
_ASKED_AT_ONCE: Final = 16

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def collect(ask: Callable[[PageRequest], Awaitable[Page[ItemT]]], *, limit: int = 0) -> Page[ItemT]:
    """The first `limit` items as one page; 0: all."""
    from tandemmq.admin.operations.values import Page, PageRequest

    items: list[ItemT] = []
    number = 1
    while True:
        page = await ask(PageRequest(number, _PAGE_SIZE))
        items += page.items
        if not page.items or len(items) >= page.total or 0 < limit <= len(items):
            break
        number += 1
    shown = items[:limit] if limit else items
    return Page(shown, 1, max(1, len(shown)), page.total, page.unseen)


async def read_groups(operations: Operations, names: Iterable[str]) -> list[GroupDetail]:
    """The groups in their order. Raises what the first raised that could not be read, alone or in a group."""
    at_once = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def one(name: str) -> GroupDetail:
        async with at_once:
            return await operations.group(name)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(name)) for name in names]
    return [task.result() for task in asked]


def tell_rest(page: Page[ItemT]) -> None:
    """On standard error: how many are not shown, and who was not asked."""
    if (rest := page.total - len(page.items)) > 0:
        typer.echo(f"{rest:,} more; --limit 0 shows all, --search TEXT fewer", err=True)
    tell_unseen(page.unseen)


# How a command changes something: it says what would change, asks, and changes it.


def carry_out(
    cluster: ClusterChoice,
    question: str,
    action: Callable[[Operations, bool], Awaitable[ChangeResult]],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Does `action(operations, dry_run)` as `confirmed` does, and tells what was changed where."""
    result = confirmed(
        cluster, lambda dry: cluster.ask(lambda on: action(on, dry)), tell_changes, question, dry_run=dry_run, yes=yes
    )
    if result is not None:
        tell_changes(result)


def confirmed(
    cluster: ClusterChoice,
    action: Callable[[bool], ResultT],
    show: Callable[[ResultT], None],
    question: str | Callable[[ResultT], str],
    *,
    dry_run: bool,
    yes: bool,
) -> ResultT | None:
    """Does `action(dry_run)` dry and shows what it would do, then, if the answer to the question is yes, for good.

    What came of it; None when it was not done: it was to be shown only, or the question is empty as there is nothing to
    do. CommandError when it is refused, when nobody can be asked, or when the answer is no.
    """
    if dry_run or not yes:
        planned = action(True)
        show(planned)
        asked = question if isinstance(question, str) else question(planned)
        if dry_run or not asked:
            return None
        ask(f"{asked} ({cluster.target().title})")
    return action(False)


def tell_changes(result: ChangeResult) -> None:
    """A line for each broker or NameServer; what needs attention on standard error."""
    planned = "planned: " if result.dry_run else ""
    for change in result.changes:
        typer.echo(f"{change.subject}: {planned}{change.what}")
    tell_warnings(result.warnings)


def tell_warnings(warnings: Sequence[str]) -> None:
    """On standard error."""
    for warning in warnings:
        typer.echo(f"note: {warning}", err=True)


def ask(question: str) -> None:
    """Returns if the answer is yes. CommandError if not, or if there is no terminal to ask at."""
    if not at_terminal():
        raise Refused(
            "nobody can be asked here; nothing was changed",
            remedy="see with --dry-run what would be done, then run it with --yes",
        )
    if not typer.confirm(question):
        raise CommandError("you said no; nothing was changed")

"""Long lists: asked for page by page, up to a limit; and many groups, some at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import typer

from admin.cli.output import tell_unseen
from admin.operations.interface import Operations
from admin.operations.values import GroupDetail, Page, PageRequest

__all__ = ["collect", "read_groups", "tell_rest"]

_PAGE_SIZE: Final = 200
_ASKED_AT_ONCE: Final = 16

ItemT = TypeVar("ItemT")


async def collect(ask: Callable[[PageRequest], Awaitable[Page[ItemT]]], *, limit: int = 0) -> Page[ItemT]:
    """The first `limit` items as one page; 0: all."""
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

"""Long lists: asked for page by page, up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import typer

from admin.cli.output import tell_unseen
from admin.operations.values import Page, PageRequest

__all__ = ["collect", "tell_rest"]

_PAGE_SIZE: Final = 200

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


def tell_rest(page: Page[ItemT]) -> None:
    """On standard error: how many are not shown, and who was not asked."""
    if (rest := page.total - len(page.items)) > 0:
        typer.echo(f"{rest:,} more; --limit 0 shows all, --search TEXT fewer", err=True)
    tell_unseen(page.unseen)

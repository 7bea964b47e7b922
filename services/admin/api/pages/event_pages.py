"""`/events`: what happened lately, of all brokers and of the admin service together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.console import Pages
from admin.api.pages.change_answers import form_status
from admin.api.pages.page_answers import page_html
from admin.operations.failure import OperationFailed
from admin.operations.values import EventLine, Unseen
from admin.web.events_page import EventFilter, events_page, sources_of

__all__ = ["add_event_pages"]

_ASKED: Final = 500
# Every renewal asks the brokers.
_LIVE_MS: Final = 5_000
_Text = Annotated[str, Query(max_length=255)]


def add_event_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the route."""

    @app.get("/events", include_in_schema=False)
    async def events(
        request: Request,
        search: _Text = "",
        level: _Text = "",
        source: _Text = "",
        page: Annotated[int, Query(ge=1)] = 1,
    ) -> Response:
        wanted = EventFilter(search, level, source)
        failed: OperationFailed | None = None
        lines: Sequence[EventLine] = ()
        unseen: Sequence[Unseen] = ()
        try:
            lines, unseen = await pages.operations(request).events(limit=_ASKED)
        except OperationFailed as failure:
            failed = failure
        # A source that is chosen stays in the list though it has no event now.
        sources = sorted({*sources_of(lines), *([source] if source else [])})
        return page_html(
            pages,
            request,
            "events.html",
            active="events",
            status=form_status(failed, is_wrong=False),
            live_ms=_LIVE_MS,
            page=events_page(lines, wanted, number=page),
            filter=wanted,
            sources=[(name, name) for name in sources],
            unseen=unseen,
            failed=failed,
        )

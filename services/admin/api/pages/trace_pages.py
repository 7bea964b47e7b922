"""`/traces`: the newest traces, and where the time of one message went."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.console import Pages
from admin.api.pages.page_answers import page_html
from admin.web.trace_page import trace_view, traces_view

__all__ = ["add_trace_pages"]

_ACTIVE: Final = "traces"
_LISTED: Final = 50
_KEY_MAX: Final = 256


def add_trace_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the route."""

    @app.get("/traces", include_in_schema=False)
    async def traces(
        request: Request,
        id: Annotated[str, Query(max_length=_KEY_MAX)] = "",  # noqa: A002 - the name in the address
        notable: bool = False,
    ) -> Response:
        key = id.strip()
        if key:
            view = trace_view(key, await pages.traces.find(key))
            return page_html(pages, request, "trace.html", active=_ACTIVE, view=view)
        found = await pages.traces.newest(count=_LISTED, notable_only=notable)
        return page_html(pages, request, "traces.html", active=_ACTIVE, view=traces_view(found, notable_only=notable))

"""`/`: the cluster at a glance; and `/api/docs`."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from admin.api.console import Pages
from admin.api.pages.page_answers import page_html
from admin.cluster_state import ClusterState
from admin.web.api_docs_page import api_sections
from admin.web.consistency_section import consistency_section
from admin.web.overview_page import overview
from admin.web.time_range import RANGES, time_range

__all__ = ["add_overview_pages"]


def add_overview_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""

    @app.get("/", include_in_schema=False)
    async def overview_page(
        request: Request,
        range: Annotated[str, Query(max_length=8)] = "",  # noqa: A002 - the name in the address
    ) -> Response:
        reading = pages.cluster.latest
        chosen = time_range(range)
        now_wall_ms = pages.clock.wall_ms()
        state = reading.state if reading is not None else ClusterState(name_servers=(), brokers=())
        runs = pages.consistency.latest
        return page_html(
            pages,
            request,
            "overview.html",
            active="overview",
            live_ms=pages.refresh_ms,
            reading=reading,
            view=overview(state, pages.history, now_wall_ms=now_wall_ms, range_ms=chosen.duration_ms),
            consistency=consistency_section(runs, now_wall_ms=now_wall_ms) if runs is not None else None,
            range=chosen,
            ranges=RANGES,
        )

    @app.get("/api/docs", include_in_schema=False)
    async def api_docs(request: Request) -> Response:
        return page_html(pages, request, "api_docs.html", active="", sections=api_sections(app.openapi()))

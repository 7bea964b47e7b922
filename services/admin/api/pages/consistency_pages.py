"""`/consistency`: what the consistency job found, and each of its runs."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request, Response

from admin.api.console import Pages
from admin.api.pages.page_answers import page_html
from admin.operations.failure import FailureKind, OperationFailed
from admin.web.consistency_page import run_rows, run_view
from admin.web.consistency_section import consistency_section

__all__ = ["add_consistency_pages"]

_ACTIVE: Final = "consistency"
# The job's results are read every ten seconds.
_LIVE_MS: Final = 10_000


def add_consistency_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""

    @app.get("/consistency", include_in_schema=False)
    async def consistency(request: Request) -> Response:
        reading = pages.consistency.latest
        now_wall_ms = pages.clock.wall_ms()
        return page_html(
            pages,
            request,
            "consistency.html",
            active=_ACTIVE,
            live_ms=_LIVE_MS,
            is_watched=pages.consistency.is_watched,
            section=consistency_section(reading, now_wall_ms=now_wall_ms) if reading is not None else None,
            runs=run_rows(reading) if reading is not None else [],
        )

    @app.get("/consistency/{run_id}", include_in_schema=False)
    async def consistency_run(request: Request, run_id: str) -> Response:
        reading = pages.consistency.latest
        run = reading.find(run_id) if reading is not None else None
        if run is None:
            raise OperationFailed(
                FailureKind.NOT_FOUND,
                f"no run {run_id} is known",
                cause="the job keeps its last runs only",
                remedy="see the list on the page Consistency",
            )
        return page_html(pages, request, "consistency_run.html", active=_ACTIVE, run=run_view(run))

"""`/replication`: all broker groups, and each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.console import Pages
from admin.api.pages.page_answers import page_html
from admin.cluster_state import ClusterState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import Page
from admin.web.group_standing import GroupStanding, group_standings, groups_text
from admin.web.replication_page import WHOLE_MAX, group_replication, groups_page
from admin.web.time_range import RANGES, time_range

__all__ = ["add_replication_pages"]

_NAME_MAX: Final = 255
_Text = Annotated[str, Query(max_length=_NAME_MAX)]


def add_replication_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""

    @app.get("/replication", include_in_schema=False)
    async def replication(
        request: Request,
        search: _Text = "",
        page: Annotated[int, Query(ge=1)] = 1,
        range: _Text = "",  # noqa: A002 - the name in the address
    ) -> Response:
        state = _state(pages)
        found = groups_page(state, search=search, number=page)
        whole = found.items if found.total <= WHOLE_MAX else ()
        summary = groups_text(group_standings(state)) if state.brokers else ""
        return _answer(pages, request, whole, found, search=search, range_name=range, summary=summary)

    @app.get("/replication/{group}", include_in_schema=False)
    async def replication_of_group(request: Request, group: str, range: _Text = "") -> Response:  # noqa: A002
        found = [standing for standing in group_standings(_state(pages)) if standing.name == group]
        if not found:
            raise OperationFailed(
                FailureKind.NOT_FOUND,
                f"no broker group {group} is known",
                cause="no NameServer knows a broker of that name, and none has been seen lately",
                remedy="see the list of groups on the page Replication",
            )
        page = Page(found, 1, 1, 1)
        return _answer(pages, request, found, page, only=group, range_name=range)


def _answer(
    pages: Pages,
    request: Request,
    whole: Sequence[GroupStanding],
    page: Page[GroupStanding],
    *,
    only: str = "",
    search: str = "",
    range_name: str,
    summary: str = "",
) -> Response:
    chosen = time_range(range_name)
    now_wall_ms = pages.clock.wall_ms()
    groups = [
        group_replication(standing, pages.history, now_wall_ms=now_wall_ms, range_ms=chosen.duration_ms)
        for standing in whole
    ]
    return page_html(
        pages,
        request,
        "replication.html",
        active="replication",
        live_ms=pages.refresh_ms,
        is_read=pages.cluster.latest is not None,
        groups=groups,
        page=page,
        only=only,
        search=search,
        summary=summary,
        range=chosen,
        ranges=RANGES,
        path=request.url.path,
    )


def _state(pages: Pages) -> ClusterState:
    reading = pages.cluster.latest
    return reading.state if reading is not None else ClusterState(name_servers=(), brokers=())

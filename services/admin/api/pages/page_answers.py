"""How pages answer: a page in its frame, a redirect that says what was done, or a page that says what went wrong."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from admin.api.access import SESSION_COOKIE
from admin.api.actors import Actor
from admin.api.console import Pages
from admin.api.problems import Problem, problem_of
from admin.operations.failure import OperationFailed
from admin.web.frame import Flash, Frame, frame_of

__all__ = ["failure_page", "go_to", "page_html", "problem_page"]

# The query's field that names a flash.
_FLASH_FIELD: Final = "said"
_NO_STORE: Final = {"cache-control": "no-store"}


def page_html(
    pages: Pages,
    request: Request,
    template: str,
    *,
    active: str,
    status: HTTPStatus = HTTPStatus.OK,
    live_ms: int = 0,
    **context: object,
) -> Response:
    """A page. `active` is its name in the navigation; with `live_ms` an open page renews itself so often."""
    html = pages.templates.get(template).render(frame=_frame(pages, request, active), live_ms=live_ms, **context)
    return Response(html, status, media_type="text/html", headers=_NO_STORE)


def go_to(pages: Pages, path: str, *, flash: Flash | None = None) -> Response:
    """Sends the browser on after a change, so that reloading does not do it again. `path` is one of our own."""
    assert path[0] == "/" != path[1:2], "only pages of this service"
    if flash is not None:
        code = pages.flashes.put(flash, now_ms=pages.clock.monotonic_ms())
        path += f"{'&' if urlsplit(path).query else '?'}{_FLASH_FIELD}={code}"
    return RedirectResponse(path, HTTPStatus.SEE_OTHER, headers=_NO_STORE)


def failure_page(pages: Pages, request: Request, failure: OperationFailed, *, active: str = "") -> Response:
    """A failed operation as a page of its own, for those that cannot show it beside a field."""
    return problem_page(pages, request, problem_of(failure), active=active)


def problem_page(pages: Pages, request: Request, problem: Problem, *, active: str = "") -> Response:
    """A problem as a page of its own."""
    return page_html(pages, request, "problem.html", active=active, status=HTTPStatus(problem.status), problem=problem)


def _frame(pages: Pages, request: Request, active: str) -> Frame:
    now_ms = pages.clock.monotonic_ms()
    actor = getattr(request.state, "actor", None)
    return frame_of(
        pages.cluster.latest,
        active=active,
        actor=actor if isinstance(actor, Actor) else None,
        flash=pages.flashes.get(request.query_params.get(_FLASH_FIELD, ""), now_ms=now_ms),
        now_ms=now_ms,
        now_wall_ms=pages.clock.wall_ms(),
        has_session=SESSION_COOKIE in request.cookies,
    )

"""Logging in with a token, for browsers on other hosts: the token buys a session, whose random id is the cookie."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from tandemmq.admin.api.access import SESSION_COOKIE, SESSION_LIFE_S, Access, SessionTable
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.console.answers import form_of
from tandemmq.admin.console.frame import PageTemplates

_NO_STORE: Final = {"cache-control": "no-store"}
_NEXT_LENGTH_MAX: Final = 2_000


def add_login(
    app: FastAPI,
    access: Access,
    sessions: SessionTable,
    templates: PageTemplates,
    *,
    audit_log: AuditLog,
) -> None:
    template = templates.get("login.html")

    def page(next_path: str, *, problem: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
        html = template.render(next=_own_path(next_path), problem=problem)
        return Response(html, status, media_type="text/html", headers=_NO_STORE)

    @app.get("/login", include_in_schema=False)
    async def login_page(request: Request) -> Response:
        if not access.has_tokens:
            return page("/", problem="No token is set, so nobody can log in: come through kubectl port-forward.")
        return page(request.query_params.get("next", "/"))

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        form = await form_of(request)
        host = request.client.host if request.client is not None else ""
        is_guessing = access.is_guessing(host)
        actor = access.actor_with(form.text("token"), address=host)
        if actor is None:
            audit_log.refused("login_refused", fields={"address": host})
            problem, status = "This is not the token.", HTTPStatus.UNAUTHORIZED
            if is_guessing:
                problem = "Too many wrong tokens from your address; wait a minute."
                status = HTTPStatus.TOO_MANY_REQUESTS
            return page(form.text("next"), problem=problem, status=status)
        # Its cookie is about to be another one's: nobody could end it by logging out.
        sessions.close(request.cookies.get(SESSION_COOKIE, ""))
        audit_log.record("login", fields={"who": actor.name, "role": actor.role.value, "address": host})
        answer = RedirectResponse(_own_path(form.text("next")), HTTPStatus.SEE_OTHER, headers=_NO_STORE)
        is_proxied = access.is_trusted_proxy(host) and request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(
            SESSION_COOKIE,
            sessions.open(actor),
            max_age=SESSION_LIFE_S,
            httponly=True,
            samesite="strict",
            secure=is_proxied or request.url.scheme == "https",
        )
        return answer

    @app.post("/logout", include_in_schema=False)
    async def logout(request: Request) -> Response:
        sessions.close(request.cookies.get(SESSION_COOKIE, ""))
        answer = RedirectResponse("/login" if access.has_tokens else "/", HTTPStatus.SEE_OTHER, headers=_NO_STORE)
        answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
        return answer


def _own_path(text: str) -> str:
    """`text` if it is a path of this service, else the first page: a link to us shall not end elsewhere."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_own and len(text) <= _NEXT_LENGTH_MAX and "\\" not in text else "/"

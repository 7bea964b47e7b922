"""What every HTTP request passes before a route sees it: who asks, whether a page elsewhere made it, how big it is.

A change that a page of another origin posts is refused by what the browser says of the request itself, as Go 1.25's
`http.CrossOriginProtection` does: `Sec-Fetch-Site` must be same-origin or none; a browser without it sends `Origin`,
whose host must be the one that was asked. What sends neither is no browser of this decade, holds no cookies and
forwards no port. So forms carry no tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.requests import cookie_parser

from tandemmq.admin.api.access import SESSION_COOKIE, Access, Refusal, Request
from tandemmq.admin.audit_log import Actor, AuditLog
from tandemmq.admin.operations.questions import FailureKind, OperationFailed

__all__ = [
    "BODY_LIMIT_S",
    "App",
    "Guard",
    "Problem",
    "Receive",
    "Scope",
    "Send",
    "plain_problem",
    "problem_of",
    "problem_response",
]


# Problems as people and programs get them: a page for a browser, RFC 9457's `application/problem+json` below /api.

_STATUSES: Final = {
    FailureKind.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    FailureKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    FailureKind.REFUSED: HTTPStatus.CONFLICT,
    FailureKind.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    # Some brokers did it: neither done nor undone.
    FailureKind.PARTIAL: HTTPStatus.BAD_GATEWAY,
}


@dataclass(frozen=True)
class Problem:
    """What went wrong (RFC 9457), and what to do about it."""

    # A name of the kind of problem.
    type: str
    title: str
    status: int
    # The problem and its cause in one sentence.
    detail: str
    problem: str
    cause: str = ""
    remedy: str = ""


def problem_of(failure: OperationFailed, *, status: HTTPStatus | None = None) -> Problem:
    """A failed operation. `status` in place of the kind's own."""
    status = status or _STATUSES[failure.kind]
    return Problem(
        type=f"urn:tandemmq:problem:{failure.kind.name.lower().replace('_', '-')}",
        title=status.phrase,
        status=status,
        detail=f"{failure.problem}: {failure.cause}" if failure.cause else failure.problem,
        problem=failure.problem,
        cause=failure.cause,
        remedy=failure.remedy,
    )


def plain_problem(status: HTTPStatus, detail: str) -> Problem:
    """A problem of the request itself."""
    return Problem(type="about:blank", title=status.phrase, status=status, detail=detail, problem=detail)


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    """As it is sent."""
    return JSONResponse(
        asdict(problem), problem.status, {"cache-control": "no-store", **(headers or {})}, "application/problem+json"
    )


Scope: TypeAlias = MutableMapping[str, Any]
_Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[_Message]]
Send: TypeAlias = Callable[[_Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# Probes come from the node, without a token; who logs in has no session yet, and its page wants to look like one.
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/login"})
_OPEN_FOLDER: Final = "/static/"
_MONITORING_PATHS: Final = frozenset({"/metrics", "/api/v1/cluster", "/api/v1/findings"})
_MONITORING_FOLDER: Final = "/api/v1/consistency/"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BODY_BYTES_MAX: Final = 1 << 20
# A test message of 4 MiB, which JSON's base64 and a form's percent signs make longer.
_MESSAGE_BODY_BYTES_MAX: Final = 8 << 20
_MESSAGE_PATH_ENDS: Final = ("/messages", "/send")
_HEADER_BYTES_MAX: Final = 8 << 10
BODY_LIMIT_S = 60.0
"""Within which a request's body has to be here. Its head has a limit of its own where connections are accepted."""
# The rest of a request that is refused is not read, so its connection cannot be used again.
_CLOSE: Final = {"connection": "close"}

# Nothing is loaded from elsewhere, nothing is embedded, and forms come back here.
_CONTENT_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY_HEADERS: Final = (
    (b"content-security-policy", _CONTENT_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


_NO_QUERY: Final = problem_response(
    plain_problem(HTTPStatus.BAD_REQUEST, "query: it has bytes that an address does not have; encode them with %")
)
_FORGED: Final = problem_response(plain_problem(HTTPStatus.FORBIDDEN, "a page of another origin sent this"))


class Guard:
    """An ASGI application in front of another: refuses, or passes on with `request.state.actor` set."""

    def __init__(self, app: App, access: Access, audit_log: AuditLog | None = None) -> None:
        self._app = app
        self._access = access
        self._audit_log = audit_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def send_with_headers(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            await send(message)

        headers = _Headers(scope["headers"])
        # Whoever reads the address decodes it, whoever tells of an error, too.
        refusal = self._refusal_of(scope, headers) if scope["query_string"].isascii() else _NO_QUERY
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        if scope["method"] == "HEAD":
            # The same answer; the server leaves its body out.
            scope["method"] = "GET"
        body = _BoundedBody(receive, _body_bytes_max(scope["path"]))
        await self._app(scope, body.receive, send_with_headers)

    def _refusal_of(self, scope: Scope, headers: _Headers) -> Response | None:
        """The answer to a request that goes no further. Otherwise its actor is in the scope."""
        path: str = scope["path"]
        is_change = scope["method"] not in _SAFE_METHODS
        if is_change and headers.length > _body_bytes_max(path):
            problem = plain_problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_long(_body_bytes_max(path)))
            return problem_response(problem, _CLOSE)
        is_forged = is_change and not _is_of_this_origin(headers)
        if path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return _FORGED if is_forged else None
        client = scope.get("client")
        actor = self._access.actor_of(
            Request(
                peer_host=client[0] if client else "",
                header=headers.only,
                requested_host=headers.only("host"),
                session_id=headers.cookie(SESSION_COOKIE),
                monitoring=path in _MONITORING_PATHS or path.startswith(_MONITORING_FOLDER),
            )
        )
        if isinstance(actor, Refusal):
            if self._access.has_tokens and not is_change and "text/html" in headers.only("accept"):
                return RedirectResponse(f"/login?next={quote(_address_of(scope))}", HTTPStatus.SEE_OTHER)
            return _refused(actor)
        if is_forged:
            self._record_forged(actor, scope, headers)
            return _FORGED
        scope.setdefault("state", {})["actor"] = actor
        return None

    def _record_forged(self, actor: Actor, scope: Scope, headers: _Headers) -> None:
        if self._audit_log is not None:
            self._audit_log.record(
                "forged_change_refused",
                level="warning",
                fields={
                    "who": actor.name,
                    "address": actor.address,
                    "action": scope["method"],
                    "subject": scope["path"],
                    "origin": headers.only("origin") or headers.only("sec-fetch-site"),
                },
            )


class _Headers:
    """Headers of a request, of which one that is there twice is not believed."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers

    def only(self, name: str) -> str:
        """One header, "" if it is not there or more than once."""
        wanted = name.encode("latin-1")
        values = [value for key, value in self._headers if key == wanted] if wanted else []
        return values[0].decode("latin-1") if len(values) == 1 and len(values[0]) <= _HEADER_BYTES_MAX else ""

    @property
    def length(self) -> int:
        """What Content-Length says; 0 if it says nothing."""
        text = self.only("content-length")
        return int(text) if text.isascii() and text.isdigit() else 0

    def cookie(self, name: str) -> str:
        """A cookie's value, "" if there is none."""
        # Not SimpleCookie, which gives up at what some other service on localhost has set.
        return cookie_parser(self.only("cookie")).get(name, "")


def _is_of_this_origin(headers: _Headers) -> bool:
    site = headers.only("sec-fetch-site")
    if site:
        return site in ("same-origin", "none")
    origin = headers.only("origin")
    if not origin:
        return True
    return urlsplit(origin).netloc.lower() == headers.only("host").lower() != ""


def _address_of(scope: Scope) -> str:
    """As it was written: %RETRY%orders is another path than %25RETRY%25orders, which names that topic."""
    path = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _body_bytes_max(path: str) -> int:
    return _MESSAGE_BODY_BYTES_MAX if path.endswith(_MESSAGE_PATH_ENDS) else _BODY_BYTES_MAX


class _BoundedBody:
    """A request's body up to a limit, in bytes and in time: one without Content-Length may be of any length."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._received = 0
        self._is_whole = False
        self._ends_at = asyncio.get_running_loop().time() + BODY_LIMIT_S

    async def receive(self) -> _Message:
        """The next part; after the last one, that the sender went."""
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the rest of the request did not come", _CLOSE) from None
        self._is_whole = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_long(self._limit), _CLOSE)
        return message


def _too_long(limit: int) -> str:
    return f"a request of this kind has at most {limit >> 20} MiB"


def _refused(refusal: Refusal) -> Response:
    if refusal is Refusal.HOST_NOT_LOCAL:
        return problem_response(plain_problem(HTTPStatus.FORBIDDEN, refusal.value))
    return problem_response(plain_problem(HTTPStatus.UNAUTHORIZED, refusal.value), {"www-authenticate": "Bearer"})

"""Who asks: somebody on this host, who has a token, whom a proxy has checked, or nobody. And what they may do.

A caller from the same host is trusted without a token, because in a pod that is who came through
`kubectl port-forward`: Kubernetes has checked them already. Three things look like the same host and are none of it,
hence the details: a service mesh's sidecar (127.0.0.6), a web page that had its own name resolved to 127.0.0.1, which
gives itself away by its Host header, and a proxy beside this process, which is why a loopback address among
`trustedProxies` ends the trust in callers from the same host.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

from fastapi import Depends, HTTPException, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import SecretStr
from starlette.requests import cookie_parser

from tandemmq.admin.audit_log import Actor, AuditLog, Role
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.settings import AdminSettings, IPNetwork
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.core.routing.values import peer_host
from tandemmq.service.rpc import Call

SESSION_COOKIE: Final = "tandemmq_session"

_NO_TOKEN: Final = SecretStr("")
_SAME_HOST: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_BEARER: Final = "bearer "
# Actors that are no user of a proxy.
_ANONYMOUS: Final = "anonymous"
_OWN_NAMES: Final = frozenset({"local", _ANONYMOUS, "adminToken", "viewerToken"})
# A proxy's user names are kept and shown; no directory has longer ones.
_USER_LENGTH_MAX: Final = 200


class Refusal(Enum):
    """Why a request is not answered; the value is for its sender."""

    TOKEN_MISSING = "send the admin token as 'Authorization: Bearer <token>', or come through kubectl port-forward"
    TOKEN_WRONG = "this is not the admin token"
    TOO_MANY_TOKENS = "too many wrong tokens from your address; wait a minute"
    NO_TOKEN_SET = "come through kubectl port-forward; for callers from elsewhere set adminToken, or trustedProxies"
    HOST_NOT_LOCAL = "from this host, ask for localhost or an IP address, or send the admin token"
    PROXY_NAMES_NOBODY = "the proxy in between did not say who you are; it should ask you to log in"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the operator of this service has set, the admin token apart."""

    viewer_token: SecretStr = _NO_TOKEN
    local_role: Role = Role.OPERATOR
    # What callers from other hosts may do without any proof; None: nothing.
    anonymous_role: Role | None = None
    # Whose word about users is believed.
    trusted_proxies: tuple[IPNetwork, ...] = ()
    proxy_user_header: str = ""
    proxy_groups_header: str = ""
    # Users in one of these groups are operators, others viewers.
    operator_groups: frozenset[str] = frozenset()

    @staticmethod
    def of(settings: AdminSettings) -> AccessRules:
        return AccessRules(
            viewer_token=settings.viewer_token,
            local_role=Role(settings.local_role),
            anonymous_role=None if settings.anonymous_role == "none" else Role(settings.anonymous_role),
            trusted_proxies=settings.proxy_networks,
            proxy_user_header=settings.proxy_user_header.lower(),
            proxy_groups_header=settings.proxy_groups_header.lower(),
            operator_groups=settings.operator_group_names,
        )


_DEFAULT_RULES: Final = AccessRules()


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request before anybody believes it."""

    peer_host: str
    # A header by its name in lower case; "" if it is not there, or there more than once.
    header: Callable[[str], str]
    # The Host header; None where there is no browser to be careful about.
    requested_host: str | None = None
    session_id: str = ""
    # True: it asks for what monitoring reads, which is open to all while no token is set.
    monitoring: bool = False


class Access:
    """The rule for one process."""

    def __init__(
        self,
        admin_token: SecretStr,
        rules: AccessRules = _DEFAULT_RULES,
        sessions: SessionTable | None = None,
        *,
        guesses: TokenGuesses | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        """Without `guesses` nobody counts them, without `audit_log` nobody is told of them."""
        self._rules = rules
        self._guesses = guesses
        self._audit_log = audit_log
        self.sessions: Final = sessions
        """Where those who log in are remembered; None: nobody can log in."""
        self._tokens = tuple(
            (name, role, token.get_secret_value().encode())
            for name, role, token in (
                ("adminToken", Role.OPERATOR, admin_token),
                ("viewerToken", Role.VIEWER, rules.viewer_token),
            )
            if token.get_secret_value()
        )
        self._trusts_local = not any(_holds(rules.trusted_proxies, host) for host in _SAME_HOST)

    @property
    def has_tokens(self) -> bool:
        """True when there is something to log in with."""
        return bool(self._tokens) and self.sessions is not None

    def actor_of(self, request: Request) -> Actor | Refusal:
        """Who sent it. What proves more comes first: a token, a session, a proxy's word, the same host."""
        authorization = request.header("authorization")
        found = self._found(request, authorization)
        is_nobody = isinstance(found, Refusal) or found.name == _ANONYMOUS
        if is_nobody and authorization[: len(_BEARER)].lower() == _BEARER:
            if self._audit_log is not None:
                self._audit_log.refused("token_refused", fields={"address": request.peer_host})
            if found is Refusal.TOKEN_WRONG and self.is_guessing(request.peer_host):
                return Refusal.TOO_MANY_TOKENS
        return found

    def _found(self, request: Request, authorization: str) -> Actor | Refusal:
        if authorization[: len(_BEARER)].lower() == _BEARER:
            token, whose = authorization[len(_BEARER) :].strip(), counted_host(request.peer_host)
            if _holds(self._rules.trusted_proxies, request.peer_host) and (user := self._proxied(request)) is not None:
                # Many come from a proxy's address, which may add a token of its own to what each of them sends.
                whose = f"{whose} {user.name}"
            actor = self.actor_with(token, address=request.peer_host, whose=whose)
            if actor is not None:
                return actor
        if self.sessions is not None and request.session_id:
            actor = self.sessions.actor_of(request.session_id)
            if actor is not None:
                return actor
        if _holds(self._rules.trusted_proxies, request.peer_host):
            return self._proxied(request) or self._unproven(request, Refusal.PROXY_NAMES_NOBODY)
        if request.peer_host in _SAME_HOST and self._trusts_local:
            if request.requested_host is None or _is_local(request.requested_host):
                return Actor("local", self._rules.local_role, request.peer_host)
            return Refusal.HOST_NOT_LOCAL
        if not self._tokens:
            return self._unproven(request, Refusal.NO_TOKEN_SET)
        return self._unproven(request, Refusal.TOKEN_WRONG if authorization else Refusal.TOKEN_MISSING)

    def actor_with(self, token: str, *, address: str, whose: str = "") -> Actor | None:
        """Whoever may use that token; None also for one that is sent after too many guesses. They are counted as
        `whose`, if not as the address's."""
        sent, whose = token.encode(), whose or counted_host(address)
        for name, role, known in self._tokens:
            if hmac.compare_digest(sent, known):
                is_taken = self._guesses is None or self._guesses.takes(whose, name)
                return Actor(name, role, address) if is_taken else None
        if self._guesses is not None:
            self._guesses.failed(whose)
        return None

    def is_guessing(self, address: str) -> bool:
        """Whether too many wrong tokens came from there in the last minute."""
        return self._guesses is not None and self._guesses.are_too_many(counted_host(address))

    def is_trusted_proxy(self, peer_host: str) -> bool:
        """Whether what it says of its own callers is believed."""
        return _holds(self._rules.trusted_proxies, peer_host)

    def _proxied(self, request: Request) -> Actor | None:
        user = request.header(self._rules.proxy_user_header).strip()[:_USER_LENGTH_MAX]
        if not user or not user.isprintable():
            return None
        groups = {group.strip() for group in request.header(self._rules.proxy_groups_header).split(",")}
        role = Role.OPERATOR if groups & self._rules.operator_groups else Role.VIEWER
        # Nobody becomes one of ours in the audit log by being called so.
        return Actor(f"proxy:{user}" if user in _OWN_NAMES else user, role, request.peer_host)

    def _unproven(self, request: Request, refusal: Refusal) -> Actor | Refusal:
        if self._rules.anonymous_role is not None:
            return Actor(_ANONYMOUS, self._rules.anonymous_role, request.peer_host)
        if request.monitoring and not self._tokens:
            return Actor(_ANONYMOUS, Role.VIEWER, request.peer_host)
        return refusal


def request_of(call: Call, *, monitoring: bool = False) -> Request:
    """A gRPC call. Whoever is between us and the caller can add headers of its own to it, and only the last of a name
    is seen: a proxy's word about its users is taken over HTTP/1.1 only.
    """
    authorization = call.header("authorization")
    return Request(
        peer_host=peer_host(call.peer),
        header=lambda name: authorization if name == "authorization" else "",
        monitoring=monitoring,
    )


def _holds(networks: tuple[IPNetwork, ...], host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in networks)


def _is_local(requested_host: str) -> bool:
    if requested_host.startswith("["):
        host = requested_host[1:].partition("]")[0]
    else:
        host = requested_host.partition(":")[0]
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# Who asks, and what they may do: found once per request by `access`, then carried along with it.


def current_actor(request: HttpRequest) -> Actor:
    """Who sent the request. Every request has an actor but those for paths that are open to all."""
    actor = getattr(request.state, "actor", None)
    if not isinstance(actor, Actor):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "nobody is known to have sent this")
    return actor


def operator_only(request: HttpRequest) -> Actor:
    """The actor, if it may change something. A dependency of routes that do."""
    actor = current_actor(request)
    if not actor.may_change:
        # The operations, which record what they refuse, are never reached.
        _record_refusal(request, actor, "may look and not change")
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{actor.name} may look and not change: ask an operator to do it")
    return actor


# A token has 16 characters or more and is not guessed at this pace; a person who mistypes it does not notice.
_GUESSES_MAX: Final = 10
_GUESSES_WINDOW_MS: Final = 60_000
_GUESSERS_MAX: Final = 10_000
_KNOWN_MS: Final = 600_000
_KNOWN_MAX: Final = 1_000


class TokenGuesses:
    """Tokens that are none, on the page and with requests alike. After ten in a minute no token is taken from their
    address (of IPv6 its /64) until the minute is over, but one that was taken from there within ten minutes: a program
    that guesses keeps out nobody who shares its address and is at work, and nobody elsewhere.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        # Wrong ones, and when their minute began; whose the last was longest ago first.
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()
        # When a token was last taken from somewhere.
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def are_too_many(self, whose: str) -> bool:
        count, began_ms = self._counts.get(whose, (0, 0))
        return count >= _GUESSES_MAX and self._clock.monotonic_ms() - began_ms < _GUESSES_WINDOW_MS

    def takes(self, whose: str, token_name: str) -> bool:
        """Whether a right token counts, which then is known there."""
        now_ms = self._clock.monotonic_ms()
        known_ms = self._known.get((whose, token_name))
        if self.are_too_many(whose) and (known_ms is None or now_ms - known_ms >= _KNOWN_MS):
            return False
        self._known[whose, token_name] = now_ms
        self._known.move_to_end((whose, token_name))
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return True

    def failed(self, whose: str) -> None:
        now_ms = self._clock.monotonic_ms()
        count, began_ms = self._counts.pop(whose, (0, now_ms))
        if now_ms - began_ms >= _GUESSES_WINDOW_MS:
            count, began_ms = 0, now_ms
        if len(self._counts) >= _GUESSERS_MAX:
            self._counts.popitem(last=False)
        self._counts[whose] = (count + 1, began_ms)


def _record_refusal(request: HttpRequest, actor: Actor, reason: str) -> None:
    """Leaves a line in the audit log, where the application has one."""
    audit_log = getattr(request.app.state, "audit_log", None)
    if isinstance(audit_log, AuditLog):
        audit_log.refused(
            "operator_change",
            fields={
                "who": actor.name,
                "role": actor.role.value,
                "address": actor.address,
                "action": request.method,
                "subject": request.url.path,
                "outcome": f"refused: {reason}",
            },
        )


OPERATOR_ONLY: Final[Any] = Depends(operator_only)
"""For `dependencies=[OPERATOR_ONLY]` of routes that change something."""


# Sessions of browsers that logged in with a token: a random id in a cookie, and who it stands for here.

SESSION_LIFE_S: Final = 12 * 3_600
# People, not programs, log in. Beyond, whoever has most ends his oldest.
_SESSIONS_MAX: Final = 1_000
_ID_BYTES: Final = 32


class SessionTable:
    """Kept by the ids' digests, so that comparing takes the same time whatever is asked for; gone with the process."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        # In the order they were opened, which is the order they end in.
        self._sessions: OrderedDict[bytes, tuple[Actor, int]] = OrderedDict()
        # Who opened each, and where.
        self._whose: dict[bytes, tuple[str, str]] = {}

    def open(self, actor: Actor) -> str:
        """A new session's id."""
        session_id = secrets.token_urlsafe(_ID_BYTES)
        if len(self._sessions) >= _SESSIONS_MAX:
            [(most, _)] = Counter(self._whose.values()).most_common(1)
            self._end(next(found for found, each in self._whose.items() if each == most))
        self._sessions[_digest(session_id)] = (actor, self._clock.monotonic_ms() + SESSION_LIFE_S * 1_000)
        self._whose[_digest(session_id)] = actor.name, counted_host(actor.address)
        return session_id

    def actor_of(self, session_id: str) -> Actor | None:
        """Who opened it; None when it has ended or never was."""
        found = self._sessions.get(_digest(session_id))
        if found is None:
            return None
        actor, ends_at_ms = found
        return actor if self._clock.monotonic_ms() < ends_at_ms else None

    def close(self, session_id: str) -> None:
        self._end(_digest(session_id))

    def _end(self, digest: bytes) -> None:
        self._sessions.pop(digest, None)
        self._whose.pop(digest, None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


# What every HTTP request passes before a route sees it: who asks, whether a page elsewhere made it, how big it is.
#
# A change that a page of another origin posts is refused by what the browser says of the request itself, as Go 1.25's
# `http.CrossOriginProtection` does: `Sec-Fetch-Site` must be same-origin or none; a browser without it sends `Origin`,
# whose host must be the one that was asked. What sends neither is no browser of this decade, holds no cookies and
# forwards no port. So forms carry no tokens.


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


_ONLY_HTTPS: Final = (b"strict-transport-security", b"max-age=31536000")


def _is_whole_host(requested_host: str) -> bool:
    """Browsers take that header for every port of a host, so it is said only where we are what the host is for."""
    _, colon, port = requested_host.rpartition(":")
    return not _is_local(requested_host) and (not colon or port == "443")


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
        headers = _Headers(scope["headers"])
        added: tuple[tuple[bytes, bytes], ...] = _SECURITY_HEADERS
        if scope.get("scheme") == "https" and _is_whole_host(headers.only("host")):
            added = (*added, _ONLY_HTTPS)

        async def send_with_headers(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

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
            self._audit_log.refused(
                "forged_change_refused",
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
    if refusal is Refusal.TOO_MANY_TOKENS:
        return problem_response(plain_problem(HTTPStatus.TOO_MANY_REQUESTS, refusal.value), {"retry-after": "60"})
    return problem_response(plain_problem(HTTPStatus.UNAUTHORIZED, refusal.value), {"www-authenticate": "Bearer"})

"""Who asks: somebody on this host, who has a token, whom a proxy has checked, or nobody. And what they may do.

A caller from the same host is trusted without a token, because in a pod that is who came through
`kubectl port-forward`: Kubernetes has checked them already. Three things look like the same host and are none of it,
hence the details: a service mesh's sidecar (127.0.0.6), a web page that had its own name resolved to 127.0.0.1, which
gives itself away by its Host header, and a proxy beside this process, which is why a loopback address among
`trustedProxies` ends the trust in callers from the same host.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, HTTPException
from fastapi import Request as HttpRequest
from pydantic import SecretStr

from tandemmq.admin.audit_log import Actor, AuditLog, Role
from tandemmq.admin.settings import AdminSettings, IPNetwork
from tandemmq.core.clock import Clock
from tandemmq.service.rpc import Call

__all__ = [
    "OPERATOR_ONLY",
    "SESSION_COOKIE",
    "SESSION_LIFE_S",
    "Access",
    "AccessRules",
    "Refusal",
    "Request",
    "SessionTable",
    "current_actor",
    "operator_only",
    "peer_host_of",
    "request_of",
]


SESSION_COOKIE: Final = "tandemmq_session"

_NO_TOKEN: Final = SecretStr("")
_SAME_HOST: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_BEARER: Final = "bearer "
# Actors that are no user of a proxy.
_OWN_NAMES: Final = frozenset({"local", "anonymous", "adminToken", "viewerToken"})
# A proxy's user names are kept and shown; no directory has longer ones.
_USER_LENGTH_MAX: Final = 200


class Refusal(Enum):
    """Why a request is not answered; the value is for its sender."""

    TOKEN_MISSING = "send the admin token as 'Authorization: Bearer <token>', or come through kubectl port-forward"
    TOKEN_WRONG = "this is not the admin token"
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
        """As the settings say."""
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
        self, admin_token: SecretStr, rules: AccessRules = _DEFAULT_RULES, sessions: SessionTable | None = None
    ) -> None:
        self._rules = rules
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
        if authorization[: len(_BEARER)].lower() == _BEARER:
            actor = self.actor_with(authorization[len(_BEARER) :].strip(), address=request.peer_host)
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

    def actor_with(self, token: str, *, address: str) -> Actor | None:
        """Whoever may use that token."""
        sent = token.encode()
        for name, role, known in self._tokens:
            if hmac.compare_digest(sent, known):
                return Actor(name, role, address)
        return None

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
            return Actor("anonymous", self._rules.anonymous_role, request.peer_host)
        if request.monitoring and not self._tokens:
            return Actor("anonymous", Role.VIEWER, request.peer_host)
        return refusal


def request_of(call: Call, *, monitoring: bool = False) -> Request:
    """A gRPC call. Whoever is between us and the caller can add headers of its own to it, and only the last of a name
    is seen: a proxy's word about its users is taken over HTTP/1.1 only.
    """
    authorization = call.header("authorization")
    return Request(
        peer_host=peer_host_of(call.peer),
        header=lambda name: authorization if name == "authorization" else "",
        monitoring=monitoring,
    )


def peer_host_of(peer: str) -> str:
    """The address in a gRPC peer such as `ipv4:10.0.0.7:51234` or `ipv6:[::1]:51234`."""
    kind, _, address = peer.partition(":")
    host = address.rpartition(":")[0]
    return host.strip("[]") if kind == "ipv6" else host


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


def _record_refusal(request: HttpRequest, actor: Actor, reason: str) -> None:
    """Leaves a line in the audit log, where the application has one."""
    audit_log = getattr(request.app.state, "audit_log", None)
    if isinstance(audit_log, AuditLog):
        audit_log.record(
            "operator_change",
            level="warning",
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
# People, not programs, log in. Whoever opens more ends the oldest.
_SESSIONS_MAX: Final = 1_000
_ID_BYTES: Final = 32


class SessionTable:
    """Kept by the ids' digests, so that comparing takes the same time whatever is asked for; gone with the process."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        # In the order they were opened, which is the order they end in.
        self._sessions: OrderedDict[bytes, tuple[Actor, int]] = OrderedDict()

    def open(self, actor: Actor) -> str:
        """A new session's id."""
        session_id = secrets.token_urlsafe(_ID_BYTES)
        while len(self._sessions) >= _SESSIONS_MAX:
            self._sessions.popitem(last=False)
        self._sessions[_digest(session_id)] = (actor, self._clock.monotonic_ms() + SESSION_LIFE_S * 1_000)
        return session_id

    def actor_of(self, session_id: str) -> Actor | None:
        """Who opened it; None when it has ended or never was."""
        found = self._sessions.get(_digest(session_id))
        if found is None:
            return None
        actor, ends_at_ms = found
        return actor if self._clock.monotonic_ms() < ends_at_ms else None

    def close(self, session_id: str) -> None:
        """Ends it."""
        self._sessions.pop(_digest(session_id), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()

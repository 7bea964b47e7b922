"""Who asks, and what they may do: found once per request by `access`, then carried along with it."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, HTTPException, Request

from tandemmq.admin.audit_log import Actor, AuditLog
from tandemmq.core.clock import Clock

__all__ = ["OPERATOR_ONLY", "SESSION_LIFE_S", "SessionTable", "current_actor", "operator_only"]


def current_actor(request: Request) -> Actor:
    """Who sent the request. Every request has an actor but those for paths that are open to all."""
    actor = getattr(request.state, "actor", None)
    if not isinstance(actor, Actor):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "nobody is known to have sent this")
    return actor


def operator_only(request: Request) -> Actor:
    """The actor, if it may change something. A dependency of routes that do."""
    actor = current_actor(request)
    if not actor.may_change:
        # The operations, which record what they refuse, are never reached.
        _record_refusal(request, actor, "may look and not change")
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{actor.name} may look and not change: ask an operator to do it")
    return actor


def _record_refusal(request: Request, actor: Actor, reason: str) -> None:
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

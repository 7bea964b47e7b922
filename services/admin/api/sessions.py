"""Sessions of browsers that logged in with a token: a random id in a cookie, and who it stands for here."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Final

from admin.api.actors import Actor
from mqcore.clock import Clock

__all__ = ["SESSION_LIFE_S", "SessionTable"]

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

"""Which clients are connected: what each said of itself, and when it was last heard.

A session is a memory, not a right: after a restart clients go on heartbeating and receiving for minutes before they
send their settings again, so nothing is refused for want of one. It is kept for leases the broker renews for a client
(they end with it) and for whoever asks who is connected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["SESSION_EXPIRY_MS", "ClientSession", "ClientSessions"]

# Rust clients beat every 30 s: four beats may be lost.
SESSION_EXPIRY_MS: Final = 120_000
# Client ids are whatever callers say: about 500 bytes each.
_SESSIONS_MAX: Final = 100_000


@dataclass(slots=True)
class ClientSession:
    """One client as it described itself. Times are monotonic."""

    client_id: str
    last_seen_ms: int
    # Name of the ClientType; "" until the client said it.
    client_type: str = ""
    # Consumer group; "" for producers.
    group: str = ""
    language: str = ""
    version: str = ""
    # Address it connected from.
    peer: str = ""
    # Topics it sends to, or its filter expression by topic.
    subscriptions: dict[str, str] = field(default_factory=dict)


class ClientSessions:
    """The table of sessions. Event loop only. `gone` is told the id of each client that left or fell silent."""

    def __init__(self, gone: Callable[[str], None], *, max_sessions: int = _SESSIONS_MAX) -> None:
        """Beyond `max_sessions` the client heard of longest ago is forgotten."""
        self._gone = gone
        self._max_sessions = max_sessions
        # The one heard of longest ago first, so that `expire` looks at no more than the silent ones.
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[ClientSession]:
        """Every session, the one heard of longest ago first."""
        return list(self._sessions.values())

    def get(self, client_id: str) -> ClientSession | None:
        """The client's session, None when it is not known."""
        return self._sessions.get(client_id)

    def seen(self, client_id: str, *, now_ms: int) -> ClientSession:
        """Notes a sign of life; the session is made if there was none."""
        session = self._sessions.get(client_id)
        if session is None:
            session = ClientSession(client_id=client_id, last_seen_ms=now_ms)
            self._sessions[client_id] = session
            if len(self._sessions) > self._max_sessions:
                self.terminate(next(iter(self._sessions)))
        else:
            self._sessions.move_to_end(client_id)
        session.last_seen_ms = now_ms
        return session

    def terminate(self, client_id: str) -> None:
        """The client said goodbye. Unknown ids are fine: a goodbye may come twice."""
        if self._sessions.pop(client_id, None) is not None:
            self._gone(client_id)

    def expire(self, *, now_ms: int) -> None:
        """Forgets those silent for 120 s."""
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if now_ms - session.last_seen_ms < SESSION_EXPIRY_MS:
                return
            self.terminate(session.client_id)

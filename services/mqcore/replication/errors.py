"""What can go wrong with a replication session."""

from __future__ import annotations

__all__ = ["LocalProtocolError", "RemoteProtocolError", "ReplicationError"]


class ReplicationError(Exception):
    """Root of this package's errors."""


class LocalProtocolError(ReplicationError):
    """The session was misused: a bug in the caller."""


class RemoteProtocolError(ReplicationError):
    """The peer broke the rules of the wire. The caller closes the connection, counts `counter` and logs the text."""

    def __init__(self, counter: str, reason: str) -> None:
        super().__init__(reason)
        self.counter = counter

"""How far a recovery has come, for those who wait for the broker."""

from __future__ import annotations

from typing import Final

__all__ = ["RecoveryProgress"]

_ALMOST: Final = 0.99
"""What is left when the log is read: syncing, and clearing what lies behind its end."""


class RecoveryProgress:
    """Written by the thread that recovers, read by any other: single attributes, each of them whole at any time."""

    def __init__(self) -> None:
        self.started_ms: int | None = None
        """Monotonic; None before it began."""
        self.duration_ms: int | None = None
        """None before it ended."""
        self.read_bytes = 0
        """Of the log, by now."""
        self.bytes_to_read = 0
        """At most: where the log ends is what recovery finds out."""

    def begin(self, *, now_ms: int) -> None:
        """Recovery begins."""
        self.started_ms = now_ms
        self.duration_ms = None
        self.read_bytes = self.bytes_to_read = 0

    def end(self, *, now_ms: int) -> None:
        """The store is recovered."""
        assert self.started_ms is not None, "a recovery that never began"
        self.duration_ms = now_ms - self.started_ms

    def elapsed_ms(self, *, now_ms: int) -> int:
        """How long it took, or has taken by now."""
        if self.duration_ms is not None:
            return self.duration_ms
        return now_ms - self.started_ms if self.started_ms is not None else 0

    @property
    def ratio(self) -> float:
        """Share of the work that is done, at least: 1 when the recovery has ended, and not before."""
        if self.duration_ms is not None:
            return 1.0
        return _ALMOST * min(1.0, self.read_bytes / self.bytes_to_read) if self.bytes_to_read else 0.0

"""How an operation fails: what is wrong, why, and what to do about it. Shells turn it into an exit code or a status."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FailureKind", "OperationFailed"]


class FailureKind(StrEnum):
    """Whose turn it is."""

    # The question or the change is wrong; nothing was done.
    INVALID = "invalid"
    # There is no such thing.
    NOT_FOUND = "not found"
    # The state of the cluster forbids it; nothing was done.
    REFUSED = "refused"
    # Nobody who could answer does.
    UNAVAILABLE = "unavailable"
    # Some did it and others did not; repeating it is safe.
    PARTIAL = "partial"


class OperationFailed(Exception):
    """An operation did not come to its end."""

    def __init__(self, kind: FailureKind, problem: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.cause = cause
        self.remedy = remedy

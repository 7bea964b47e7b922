"""Why a repair is not carried out. Nothing was changed, unless the kind says so."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Refusal", "RepairRefused"]


class Refusal(StrEnum):
    """What kind of reason, and so what the operator does next."""

    DISABLED = "disabled"
    """enableRepair is off, or auditReadRate is 0."""
    MALFORMED = "malformed"
    """The request makes no sense."""
    OUT_OF_RANGE = "out-of-range"
    """Part of the range is not held, or not on disk yet."""
    NOT_AS_EXPECTED = "not-as-expected"
    """What is here, or in the group, is not what the plan was made for: verify again."""
    NOT_FOUND = "not-found"
    """There is no such queue, or no record for an entry."""
    BUSY = "busy"
    """Another repair is running."""
    LOG_CHANGED = "log-changed"
    """The log was cut or expired under the repair, which may have written a part: verify again."""
    SOURCE_UNAVAILABLE = "source-unavailable"
    """The source does not answer, or refuses."""
    SOURCE_UNSOUND = "source-unsound"
    """The source gave something else than the plan says, or no sound records."""
    NO_ROOM = "no-room"
    """The disk has no room for a copy of the range."""
    READ_BACK_DIFFERS = "read-back-differs"
    """What was written reads differently: the disk is not to be trusted."""


class RepairRefused(Exception):
    """The repair ended; the message says what to do."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal

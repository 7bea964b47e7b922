"""When a slave serves consumers by itself: while its group has no master, and nobody else does.

    follows --no master for `grace_ms`--> serves --a master serves, or starts and has our promise--> follows

Two that hand out deliver twice at worst, since each keeps its leases and the master takes the slave's when it starts.
So this may err, and a slave that does not know says no: without a NameServer nobody tells it that its master is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["MasterAbsence", "ReadsStep", "Sight"]

STAGGER_MS: Final = 1_000
"""So much later each time for a slave that others go before."""


class Sight(Enum):
    """What a slave sees of its group."""

    UNKNOWN = "no NameServer says anything"
    MASTER = "a master serves, or its log flows to us"
    STARTING = "a master starts, and waits perhaps for hours"
    READER = "another slave serves reads, and goes before us"
    NOBODY = "nobody serves"


class ReadsStep(Enum):
    """What to do now."""

    BEGIN = "begin"
    END = "end"
    STAY = "stay"


@dataclass(slots=True)
class MasterAbsence:
    """Times are monotonic ms."""

    grace_ms: int
    serves: bool = False
    _alone_since_ms: int | None = None
    _is_promised: bool = False

    def look(self, sight: Sight, *, rank: int, now_ms: int) -> ReadsStep:
        """What follows from what is seen. `rank`: how many other slaves should serve rather than this one."""
        if sight is Sight.MASTER:
            self._is_promised = False
        if sight in (Sight.MASTER, Sight.READER) or (sight is Sight.STARTING and self._is_promised):
            self._alone_since_ms = None
            return self._set(serves=False)
        if self.serves:
            return ReadsStep.STAY
        if sight is Sight.UNKNOWN:
            self._alone_since_ms = None
            return ReadsStep.STAY
        if self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        if now_ms - self._alone_since_ms < self.grace_ms + rank * STAGGER_MS:
            return ReadsStep.STAY
        self._is_promised = False
        return self._set(serves=True)

    def promised(self) -> ReadsStep:
        """A master that starts was promised its epoch, and takes our leases now: none is given until it is gone."""
        self._is_promised, self._alone_since_ms = True, None
        return self._set(serves=False)

    def ended(self) -> None:
        """It stopped to serve for another reason, and begins no sooner for it."""
        self.serves, self._alone_since_ms = False, None

    def _set(self, *, serves: bool) -> ReadsStep:
        if serves == self.serves:
            return ReadsStep.STAY
        self.serves = serves
        return ReadsStep.BEGIN if serves else ReadsStep.END

"""How many frames that bring nothing a peer may send: the bound on floods of every kind, and on rapid resets."""

from __future__ import annotations

from mqgrpc.errors import ConnectionFailure, ErrorCode
from mqgrpc.limits import Limits

__all__ = ["IdleBudget"]


class IdleBudget:
    """A budget of idle frames: full at first, earned back by time and by answers, never above `Limits.idle_burst`.

    It is only reckoned up when it is used up, so that a charge is a subtraction.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        """`now`, as everywhere here, in seconds on any monotonic clock."""
        self.answers = 0
        """DATA frames sent, and messages that share one with others."""
        self._limits = limits
        self._left = limits.idle_burst
        self._refilled_at = now
        self._refilled_at_answers = 0

    def charge(self, counter: str, now: float, cost: int = 1) -> None:
        """Takes one frame, or as much work as `cost` of them. ConnectionFailure, by that name, if nothing is left."""
        self._left -= cost
        if self._left >= 0:
            return
        limits = self._limits
        earned = int((now - self._refilled_at) * limits.idle_per_s)
        earned += (self.answers - self._refilled_at_answers) * limits.idle_per_answer
        self._left = min(limits.idle_burst, self._left + earned)
        self._refilled_at = now
        self._refilled_at_answers = self.answers
        if self._left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, counter, counter.replace("_", " "))

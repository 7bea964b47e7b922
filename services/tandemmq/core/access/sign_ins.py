"""How failed sign-ins slow their address down, and nobody else: it guesses a few secrets a second at most.

No clock: the caller tells the time, in ms of the monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

__all__ = ["SignInLimit"]

WINDOW_MS: Final = 60_000
FREE_FAILURES: Final = 5
"""In a window, before answers are held back: a mistyped key is found at once."""
FAILURES_MAX: Final = 300
"""In a window; beyond it what an address sends is not even looked at, but for users that signed in from there."""
_DELAY_MS: Final = 50
_DELAY_MS_MAX: Final = 2_000
"""Below the 3 s that clients wait, so that they hear why."""
_KNOWN_MS: Final = 600_000
_ADDRESSES_MAX: Final = 10_000
_KNOWN_MAX: Final = 10_000


class SignInLimit:
    """Counts failures by address. Of very many addresses the one that failed longest ago is forgotten."""

    def __init__(self) -> None:
        # When the window began, and the failures in it.
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        # When a user last signed in from an address.
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_blocked(self, address: str, username: str, *, now_ms: int) -> bool:
        """Whether a sign-in is refused unseen."""
        began_ms, count = self._failures.get(address, (now_ms, 0))
        if count < FAILURES_MAX or now_ms - began_ms >= WINDOW_MS:
            return False
        known_ms = self._known.get((address, username))
        return known_ms is None or now_ms - known_ms >= _KNOWN_MS

    def failed(self, address: str, *, now_ms: int) -> int:
        """Counts a failure; for how long its answer is held back, in ms."""
        began_ms, count = self._failures.pop(address, (now_ms, 0))
        if now_ms - began_ms >= WINDOW_MS:
            began_ms, count = now_ms, 0
        count += 1
        self._failures[address] = began_ms, count
        if len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)
        if count <= FREE_FAILURES:
            return 0
        return min(_DELAY_MS << min(count - FREE_FAILURES - 1, 10), _DELAY_MS_MAX)

    def succeeded(self, address: str, username: str, *, now_ms: int) -> None:
        """A user signed in. Failures stay: one good key must not free the guesses at others."""
        self._known.pop((address, username), None)
        self._known[address, username] = now_ms
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

"""Work that is long when there are many topics, done on the event loop without holding it."""

from __future__ import annotations

import asyncio
from typing import Final

from mqcore.clock import Clock

__all__ = ["TurnLimit"]

_TURN_NS: Final = 1_000_000
_PAUSE_S: Final = 0.001


class TurnLimit:
    """Asked after each piece of work whether it is time to let others have their turn.

    As long as it worked it pauses: a send that comes meanwhile waits for a millisecond at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn_ends_ns = clock.monotonic_ns() + _TURN_NS

    @property
    def is_reached(self) -> bool:
        """Whether to call `pause` now. Cheaper than an await for each piece."""
        return self._clock.monotonic_ns() >= self._turn_ends_ns

    async def pause(self) -> None:
        """Lets the loop go on with what has come."""
        await asyncio.sleep(_PAUSE_S)
        self._turn_ends_ns = self._clock.monotonic_ns() + _TURN_NS

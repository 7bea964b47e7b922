"""When a slave dispatches what it has appended: often and little, or seldom and much.

While a slave dispatches it reports nothing, so every send in flight waits. Up to some hundred records are walked one by
one, for twice of what each costs in a batch of many; so a log that grows at a moderate rate is dispatched in turns of
some 0.3 milliseconds, and one that grows fast in batches (docs/adr/0023).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DispatchPace"]

GATHERED_BYTES: Final = 2 << 20
"""A batch that waits for no more: half of a full read, each record of which costs a tenth of what it would alone."""
FEW_BYTES: Final = 128 << 10
MODERATE_BYTES_PER_S: Final = 64 << 20
_NS_PER_S: Final = 1_000_000_000


class DispatchPace:
    """Of one slave. `walk_bytes_max`: up to so much log is walked; 0: nothing is, and few records are no cheaper."""

    def __init__(self, *, walk_bytes_max: int) -> None:
        self._walk_bytes_max = walk_bytes_max
        self._dispatched_ns = 0

    def is_due(self, waiting_bytes: int, now_ns: int) -> bool:
        """Whether what is waiting is to be dispatched at once. If not, some time may bring more."""
        if waiting_bytes >= GATHERED_BYTES:
            return True
        if not FEW_BYTES <= waiting_bytes <= self._walk_bytes_max:
            return False
        return waiting_bytes * _NS_PER_S <= MODERATE_BYTES_PER_S * (now_ns - self._dispatched_ns)

    def dispatched(self, now_ns: int) -> None:
        """A dispatch begins, of everything that is waiting."""
        self._dispatched_ns = now_ns

"""Refusals that are told later, and few at a time.

Who is refused asks again when he is told so, and that costs a broker as much as what it serves. So a refusal may have a
pause; and however many pauses end at one moment, only a few are told in a millisecond, and the others after them: else
all timers of that moment were one turn of the loop, in which nobody else is served.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from tandemmq.broker.client_api.services import Timer, Timers
from tandemmq.core.clock import Clock

TOLD_AT_ONCE: Final = 16
"""In a millisecond. To tell one takes some 10 us, to refuse it again twice that."""
# A timer of a millisecond comes late where the loop has much to do: then as many more, for so long at most.
_LATE_MAX_MS: Final = 3
MARGIN_MS: Final = 100
"""What is left of a call's deadline for a refusal, and for the way."""
# Each costs a kilobyte or two, also if its call is over. With one more the one that is due first is told early.
_HELD_MAX: Final = 20_000
# Answers repeat ids and handles, which may be as long as a request.
_KEPT_BYTES_MAX: Final = 16 << 20


class HeldAnswers:
    """Event loop only."""

    def __init__(self, *, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        # When each is told, in monotonic ms, a number in their order, what tells it, and the bytes that keeps.
        self._held: list[tuple[int, int, Callable[[], object], int]] = []
        self._number = 0
        self._kept_bytes = 0
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self, pause_ms: int, answer: Callable[[], object], *, deadline_ms: int | None = None, kept_bytes: int = 0
    ) -> None:
        """Calls `answer` after the pause, or before the caller's monotonic deadline if that is nearer; at once if there
        is no room for the `kept_bytes` of it. `answer` must not keep a request: strangers send large ones."""
        if self._kept_bytes + kept_bytes > _KEPT_BYTES_MAX:
            answer()
            return
        now_ms = self._clock.monotonic_ms()
        due_ms = now_ms + pause_ms
        if deadline_ms is not None:
            due_ms = max(now_ms, min(due_ms, deadline_ms - MARGIN_MS))
        self._number += 1
        self._kept_bytes += kept_bytes
        heappush(self._held, (due_ms, self._number, answer, kept_bytes))
        self._arm(now_ms)
        if len(self._held) > _HELD_MAX:
            self._tell_first()

    def _tell(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        late_ms = min(max(0, now_ms - self._timer_at_ms), _LATE_MAX_MS)
        try:
            for _ in range(TOLD_AT_ONCE * (1 + late_ms)):
                if not self._held or self._held[0][0] > now_ms:
                    break
                self._tell_first()
        finally:
            # Also behind one that fails.
            self._arm(now_ms)

    def _tell_first(self) -> None:
        _, _, answer, kept_bytes = heappop(self._held)
        self._kept_bytes -= kept_bytes
        answer()

    def _arm(self, now_ms: int) -> None:
        """Keeps one timer at the first of them."""
        if not self._held:
            return
        at_ms = max(self._held[0][0], now_ms + 1)
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._timers.call_later((at_ms - now_ms) / 1_000, self._tell)

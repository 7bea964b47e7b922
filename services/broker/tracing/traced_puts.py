"""The puts a master traced, kept for a while for its slaves to ask about."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from mqcore.tracing.attributes import text_of
from mqcore.tracing.replica_spans import TracedPut, made_put
from mqcore.tracing.send_spans import TracedSend
from mqcore.tracing.trace_context import TraceContext

__all__ = ["TracedPuts", "TracedPutsPage"]

# Slaves ask every second; at a thousand traced sends a second one may miss a question or two. About 300 bytes each.
_PUTS_MAX: Final = 4_000
PAGE_MAX: Final = 1_000


class TracedPutsPage(NamedTuple):
    """Some of them, oldest first. Numbers of another incarnation mean nothing."""

    incarnation: int
    puts: list[TracedPut]


class TracedPuts:
    """The newest traced puts of one run of a master. Event loop only."""

    def __init__(self, *, incarnation: int, puts_max: int = _PUTS_MAX) -> None:
        self._incarnation = incarnation
        self._puts: deque[TracedPut] = deque(maxlen=puts_max)
        self._sequence = 0

    def note(self, send: TracedSend, context: TraceContext) -> None:
        """A stored send was traced; a slave's part is to be linked with `context`."""
        self._sequence += 1
        self._puts.append(
            made_put(
                (
                    self._sequence,
                    context,
                    send.topic,
                    send.queue_id,
                    send.message_ids,
                    send.start_offset,
                    send.end_offset,
                    text_of(send.retained_for),
                )
            )
        )

    def after(self, *, incarnation: int, sequence: int) -> TracedPutsPage:
        """At most `PAGE_MAX` puts after `sequence` of that incarnation; from the oldest for another one."""
        known = sequence if incarnation == self._incarnation else 0
        # Numbers are consecutive, so the place of the first one wanted is known.
        skipped = max(0, known - (self._sequence - len(self._puts)))
        puts = [self._puts[index] for index in range(skipped, min(len(self._puts), skipped + PAGE_MAX))]
        return TracedPutsPage(self._incarnation, puts)

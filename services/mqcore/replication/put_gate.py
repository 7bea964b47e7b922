"""Decides when a stored message may be acknowledged: enough slaves, and the disk, or a limit that passed.

Theory of operation. Puts come in log order, and the two things a put may wait for come in log order too, so each wait
is a deque that is released from its front. A report or a flush costs what it releases, however many puts wait behind:

- the *replica* wait ends when the k-th largest proven acknowledgement reaches the put's end (k = slaves needed);
- the *flush* wait ends when the flushed offset reaches the put's end.

A link's acknowledgement is proven from an offset on (`ProvenAck.proven_from_offset`); for a put that starts below it
the link does not count. Hence the puts are held in *spans*: all links proven from the span's floor or below count for
every put of the span, no other link counts for any. Within a span release is from the front again. A link that is
proven from the middle of the waiting puts cuts a span in two (`split_at`), once, when it starts; mostly there is one.

Limits are equal for all puts of a kind, so deadlines are in order across all spans. When both waits end badly the
replica's status wins, as in RocketMQ's CommitLog.handleDiskFlushAndHA (5.x).

What waits is bounded by the caller: nothing waits longer than its limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from mqcore.replication.events import PutCompleted
from mqcore.storage.put_status import PutStatus

__all__ = ["ProvenAck", "PutGate", "WaitingPut"]

_NOTHING: Final = -1

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK


class WaitingPut(NamedTuple):
    """A stored message, or batch, that waits: CommitLog bytes [start_offset, end_offset)."""

    token: int
    start_offset: int
    end_offset: int
    needs_flush: bool
    needs_slaves: bool


class ProvenAck(Protocol):
    """What one slave provably holds: [proven_from_offset, acked_offset)."""

    @property
    def proven_from_offset(self) -> int:
        """A put that starts below is not counted for this slave. 0: all that it acknowledges is proven."""

    @property
    def acked_offset(self) -> int:
        """End of the slave's log, as it reported."""


_Wait: TypeAlias = tuple[int, WaitingPut]  # deadline in monotonic ms, put


class _Span:
    """Waiting puts for which the same links count: those proven from `floor_offset` or below."""

    __slots__ = ("floor_offset", "waits")

    def __init__(self, floor_offset: int, waits: Iterable[_Wait] = ()) -> None:
        self.floor_offset = floor_offset
        self.waits: deque[_Wait] = deque(waits)


class PutGate:
    """The waiting puts of one master. No clock: times are monotonic ms given by the caller."""

    __slots__ = (
        "_completed",
        "_first_outcomes",
        "_flush_timeout_ms",
        "_flush_waits",
        "_needed_slaves",
        "_newest_waits",
        "_slave_timeout_ms",
        "_spans",
    )

    def __init__(self, *, needed_slaves: int, slave_timeout_ms: int, sync_flush_timeout_ms: int) -> None:
        self._needed_slaves = needed_slaves
        self._slave_timeout_ms = slave_timeout_ms
        self._flush_timeout_ms = sync_flush_timeout_ms
        self._spans = [_Span(0)]  # Never empty; the last one takes new puts.
        self._newest_waits = self._spans[-1].waits
        self._flush_waits: deque[_Wait] = deque()
        self._first_outcomes: dict[int, PutStatus] = {}  # By token: how the first wait of a put with two ended.
        self._completed: list[PutCompleted] = []

    def add(self, put: WaitingPut, *, now_ms: int) -> None:
        """Lets a put wait for what it needs, which is one thing at least. Puts come in log order."""
        if put.needs_slaves:
            self._newest_waits.append((now_ms + self._slave_timeout_ms, put))
            if not put.needs_flush:
                return
        self._flush_waits.append((now_ms + self._flush_timeout_ms, put))

    def add_without_slaves(self, put: WaitingPut, *, now_ms: int) -> None:
        """Lets a put that needs both wait for the flush, to complete as SLAVE_NOT_AVAILABLE."""
        self._first_outcomes[put.token] = PutStatus.SLAVE_NOT_AVAILABLE
        self._flush_waits.append((now_ms + self._flush_timeout_ms, put))

    def split_at(self, offset: int) -> None:
        """A link is proven from `offset` on, at or below the log's end: only puts from there on may count it."""
        spans = []
        for span in self._spans:
            if span.floor_offset >= offset:
                spans.append(span)
                continue
            spans.append(_Span(span.floor_offset, (wait for wait in span.waits if wait[1].start_offset < offset)))
            spans.append(_Span(offset, (wait for wait in span.waits if wait[1].start_offset >= offset)))
        self._keep_spans(spans)

    def slaves_hold(self, acks: Sequence[ProvenAck]) -> None:
        """Ends the replica wait of every put that enough slaves provably hold."""
        completed = self._completed
        emptied = False
        for span in self._spans:
            waits = span.waits
            if not waits:
                continue
            held_offset = self._held_by_enough(acks, span.floor_offset)
            while waits and waits[0][1].end_offset <= held_offset:
                put = waits.popleft()[1]
                if put.needs_flush:
                    self._end_wait(put, _PUT_OK)
                else:  # What `_end_wait` would do, without a call for each put of a SYNC_MASTER.
                    completed.append(PutCompleted(put.token, _PUT_OK))
            emptied = emptied or not waits
        if emptied and len(self._spans) > 1:
            self._keep_spans(self._spans)

    def flushed(self, flushed_offset: int) -> None:
        """Ends the flush wait of every put below `flushed_offset`."""
        waits = self._flush_waits
        while waits and waits[0][1].end_offset <= flushed_offset:
            self._end_wait(waits.popleft()[1], _PUT_OK)

    def next_deadline_ms(self) -> int | None:
        """When the next limit passes; None while nothing waits."""
        fronts = [span.waits[0][0] for span in self._spans if span.waits]
        if self._flush_waits:
            fronts.append(self._flush_waits[0][0])
        return min(fronts, default=None)

    def deadline_reached(self, *, now_ms: int) -> None:
        """Ends the waits whose limit has passed."""
        for span in self._spans:
            while span.waits and span.waits[0][0] <= now_ms:
                self._end_wait(span.waits.popleft()[1], PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._keep_spans(self._spans)
        while self._flush_waits and self._flush_waits[0][0] <= now_ms:
            self._end_wait(self._flush_waits.popleft()[1], PutStatus.FLUSH_DISK_TIMEOUT)

    def take_completed(self) -> list[PutCompleted]:
        """Puts that wait for nothing any more, in the order they came free."""
        completed, self._completed = self._completed, []
        return completed

    def _held_by_enough(self, acks: Sequence[ProvenAck], floor_offset: int) -> int:
        """The k-th largest acknowledgement among the links that count for a span."""
        held = [ack.acked_offset for ack in acks if ack.proven_from_offset <= floor_offset]
        if len(held) < self._needed_slaves:
            return _NOTHING
        held.sort()
        return held[-self._needed_slaves]

    def _keep_spans(self, spans: list[_Span]) -> None:
        self._spans = [span for span in spans[:-1] if span.waits] + spans[-1:]
        self._newest_waits = self._spans[-1].waits

    def _end_wait(self, put: WaitingPut, status: PutStatus) -> None:
        if put.needs_flush and put.needs_slaves:
            first = self._first_outcomes.pop(put.token, None)
            if first is None:
                self._first_outcomes[put.token] = status
                return
            status = _combined(first, status)
        self._completed.append(PutCompleted(put.token, status))


def _combined(first: PutStatus, second: PutStatus) -> PutStatus:
    """The status of a put whose two waits, replica and flush in either order, ended thus."""
    if first in (_PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT) and second is not _PUT_OK:
        return second
    return first

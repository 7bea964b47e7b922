"""Decides when a stored message may be acknowledged: enough slaves, and the disk, or a limit that passed.

Theory of operation. Puts come in log order, and the two things a put may wait for come in log order too, so each wait
is a queue that is released from its front. A report or a flush costs what it releases, however many puts wait behind:

- the *replica* wait ends when the k-th largest proven acknowledgement reaches the put's end (k = slaves needed), and,
  in a group that fails over, when each disk of the in-sync set has acknowledged it (`require`);
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

from collections.abc import Sequence
from typing import Final, Protocol

from tandemmq.core.storage.put_result import PutStatus

_NOTHING: Final = -1
_EVERYTHING: Final = 1 << 62
# A queue's front is cut off when so many are done. It is more than a read brings, so a queue mostly empties first.
_GONE_MAX: Final = 512

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK


class WaitingPut:
    """A stored message, or batch, that waits: CommitLog bytes [start_offset, end_offset).

    The caller subclasses it and adds what it needs to answer; the same object comes back.
    """

    __slots__ = ("end_offset", "first_outcome", "needs_flush", "needs_slaves", "since_ms", "start_offset", "status")

    def __init__(self, start_offset: int, end_offset: int, needs_flush: bool, needs_slaves: bool) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.needs_flush = needs_flush
        self.needs_slaves = needs_slaves
        self.status = _PUT_OK
        """What it came to, once it waits no more."""
        # The gate's: when it was added, and how the first wait of a put with two ended.
        self.since_ms = 0
        self.first_outcome: PutStatus | None = None


class ProvenAck(Protocol):
    """What one slave provably holds: [proven_from_offset, acked_offset)."""

    @property
    def proven_from_offset(self) -> int:
        """A put that starts below is not counted for this slave. 0: all that it acknowledges is proven."""

    @property
    def acked_offset(self) -> int:
        """End of the slave's log, as it reported."""

    @property
    def disk_id(self) -> str:
        """Of the disk that was verified for this link; empty: of none."""


class _Waits:
    """Puts in log order, taken from the front. A list, and how many at its front are gone: compiled, that is a fraction
    of a deque's cost."""

    __slots__ = ("_gone", "_puts")

    def __init__(self, puts: list[WaitingPut]) -> None:
        self._puts: list[WaitingPut | None] = [*puts]
        self._gone = 0

    def append(self, put: WaitingPut) -> None:
        self._puts.append(put)

    def front(self) -> WaitingPut | None:
        """The put that came first; None if no put waits."""
        return self._puts[self._gone] if self._gone < len(self._puts) else None

    def remove_front(self) -> None:
        gone = self._gone
        self._puts[gone] = None  # Messages are not kept for the list's sake.
        gone += 1
        if gone == len(self._puts):
            self._puts.clear()
            gone = 0
        elif gone >= _GONE_MAX and gone * 2 >= len(self._puts):
            del self._puts[:gone]
            gone = 0
        self._gone = gone

    def rest(self) -> list[WaitingPut]:
        """All of them, in order."""
        return [put for put in self._puts if put is not None]


class _Span:
    """Waiting puts for which the same links count: those proven from `floor_offset` or below."""

    __slots__ = ("floor_offset", "waits")

    def __init__(self, floor_offset: int, puts: list[WaitingPut]) -> None:
        self.floor_offset = floor_offset
        self.waits = _Waits(puts)


class PutGate:
    """The waiting puts of one master. No clock: times are monotonic ms given by the caller."""

    __slots__ = (
        "_completed",
        "_flush_timeout_ms",
        "_flush_waits",
        "_needed_slaves",
        "_newest_waits",
        "_required",
        "_slave_timeout_ms",
        "_spans",
    )

    def __init__(self, *, needed_slaves: int, slave_timeout_ms: int, sync_flush_timeout_ms: int) -> None:
        self._needed_slaves = needed_slaves
        self._required: frozenset[str] | None = None
        self._slave_timeout_ms = slave_timeout_ms
        self._flush_timeout_ms = sync_flush_timeout_ms
        self._spans = [_Span(0, [])]  # Never empty; the last one takes new puts.
        self._newest_waits = self._spans[-1].waits
        self._flush_waits = _Waits([])
        self._completed: list[WaitingPut] = []

    def add(self, put: WaitingPut, now_ms: int) -> None:
        """Lets a put wait for what it needs, which is one thing at least. Puts come in log order."""
        put.since_ms = now_ms
        if put.needs_slaves:
            self._newest_waits.append(put)
            if not put.needs_flush:
                return
        self._flush_waits.append(put)

    def add_without_slaves(self, put: WaitingPut, now_ms: int) -> None:
        """Lets a put that needs both wait for the flush, to complete as SLAVE_NOT_AVAILABLE."""
        put.since_ms = now_ms
        put.first_outcome = PutStatus.SLAVE_NOT_AVAILABLE
        self._flush_waits.append(put)

    def require(self, disk_ids: frozenset[str]) -> None:
        """From now on a replica wait ends only when all these disks hold the put, and only verified links count. Puts
        that wait already wait for them, too, and no more for others; `slaves_hold` tells which are free by that."""
        self._required = disk_ids

    def split_at(self, offset: int) -> None:
        """A link is proven from `offset` on, at or below the log's end: only puts from there on may count it."""
        spans = []
        for span in self._spans:
            if span.floor_offset >= offset:
                spans.append(span)
                continue
            puts = span.waits.rest()
            spans.append(_Span(span.floor_offset, [put for put in puts if put.start_offset < offset]))
            spans.append(_Span(offset, [put for put in puts if put.start_offset >= offset]))
        self._keep_spans(spans)

    def slaves_hold(self, acks: Sequence[ProvenAck]) -> None:
        """Ends the replica wait of every put that enough slaves provably hold."""
        completed = self._completed
        emptied = False
        for span in self._spans:
            waits = span.waits
            put = waits.front()
            if put is None:
                continue
            held_offset = self._held_by_enough(acks, span.floor_offset)
            while put is not None and put.end_offset <= held_offset:
                waits.remove_front()
                if put.needs_flush:
                    self._end_wait(put, _PUT_OK)
                else:  # What `_end_wait` would do, without a call for each put of a SYNC_MASTER.
                    completed.append(put)
                put = waits.front()
            emptied = emptied or put is None
        if emptied and len(self._spans) > 1:
            self._keep_spans(self._spans)

    def flushed(self, flushed_offset: int) -> None:
        """Ends the flush wait of every put below `flushed_offset`."""
        waits = self._flush_waits
        put = waits.front()
        while put is not None and put.end_offset <= flushed_offset:
            waits.remove_front()
            self._end_wait(put, _PUT_OK)
            put = waits.front()

    def next_deadline_ms(self) -> int | None:
        """When the next limit passes; None while nothing waits."""
        deadline_ms: int | None = None
        for span in self._spans:
            put = span.waits.front()
            if put is not None and (deadline_ms is None or put.since_ms + self._slave_timeout_ms < deadline_ms):
                deadline_ms = put.since_ms + self._slave_timeout_ms
        put = self._flush_waits.front()
        if put is not None and (deadline_ms is None or put.since_ms + self._flush_timeout_ms < deadline_ms):
            deadline_ms = put.since_ms + self._flush_timeout_ms
        return deadline_ms

    def deadline_reached(self, *, now_ms: int) -> None:
        """Ends the waits whose limit has passed."""
        for span in self._spans:
            self._end_overdue(span.waits, now_ms - self._slave_timeout_ms, PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._keep_spans(self._spans)
        self._end_overdue(self._flush_waits, now_ms - self._flush_timeout_ms, PutStatus.FLUSH_DISK_TIMEOUT)

    def take_completed(self) -> list[WaitingPut]:
        """Puts that wait for nothing any more, in the order they came free."""
        completed, self._completed = self._completed, []
        return completed

    def give_up(self) -> list[WaitingPut]:
        """Puts that wait, in log order; they wait no more."""
        puts = {put.start_offset: put for put in self._flush_waits.rest()}
        for span in self._spans:
            puts.update({put.start_offset: put for put in span.waits.rest()})
        self._spans = [_Span(self._spans[-1].floor_offset, [])]
        self._newest_waits = self._spans[-1].waits
        self._flush_waits = _Waits([])
        return [puts[start_offset] for start_offset in sorted(puts)]

    def _held_by_enough(self, acks: Sequence[ProvenAck], floor_offset: int) -> int:
        """The k-th largest acknowledgement among the links that count for a span."""
        if self._required is not None:
            return self._held_by_required(acks, floor_offset, self._required)
        held = [ack.acked_offset for ack in acks if ack.proven_from_offset <= floor_offset]
        if len(held) < self._needed_slaves:
            return _NOTHING
        held.sort()
        return held[-self._needed_slaves]

    def _held_by_required(self, acks: Sequence[ProvenAck], floor_offset: int, required: frozenset[str]) -> int:
        """The same where all of `required` have to hold it, and k verified slaves at least."""
        held: dict[str, int] = {}
        for ack in acks:
            if ack.disk_id and ack.proven_from_offset <= floor_offset:
                held[ack.disk_id] = ack.acked_offset
        held_offset = _EVERYTHING
        for disk_id in required:
            held_offset = min(held_offset, held.get(disk_id, _NOTHING))
        if self._needed_slaves:
            ends = sorted(held.values())
            enough = ends[-self._needed_slaves] if len(ends) >= self._needed_slaves else _NOTHING
            held_offset = min(held_offset, enough)
        return held_offset

    def _keep_spans(self, spans: list[_Span]) -> None:
        self._spans = [span for span in spans[:-1] if span.waits.front() is not None] + spans[-1:]
        self._newest_waits = self._spans[-1].waits

    def _end_overdue(self, waits: _Waits, since_ms: int, status: PutStatus) -> None:
        put = waits.front()
        while put is not None and put.since_ms <= since_ms:
            waits.remove_front()
            self._end_wait(put, status)
            put = waits.front()

    def _end_wait(self, put: WaitingPut, status: PutStatus) -> None:
        if put.needs_flush and put.needs_slaves:
            if put.first_outcome is None:
                put.first_outcome = status
                return
            status = _combined(put.first_outcome, status)
        put.status = status
        self._completed.append(put)


def _combined(first: PutStatus, second: PutStatus) -> PutStatus:
    """The status of a put whose two waits, replica and flush in either order, ended thus."""
    if first in (_PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT) and second is not _PUT_OK:
        return second
    return first

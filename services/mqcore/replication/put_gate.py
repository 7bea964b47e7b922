"""Decides when a stored message may be acknowledged: enough slaves, and the disk, or a limit that passed.

Puts enter in log order and mostly leave in log order, so both waits are deques walked from the front:

- the *replica* wait ends when the k-th largest proven acknowledgement reaches the put's end (k = slaves needed). A put
  that starts below a link's base was not sent on that link as a whole; such a link counts for it only if verified;
- the *flush* wait ends when the flushed offset reaches the put's end.

Limits are equal for all puts of a kind, so deadlines are in order too. When both waits end badly the replica's status
wins, as in RocketMQ's CommitLog.handleDiskFlushAndHA.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from mqcore.replication.events import PutCompleted
from mqcore.storage.put_status import PutStatus

__all__ = ["ProvenAck", "PutGate", "WaitingPut"]


class WaitingPut(NamedTuple):
    """A stored message, or batch, that waits: CommitLog bytes [start_offset, end_offset)."""

    token: int
    start_offset: int
    end_offset: int
    needs_flush: bool
    needs_slaves: bool


class ProvenAck(NamedTuple):
    """What one slave provably holds: [base_offset, acked_offset). A verified slave has base 0."""

    base_offset: int
    acked_offset: int


class _Entry:
    """One put with what it still waits for."""

    __slots__ = (
        "end_offset",
        "flush_deadline_ms",
        "open_waits",
        "slave_deadline_ms",
        "start_offset",
        "status",
        "token",
    )

    def __init__(self, put: WaitingPut, *, slave_deadline_ms: int, flush_deadline_ms: int) -> None:
        self.token = put.token
        self.start_offset = put.start_offset
        self.end_offset = put.end_offset
        self.slave_deadline_ms = slave_deadline_ms
        self.flush_deadline_ms = flush_deadline_ms
        self.open_waits = put.needs_flush + put.needs_slaves
        self.status = PutStatus.PUT_OK


class PutGate:
    """The waiting puts of one master. No clock: deadlines are monotonic ms given by the caller."""

    def __init__(self, *, needed_slaves: int, slave_timeout_ms: int, sync_flush_timeout_ms: int) -> None:
        self._needed_slaves = needed_slaves
        self._slave_timeout_ms = slave_timeout_ms
        self._sync_flush_timeout_ms = sync_flush_timeout_ms
        self._for_slaves: deque[_Entry] = deque()
        self._for_flush: deque[_Entry] = deque()
        self._completed: list[PutCompleted] = []

    def add(self, put: WaitingPut, *, now_ms: int) -> None:
        """Lets a put wait for what it needs; it needs at least one thing."""
        assert put.needs_flush or put.needs_slaves, "a put that waits for nothing is answered at once"
        entry = _Entry(
            put,
            slave_deadline_ms=now_ms + self._slave_timeout_ms,
            flush_deadline_ms=now_ms + self._sync_flush_timeout_ms,
        )
        if put.needs_slaves:
            self._for_slaves.append(entry)
        if put.needs_flush:
            self._for_flush.append(entry)

    def slaves_hold(self, acks: Iterable[ProvenAck]) -> None:
        """Releases the replica wait of every put that enough slaves provably hold.

        Cost: the puts released, plus one look at the first that is not.
        """
        waiting = self._for_slaves
        if not waiting:
            return
        known = sorted(acks, key=lambda ack: ack.acked_offset, reverse=True)
        needed = self._needed_slaves
        if len(known) < needed:
            return
        while waiting:
            entry = waiting[0]
            if known[needed - 1].acked_offset < entry.end_offset:
                return
            holders = sum(
                1 for ack in known if ack.base_offset <= entry.start_offset and ack.acked_offset >= entry.end_offset
            )
            if holders < needed:
                # Reported, but not proven for this one. A later put may be: it starts above the link's base.
                self._release_proven_behind(known)
                return
            waiting.popleft()
            self._close_wait(entry)

    def flushed(self, flushed_offset: int) -> None:
        """Releases the flush wait of every put below `flushed_offset`."""
        waiting = self._for_flush
        while waiting and waiting[0].end_offset <= flushed_offset:
            self._close_wait(waiting.popleft())

    def next_deadline_ms(self) -> int | None:
        """When the next limit passes."""
        deadlines = []
        if self._for_slaves:
            deadlines.append(self._for_slaves[0].slave_deadline_ms)
        if self._for_flush:
            deadlines.append(self._for_flush[0].flush_deadline_ms)
        return min(deadlines, default=None)

    def deadline_reached(self, *, now_ms: int) -> None:
        """Ends the waits whose limit has passed."""
        while self._for_slaves and self._for_slaves[0].slave_deadline_ms <= now_ms:
            entry = self._for_slaves.popleft()
            entry.status = PutStatus.FLUSH_SLAVE_TIMEOUT
            self._close_wait(entry)
        while self._for_flush and self._for_flush[0].flush_deadline_ms <= now_ms:
            entry = self._for_flush.popleft()
            if entry.status is PutStatus.PUT_OK:
                entry.status = PutStatus.FLUSH_DISK_TIMEOUT
            self._close_wait(entry)

    def take_completed(self) -> list[PutCompleted]:
        """Puts that wait for nothing any more, in the order they came free."""
        completed, self._completed = self._completed, []
        return completed

    def _release_proven_behind(self, known: list[ProvenAck]) -> None:
        """Releases puts behind a front that only a timeout or another slave can release."""
        needed = self._needed_slaves
        kept: deque[_Entry] = deque()
        for entry in self._for_slaves:
            holders = sum(
                1 for ack in known if ack.base_offset <= entry.start_offset and ack.acked_offset >= entry.end_offset
            )
            if holders >= needed:
                self._close_wait(entry)
            else:
                kept.append(entry)
        self._for_slaves = kept

    def _close_wait(self, entry: _Entry) -> None:
        entry.open_waits -= 1
        if entry.open_waits == 0:
            self._completed.append(PutCompleted(entry.token, entry.status))

"""Everything a master decides about its slaves and about the sends that wait for them.

Theory of operation. The shell accepts connections, moves bytes, and after each change takes events and transfers:

1. `submit` asks whether a stored message may be acknowledged. With fewer slaves in sync than needed the answer is
   SLAVE_NOT_AVAILABLE at once (RocketMQ 4.x; 5.x would wait out the limit). Otherwise the put waits in the `PutGate`.
2. `take_transfers` gives each slave what it lacks.
3. `receive_data` brings reports. A report is first checked, then counted, then the gate is asked.
4. A report is *proven* for a put when the put's bytes were all sent on that link, or when the slave's log was verified:
   over the metadata plane it stated the digest of its tail, `verified` remembered that end, and the link's first report
   is that end. A remembered end serves one connection and dies after `verified_end_lifetime_ms`.

Slaves are counted, not connections: a verified slave's new link replaces its old one. Nothing here lowers an
acknowledgement, and a slave that leaves takes its own with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.replication.errors import RemoteProtocolError
from mqcore.replication.events import (
    LinkClosed,
    MasterEvent,
    ReportRefused,
    SlaveFellBehind,
    SlaveInSync,
    SlaveStarted,
)
from mqcore.replication.frames import Transfer
from mqcore.replication.log_extent import ReplicatedLog
from mqcore.replication.master_session import MasterSession
from mqcore.replication.options import MasterOptions
from mqcore.replication.put_gate import PutGate, WaitingPut
from mqcore.storage.put_status import PutStatus

__all__ = ["MasterReplica", "SlaveView"]


@dataclass(frozen=True, slots=True)
class SlaveView:
    """One connected slave, for people."""

    link: int
    peer: str
    broker_id: int | None
    acked_offset: int
    lag_bytes: int
    in_sync: bool
    verified: bool


class MasterReplica:
    """A master's side of replication and of synchronous sends. No sockets, no clock; times are monotonic ms."""

    def __init__(self, log: ReplicatedLog, options: MasterOptions) -> None:
        self._log = log
        self._options = options
        self._gate = PutGate(
            needed_slaves=options.needed_slaves,
            slave_timeout_ms=options.slave_timeout_ms,
            sync_flush_timeout_ms=options.sync_flush_timeout_ms,
        )
        self._sessions: dict[int, MasterSession] = {}
        self._next_link = 1
        self._verified_ends: dict[int, tuple[int, int]] = {}  # end offset -> (broker id, expiry)
        self._events: list[MasterEvent] = []

    # Connections

    def slave_connected(self, peer: str, *, now_ms: int) -> int:
        """A slave connected; returns the link's id."""
        link = self._next_link
        self._next_link += 1
        self._sessions[link] = MasterSession(peer, self._log, self._options, now_ms=now_ms)
        return link

    def slave_disconnected(self, link: int, *, now_ms: int) -> None:
        """The link's connection is closed, by whichever side. Unknown links are fine."""
        self._sessions.pop(link, None)

    def receive_data(self, link: int, data: bytes, *, now_ms: int) -> None:
        """Bytes of a slave. A refusal becomes events; the link is then deaf and the shell closes it."""
        session = self._sessions.get(link)
        if session is None:
            return
        reported_offset = session.receive_data(data, now_ms=now_ms)
        if reported_offset is None or (reported_offset < 0 and not session.started):
            return
        try:
            if session.started:
                if session.acknowledge(reported_offset):
                    self._release()
            else:
                self._start(link, session, reported_offset, now_ms=now_ms)
        except RemoteProtocolError as error:
            self._events.append(ReportRefused(link, session.peer, reported_offset, str(error)))
            self._close(link, str(error), error.counter)
            return
        self._judge_lag(link, session)

    def take_transfers(self, link: int, *, budget_bytes: int, now_ms: int) -> list[Transfer]:
        """What to send on a link now; empty when there is nothing, or the link is gone."""
        session = self._sessions.get(link)
        if session is None:
            return []
        try:
            transfers = session.take_transfers(budget_bytes=budget_bytes, now_ms=now_ms)
        except RemoteProtocolError as error:
            self._close(link, str(error), error.counter)
            return []
        return transfers

    def verified(self, broker_id: int, end_offset: int, *, now_ms: int) -> None:
        """A slave proved that its log up to `end_offset` equals ours; its next connection will report that end."""
        expiry_ms = now_ms + self._options.verified_end_lifetime_ms
        self._verified_ends = {
            end: (owner, until) for end, (owner, until) in self._verified_ends.items() if until > now_ms
        }
        self._verified_ends[end_offset] = (broker_id, expiry_ms)

    # Sends

    def submit(self, put: WaitingPut, *, now_ms: int) -> PutStatus | None:
        """The status of a stored put, when it is known at once; None: a PutCompleted will tell."""
        needs_slaves = put.needs_slaves and self._options.needed_slaves > 0
        if needs_slaves and self._in_sync_count() < self._options.needed_slaves:
            # What is missing for certain is said at once; the disk is not waited for, as a better status cannot come.
            return PutStatus.SLAVE_NOT_AVAILABLE
        if not needs_slaves and not put.needs_flush:
            return PutStatus.PUT_OK
        if needs_slaves != put.needs_slaves:
            put = put._replace(needs_slaves=needs_slaves)
        self._gate.add(put, now_ms=now_ms)
        return None

    def flushed(self, flushed_offset: int, *, now_ms: int) -> None:
        """Everything below `flushed_offset` is on disk."""
        self._gate.flushed(flushed_offset)
        self._events += self._gate.take_completed()

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `deadline_reached` (and a pump of the links) is due although nothing happened."""
        deadlines = [session.next_deadline_ms() for session in self._sessions.values()]
        gate = self._gate.next_deadline_ms()
        if gate is not None:
            deadlines.append(gate)
        return min(deadlines, default=None)

    def deadline_reached(self, *, now_ms: int) -> None:
        """Ends waits that are over their limit and links that are silent; heartbeats come with `take_transfers`."""
        self._gate.deadline_reached(now_ms=now_ms)
        self._events += self._gate.take_completed()
        for link, session in list(self._sessions.items()):
            if session.is_silent(now_ms=now_ms):
                self._close(link, "nothing heard within haHousekeepingInterval", "slave_silent")
            elif session.started:
                self._judge_lag(link, session)

    # Views

    def take_events(self) -> list[MasterEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def slaves(self) -> list[SlaveView]:
        """Slaves that have reported."""
        return [
            SlaveView(
                link=link,
                peer=session.peer,
                broker_id=session.broker_id,
                acked_offset=session.acked_offset,
                lag_bytes=session.lag_bytes,
                in_sync=self._is_in_sync(session),
                verified=session.verified,
            )
            for link, session in self._sessions.items()
            if session.started
        ]

    # Inside

    def _start(self, link: int, session: MasterSession, reported_offset: int, *, now_ms: int) -> None:
        broker_id, expiry_ms = self._verified_ends.get(reported_offset, (None, 0))
        if broker_id is not None and expiry_ms <= now_ms:
            broker_id = None
        session.start(reported_offset, broker_id=broker_id)
        if broker_id is not None:
            del self._verified_ends[reported_offset]
            for other, known in list(self._sessions.items()):
                if other != link and known.broker_id == broker_id:
                    self._close(other, f"slave {broker_id} connected anew", "replaced")
        self._events.append(SlaveStarted(link, session.peer, session.base_offset, broker_id))
        self._release()

    def _release(self) -> None:
        self._gate.slaves_hold(session.proven for session in self._sessions.values() if session.started)
        self._events += self._gate.take_completed()

    def _is_in_sync(self, session: MasterSession) -> bool:
        return session.started and session.lag_bytes < self._options.max_gap_not_in_sync_bytes

    def _in_sync_count(self) -> int:
        return sum(1 for session in self._sessions.values() if self._is_in_sync(session))

    def _judge_lag(self, link: int, session: MasterSession) -> None:
        in_sync = self._is_in_sync(session)
        if in_sync != session.in_sync:
            session.in_sync = in_sync
            self._events.append(SlaveInSync(link) if in_sync else SlaveFellBehind(link))

    def _close(self, link: int, reason: str, counter: str) -> None:
        self._sessions.pop(link, None)
        self._events.append(LinkClosed(link, reason, counter))

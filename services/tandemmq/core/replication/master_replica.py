"""Everything a master decides about its slaves and about the sends that wait for them.

Theory of operation. The shell accepts connections, moves bytes, and after each change takes events and transfers:

1. `submit` asks whether a stored message may be acknowledged. With fewer slaves in sync than needed the answer is
   SLAVE_NOT_AVAILABLE, without a wait for slaves (RocketMQ 4.x; 5.x would wait out the limit). Otherwise the put waits
   in the `PutGate`.
2. `take_transfers` gives each slave what it lacks.
3. `receive_data` brings reports. A report is first checked, then counted, then the gate is asked.

What counts as an acknowledgement. A report is *proven* for a put when the put's bytes were all sent on that link, or
when the slave's log was verified: over the metadata plane it stated the digest of its tail and which connection is its
own, `verified` remembered both, and the first report on that connection is that end. A proof serves once, and soon.

With `proof_needed` a first report without a proof is refused: the metadata plane knows who proves by its certificate,
the wire knows nobody. `unproven_peers` are excepted.

Why a proof names its connection. Ends are often equal: of all slaves of a master that rests, of all that are empty.
Known by its end alone, one slave would pass for another, and its next connection would count beside its last one.

What counts as a slave. Slaves are counted, not connections: a verified slave's new link replaces its old one. A link of
unknown owner, a Java slave or one that came empty, could be a second link of a slave we count already, whose first link
died without a word. The same process never holds two at once, so bytes sent on the old link *after* the new one spoke
and acknowledged there do come from another slave; acknowledgements of older bytes may not. With two or more slaves
needed, such pairs count for bytes not sent yet only (`MasterSession.count_new_bytes_only`); puts in flight at that
moment may time out, which is the safe side.

Nothing here lowers an acknowledgement, and a slave that leaves takes its own with it.

What readers may see. In a group that fails over (`require`) that is what each disk of the in-sync set has acknowledged
(`confirmed_offset`): a message that only this log holds is gone when another becomes master. The bound never goes back.
What the set once held no member cuts; and who joins is no member before it holds all that was there when it began to.

In a group that fails over (`require`) a send waits for every disk of the in-sync set, and is never refused because one
of them is away: the set shrinks within seconds (`mastership.py`), or the wait ends at its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tandemmq.core.replication.frames import (
    LinkClosed,
    MasterEvent,
    MasterOptions,
    RemoteProtocolError,
    ReportRefused,
    SlaveFellBehind,
    SlaveInSync,
    SlaveStarted,
    Transfer,
)
from tandemmq.core.replication.log_history import ReplicatedLog
from tandemmq.core.replication.put_gate import PutGate, WaitingPut
from tandemmq.core.replication.sessions import MasterSession
from tandemmq.core.storage.put_result import PutStatus

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK
_EVERYTHING: Final = 1 << 62


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
    disk_id: str = ""
    """Of the disk that was verified; empty: of none."""
    holds_all: bool = False
    """What it acknowledges it has from the log's beginning on."""


class _Proof(NamedTuple):
    """The log of the slave at `peer` equals ours up to `end_offset`; good for a report before `expiry_ms`."""

    peer: str
    end_offset: int
    expiry_ms: int
    disk_id: str


class MasterReplica:
    """A master's side of replication and of synchronous sends. No sockets, no clock; times are monotonic ms."""

    def __init__(self, log: ReplicatedLog, options: MasterOptions) -> None:
        self._log = log
        self._options = options
        self._needed_slaves = options.needed_slaves
        self._required: frozenset[str] | None = None
        # As it was last asked for, or last might have gone back; of no use while nobody is required.
        self._confirmed_offset = 0
        self._gate = PutGate(
            needed_slaves=options.needed_slaves,
            slave_timeout_ms=options.slave_timeout_ms,
            sync_flush_timeout_ms=options.sync_flush_timeout_ms,
        )
        self._sessions: dict[int, MasterSession] = {}
        self._started: list[MasterSession] = []
        # A put that ends below has enough slaves near enough to wait for. Kept here because every send asks.
        self._waitable_offset = 0
        self._next_link = 1
        self._proofs: dict[int, _Proof] = {}  # by broker id
        self._events: list[MasterEvent] = []
        self._departed: dict[int, SlaveView] = {}  # by link, until the shell has closed it

    # Connections

    def slave_connected(self, peer: str, *, now_ms: int) -> int:
        """A slave connected, from its end `peer` of the connection, host:port; returns the link's id."""
        link = self._next_link
        self._next_link += 1
        self._sessions[link] = MasterSession(link, peer, self._log, self._options, now_ms=now_ms)
        return link

    def slave_disconnected(self, link: int, *, now_ms: int) -> SlaveView | None:
        """The link's connection is closed, by whichever side: how the slave was then, if it had reported.

        Unknown links are fine.
        """
        self._forget(link)
        return self._departed.pop(link, None)

    def receive_data(self, link: int, data: bytes, *, now_ms: int) -> None:
        """Bytes of a slave. A refusal becomes events; the link is then deaf and the shell closes it."""
        session = self._sessions.get(link)
        if session is None:
            return
        reported_offset = session.receive_data(data, now_ms=now_ms)
        if reported_offset is None:
            return
        try:
            if not session.started:
                self._start(session, reported_offset, now_ms=now_ms)
            elif session.acknowledge(reported_offset):
                self._acks_changed()
                self._release()
        except RemoteProtocolError as error:
            self._events.append(ReportRefused(link, session.peer, reported_offset, str(error)))
            self._close(link, error)
            return
        self._judge_lag(session)

    def take_transfers(self, link: int, *, budget_bytes: int, now_ms: int) -> list[Transfer]:
        """What to send on a link now; empty when there is nothing, or the link is gone.

        At least one frame, then more until `budget_bytes` (> 0) of bodies are reached. Taken frames count as sent: the
        shell sends them whole and in order, or closes the link.
        """
        session = self._sessions.get(link)
        if session is None:
            return []
        try:
            return session.take_transfers(budget_bytes=budget_bytes, now_ms=now_ms)
        except RemoteProtocolError as error:
            self._close(link, error)
            return []

    def verified(self, broker_id: int, end_offset: int, *, peer: str, now_ms: int, disk_id: str = "") -> None:
        """A slave proved that its log up to `end_offset` equals ours; its connection from `peer` will report that end.

        The connection may not have been accepted yet, but is open: nobody else can have one from there.
        """
        self._drop_expired_proofs(now_ms=now_ms)
        self._proofs[broker_id] = _Proof(peer, end_offset, now_ms + self._options.proof_lifetime_ms, disk_id)

    def require(self, disk_ids: frozenset[str]) -> None:
        """Sends wait for all these disks from now on, those that wait already, too."""
        if disk_ids == self._required:
            return
        if self._required is not None:
            self._confirmed_offset = min(self.confirmed_offset, self._log.end_offset)
        self._required = disk_ids
        self._gate.require(disk_ids)
        self._acks_changed()
        self._release()

    # Sends

    def submit(self, put: WaitingPut, now_ms: int) -> PutStatus | None:
        """The status of a stored put, when it is known at once; None: it will be among the events, with its status.

        Puts are submitted in log order, each before the next is appended. Constant cost.
        """
        if put.needs_slaves:
            if self._needed_slaves == 0 and not self._required:
                put.needs_slaves = False
            elif put.end_offset >= self._waitable_offset:
                if not put.needs_flush:
                    return PutStatus.SLAVE_NOT_AVAILABLE
                # RocketMQ's clients take this status for a success: it is not given before the disk has the message.
                self._gate.add_without_slaves(put, now_ms)
                return None
        if not put.needs_slaves and not put.needs_flush:
            return _PUT_OK
        self._gate.add(put, now_ms)
        return None

    def give_up_puts(self) -> list[WaitingPut]:
        """Puts that wait, or whose end nobody has been told yet, in log order; no event will tell of them."""
        puts = [event for event in self._events if isinstance(event, WaitingPut)]
        self._events = [event for event in self._events if not isinstance(event, WaitingPut)]
        return sorted(puts + self._gate.give_up(), key=_start_of)

    def flushed(self, flushed_offset: int, *, now_ms: int) -> None:
        """Everything below `flushed_offset` is on disk."""
        self._gate.flushed(flushed_offset)
        self._events += self._gate.take_completed()

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `deadline_reached`, and then `take_transfers` of each link, is due although nothing happened.

        A time long past when events wait to be taken: one may have come of taking transfers.
        """
        if self._events:
            return 0
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
            try:
                session.deadline_reached(now_ms=now_ms)
            except RemoteProtocolError as error:
                self._close(link, error)
            else:
                if session.started:
                    self._judge_lag(session)

    # Views

    @property
    def has_required(self) -> bool:
        """Other disks have to hold a message before anybody sees it."""
        return bool(self._required)

    @property
    def confirmed_offset(self) -> int:
        """Bytes of the log below it are on all disks that may be the next master's."""
        if not self._required:
            return _EVERYTHING
        held: dict[str, int] = {}
        for session in self._started:
            if session.disk_id and session.proven_from_offset <= self._log.min_offset:
                held[session.disk_id] = session.acked_offset
        confirmed_offset = min([held.get(disk_id, 0) for disk_id in self._required])
        self._confirmed_offset = max(self._confirmed_offset, confirmed_offset)
        return self._confirmed_offset

    def take_events(self) -> list[MasterEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def slaves(self) -> list[SlaveView]:
        """Slaves that have reported, in the order they did."""
        return [self._view(session) for session in self._started]

    def is_expected(self, link: int, *, now_ms: int) -> bool:
        """The link's slave has reported, or has proven that the connection is its own."""
        session = self._sessions.get(link)
        if session is None:
            return False
        proofs = self._proofs.values()
        return session.started or any(proof.peer == session.peer and proof.expiry_ms > now_ms for proof in proofs)

    def is_proven(self, link: int) -> bool:
        """The link's slave has reported what it had proven over the metadata plane, until it is closed."""
        session = self._sessions.get(link)
        if session is None:
            departed = self._departed.get(link)
            return departed is not None and departed.verified
        return session.verified

    def acked_offset(self, link: int) -> int:
        """What one slave acknowledged; -1 for an unknown link, and for one that has not reported."""
        session = self._sessions.get(link)
        return session.acked_offset if session is not None and session.started else -1

    # Inside

    def _start(self, session: MasterSession, reported_offset: int, *, now_ms: int) -> None:
        broker_id = self._proven_owner(session.peer, reported_offset, now_ms=now_ms)
        if broker_id is None and not self._options.takes_unproven(session.peer):
            raise RemoteProtocolError(
                "unproven_report",
                "no member of this group proved over the metadata plane, with its certificate, that this connection is "
                "its own and its log ends there",
            )
        disk_id = "" if broker_id is None else self._proofs[broker_id].disk_id
        session.start(reported_offset, broker_id=broker_id, disk_id=disk_id)
        self._events.append(SlaveStarted(session.link, session.peer, session.start_offset, broker_id))
        if broker_id is not None:
            del self._proofs[broker_id]
            for other in list(self._started):
                if other.broker_id == broker_id:
                    self._close(other.link, RemoteProtocolError("replaced", f"slave {broker_id} connected anew"))
        if self._needed_slaves > 1 and self._required is None:
            self._tell_apart(session)
        self._gate.split_at(session.proven_from_offset)
        self._started.append(session)
        self._acks_changed()
        self._release()

    def _tell_apart(self, newcomer: MasterSession) -> None:
        """Keeps one slave from being counted twice for a put; see the theory of operation."""
        for other in self._started:
            if other.verified and newcomer.verified:
                continue
            other.count_new_bytes_only()
            self._gate.split_at(other.proven_from_offset)

    def _acks_changed(self) -> None:
        needed = self._needed_slaves
        self._waitable_offset = 0
        if self._required is not None:
            verified = sum(1 for session in self._started if session.disk_id)
            # Members of the set are waited for, wherever they are; what is beyond them has to be there.
            if needed <= max(len(self._required), verified):
                self._waitable_offset = _EVERYTHING
        elif 0 < needed <= len(self._started):
            acked = sorted([session.acked_offset for session in self._started])
            self._waitable_offset = acked[-needed] + self._options.max_gap_not_in_sync_bytes

    def _release(self) -> None:
        self._gate.slaves_hold(self._started)
        self._events += self._gate.take_completed()

    def _is_in_sync(self, session: MasterSession) -> bool:
        return session.lag_bytes < self._options.max_gap_not_in_sync_bytes

    def _judge_lag(self, session: MasterSession) -> None:
        in_sync = self._is_in_sync(session)
        if in_sync != session.in_sync:
            session.in_sync = in_sync
            self._events.append(SlaveInSync(session.link) if in_sync else SlaveFellBehind(session.link))

    def _proven_owner(self, peer: str, reported_offset: int, *, now_ms: int) -> int | None:
        """The broker id of the slave that proved this report for this connection; None: nobody did."""
        self._drop_expired_proofs(now_ms=now_ms)
        for broker_id, proof in self._proofs.items():
            if proof.peer == peer and proof.end_offset == reported_offset:
                return broker_id
        return None

    def _drop_expired_proofs(self, *, now_ms: int) -> None:
        self._proofs = {owner: proof for owner, proof in self._proofs.items() if proof.expiry_ms > now_ms}

    def _close(self, link: int, cause: RemoteProtocolError) -> None:
        self._forget(link)
        self._events.append(LinkClosed(link, str(cause), cause.counter))

    def _forget(self, link: int) -> None:
        session = self._sessions.pop(link, None)
        if session is not None and session.started:
            self._confirmed_offset = min(self.confirmed_offset, self._log.end_offset)
            self._departed[link] = self._view(session)
            self._started.remove(session)
            self._acks_changed()

    def _view(self, session: MasterSession) -> SlaveView:
        return SlaveView(
            link=session.link,
            peer=session.peer,
            broker_id=session.broker_id,
            acked_offset=session.acked_offset,
            lag_bytes=session.lag_bytes,
            in_sync=self._is_in_sync(session),
            verified=session.verified,
            disk_id=session.disk_id,
            holds_all=session.verified and session.proven_from_offset <= self._log.min_offset,
        )


def _start_of(put: WaitingPut) -> int:
    return put.start_offset

"""From a send to its acknowledgement: append, ship, wait for slave and disk, answer.

All of it happens on the event loop, in the order *persist, then send, then acknowledge*:

1. `put` appends to the CommitLog and its ConsumeQueue and asks the replica what the send waits for;
2. once per turn of the loop, after all requests of that turn were appended, `_end_of_turn` starts the flush and sends
   the new bytes to every slave in one system call each: group commit without a timer;
3. a slave's report or a finished flush releases every send it covers, and their answers go out together.

No task, future or lock per message. What is measured of a put are three times, which the path needs anyway: when its
request was read, when it was appended, and when it may be answered. All else that a trace tells comes from the offsets
that flushes and reports bring (`broker.tracing.send_tracer`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import structlog

from broker.put_meter import PutMeter
from broker.tracing.send_tracer import PutOrigin, SendTracer
from mqcore.clock import Clock
from mqcore.message import OutgoingMessage
from mqcore.replication import (
    LinkClosed,
    MasterReplica,
    PutCompleted,
    ReportRefused,
    SlaveFellBehind,
    SlaveInSync,
    SlaveStarted,
    WaitingPut,
)
from mqcore.storage import AppendResult, DiskError, FlushDiskType, MessageStore, PutStatus
from mqservice.rpc import Call

__all__ = ["WritePath"]

log = structlog.get_logger(__name__)

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK
_NS_PER_MS: Final = 1_000_000

PutDone = Callable[[list[AppendResult]], None]
# Results and whom to tell; when the request was read (0: there is none) and when it was appended, in monotonic ns; what
# a trace needs, if there are any.
_Waiting: TypeAlias = tuple[list[AppendResult], PutDone, int, int, PutOrigin | None]


class ReplicationLinks(Protocol):
    """The connections to the slaves, as far as the write path moves them."""

    def pump(self) -> None:
        """Sends what is new to every slave."""

    def close_link(self, link: int, reason: str) -> None:
        """Drops a slave."""


class WritePath:
    """Owns the master's side of every put. Event loop only.

    `appended` is told the topic after each append, so that long polls wake. `answered` is told when a report or a flush
    has answered sends, so that the answers go out at once and together. `refusal` tells why puts are
    refused now, or returns None; `failed` is told of a disk that broke under a put.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        replica: MasterReplica,
        clock: Clock,
        flush_disk_type: FlushDiskType,
        waits_for_slaves: bool,
        kick_flush: Callable[[], None],
        appended: Callable[[str], None],
        answered: Callable[[], None],
        refusal: Callable[[], str | None],
        failed: Callable[[DiskError], None],
        meter: PutMeter | None = None,
        tracer: SendTracer | None = None,
    ) -> None:
        self._store = store
        self._replica = replica
        self._clock = clock
        self._sync_flush = flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waits_for_slaves = waits_for_slaves
        self._kick_flush = kick_flush
        self._appended = appended
        self._answered = answered
        self._refusal = refusal
        self._failed = failed
        self._meter = meter or PutMeter()
        self._tracer = tracer
        self._ha: ReplicationLinks | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_token = 1
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._ok_count = 0
        self._failed_counts: Counter[PutStatus] = Counter()
        self.refused_counts: Counter[str] = Counter()
        self.refused_report_count = 0

    @property
    def put_counts(self) -> dict[str, int]:
        """Messages by the status their sender was given, as far as there were any."""
        counts = {status.name: count for status, count in self._failed_counts.items()}
        return {_PUT_OK.name: self._ok_count, **counts} if self._ok_count else counts

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a slave or the disk."""
        return len(self._waiting)

    def attach(self, ha: ReplicationLinks) -> None:
        """Gives the listener whose slaves are served; before the first put."""
        self._ha = ha

    def put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        """Stores messages of one topic and calls `done` with their final results, at once or later.

        Nothing is acknowledged here that the role does not allow: a result is PUT_OK only when every copy and flush
        the settings ask for is had. `call` is what the messages came with, and `traceparents` are those that they had
        themselves.
        """
        received_ns = 0 if call is None else call.received_ns
        origin: PutOrigin | None = None
        if self._tracer is not None:
            origin = PutOrigin(messages, call, traceparents, self._clock.monotonic_ns())
        if self._refusal() is not None:
            self._refuse(messages, done, received_ns, origin)
            return
        try:
            if len(messages) == 1:
                results = [self._store.put(messages[0])]
            else:
                results = self._store.put_batch(messages)
        except DiskError as error:
            self._failed(error)
            self._refuse(messages, done, received_ns, origin)
            return
        first, last = results[0], results[-1]
        if last.status is not _PUT_OK:
            self._finish_at_once((results, done, received_ns, 0, origin), self._clock.monotonic_ns())
            return
        # The messages of one put go to one queue.
        message = messages[0]
        if origin is not None and self._tracer is not None:
            self._tracer.appended(origin, results)
        self._appended(message.topic)
        waits = message.wait_store_ok
        if not waits and len(messages) > 1:
            waits = any(message.wait_store_ok for message in messages)
        self._meter.stored(message.topic, len(messages), last.end_offset - first.physical_offset)
        token = self._next_token
        self._next_token += 1
        now_ns = self._clock.monotonic_ns()
        status = self._replica.submit(
            WaitingPut(  # by place: names cost more than the rest of the call
                token,
                first.physical_offset,
                last.end_offset,
                waits and self._sync_flush,
                waits and self._waits_for_slaves,
            ),
            now_ms=now_ns // _NS_PER_MS,
        )
        put = (results, done, received_ns, now_ns, origin)
        if status is None:
            self._waiting[token] = put
        else:
            self._settle(results, status)
            self._finish_at_once(put, now_ns)
        self._schedule_turn()

    def flushed(self) -> None:
        """The flush worker finished a job."""
        flushed_offset, now_ns = self._store.flushed_offset, self._clock.monotonic_ns()
        if self._tracer is not None:
            self._tracer.flushes.note(flushed_offset, now_ns)
        self._replica.flushed(flushed_offset, now_ms=now_ns // _NS_PER_MS)
        self.collect()

    def collect(self) -> None:
        """Acts on what the replica decided: answers sends, closes links, tells the operator; then pumps the slaves."""
        waiting = self._waiting
        waited_count = len(waiting)
        released_ns = 0
        for event in self._replica.take_events():
            if type(event) is PutCompleted:
                # One reading for all that are released together.
                released_ns = released_ns or self._clock.monotonic_ns()
                put = waiting.pop(event.token)
                if event.status is not _PUT_OK:
                    self._settle(put[0], event.status)
                elif self._waits_for_slaves:
                    self._meter.acknowledged(released_ns - put[3])
                self._finish(put, released_ns)
                continue
            match event:
                case LinkClosed(link, reason, counter):
                    self.refused_counts[counter] += 1
                    log.warning("slave_link_closed", link=link, reason=reason)
                    if self._ha is not None:
                        self._ha.close_link(link, reason)
                case ReportRefused(link, peer, offset, reason):
                    self.refused_report_count += 1
                    log.warning("slave_report_refused", link=link, slave=peer, reported_offset=offset, reason=reason)
                case SlaveStarted():
                    if self._tracer is not None:
                        self._tracer.slave_started(event.link, event.broker_id)
                    log.info(
                        "slave_started", slave=event.peer, start_offset=event.start_offset, broker_id=event.broker_id
                    )
                case SlaveInSync(link):
                    log.info("slave_in_sync", **self._slave_of(link))
                case SlaveFellBehind(link):
                    log.warning("slave_fell_behind", **self._slave_of(link))
        if len(waiting) != waited_count:
            self._answered()
            self._note_written()
        self._schedule_turn()

    def _slave_of(self, link: int) -> dict[str, str | int | None]:
        """Who it is, for the log."""
        for slave in self._replica.slaves():
            if slave.link == link:
                return {"slave": slave.peer, "broker_id": slave.broker_id, "lag_bytes": slave.lag_bytes}
        return {"link": link}

    def fail_all(self, status: PutStatus) -> None:
        """Ends every waiting send with `status`; the broker is stopping and no copy will come."""
        waiting, self._waiting = self._waiting, {}
        now_ns = self._clock.monotonic_ns()
        for put in waiting.values():
            self._settle(put[0], status)
            self._finish(put, now_ns)
        self._note_written()

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, results: list[AppendResult], status: PutStatus) -> None:
        if status is not _PUT_OK:
            for result in results:
                result.status = status

    def _refuse(
        self, messages: Sequence[OutgoingMessage], done: PutDone, received_ns: int, origin: PutOrigin | None
    ) -> None:
        results = [AppendResult.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        self._finish_at_once((results, done, received_ns, 0, origin), self._clock.monotonic_ns())

    def _finish_at_once(self, put: _Waiting, released_ns: int) -> None:
        """The answer is written at the end of this turn; what a trace shows of it is what it took to make."""
        self._finish(put, released_ns)
        self._note_written()

    def _finish(self, put: _Waiting, released_ns: int) -> None:
        """Answers, and only then measures."""
        results, done, received_ns, appended_ns, origin = put
        for result in results:
            if result.status is _PUT_OK:
                self._ok_count += 1
            else:
                self._failed_counts[result.status] += 1
        done(results)
        if received_ns:
            self._meter.answered(results[0].status, released_ns - received_ns, len(results))
        if self._tracer is not None and origin is not None:
            # Asked here, as for nearly all it is in vain, and a call costs more than the rest.
            is_slow = released_ns - received_ns > self._tracer.slow_ns
            if origin.place is not None or is_slow or results[0].status is not _PUT_OK:
                self._tracer.answered(origin, results, received_ns, appended_ns, released_ns)

    def _note_written(self) -> None:
        if self._tracer is not None and self._tracer.has_unwritten:
            self._tracer.replies_written(self._clock.monotonic_ns())

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._turn_scheduled = False
        if self._sync_flush:
            self._kick_flush()
        if self._ha is not None:
            self._ha.pump()
        self._arm_timer()

    def _arm_timer(self) -> None:
        """Keeps one timer at or before the replica's next deadline; a deadline that moved later is met by re-arming."""
        deadline_ms = self._replica.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.001, (deadline_ms - self._clock.monotonic_ms()) / 1000)
        self._timer_at_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        self._replica.deadline_reached(now_ms=self._clock.monotonic_ms())
        self.collect()

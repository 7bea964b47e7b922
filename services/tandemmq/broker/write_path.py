"""From a send to its acknowledgement: append, ship, wait for slave and disk, answer.

All of it happens on the event loop, in the order *persist, then send, then acknowledge*:

1. `put` appends to the CommitLog and its ConsumeQueue and asks the replica what the send waits for;
2. at the end of each turn of the loop, after all requests of that turn were appended, `_end_of_turn` writes them,
   starts the flush and sends the new bytes to every slave, in one system call each: group commit without a timer; sends
   that wait for nothing else are answered then;
3. a slave's report or a finished flush releases every send it covers, and their answers go out together.

No task, future or lock per message. What is measured of a put are three times, which the path needs anyway: when its
request was read, when it was appended, and when it may be answered. All else that a trace tells comes from the offsets
that flushes and reports bring (`tandemmq.broker.tracing.send_tracer`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tandemmq.broker.put import Put, PutAnswer, PutDone, PutMeter, answer_of
from tandemmq.broker.send_room import MESSAGE_WEIGHT_BITS, SendRoom
from tandemmq.core.clock import Clock
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.replication.frames import LinkClosed, ReportRefused, SlaveFellBehind, SlaveInSync, SlaveStarted
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.event_loop import LoopTurns
from tandemmq.service.http2_call import Http2Call
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.tracing.send_tracer import SendTracer
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK
_NS_PER_MS: Final = 1_000_000


class ReplicationLinks(Protocol):
    """The connections to the slaves, as far as the write path moves them."""

    def pump(self) -> None:
        """Sends what is new to every slave."""

    def close_link(self, link: int, reason: str) -> None:
        """Drops a slave."""

    def tell(self, write: Callable[..., object], event: str, link_id: int | None, **values: object) -> None:
        """Writes a line about a connection, unless strangers have had too many."""


class WritePath:
    """Owns the master's side of every put. Event loop only.

    `appended` is told the topic after each append, so that long polls wake. `answered` is told when a report, a
    flush or the end of a turn has answered sends, so that the answers go out at once and together. `refusal` tells why
    puts are refused now, or returns None; `may_answer`, once a turn, whether sends that wait for no slave are still
    this master's to acknowledge: it may have stood still since it took them. `failed` is told of a disk that broke
    under a put, and `written` of the log's end after each write, before anybody is answered. `room` is told when
    enough sends wait here, and when fewer do.
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
        may_answer: Callable[[], bool] | None = None,
        meter: PutMeter | None = None,
        tracer: SendTracer | None = None,
        turns: LoopTurns | None = None,
        written: Callable[[int], None] | None = None,
        room: SendRoom | None = None,
    ) -> None:
        self._store = store
        self._replica = replica
        self._clock = clock
        # As they are: asked for every put.
        self._monotonic_ns: Final = clock.monotonic_ns
        self._sync_flush = flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waits_for_slaves = waits_for_slaves
        self._kick_flush = kick_flush
        self._appended = appended
        self._answered = answered
        self._refusal = refusal
        self._may_answer = may_answer
        self._failed = failed
        self._meter = meter or PutMeter()
        self._tracer = tracer
        self._turns = turns or LoopTurns()
        self._written = written
        self.room: Final = room or SendRoom(self._turns.call_later)
        # Without either, sends wait for the end of the turn, and nobody for anybody.
        self._is_bounded: Final = self._sync_flush or waits_for_slaves
        self._ha: ReplicationLinks | None = None
        self.waiting_count = 0
        """Requests that wait for a slave, the disk, or the end of the turn."""
        self._waiting_weight = 0
        # The next turn of the loop begins with sends for which there was room in this one.
        self._is_making_room = False
        # Puts of this turn whose answers wait for nothing but its end.
        self._unheld: list[Put] = []
        # When the last put was appended.
        self._appended_ns = 0
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

    def attach(self, ha: ReplicationLinks) -> None:
        """Gives the listener whose slaves are served; before the first put."""
        self._ha = ha

    def put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        """Stores messages, all or none, and tells `done` their final results, at once or later.

        Nothing is acknowledged here that the role does not allow: a result is PUT_OK only when every copy and flush
        the settings ask for is had. `call` is what the messages came with, and `traceparents` are those that they had
        themselves.
        """
        answer = answer_of(done)
        received_ns = 0
        if call is not None:
            # For the compiler, which reads what a class it knows has without a search. Nearly all are of this one.
            received_ns = call.received_ns if isinstance(call, Http2Call) else call.received_ns  # noqa: RUF034
        begun_ns = -1
        if self._tracer is not None:
            begun_ns = self._tracer.begin(call, traceparents)
        is_traced = begun_ns >= 0
        if not is_traced:
            # What is not traced from the start does not pay for knowing exactly when its append begins.
            begun_ns = max(self._appended_ns, received_ns)
        if self._refusal() is not None:
            self._refuse(messages, answer, call, traceparents, received_ns, self._monotonic_ns())
            return
        try:
            if len(messages) == 1:
                results = [self._store.put(messages[0])]
            else:
                results = self._store.put_batch(messages)
        except DiskError as error:
            self._failed(error)
            self._refuse(messages, answer, call, traceparents, received_ns, begun_ns)
            return
        last = results[-1]
        now_ns = self._monotonic_ns()
        if last.status is not _PUT_OK:
            put = Put(results, False, False, answer, messages, call, traceparents, received_ns, begun_ns, 0)
            self._finish_at_once(put, now_ns)
            return
        self._appended_ns = now_ns
        # The messages of a client go to one queue; those of a release do not, and end with an op record.
        message = messages[0]
        waits = message.wait_store_ok
        if not waits and len(messages) > 1:
            waits = any(message.wait_store_ok for message in messages)
        put = Put(
            results,
            waits and self._sync_flush,
            waits and self._waits_for_slaves,
            answer,
            messages,
            call,
            traceparents,
            received_ns,
            begun_ns,
            now_ns,
        )
        if is_traced and self._tracer is not None:
            self._tracer.appended(put)
        if not self._turn_scheduled:
            # Before receives are woken, who look at the end of the turn, too: a slave has the longer way.
            self._schedule_turn()
        if len(messages) == 1 or messages[-1].topic == message.topic:
            self._appended(message.topic)
            self._meter.stored(message.topic, len(messages), put.end_offset - put.start_offset)
        else:
            self._appended_mixed(messages, results)
        self.waiting_count += 1
        self._waiting_weight += put.end_offset - put.start_offset + (len(messages) << MESSAGE_WEIGHT_BITS)
        if self._waiting_weight >= self.room.weight_max and self._is_bounded:
            self.room.is_full = True
        status = self._replica.submit(put, now_ns // _NS_PER_MS)
        if status is not None:
            self._settle(results, status)
            self._unheld.append(put)

    def _appended_mixed(self, messages: Sequence[OutgoingMessage], results: Sequence[AppendResult]) -> None:
        for topic in {message.topic for message in messages}:
            self._appended(topic)
        for message, result in zip(messages, results):
            self._meter.stored(message.topic, 1, result.end_offset - result.physical_offset)

    def flushed(self) -> None:
        """The flush worker finished a job."""
        flushed_offset, now_ns = self._store.flushed_offset, self._monotonic_ns()
        if self._tracer is not None:
            self._tracer.flushes.note(flushed_offset, now_ns)
        self._replica.flushed(flushed_offset, now_ms=now_ns // _NS_PER_MS)
        self.collect()

    def collect(self) -> None:
        """Acts on what the replica decided: answers sends, closes links, tells the operator; pumps the slaves if that
        may have come of something else than a report that releases sends, which makes nothing sendable.
        """
        answered_count = 0
        released_ns = 0
        events = self._replica.take_events()
        for event in events:
            if isinstance(event, Put):
                # One reading for all that are released together.
                released_ns = released_ns or self._monotonic_ns()
                answered_count += 1
                self.waiting_count -= 1
                self._waiting_weight -= (
                    event.end_offset - event.start_offset + (len(event.results) << MESSAGE_WEIGHT_BITS)
                )
                if event.status is not _PUT_OK:
                    self._settle(event.results, event.status)
                elif self._waits_for_slaves:
                    self._meter.acknowledged(released_ns - event.appended_ns)
                self._finish(event, released_ns)
                continue
            match event:
                case LinkClosed(link, reason, counter):
                    self.refused_counts[counter] += 1
                    self._tell(log.warning, "slave_link_closed", link, {"reason": reason})
                    if self._ha is not None:
                        self._ha.close_link(link, reason)
                case ReportRefused(link, peer, offset, reason):
                    self.refused_report_count += 1
                    refused = {"slave": peer, "reported_offset": offset, "reason": reason}
                    self._tell(log.warning, "slave_report_refused", link, refused)
                case SlaveStarted():
                    if self._tracer is not None:
                        self._tracer.slave_started(event.link, event.broker_id)
                    started = {
                        "slave": event.peer,
                        "start_offset": event.start_offset,
                        "broker_id": event.broker_id,
                    }
                    self._tell(log.info, "slave_started", event.link, started)
                case SlaveInSync(link):
                    self._tell(log.info, "slave_in_sync", link, self._slave_of(link))
                case SlaveFellBehind(link):
                    self._tell(log.warning, "slave_fell_behind", link, self._slave_of(link))
        if answered_count:
            self._answered()
            self._note_written()
            if self.room.is_full:
                self._make_room()
        if answered_count < len(events) or not events:
            self._schedule_turn()

    def _tell(self, write: Callable[..., object], event: str, link: int, values: Mapping[str, object]) -> None:
        if self._ha is None:
            write(event, link=link, **values)
        else:
            self._ha.tell(write, event, link, **values)

    def _slave_of(self, link: int) -> dict[str, str | int | None]:
        """Who it is, for the log; empty if it is gone."""
        for slave in self._replica.slaves():
            if slave.link == link:
                return {"slave": slave.peer, "broker_id": slave.broker_id, "lag_bytes": slave.lag_bytes}
        return {}

    def fail_all(self, status: PutStatus) -> None:
        """Ends every waiting send with `status`; the broker is stopping and no copy will come."""
        now_ns = self._monotonic_ns()
        for put in self._replica.give_up_puts():
            assert isinstance(put, Put), "a put of somebody else"
            self.waiting_count -= 1
            self._waiting_weight -= put.end_offset - put.start_offset + (len(put.results) << MESSAGE_WEIGHT_BITS)
            self._settle(put.results, status)
            self._finish(put, now_ns)
        self._answer_unheld(status)
        self._note_written()
        self.room.open()

    def _make_room(self) -> None:
        """Fewer wait than before."""
        if self._waiting_weight < self.room.weight_max and self.room.made() and not self._is_making_room:
            self._is_making_room = True
            self._turns.call_next(self._make_more_room)

    def _make_more_room(self) -> None:
        self._is_making_room = False
        if self.room.is_full:
            self._make_room()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, results: list[AppendResult], status: PutStatus) -> None:
        if status is not _PUT_OK:
            for result in results:
                result.status = status

    def _refuse(
        self,
        messages: Sequence[OutgoingMessage],
        answer: PutAnswer,
        call: Call | None,
        traceparents: Sequence[str],
        received_ns: int,
        begun_ns: int,
    ) -> None:
        results = [AppendResult.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        put = Put(results, False, False, answer, messages, call, traceparents, received_ns, begun_ns, 0)
        self._finish_at_once(put, self._monotonic_ns())

    def _finish_at_once(self, put: Put, released_ns: int) -> None:
        """The answer is written at the end of this turn; what a trace shows of it is what it took to make."""
        self._finish(put, released_ns)
        self._note_written()

    def _finish(self, put: Put, released_ns: int) -> None:
        """Answers, and only then measures."""
        results = put.results
        for result in results:
            if result.status is _PUT_OK:
                self._ok_count += 1
            else:
                self._failed_counts[result.status] += 1
        put.answer.answer(results)
        took_ns = released_ns - put.received_ns
        if put.received_ns:
            self._meter.answered(results[0].status, took_ns, len(results))
        # Asked here, as for nearly all it is in vain.
        if self._tracer is not None and (
            put.place is not None or took_ns > self._tracer.slow_ns or results[0].status is not _PUT_OK
        ):
            self._tracer.answered(put, released_ns)

    def _note_written(self) -> None:
        if self._tracer is not None and self._tracer.has_unwritten:
            self._tracer.replies_written(self._monotonic_ns())

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._turns.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._turn_scheduled = False
        try:
            self._store.write_appended()
        except DiskError as error:
            self._failed(error)
            self._answer_unheld(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        if self._written is not None:
            self._written(self._store.end_offset)
        if self._sync_flush:
            self._kick_flush()
        if self._ha is not None:
            self._ha.pump()
        if self._unheld:
            is_ours = self._may_answer is None or self._may_answer()
            self._answer_unheld(_PUT_OK if is_ours else PutStatus.SERVICE_NOT_AVAILABLE)
            self._answered()
            self._note_written()
            if self.room.is_full:
                self._make_room()
        self._arm_timer()

    def _answer_unheld(self, status: PutStatus) -> None:
        """`status`: _PUT_OK leaves each what it has."""
        puts, self._unheld = self._unheld, []
        now_ns = self._monotonic_ns()
        for put in puts:
            self.waiting_count -= 1
            self._waiting_weight -= put.end_offset - put.start_offset + (len(put.results) << MESSAGE_WEIGHT_BITS)
            self._settle(put.results, status)
            self._finish(put, now_ns)

    def _arm_timer(self) -> None:
        """Keeps one timer at or before the replica's next deadline; a deadline that moved later is met by re-arming."""
        deadline_ms = self._replica.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.001, (deadline_ms - self._clock.monotonic_ms()) / 1000)
        self._timer_at_ms = deadline_ms
        self._timer = self._turns.call_later(delay_s, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        self._replica.deadline_reached(now_ms=self._clock.monotonic_ms())
        self.collect()
        # Heartbeats, and the next deadline.
        self._schedule_turn()

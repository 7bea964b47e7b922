"""From a send to its acknowledgement: append, ship, wait for slave and disk, answer.

All of it happens on the event loop, in the order *persist, then send, then acknowledge*:

1. `put` appends to the CommitLog and its ConsumeQueue and asks the replica what the send waits for;
2. once per turn of the loop, after all requests of that turn were appended, `_end_of_turn` starts the flush and sends
   the new bytes to every slave in one system call each: group commit without a timer;
3. a slave's report or a finished flush releases every send it covers, and their answers go out together.

No task, future or lock per message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

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

__all__ = ["WritePath"]

log = structlog.get_logger(__name__)

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK

PutDone = Callable[[list[AppendResult]], None]


class ReplicationLinks(Protocol):
    """The connections to the slaves, as far as the write path moves them."""

    def pump(self) -> None:
        """Sends what is new to every slave."""

    def close_link(self, link: int) -> None:
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
        self._ha: ReplicationLinks | None = None
        self._waiting: dict[int, tuple[list[AppendResult], PutDone]] = {}
        self._next_token = 1
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._ok_count = 0
        self._failed_counts: Counter[PutStatus] = Counter()
        self.refused_counts: Counter[str] = Counter()

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

    def put(self, messages: Sequence[OutgoingMessage], done: PutDone) -> None:
        """Stores messages of one topic and calls `done` with their final results, at once or later.

        Nothing is acknowledged here that the role does not allow: a result is PUT_OK only when every copy and flush
        the settings ask for is had.
        """
        if self._refusal() is not None:
            self._finish([AppendResult.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages], done)
            return
        try:
            if len(messages) == 1:
                results = [self._store.put(messages[0])]
            else:
                results = self._store.put_batch(messages)
        except DiskError as error:
            self._failed(error)
            self._finish([AppendResult.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages], done)
            return
        first, last = results[0], results[-1]
        if last.status is not _PUT_OK:
            self._finish(results, done)
            return
        # The messages of one put go to one queue.
        message = messages[0]
        self._appended(message.topic)
        waits = message.wait_store_ok
        if not waits and len(messages) > 1:
            waits = any(message.wait_store_ok for message in messages)
        token = self._next_token
        self._next_token += 1
        status = self._replica.submit(
            WaitingPut(  # by place: names cost more than the rest of the call
                token,
                first.physical_offset,
                last.end_offset,
                waits and self._sync_flush,
                waits and self._waits_for_slaves,
            ),
            now_ms=self._clock.monotonic_ms(),
        )
        if status is None:
            self._waiting[token] = (results, done)
        else:
            self._settle(results, status)
            self._finish(results, done)
        self._schedule_turn()

    def flushed(self) -> None:
        """The flush worker finished a job."""
        self._replica.flushed(self._store.flushed_offset, now_ms=self._clock.monotonic_ms())
        self.collect()

    def collect(self) -> None:
        """Acts on what the replica decided: answers sends, closes links, tells the operator; then pumps the slaves."""
        waiting = self._waiting
        waited_count = len(waiting)
        for event in self._replica.take_events():
            if type(event) is PutCompleted:
                results, done = waiting.pop(event.token)
                if event.status is not _PUT_OK:
                    self._settle(results, event.status)
                self._finish(results, done)
                continue
            match event:
                case LinkClosed(link, reason, counter):
                    self.refused_counts[counter] += 1
                    log.warning("slave_link_closed", link=link, reason=reason)
                    if self._ha is not None:
                        self._ha.close_link(link)
                case ReportRefused(link, peer, offset, reason):
                    log.warning("slave_report_refused", link=link, slave=peer, reported_offset=offset, reason=reason)
                case SlaveStarted():
                    log.info(
                        "slave_started", slave=event.peer, start_offset=event.start_offset, broker_id=event.broker_id
                    )
                case SlaveInSync():
                    log.info("slave_in_sync", link=event.link)
                case SlaveFellBehind():
                    log.warning("slave_fell_behind", link=event.link)
        if len(waiting) != waited_count:
            self._answered()
        self._schedule_turn()

    def fail_all(self, status: PutStatus) -> None:
        """Ends every waiting send with `status`; the broker is stopping and no copy will come."""
        waiting, self._waiting = self._waiting, {}
        for results, done in waiting.values():
            self._settle(results, status)
            self._finish(results, done)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, results: list[AppendResult], status: PutStatus) -> None:
        if status is not _PUT_OK:
            for result in results:
                result.status = status

    def _finish(self, results: list[AppendResult], done: PutDone) -> None:
        for result in results:
            if result.status is _PUT_OK:
                self._ok_count += 1
            else:
                self._failed_counts[result.status] += 1
        done(results)

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

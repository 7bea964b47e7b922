"""Messages that are to be delivered later (RocketMQ's DELAY messages): held as timers, delivered when due, recalled.

A send stores the message in `rmq_sys_wheel_timer` with the topic and queue it is for, as RocketMQ's
HookUtils.handleScheduleMessage does. On the master one task delivers what is due: a batch of copies, each with the
original's properties, and the op record that finishes their timers, in one put (`timers`). A recall puts the op
record alone. Whichever of the two is in the log first has won; a message is never both recalled and delivered.

Never early: a timer is due when the master's wall clock shows the asked millisecond, also after it was set back. A
timer whose record is as old as files are kept is rolled: put again as a new timer, in one put with the end of the old
one. So a long delay does not keep the whole log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

import structlog

from tandemmq.broker.message_timers import RELEASE_BYTES_MAX, MessageTimers
from tandemmq.broker.put import PutMessages
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.timer_queue import RecallKey, recall_key
from tandemmq.core.histogram import Histogram
from tandemmq.core.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    encode_properties,
    java_map_order,
)
from tandemmq.core.message.record import TIMER_TOPIC, MessageRecord, OutgoingMessage, copy_of_record
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.storage.put_result import AppendResult, PutStatus

log = structlog.get_logger(__name__)

LATENESS_BOUNDS_S: Final[tuple[float, ...]] = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)
_BATCH: Final = 128
_OUT_MAX: Final = 4_096
"""MessageTimers on their way to being delivered: what waits for slaves, in memory."""
_LOOK_S: Final = 0.5
"""A clock that is set is noticed so late at most."""
_PAUSE_MIN_S: Final = 0.002
_REFUSED_PAUSE_S: Final = 0.5
_RETRY_MS: Final = 1_000
_UNREADABLE_RETRY_MS: Final = 10_000
_ROLL_INTERVAL_MS: Final = 10_000
_ROLLED_AT_ONCE: Final = 128
_ROLL_MARGIN_MS: Final = 600_000
"""What is due so soon is not rolled any more."""
_PRECISION_MS: Final = 1_000
"""RocketMQ's timerPrecisionMs."""
_JAVA_MAP_CAPACITY: Final = 128
_CONFIRMED_RECALLS_MAX: Final = 10_000
_HELD_NAMES: Final = frozenset({PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID})


class RecallRefusal(StrEnum):
    """Why a recall changes nothing."""

    NOT_WAITING = "the message was delivered or recalled before, or its time has come"
    RECALLED_BEFORE = "the message was recalled before; it is never delivered"


@lru_cache(maxsize=1_024)
def _ordered(names: tuple[str, ...]) -> list[str]:
    return java_map_order(names, capacity=_JAVA_MAP_CAPACITY)


def timer_message(message: OutgoingMessage, deliver_ms: int, *, is_held: bool) -> OutgoingMessage:
    """The same message with its delivery time. `is_held`: as it waits; else as it is delivered at once, because that
    time has passed. Its properties stand in RocketMQ's order."""
    properties = decode_properties(message.properties)
    properties[PROPERTY_TIMER_DELIVER_MS] = str(deliver_ms)
    if is_held:
        # Rounded down, and a precision earlier if there is nothing to round: brokers of RocketMQ deliver one later.
        properties[PROPERTY_TIMER_OUT_MS] = str((deliver_ms - 1) // _PRECISION_MS * _PRECISION_MS)
        properties[PROPERTY_REAL_TOPIC] = message.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
        message.topic, message.queue_id = TIMER_TOPIC, 0
    message.properties = encode_properties([(name, properties[name]) for name in _ordered(tuple(properties))])
    return message


def delivered_copy(record: MessageRecord, topics: TopicTable) -> OutgoingMessage | None:
    """What consumers get of a timer record; None: it does not say for which topic it is."""
    properties = decode_properties(record.properties)
    topic, queue_text = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic:
        return None
    queue_id = int(queue_text) if queue_text.isdigit() else 0
    config = topics.get(topic)
    if config is not None and queue_id >= config.read_queue_count > 0:
        queue_id %= config.read_queue_count  # The topic has fewer queues than when it was sent.
    kept = {name: value for name, value in properties.items() if name not in _HELD_NAMES}
    return _copy(record, topic, queue_id, kept)


def _rolled(record: MessageRecord) -> OutgoingMessage:
    """The timer once more, at the log's end; it counts how often, if there is room for that."""
    properties = decode_properties(record.properties)
    times = properties.get(PROPERTY_TIMER_ROLL_TIMES, "0")
    counted = properties | {PROPERTY_TIMER_ROLL_TIMES: str(int(times) + 1 if times.isdigit() else 1)}
    copy = _copy(record, record.topic, 0, counted)
    return copy if len(copy.properties) <= MAX_PROPERTIES_BYTES else _copy(record, record.topic, 0, properties)


def _copy(record: MessageRecord, topic: str, queue_id: int, properties: dict[str, str]) -> OutgoingMessage:
    return copy_of_record(
        record,
        topic,
        queue_id,
        properties,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.physical_offset,
    )


class DelayedMessages:
    """Delivers and recalls what `timers` holds, by `put`, as a master. Event loop only."""

    def __init__(
        self,
        timers: MessageTimers,
        *,
        clock: Clock,
        topics: TopicTable,
        put: PutMessages,
        roll_after_ms: int,
        batch_bytes_max: int = RELEASE_BYTES_MAX,
    ) -> None:
        self.timers: Final = timers
        self._queue: Final = timers.queue
        self._clock = clock
        self._topics = topics
        self._put = put
        self._roll_after_ms = roll_after_ms
        self._batch_bytes_max = min(batch_bytes_max, RELEASE_BYTES_MAX)
        self._changed: Final = asyncio.Event()
        self._next_roll_ms = 0
        self._is_refused = False
        self._must_pause = False
        self._recalls: Final[dict[RecallKey, asyncio.Task[PutStatus | RecallRefusal]]] = {}
        """Under way: as many as callers wait for."""
        self._confirmed_recalls: Final[dict[RecallKey, None]] = {}
        self.delivered_count = 0
        self.recalled_count = 0
        self.rolled_count = 0
        self.lateness_s: Final = Histogram(LATENESS_BOUNDS_S)
        """From when a message was due to when it was in the log of its topic."""

    @property
    def waiting_count(self) -> int:
        """MessageTimers neither delivered nor recalled."""
        return self._queue.waiting_count

    @property
    def next_due_ms(self) -> int | None:
        """When the next of them is due, early by a minute at most while it is far; None: none waits."""
        return self._queue.next_due_ms

    @property
    def overdue_ms(self) -> int:
        """How long the first that is due has been so, and is not delivered."""
        next_due_ms = self._queue.next_due_ms
        return 0 if next_due_ms is None else max(0, self._clock.wall_ms() - next_due_ms)

    def changed(self) -> None:
        """A timer was put."""
        self._changed.set()

    async def run(self) -> None:
        """Delivers until cancelled: a task of the master. What was given out then is given out again by the next."""
        try:
            while True:
                self._changed.clear()
                is_busy = await self.deliver_due()
                if self._must_pause:
                    self._must_pause = False
                    await asyncio.sleep(_REFUSED_PAUSE_S)
                elif is_busy:
                    await asyncio.sleep(0)
                else:
                    await self._wait()
        finally:
            self._queue.put_back_all()

    async def deliver_due(self) -> bool:
        """Puts some of what is due; False: nothing is, or as much as may be is under way."""
        if not await self.timers.follow():
            return False
        self.timers.put_owed(self._put)
        room = min(_BATCH, _OUT_MAX - self._queue.out_count)
        due = self._queue.take_due(self._clock.wall_ms(), room) if room > 0 else []
        if due:
            await self._deliver(due)
        else:
            await self._roll_if_due()
        return bool(due)

    async def _wait(self) -> None:
        next_due_ms = self._queue.next_due_ms
        seconds = _LOOK_S
        if next_due_ms is not None:
            seconds = min(_LOOK_S, max(_PAUSE_MIN_S, (next_due_ms - self._clock.wall_ms()) / 1_000))
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    # Delivery

    async def _deliver(self, offsets: Sequence[int]) -> None:
        records = await self.timers.records(offsets)
        now_ms = self._clock.wall_ms()
        copies: list[OutgoingMessage] = []
        copied: list[int] = []
        size = 0
        for offset, record in zip(offsets, records):
            copy = None if record is None else delivered_copy(record, self._topics)
            if copy is None:
                log.error(
                    "timer_unreadable", queue_offset=offset, remedy="none: it is tried again, and mended meanwhile"
                )
                self._queue.put_back(offset, now_ms + _UNREADABLE_RETRY_MS)
                continue
            copy_bytes = len(copy.body) + len(copy.properties) + 256
            if copies and size + copy_bytes > self._batch_bytes_max:
                self._release(copies, copied, now_ms)
                copies, copied, size = [], [], 0
            copies.append(copy)
            copied.append(offset)
            size += copy_bytes
        if copies:
            self._release(copies, copied, now_ms)

    def _release(self, copies: list[OutgoingMessage], offsets: list[int], now_ms: int) -> None:
        dues_ms = [self._queue.due_ms(offset) or now_ms for offset in offsets]

        def done(results: list[AppendResult]) -> None:
            if not results[0].status.stored:
                self._refused(results[0].status)
                return
            self._is_refused = False
            self.delivered_count += len(copies)
            for due_ms, result in zip(dues_ms, results):
                self.lateness_s.observe(max(0, result.store_timestamp_ms - due_ms) / 1_000)
            self._changed.set()

        self.timers.release(copies, offsets, put=self._put, retry_ms=now_ms + _RETRY_MS, done=done)

    def _refused(self, status: PutStatus) -> None:
        if not self._is_refused:
            log.warning(
                "timers_refused", status=status.name, remedy="none: they are delivered once puts are taken again"
            )
        self._is_refused = True

    # Rolling

    async def _roll_if_due(self) -> None:
        now_ms = self._clock.wall_ms()
        if self._clock.monotonic_ms() < self._next_roll_ms:
            return
        self._next_roll_ms = self._clock.monotonic_ms() + _ROLL_INTERVAL_MS
        lowest = self._queue.lowest_offset
        if lowest is None or not await self._is_old(lowest, now_ms):
            return
        for offset in self._queue.lowest_offsets(_ROLLED_AT_ONCE):
            due_ms = self._queue.due_ms(offset)
            if due_ms is not None and due_ms > now_ms + _ROLL_MARGIN_MS:
                await self._roll(offset, due_ms, now_ms)
                self._next_roll_ms = 0  # There may be more.

    async def _is_old(self, offset: int, now_ms: int) -> bool:
        [record] = await self.timers.records([offset])
        return record is not None and record.store_timestamp_ms + self._roll_after_ms < now_ms

    async def _roll(self, offset: int, due_ms: int, now_ms: int) -> None:
        [record] = await self.timers.records([offset])
        if record is None or record.store_timestamp_ms + self._roll_after_ms >= now_ms:
            return
        # Not before: a recall would not find it while its record is read.
        if not self._queue.take(offset):
            return

        def done(results: list[AppendResult]) -> None:
            if results[0].status.stored:
                self.rolled_count += 1

        self.timers.release([_rolled(record)], [offset], put=self._put, retry_ms=due_ms, done=done)

    # Recall

    async def recall(self, topic: str, deliver_ms: int, message_id: str) -> PutStatus | RecallRefusal:
        """Ends the timers of a message before their time. What became of the op record; PUT_OK: it is never delivered.
        Several timers are ended if the sender repeated itself.

        Who asks again while the first answer is on its way gets the same one. Who asks again as it was not confirmed
        has it confirmed: another op record, behind the first one, waits for slaves and disk.
        """
        key = recall_key(topic, deliver_ms, message_id)
        under_way = self._recalls.get(key)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_task(self._recall(topic, deliver_ms, message_id, key))
            self._recalls[key] = under_way
            under_way.add_done_callback(lambda _: self._recalls.pop(key))
        return await asyncio.shield(under_way)

    async def _recall(self, topic: str, deliver_ms: int, message_id: str, key: RecallKey) -> PutStatus | RecallRefusal:
        if not await self.timers.follow():
            return PutStatus.SERVICE_NOT_AVAILABLE
        offsets: list[int] = []
        if deliver_ms > self._clock.wall_ms():
            offsets = await self._take(topic, deliver_ms, message_id)
        if offsets:
            self._confirmed_recalls.pop(key, None)  # It was sent once more.
        else:
            if not self._queue.is_recalled(key):
                return RecallRefusal.NOT_WAITING
            if key in self._confirmed_recalls:
                return RecallRefusal.RECALLED_BEFORE
        settled: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def done(results: list[AppendResult]) -> None:
            if results[0].status is PutStatus.PUT_OK:
                self.recalled_count += max(1, len(offsets))
                self._confirmed(key)
            if not settled.done():
                settled.set_result(results[0].status)

        self.timers.release((), offsets, put=self._put, retry_ms=deliver_ms, done=done, recalled=key)
        return await settled

    async def _take(self, topic: str, deliver_ms: int, message_id: str) -> list[int]:
        """Its timers, given out."""
        taken = [offset for offset in self._queue.find(deliver_ms, message_id) if self._queue.take(offset)]
        found: list[int] = []
        for offset, record in zip(taken, await self.timers.records(taken)):
            properties = {} if record is None else decode_properties(record.properties)
            if properties.get(PROPERTY_UNIQUE_KEY) == message_id and properties.get(PROPERTY_REAL_TOPIC) == topic:
                found.append(offset)
            else:
                self._queue.put_back(offset, deliver_ms)
        return found

    def _confirmed(self, key: RecallKey) -> None:
        self._confirmed_recalls[key] = None
        if len(self._confirmed_recalls) > _CONFIRMED_RECALLS_MAX:
            del self._confirmed_recalls[next(iter(self._confirmed_recalls))]

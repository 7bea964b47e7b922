"""The timers of this broker: followed in every role, released by a master.

    run()                 a task of the broker, from its start to its stop
    take_over()           a master that begins: knows all, and finishes what its predecessor had half released
    queue.take_due(...)   what may be released now (or `queue.take`, for a recall)
    records(...)          their records, from a disk that may be slow
    release(...)          copies and op record in one put

Why one put is enough. Copies and op record are appended as one run of bytes. A log can lose its end, and then it may
end between a copy and the op record; never can something else lie between them. So a new master looks at the last
`RELEASE_WINDOW_BYTES` of its log, behind the last op record: a copy there whose timer still waits was delivered.
It puts the op record first of all, before anything else is appended. A copy names its timer by the field
`preparedTransactionOffset` of its record: that message's place in the log, as RocketMQ writes it for committed
transactions. A timer that is put again, to be younger, is a copy like any other.

A put that was stored, but not confirmed by slaves in time, is as good as any: copy and op record are in the log or are
lost together. Only what was refused is given out again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.put import PutDone, PutMessages
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.delivery.timer_queue import OP_TAG, RecallKey, TimerQueue, op_body, recall_properties
from tandemmq.core.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    encode_properties,
    tags_code,
)
from tandemmq.core.message.record import TIMER_OP_TOPIC, TIMER_TOPIC, Host, MessageRecord, OutgoingMessage
from tandemmq.core.storage.consume_queue import ConsumeQueue, first_false
from tandemmq.core.storage.disk import Disk, DiskError, RecordCorrupt
from tandemmq.core.storage.put_result import AppendResult

if TYPE_CHECKING:
    from tandemmq.broker.queries.stored_records import Pages
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

RELEASE_BYTES_MAX: Final = 1 << 20
"""Of the copies of one put, unless it is one copy."""
RELEASE_WINDOW_BYTES: Final = 2 << 20
"""Every copy of the last put ends in so much of the log: room for heads and the op record."""
_LOOK_S: Final = 1.0
_HOT_BYTES: Final = 32 << 20
"""So much of the log's end is in memory: it was written a moment ago."""
_RECORDS_PER_TURN: Final = 512
_SAVE_INTERVAL_S: Final = 300.0
_SAVED_RECORDS_MIN: Final = 10_000
"""Reading fewer again takes a tenth of a second."""


class MessageTimers:
    """See the module's docstring. Event loop only."""

    def __init__(
        self,
        *,
        store: MessageStore,
        reader: QueueReader,
        disk: Disk,
        pages: Pages,
        clock: Clock,
        store_host: Host,
    ) -> None:
        self.queue: Final = TimerQueue()
        self._store = store
        self._reader = reader
        self._disk = disk
        self._pages = pages
        self._clock = clock
        self._store_host = store_host
        self._path: Final = f"config/{TIMER_TOPIC}.state"
        self._one_follows: Final = asyncio.Lock()
        self._kicked: Final = asyncio.Event()
        self._is_loaded = False
        self._unsaved_records = 0
        self._saved_at_ms = clock.monotonic_ms()
        self._told_expired = 0
        self._owed: list[int] = []
        """Delivered by another master, and not finished yet because the disk was full."""

    # Following

    async def run(self) -> None:
        """Follows the log until cancelled, and now and then saves what it knows."""
        while True:
            await self.follow()
            await self._save_if_due()
            self._kicked.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._kicked.wait()
            except TimeoutError:
                pass

    def kick(self) -> None:
        """Something was put: `run` reads it soon."""
        self._kicked.set()

    async def follow(self) -> bool:
        """Reads all that the log had when it was called; others have their turns meanwhile. False: a damaged entry is
        in the way, which is mended meanwhile, and what may be released is not known."""
        queue, reader = self.queue, self._reader
        async with self._one_follows:
            if not self._is_loaded:
                self._is_loaded = True
                await self._load()
            ends = queue.ends(reader)
            while True:
                if queue.is_cut(reader, cuts=self._store.log_cuts):
                    log.info("timer_queue_cut")
                    await self._load()
                    ends = queue.ends(reader)
                if queue.has_read(ends):
                    break
                ranges = queue.next_range(reader, max_records=_RECORDS_PER_TURN)
                if ranges and min(ranges)[0] < self._store.end_offset - _HOT_BYTES:
                    await self._pages.fetch(ranges)
                    if queue.is_cut(reader, cuts=self._store.log_cuts):
                        continue
                if not (count := queue.follow(reader, max_records=_RECORDS_PER_TURN)):
                    break
                self._unsaved_records += count
                await asyncio.sleep(0)
            self._tell_expired()
            return queue.has_read(ends)

    def _tell_expired(self) -> None:
        if self.queue.expired_count > self._told_expired:
            count = self.queue.expired_count - self._told_expired
            log.error("timers_expired", messages=count)
        self._told_expired = self.queue.expired_count

    # The saved state

    async def _load(self) -> None:
        """The state that was saved, if it is of this log; nothing otherwise: all is read again."""
        data = await asyncio.to_thread(self._disk.read_file, self._path)
        if data is None or not await asyncio.to_thread(self.queue.load, data):
            self.queue.clear()
        if self.queue.is_cut(self._reader, cuts=self._store.log_cuts):
            self.queue.clear()
            self.queue.is_cut(self._reader, cuts=self._store.log_cuts)

    async def _save_if_due(self) -> None:
        elapsed_s = (self._clock.monotonic_ms() - self._saved_at_ms) / 1000
        if self._unsaved_records >= _SAVED_RECORDS_MIN and elapsed_s >= _SAVE_INTERVAL_S:
            state = self.queue.state()
            self._unsaved_records, self._saved_at_ms = 0, self._clock.monotonic_ms()
            try:
                await asyncio.to_thread(lambda: self._disk.write_file(self._path, state.to_bytes()))
            except DiskError as error:
                # Without it the next start reads more; a disk that fails is found out by those who need it.
                log.warning("timer_queue_not_saved", error=str(error))

    def close(self) -> None:
        """An orderly stop: the next start need not read the queue. Blocks; while the store is still open."""
        if self._unsaved_records and self._is_loaded:
            try:
                self._disk.write_file(self._path, self.queue.state().to_bytes())
            except DiskError as error:
                log.warning("timer_queue_not_saved", error=str(error))

    # As a master

    async def take_over(self) -> None:
        """Before a master puts anything else, its store being writable already: reads all there is, and finishes what
        was delivered and is not known to be."""
        await self.follow()
        delivered = await self._delivered_at_end()
        if delivered:
            log.warning("timers_were_delivered", offsets=delivered)
            if self._store.put(self.op_record(delivered)).status.stored:
                self._store.write_appended()
                await self.follow()
            else:
                # A full disk. They stay given out until the op record is in the log.
                self._owed = [offset for offset in delivered if self.queue.take(offset)]

    def put_owed(self, put: PutMessages) -> None:
        """Tries again what `take_over` could not put; before anything is released."""
        owed, self._owed = self._owed, []

        def answered(results: list[AppendResult]) -> None:
            if not results[0].status.stored:
                self._owed = owed

        if owed:
            put([self.op_record(owed)], answered)

    async def _delivered_at_end(self) -> list[int]:
        """Waiting entries whose copies lie at the log's very end, with no op record behind them."""
        store = self._store
        start_offset = store.end_offset - RELEASE_WINDOW_BYTES
        ops = store.queues.get(TIMER_OP_TOPIC, 0)
        if ops is not None:
            start_offset = max(start_offset, ops.last_physical_end)
        delivered: list[int] = []
        for candidate in list(store.queues):
            if candidate.last_physical_end <= start_offset or candidate.topic == TIMER_OP_TOPIC:
                continue
            start = _first_behind(candidate, start_offset)
            for number, offset in enumerate(range(start, candidate.max_offset)):
                entry = candidate.entry(offset)
                timer_offset = self._timer_offset_of(entry.physical_offset, entry.size)
                if timer_offset is not None:
                    delivered.append(timer_offset)
                if number % 64 == 63:
                    await asyncio.sleep(0)
        return delivered

    def _timer_offset_of(self, physical_offset: int, size: int) -> int | None:
        """Of the waiting message that this record is a copy of."""
        try:
            copy = self._store.message_at(physical_offset, size)
            timer = self._store.message_at(copy.prepared_transaction_offset)
        except RecordCorrupt:
            return None
        if timer.topic != TIMER_TOPIC or not self.queue.is_waiting(timer.queue_offset):
            return None
        # The first record of a log lies at 0, which every other message's field says as well.
        theirs, own = decode_properties(timer.properties), decode_properties(copy.properties)
        is_rolled = copy.topic == timer.topic and timer.physical_offset > 0
        is_copy = is_rolled or theirs.get(PROPERTY_REAL_TOPIC) == copy.topic
        is_same = theirs.get(PROPERTY_UNIQUE_KEY) == own.get(PROPERTY_UNIQUE_KEY)
        return timer.queue_offset if is_copy and is_same else None

    def op_record(self, offsets: Sequence[int], recalled: RecallKey | None = None) -> OutgoingMessage:
        """Finishes these once it is in the log, and says what was `recalled` by that."""
        told = [] if recalled is None else recall_properties(recalled)
        return OutgoingMessage(
            topic=TIMER_OP_TOPIC,
            queue_id=0,
            body=op_body(offsets),
            properties=encode_properties([(PROPERTY_TAGS, OP_TAG), *told]),
            tags_code=tags_code(OP_TAG),
            index_keys=(),
            tag=OP_TAG,
            born_timestamp_ms=self._clock.wall_ms(),
            born_host=self._store_host,
        )

    async def records(self, offsets: Sequence[int]) -> list[MessageRecord | None]:
        """The records of timers that are given out; None for one that cannot be read now."""
        topic, reader = TIMER_TOPIC, self._reader
        places = []
        for offset in offsets:
            entries = reader.entries(topic, 0, offset, 1)
            places.append(entries[0] if entries else None)
        ranges = [(entry.physical_offset, entry.physical_offset + entry.size) for entry in places if entry is not None]
        if ranges and min(ranges)[0] < self._store.end_offset - _HOT_BYTES:
            await self._pages.fetch(ranges)
        return [
            None if entry is None else reader.record(topic, 0, offset, entry) for offset, entry in zip(offsets, places)
        ]

    def release(
        self,
        copies: Sequence[OutgoingMessage],
        offsets: Sequence[int],
        *,
        put: PutMessages,
        retry_ms: int,
        done: PutDone,
        recalled: RecallKey | None = None,
    ) -> None:
        """Delivers copies and finishes the entries `offsets`, which are given out, in one put; without copies it only
        finishes them, or says once more that a message is `recalled`. `done` is told as by any put, the op record's
        result last; what is refused is put back first, to be given out again at `retry_ms`.

        Copies have at most RELEASE_BYTES_MAX in all, or are one; each names its timer by
        `prepared_transaction_offset`.
        """

        def answered(results: list[AppendResult]) -> None:
            if results[0].status.stored:
                self.kick()
            else:
                for offset in offsets:
                    self.queue.put_back(offset, retry_ms)
            done(results)

        put([*copies, self.op_record(offsets, recalled)], answered)


def _first_behind(queue: ConsumeQueue, physical_offset: int) -> int:
    """The first entry whose record ends behind that place of the log."""
    return first_false(
        queue.min_offset, queue.max_offset, lambda offset: queue.entry(offset).physical_end <= physical_offset
    )

"""Every query about stored messages, each bounded in what it looks at and in how long it takes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.queries.queue_walk import (
    KeySearch,
    Place,
    QueueSearch,
    QueueWalk,
    TimeBoundary,
    entry_at,
    first_at_physical,
)
from tandemmq.broker.queries.stored_records import Pages, StoredRecords
from tandemmq.broker.queries.values import (
    Fingerprint,
    FoundOffset,
    HoldingUnknown,
    IndexIsOff,
    KeyCriteria,
    MessagePage,
    MessageUnknown,
    QueriedMessage,
    QueriesBusy,
    QueueCriteria,
    QueueState,
    RangeDigest,
    TimeCriteria,
    TopicUnknown,
    WantedMessages,
    position_of,
)
from tandemmq.broker.queue_reader import EntryDamage, PassedOver
from tandemmq.core.clock import Clock
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import MessageRecord, RecordOutline, message_id_of
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.consume_queue import ConsumeQueue, QueueEntry
from tandemmq.core.storage.message_store import MessageStore

_RECORDS_MAX: Final = 16
_QUERIES_AT_ONCE: Final = 4
"""Others wait: a query takes the event loop in turns with all that a broker has to do."""
_QUERIES_WAITING_MAX: Final = 64
_COPIES_MAX: Final = 64
"""Of one message id in one topic that are looked at."""
_TOPICS_PER_TURN: Final = 8
"""Topics looked into before the event loop gets a turn, where a key is looked for in all."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Whether a slave holds a record."""

    # -1: it has not proven what it holds.
    broker_id: int
    # Bytes it has yet to acknowledge until it does.
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A record, and where it is safe."""

    record: RecordOutline
    properties: Mapping[str, str]
    flushed: bool
    slaves: tuple[Holding, ...]


class MessageQueries:
    """Answers from one replica, master or slave. Event loop only."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        pages: Pages,
        clock: Clock,
        is_indexed: bool,
        damaged: EntryDamage | None = None,
    ) -> None:
        """`damaged` is told of entries that do not lead to their records."""
        self._store = store
        self._topics = topics
        self._pages = pages
        self._clock = clock
        self._is_indexed = is_indexed
        self._damaged = damaged or PassedOver()
        self._records = StoredRecords(store, pages)
        self._turns = asyncio.Semaphore(_QUERIES_AT_ONCE)
        self._waiting = 0

    async def queue_states(self, topic: str) -> list[QueueState]:
        """Every queue that the topic's configuration names or that holds something, by id. Raises TopicUnknown."""
        async with self._turn():
            states = []
            for queue_id in self._queue_ids(topic):
                states.append(await self._queue_state(topic, queue_id))
                await asyncio.sleep(0)
            return states

    async def find_offsets(self, topic: str, time_ms: int) -> list[FoundOffset]:
        """Where each of those queues is at a moment. Raises TopicUnknown."""
        async with self._turn():
            boundary = TimeBoundary(self._records, time_ms)
            found = []
            for queue_id in self._queue_ids(topic):
                queue = self._store.consume_queue(topic, queue_id)
                found.append(FoundOffset(queue_id, await boundary.first_in(queue) if queue is not None else 0))
                await asyncio.sleep(0)
            return found

    async def messages(self, wanted: WantedMessages, page_token: bytes = b"") -> MessagePage:
        """A page of messages. Raises TopicUnknown, PageTokenInvalid, IndexIsOff."""
        position = position_of(wanted, page_token)
        async with self._turn():
            if isinstance(wanted.criteria, KeyCriteria):
                return await self._with_key(wanted, wanted.criteria, position)
            return await self._in_queues(wanted, wanted.criteria, position)

    async def with_key(self, key: str, topics: Iterable[str], *, limit: int) -> list[QueriedMessage]:
        """The newest messages of these topics with a key, or with a client's message id, without their bodies.

        Nothing where there is no index. A topic takes 10 us for each IndexFile in question. Raises QueriesBusy.
        """
        found: list[QueriedMessage] = []
        async with self._turn():
            for number, topic in enumerate(topics, 1):
                criteria = KeyCriteria(key)
                wanted = WantedMessages(topic, criteria, limit=limit)
                page = await KeySearch(self._records, self._store, wanted, criteria, clock=self._clock).page(None)
                found += page.messages
                if number % _TOPICS_PER_TURN == 0:
                    await asyncio.sleep(0)
        found.sort(key=lambda message: message.outline.physical_offset, reverse=True)
        return found[:limit]

    async def find_message(
        self, message_id: str, topic: str = "", *, slaves: Sequence[SlaveView] = ()
    ) -> list[FoundMessage]:
        """Records with that id, newest first, and how safe they are: what is known without any trace. Of one topic, or
        of all, which takes the longer the more there are. Raises QueriesBusy."""
        names = [topic] if topic else [config.topic_name for config in self._topics]
        found = await self.with_key(message_id, names, limit=_RECORDS_MAX)
        return [self._found(message, slaves) for message in found]

    def _found(self, message: QueriedMessage, slaves: Sequence[SlaveView]) -> FoundMessage:
        record = message.outline
        end_offset = record.physical_offset + record.total_size
        return FoundMessage(
            record=record,
            properties=message.properties,
            flushed=end_offset <= self._store.flushed_offset,
            slaves=tuple(
                Holding(
                    broker_id=-1 if slave.broker_id is None else slave.broker_id,
                    missing_bytes=max(0, end_offset - slave.acked_offset),
                )
                for slave in slaves
            ),
        )

    async def holds(self, wanted: Fingerprint) -> bool:
        """Whether a record with that id, topic and body lies where consumers can get it.

        Raises HoldingUnknown, QueriesBusy.
        """
        async with self._turn():
            there = await self._records.outline_at(wanted.physical_offset)
            if there is not None and await self._is(there, wanted):
                return True
        if not self._is_indexed:
            raise HoldingUnknown("this broker has no index of message ids (messageIndexEnable=false)")
        for message in await self.with_key(wanted.message_id, [wanted.topic], limit=_COPIES_MAX):
            async with self._turn():
                if await self._is(message.outline, wanted):
                    return True
        if self._store.min_offset > 0:
            oldest_ms = await self._records.store_ms(self._store.min_offset)
            if oldest_ms is None or wanted.store_ms < oldest_ms:
                raise HoldingUnknown("it is older than all this log still holds: it may have been there and expired")
        return False

    async def _is(self, outline: RecordOutline, wanted: Fingerprint) -> bool:
        properties = decode_properties(outline.properties)
        message_id = message_id_of(outline, properties)
        if (message_id, outline.topic) != (wanted.message_id, wanted.topic):
            return False
        digest = hashlib.sha256().digest()
        if outline.body_bytes:
            found = await self._sha256(outline.body_offset, outline.body_bytes)
            digest = found if found is not None else b""
        return digest == wanted.body_sha256

    async def message_at(self, physical_offset: int, *, body_bytes: int) -> QueriedMessage:
        """The message whose record begins there. Raises MessageUnknown."""
        async with self._turn():
            outline = await self._records.outline_at(physical_offset)
            if outline is None:
                raise MessageUnknown(
                    f"physical_offset {physical_offset}: no record begins there; the log holds "
                    f"[{self._store.min_offset}, {self._store.end_offset})"
                )
            return await self._message(outline, body_bytes)

    async def message_in_queue(
        self, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int
    ) -> QueriedMessage:
        """The message at a place of a queue. Raises TopicUnknown, MessageUnknown."""
        async with self._turn():
            entry = self._entry(topic, queue_id, queue_offset)
            (outline,) = await self._records.outlines([(entry.physical_offset, entry.size)])
            if outline is None or (outline.topic, outline.queue_id, outline.queue_offset) != (
                topic,
                queue_id,
                queue_offset,
            ):
                self._damaged.note(topic, queue_id, queue_offset, f"no record of its own at {entry.physical_offset}")
                raise _unreadable(queue_offset, entry)
            return await self._message(outline, body_bytes)

    async def record_in_queue(self, topic: str, queue_id: int, queue_offset: int) -> MessageRecord:
        """The whole record at a place of a queue, its body as stored and proven by its CRC. Raises as above."""
        async with self._turn():
            entry = self._entry(topic, queue_id, queue_offset)
            record = await self._records.whole(entry.physical_offset, entry.size)
            if record is None:
                raise _unreadable(queue_offset, entry)
            return record

    async def digest(self, physical_offset: int, size: int) -> RangeDigest:
        """SHA-256 of a range of the log as this replica holds it."""
        async with self._turn():
            return RangeDigest(
                await self._sha256(physical_offset, size),
                self._store.min_offset,
                self._store.end_offset,
                self._store.flushed_offset,
            )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= _QUERIES_WAITING_MAX:
            raise QueriesBusy(f"{self._waiting} queries wait for this broker already; try again in a moment")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _sha256(self, start: int, size: int) -> bytes | None:
        """Over slices of the map, in a thread that lets go of the interpreter's lock; None: not held."""
        store = self._store
        end = start + size
        if not store.min_offset <= start < end <= store.end_offset:
            return None
        cuts = store.log_cuts
        await self._pages.fetch([(start, end)])
        pieces: list[memoryview] = []
        while start < end:
            piece = store.read_log(start, end - start)
            if not piece:
                return None
            pieces.append(piece)
            start += len(piece)
        digest = await asyncio.to_thread(_sha256_of, pieces)
        return digest if store.log_cuts == cuts else None

    def _queue_ids(self, topic: str) -> list[int]:
        config = self._topics.get(topic)
        with_messages = self._store.queues.ids_of(topic)
        if config is None:
            if not with_messages:
                raise TopicUnknown(topic)
            return with_messages
        return sorted({*range(max(config.read_queue_count, config.write_queue_count)), *with_messages})

    def _entry(self, topic: str, queue_id: int, queue_offset: int) -> QueueEntry:
        self._queue_ids(topic)
        queue = self._store.consume_queue(topic, queue_id)
        entry = entry_at(queue, queue_offset) if queue is not None else None
        if queue is None or entry is None or entry.is_filler:
            held = f"[{queue.min_offset}, {queue.max_offset})" if queue is not None else "nothing"
            raise MessageUnknown(
                f"queue_offset {queue_offset}: queue {queue_id} of {topic} has no message there, it holds {held}"
            )
        return entry

    async def _queue_state(self, topic: str, queue_id: int) -> QueueState:
        queue = self._store.consume_queue(topic, queue_id)
        if queue is None:
            return QueueState(queue_id, 0, 0, None, None)
        oldest, newest = _end_of(queue), _end_of(queue, newest=True)
        return QueueState(
            queue_id,
            queue.min_offset,
            queue.max_offset,
            await self._records.store_ms(oldest.physical_offset) if oldest is not None else None,
            await self._records.store_ms(newest.physical_offset) if newest is not None else None,
        )

    async def _in_queues(
        self, wanted: WantedMessages, criteria: QueueCriteria | TimeCriteria, position: int | None
    ) -> MessagePage:
        queue_ids = self._queue_ids(wanted.topic)
        if isinstance(criteria, QueueCriteria):
            walk = self._stretch(wanted.topic, criteria, position)
        else:
            walk = await self._merged(wanted.topic, queue_ids, criteria, position)
        search = QueueSearch(self._records, walk, wanted, clock=self._clock, damaged=self._damaged)
        return await search.page()

    def _stretch(self, topic: str, criteria: QueueCriteria, position: int | None) -> QueueWalk:
        walk = QueueWalk()
        queue = self._store.consume_queue(topic, criteria.queue_id)
        if queue is not None:
            end = min(criteria.end_offset or queue.max_offset, queue.max_offset)
            walk.enter(queue, max(criteria.start_offset if position is None else position, queue.min_offset), end)
        return walk

    async def _merged(
        self, topic: str, queue_ids: Sequence[int], criteria: TimeCriteria, position: int | None
    ) -> QueueWalk:
        """All queues from where the page begins; where the query ends shows on the way."""
        first_ms = criteria.end_ms if criteria.newest_first else criteria.start_ms
        boundary = TimeBoundary(self._records, first_ms) if first_ms is not None and position is None else None
        walk = QueueWalk(backwards=criteria.newest_first)
        for queue_id in queue_ids:
            queue = self._store.consume_queue(topic, queue_id)
            if queue is None:
                continue
            low, high = int(queue.min_offset), int(queue.max_offset)
            turn = high if criteria.newest_first else low
            if position is not None:
                turn = first_at_physical(queue, position)
            elif boundary is not None:
                turn = await boundary.first_in(queue)
            walk.enter(queue, *((low, turn) if criteria.newest_first else (turn, high)))
            await asyncio.sleep(0)
        return walk

    async def _with_key(self, wanted: WantedMessages, criteria: KeyCriteria, position: int | None) -> MessagePage:
        if not self._is_indexed:
            raise IndexIsOff
        self._queue_ids(wanted.topic)
        search = KeySearch(self._records, self._store, wanted, criteria, clock=self._clock)
        return await search.page(position)

    async def _message(self, outline: RecordOutline, body_bytes: int) -> QueriedMessage:
        body = await self._records.body(outline, max_bytes=body_bytes)
        return QueriedMessage(outline, decode_properties(outline.properties), body)


def _end_of(queue: ConsumeQueue, *, newest: bool = False) -> Place | None:
    """Where the queue's oldest or newest message lies; None in an empty queue."""
    walk = QueueWalk(backwards=newest)
    walk.enter(queue, queue.min_offset, queue.max_offset)
    return walk.next_place


def _unreadable(queue_offset: int, entry: QueueEntry) -> MessageUnknown:
    return MessageUnknown(
        f"queue_offset {queue_offset}: its record at {entry.physical_offset} has expired or cannot be read"
    )


def _sha256_of(pieces: Sequence[memoryview]) -> bytes:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return sha256.digest()

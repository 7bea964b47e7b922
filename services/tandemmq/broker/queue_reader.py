"""The store's queues as delivery reads them: no entry is believed that does not lead to its own record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tandemmq.core.delivery.lite_topics import LMQ_PREFIX
from tandemmq.core.delivery.queue_reader import FarBytes, QueueReader
from tandemmq.core.message.record import MessageRecord
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.message.stored_message import StoredMessage, read_stored_message
from tandemmq.core.storage.consume_queue import FILLER_SIZE, QueueEntry, first_false
from tandemmq.core.storage.disk import RecordCorrupt

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

_NOTHING: Final = memoryview(b"")
_WAITING_MAX: Final = 1_000
"""Places to be mended. Groups stop at one each, so there are as many as queues that are read."""
_EMPTY_MAX: Final = 100_000
"""Places without a message that are remembered, some 20 MB."""


class EntryDamage(Protocol):
    """Who mends damaged entries. Event loop only."""

    def note(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        """An entry does not say what its record says. May be said again and again."""

    def is_without_message(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the log was asked: no record belongs to this place, or none that can be had."""


class PassedOver(EntryDamage):
    """Nobody mends: what cannot be read is told and passed over."""

    def note(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        log.error("record_unreadable", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=reason)

    def is_without_message(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return True


class DamagedEntries(EntryDamage):
    """Places whose entries are to be mended, and those the log has nothing for. Told once each, and counted."""

    def __init__(self) -> None:
        self.count = 0
        """Entries that were found damaged."""
        self.mended_count = 0
        self.lost_count = 0
        """Places that were given up: no replica in reach has their record."""
        self.has_some: Final = asyncio.Event()
        self._waiting: Final[dict[tuple[str, int, int], None]] = {}
        self._empty: Final[set[tuple[str, int, int]]] = set()

    def note(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        place = (topic, queue_id, queue_offset)
        if place in self._waiting or len(self._waiting) >= _WAITING_MAX:
            return  # Whoever waits for it asks again.
        self._waiting[place] = None
        self.count += 1
        self.has_some.set()
        log.error("queue_entry_damaged", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=reason)

    def is_without_message(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return bool(self._empty) and (topic, queue_id, queue_offset) in self._empty

    def first(self) -> tuple[str, int, int] | None:
        """The place that waits longest."""
        return next(iter(self._waiting), None)

    def ended(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """These places were looked after."""
        for queue_offset in range(first, end):
            self._waiting.pop((topic, queue_id, queue_offset), None)
        if not self._waiting:
            self.has_some.clear()

    def put_last(self, place: tuple[str, int, int]) -> None:
        """It is tried again when the others have been."""
        if place in self._waiting:
            del self._waiting[place]
            self._waiting[place] = None

    def found_empty(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """No message belongs to this place, or none that can be had: it is passed over."""
        if len(self._empty) >= _EMPTY_MAX:
            self._empty.clear()  # The log is asked again.
        self._empty.add((topic, queue_id, queue_offset))


class StoreQueueReader:
    """`QueueReader` over a `MessageStore`."""

    def __init__(
        self,
        store: MessageStore,
        damage: EntryDamage | None = None,
        *,
        confirmed_offset: Callable[[], int] | None = None,
        far: FarBytes | None = None,
    ) -> None:
        """`confirmed_offset`: the log's bytes below it outlive a change of master; None: all do. `far` None: all of the
        log is read from the map, wherever that has to wait for the disk."""
        self._store = store
        self._damage: Final[EntryDamage] = damage or PassedOver()
        self._confirmed_offset: Final = confirmed_offset
        self._far: Final[FarBytes | None] = far
        self.lite: QueueReader | None = None
        """Reads the logical queues of lite topics, which have no ConsumeQueue of their own."""

    def queue_ids(self, topic: str) -> Sequence[int]:
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.queue_ids(topic)
        return self._store.queues.ids_of(topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.min_offset(topic, queue_id)
        return self._store.queue_min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.max_offset(topic, queue_id)
        return self._store.queue_max_offset(topic, queue_id)

    def knows_end(self, topic: str) -> bool:
        return self.lite is None or not topic.startswith(LMQ_PREFIX) or self.lite.knows_end(topic)

    def confirmed_end(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """See `QueueReader`. Entries ascend in the log. None is read where the whole queue is confirmed."""
        if self._confirmed_offset is None:
            return end
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.confirmed_end(topic, queue_id, start, end)
        queue = self._store.queues.get(topic, queue_id)
        confirmed_offset = self._confirmed_offset()
        if queue is None or queue.last_physical_end <= confirmed_offset:
            return end
        log_end = self._store.end_offset

        def is_confirmed(place: int) -> bool:
            """Or is a damaged entry, which leads beyond the log: whoever reads it has it mended."""
            physical_end = queue.entry(place).physical_end
            return physical_end <= confirmed_offset or physical_end > log_end

        return first_false(start, end, is_confirmed)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.entries(topic, queue_id, start, count)
        queue = self._store.consume_queue(topic, queue_id)
        return queue.read(start, count) if queue is not None else ()

    def has_proven_tags(self, topic: str, queue_id: int, start: int) -> bool:
        """What this process made of records, and still has in memory, needs no proof. Files may rot."""
        queue = self._store.queues.get(topic, queue_id)
        return queue is not None and start >= queue.memory_offset

    def wrong_tag(self, topic: str, queue_id: int, place: int) -> None:
        """The message was delivered all the same; the next filter may not look at its record."""
        self._damage.note(topic, queue_id, place, "its tags code is not that of its record")

    def messages(
        self, topic: str, queue_id: int, places: Sequence[int], entries: Sequence[QueueEntry]
    ) -> list[StoredMessage | None]:
        """The message of each entry, its body still in the CommitLog: to be used before the event loop turns.

        Ends before an entry that is damaged, which is noted, and before one whose bytes are on their way from far. None
        for a place that is known to have no message.
        """
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.messages(topic, queue_id, places, entries)
        piece, piece_start, piece_end = _NOTHING, 0, 0
        found: list[StoredMessage | None] = []
        min_offset = self._store.min_offset
        far = self._far
        far_end = 0 if far is None else self._store.end_offset - far.near_bytes
        raw_topic = topic.encode()
        for place, (physical_offset, size, _) in zip(places, entries):
            if size == FILLER_SIZE:
                reason = "it is a filler"
            elif physical_offset < min_offset:
                reason = f"it leads to {physical_offset}, before the log begins"
            else:
                if physical_offset < far_end and (physical_offset < piece_start or physical_offset + size > piece_end):
                    assert far is not None
                    brought = far.piece(topic, physical_offset, size)
                    if brought is None:
                        return found
                    piece, piece_start, piece_end = brought, physical_offset, physical_offset + len(brought)
                elif not piece_start <= physical_offset < piece_end:
                    # Entries ascend, so the rest of the file serves all those that lie in it.
                    piece_start = physical_offset
                    piece = self._store.read_log(physical_offset, self._store.segment_bytes)
                    piece_end = piece_start + len(piece)
                try:
                    message = read_stored_message(piece, physical_offset - piece_start, size, physical_offset)
                except MalformedRecord as error:
                    reason = f"no record at {physical_offset}: {error.reason}"
                else:
                    if message.queue_offset == place and message.queue_id == queue_id and message.topic == raw_topic:
                        found.append(message)
                        continue
                    reason = f"the record at {physical_offset} belongs to another place"
                if far is not None and physical_offset < far_end and far.distrust(topic, physical_offset):
                    return found
            if not self._damage.is_without_message(topic, queue_id, place):
                self._damage.note(topic, queue_id, place, reason)
                return found
            found.append(None)
        return found

    def record(self, topic: str, queue_id: int, place: int, entry: QueueEntry) -> MessageRecord | None:
        """The whole record of an entry; None where there is none, or as long as the entry is damaged: that is noted."""
        if self.lite is not None and topic.startswith(LMQ_PREFIX):
            return self.lite.record(topic, queue_id, place, entry)
        try:
            record = self._store.message_at(entry.physical_offset, entry.size)
        except RecordCorrupt as error:
            reason = f"no record at {entry.physical_offset}: {error.reason}"
        else:
            if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, place):
                return record
            reason = f"the record at {entry.physical_offset} belongs to another place"
        if not self._damage.is_without_message(topic, queue_id, place):
            self._damage.note(topic, queue_id, place, reason)
        return None

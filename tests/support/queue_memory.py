"""Queues of a broker in memory, as delivery reads them: no log, no files."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, MessageRecord
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.offsets import PhysicalOffset, QueueOffset
from tandemmq.core.storage.consume_queue import FILLER_SIZE, QueueEntry

_HOST = Host(bytes(4), 0)
_RECORD_BYTES = 100


class QueueMemory(QueueReader):
    """Messages by (topic, queue id); the physical offset of an entry is its number in `records`."""

    def __init__(self) -> None:
        self.records: list[StoredMessage | None] = []
        self._entries: dict[tuple[str, int], list[QueueEntry]] = {}
        self._min_offsets: dict[tuple[str, int], int] = {}
        self.confirmed_count: int | None = None
        """So many of `records` would outlive a change of master; None: all."""

    def put(
        self, topic: str, queue_id: int, *, tag: str | None = None, body: bytes = b"", message_group: str = ""
    ) -> int:
        """Adds a message; returns its queue offset."""
        entries = self._entries.setdefault((topic, queue_id), [])
        pairs = [("KEYS", "k"), ("TAGS", tag or ""), ("__SHARDINGKEY", message_group)]
        properties = encode_properties([(name, value) for name, value in pairs if value])
        record = StoredMessage(
            queue_id=queue_id,
            queue_offset=len(entries),
            physical_offset=len(self.records),
            sys_flag=0,
            born_timestamp_ms=0,
            born_address=bytes(4),
            store_timestamp_ms=0,
            store_address=bytes(4),
            store_port=0,
            body=body,
            properties=properties,
        )
        entries.append(QueueEntry(len(self.records), _RECORD_BYTES, tags_code(tag)))
        self.records.append(record)
        return len(entries) - 1

    def put_filler(self, topic: str, queue_id: int) -> None:
        """Adds a position no message belongs to."""
        self._entries.setdefault((topic, queue_id), []).append(QueueEntry(0, FILLER_SIZE, 0))

    def expire(self, topic: str, queue_id: int, min_offset: int) -> None:
        """Removes what is below `min_offset`."""
        self._min_offsets[topic, queue_id] = min_offset

    def cut(self, topic: str, queue_id: int, max_offset: int) -> None:
        """Loses the tail, as a log does that was not flushed."""
        del self._entries[topic, queue_id][max_offset:]

    def queue_ids(self, topic: str) -> Sequence[int]:
        return sorted(queue_id for name, queue_id in self._entries if name == topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._min_offsets.get((topic, queue_id), 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._entries.get((topic, queue_id), ()))

    def knows_end(self, topic: str) -> bool:
        return True

    def confirmed_end(self, topic: str, queue_id: int, start: int, end: int) -> int:
        if self.confirmed_count is not None:
            for place in range(start, end):
                if self._entries[topic, queue_id][place].physical_offset >= self.confirmed_count:
                    return place
        return end

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        if start < self.min_offset(topic, queue_id):
            return []
        return self._entries.get((topic, queue_id), [])[start : start + count]

    def has_proven_tags(self, topic: str, queue_id: int, start: int) -> bool:
        return True

    def wrong_tag(self, topic: str, queue_id: int, place: int) -> None:
        raise AssertionError("proven tags are right")

    def messages(
        self, topic: str, queue_id: int, places: Sequence[int], entries: Sequence[QueueEntry]
    ) -> list[StoredMessage | None]:
        return [None if entry.is_filler else self.records[entry.physical_offset] for entry in entries]

    def record(self, topic: str, queue_id: int, place: int, entry: QueueEntry) -> MessageRecord | None:
        message = None if entry.is_filler else self.records[entry.physical_offset]
        if message is None:
            return None
        return MessageRecord(
            total_size=_RECORD_BYTES,
            magic=0,
            body_crc=0,
            queue_id=message.queue_id,
            flag=0,
            queue_offset=QueueOffset(message.queue_offset),
            physical_offset=PhysicalOffset(message.physical_offset),
            sys_flag=0,
            born_timestamp_ms=0,
            born_host=_HOST,
            store_timestamp_ms=0,
            store_host=_HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=bytes(message.body),
            topic="T",
            properties=message.properties,
        )

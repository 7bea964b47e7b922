"""The store's queues as delivery reads them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from mqcore.message import MessageRecord
from mqcore.storage import MessageStore, QueueEntry, RecordCorrupt

__all__ = ["StoreQueueReader"]


log = structlog.get_logger(__name__)


class StoreQueueReader:
    """`QueueReader` over a `MessageStore`."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First message still held."""
        return self._store.queue_min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message."""
        return self._store.queue_max_offset(topic, queue_id)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        """Up to `count` entries from `start`."""
        queue = self._store.consume_queue(topic, queue_id)
        return queue.read(start, count) if queue is not None else ()

    def message(self, entry: QueueEntry) -> MessageRecord | None:
        """The record of an entry, or None: it expired in between, or the entry is filler of a late joiner."""
        if entry.physical_offset < self._store.min_offset:
            return None
        try:
            return self._store.message_at(entry.physical_offset, entry.size)
        except RecordCorrupt as error:
            # A bad disk: the group passes over it, and somebody has to know. The other replica may hold it well.
            log.error("record_unreadable", offset=entry.physical_offset, size=entry.size, error=str(error))
            return None

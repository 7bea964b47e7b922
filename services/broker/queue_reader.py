"""The store's queues as delivery reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from mqcore.message import MalformedRecord, MessageRecord, StoredMessage, read_stored_message
from mqcore.storage import MessageStore, QueueEntry, RecordCorrupt
from mqcore.storage.consume_queue import FILLER_SIZE

__all__ = ["StoreQueueReader"]

log = structlog.get_logger(__name__)

_NOTHING: Final = memoryview(b"")


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

    def messages(self, entries: Sequence[QueueEntry]) -> list[StoredMessage | None]:
        """The message of each entry, its body still in the CommitLog: to be used before the event loop turns.

        None for filler of a late joiner, for a record that expired in between, and for one that cannot be read.
        """
        piece, piece_start, piece_end = _NOTHING, 0, 0
        found: list[StoredMessage | None] = []
        min_offset = self._store.min_offset
        for entry in entries:
            physical_offset, size, _ = entry
            if size == FILLER_SIZE or physical_offset < min_offset:
                found.append(None)
                continue
            if not piece_start <= physical_offset < piece_end:
                # Entries ascend, so the rest of the file serves all those that lie in it.
                piece_start = physical_offset
                piece = self._store.read_log(physical_offset, self._store.segment_bytes)
                piece_end = piece_start + len(piece)
            try:
                found.append(read_stored_message(piece, physical_offset - piece_start, size, physical_offset))
            except MalformedRecord as error:
                _log_unreadable(physical_offset, size, error.reason)
                found.append(None)
        return found

    def record(self, entry: QueueEntry) -> MessageRecord | None:
        """The whole record of an entry; None as in `messages`."""
        if entry.is_filler or entry.physical_offset < self._store.min_offset:
            return None
        try:
            return self._store.message_at(entry.physical_offset, entry.size)
        except RecordCorrupt as error:
            _log_unreadable(entry.physical_offset, entry.size, error.reason)
            return None


def _log_unreadable(physical_offset: int, size: int, reason: str) -> None:
    """A bad disk: the group passes over it, and somebody has to know. The other replica may hold it well."""
    log.error("record_unreadable", offset=physical_offset, size=size, reason=reason)

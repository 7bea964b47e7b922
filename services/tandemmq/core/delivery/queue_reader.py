"""What delivery reads of the store. Not compiled: whoever has these methods may stand in, compiled or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandemmq.core.message.record import MessageRecord
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.storage.consume_queue import QueueEntry


class QueueReader(Protocol):
    """The queues of a broker. Positions are queue offsets; a queue never written has min and max offset 0."""

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Of the topic's queues that ever had a message, however many queues it has now; ascending."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First message still held."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message."""

    def knows_end(self, topic: str) -> bool:
        """False while its queues may end behind their `max_offset`: nobody's progress is cut to that."""

    def confirmed_end(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """The first of [start, end) that a change of master might take away, else `end`: nobody is given that yet."""

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        """Up to `count` entries from `start`, without gaps; fewer, but not none, within [min_offset, max_offset)."""

    def has_proven_tags(self, topic: str, queue_id: int, start: int) -> bool:
        """Whether the tags codes of entries from `start` on may be believed without a look at their records."""

    def messages(
        self, topic: str, queue_id: int, places: Sequence[int], entries: Sequence[QueueEntry]
    ) -> list[StoredMessage | None]:
        """The message of each entry, None where none belongs to it; `places` are the entries' queue offsets.

        Ends before the first entry that does not lead to its record: it is damaged, and is to be asked for again later.
        """

    def wrong_tag(self, topic: str, queue_id: int, place: int) -> None:
        """An entry has another tags code than its record."""

    def record(self, topic: str, queue_id: int, place: int, entry: QueueEntry) -> MessageRecord | None:
        """The whole record of an entry; None where there is none, or as long as the entry is damaged."""


class FarBytes(Protocol):
    """Brings what lies far behind the log's end, `near_bytes` and more; see ADR 50."""

    @property
    def near_bytes(self) -> int:
        """So much of the log's end is read from the map."""

    def piece(self, topic: str, offset: int, size: int) -> memoryview | None:
        """The log from `offset` on, `size` bytes at least; None: they come, and receives of the topic look again."""

    def distrust(self, topic: str, offset: int) -> bool:
        """The bytes there are not the record they should be. True: they were another replica's, and our own come."""

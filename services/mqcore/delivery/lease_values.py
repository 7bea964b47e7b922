"""What a lease table gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from mqcore.message.record import MessageRecord
from mqcore.message.stored_message import StoredMessage

__all__ = ["Backlog", "Delivery", "LeasedRecord", "QueueState", "Received", "RestoreReport", "SkippedBacklog"]


class Delivery:
    """One message given to a client."""

    __slots__ = ("attempt", "handle", "queue_id", "queue_offset", "record")

    def __init__(self, record: StoredMessage, handle: str, attempt: int, queue_id: int, queue_offset: int) -> None:
        self.record: Final = record
        self.handle: Final = handle
        self.attempt: Final = attempt
        """1 for the first delivery."""
        self.queue_id: Final = queue_id
        self.queue_offset: Final = queue_offset


@dataclass(frozen=True, slots=True)
class LeasedRecord:
    """A message under a lease with everything that is stored of it, for a copy to another topic."""

    record: MessageRecord
    handle: str
    attempt: int
    """Deliveries so far; for a dead letter of `receive`, the one that would be too many."""
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Received:
    """What one receive got."""

    deliveries: list[Delivery]
    dead_letters: list[LeasedRecord]
    """Messages delivered as often as allowed. The caller copies them to the dead letter topic, then acknowledges."""
    more: bool = False
    """The receive stopped at `max_scanned_per_receive`, not at the end: another one may find something at once."""


@dataclass(frozen=True, slots=True)
class SkippedBacklog:
    """A group that began at the newest message beside older ones, which it will not get by itself."""

    group: str
    topic: str
    message_count: int
    """Older ones that are still there."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """How much of the files could be used."""

    snapshot_valid: bool
    """False: bad disk. Groups resume at their stored offsets and messages in flight come again."""
    journal_bytes: int
    torn_bytes: int
    """Cut off the journal: what a crash kept from being written, or what follows a damaged frame."""


class Backlog(NamedTuple):
    """Of one group in all queues of a topic, in messages."""

    new_count: int
    """Never delivered."""
    inflight_count: int
    """Leased."""
    ready_count: int
    """Their lease ended; they wait to be delivered again."""

    @property
    def is_empty(self) -> bool:
        """The group has finished everything."""
        return not (self.new_count or self.inflight_count or self.ready_count)


class QueueState(NamedTuple):
    """One group in one queue, for an operator."""

    group: str
    topic: str
    queue_id: int
    committed_offset: int
    next_offset: int
    """First message never delivered."""
    inflight_count: int
    """Leased messages."""
    ready_count: int
    """Messages whose lease ended, waiting to be delivered again."""

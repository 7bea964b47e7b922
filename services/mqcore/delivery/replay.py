"""Rebuilds the subscriptions of a lease table from its journal, and writes them as a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqcore.delivery.journal import (
    EntryKind,
    GrantEntry,
    JournalEntry,
    LeaseJournal,
    SubscriptionEntry,
    read_frames,
)
from mqcore.delivery.queue_progress import Lease, QueueProgress
from mqcore.delivery.subscription import Subscription
from mqcore.metadata.consumer_offset_table import OperatorActs

__all__ = ["LeaseReplay", "write_snapshot"]


class LeaseReplay:
    """Applies entries in the order they were written. An entry of an unknown subscription is passed over.

    `held` of leases and ready messages are not kept up on the way; whoever takes the subscriptions counts them.
    """

    def __init__(self) -> None:
        self.subscriptions: dict[int, Subscription] = {}

    def apply(self, entries: Iterable[JournalEntry]) -> None:
        """Makes the transitions the entries stand for."""
        for entry in entries:
            if isinstance(entry, SubscriptionEntry):
                self._apply_subscription(entry)
                continue
            subscription = self.subscriptions.get(entry.number)
            if subscription is None:
                continue
            queue = subscription.queues.get(entry.queue_id)
            if isinstance(entry, GrantEntry):
                if queue is not None:
                    queue.grant(_lease(queue, entry), entry.next_offset)
            elif entry.kind is EntryKind.POSITION:
                subscription.queues[entry.queue_id] = QueueProgress(subscription, entry.queue_id, entry.offset)
            elif queue is not None:
                _apply_at(queue, entry.kind, entry.offset)

    @classmethod
    def of_files(cls, snapshot: bytes, journal: bytes) -> LeaseReplay:
        """What both say together; nothing where the snapshot cannot be read."""
        replay = cls()
        entries, valid_bytes = read_frames(snapshot)
        if valid_bytes == len(snapshot):
            replay.apply(entries)
            replay.apply(read_frames(journal)[0])
        return replay

    def cut(self, queue_end: Callable[[str, int], int]) -> int:
        """Brings progress beyond a queue's end back to it; in how many queues. `queue_end` knows the end of a queue by
        topic and queue id."""
        cut_count = 0
        for subscription in self.subscriptions.values():
            for queue in subscription.queues.values():
                if queue.next_offset > (end := queue_end(subscription.topic, queue.queue_id)):
                    queue.truncate(end)
                    cut_count += 1
        return cut_count

    def obey(self, acts: OperatorActs) -> bool:
        """Does what operators did to the tables; False when it was about nothing that is held here."""
        numbers = {(one.group, one.topic): number for number, one in self.subscriptions.items()}
        removed = [numbers.pop(pair) for pair in acts.removed if pair in numbers]
        for number in removed:
            del self.subscriptions[number]
        is_changed = bool(removed)
        for group, topic, queue_id, offset in acts.resets:
            subscription = self.subscriptions.get(numbers.get((group, topic), -1))
            if subscription is not None and queue_id in subscription.queues:
                subscription.queues[queue_id] = QueueProgress(subscription, queue_id, offset)
                is_changed = True
        return is_changed

    def to_snapshot(self) -> bytes:
        """See `write_snapshot`."""
        return write_snapshot(self.subscriptions.values())

    def _apply_subscription(self, entry: SubscriptionEntry) -> None:
        if entry.kind is EntryKind.FORGET:
            self.subscriptions.pop(entry.number, None)
        else:
            self.subscriptions[entry.number] = Subscription(entry.number, entry.group, entry.topic)


def _lease(queue: QueueProgress, entry: GrantEntry) -> Lease:
    return Lease(
        queue,
        entry.offsets,
        nonce=entry.nonce,
        attempt=entry.attempt,
        granted_ms=entry.granted_ms,
        deadline_ms=entry.deadline_ms,
        client_id=entry.client_id,
        auto_renew=entry.auto_renew,
    )


def _apply_at(queue: QueueProgress, kind: EntryKind, offset: int) -> None:
    if kind is EntryKind.FINISH:
        if offset in queue.pending:
            queue.finish(offset)
    elif kind is EntryKind.SKIP:
        queue.skip_to(offset)
    elif kind is EntryKind.TRIM:
        queue.trim(offset)
    elif kind is EntryKind.TRUNCATE:
        queue.truncate(offset)


def write_snapshot(subscriptions: Iterable[Subscription]) -> bytes:
    """The shortest journal that leads to the state of `subscriptions`."""
    journal = LeaseJournal()
    for subscription in subscriptions:
        journal.subscription(subscription)
        for queue in subscription.queues.values():
            journal.at(EntryKind.POSITION, queue, queue.committed)
            held: dict[Lease, list[int]] = {}
            for offset in sorted(queue.pending):
                held.setdefault(queue.pending[offset], []).append(offset)
            for lease, offsets in held.items():
                # The lowest offset comes with the first lease and keeps the committed offset where it is.
                journal.grant(lease, offsets, queue.next_offset)
    return journal.take()

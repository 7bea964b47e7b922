"""The state of a lease table, and the transitions that all its operations share.

    unopened --open--> queue with a position
    new or ready --start--> leased --finish--> finished
                            leased --end--> ready
    any, below the store's begin --trim--> finished;  any, beyond the store's end --truncate--> unknown

Each transition is journalled where it is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from tandemmq.core.delivery.journal import EntryKind, LeaseJournal
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import ENDED, Lease, QueueProgress
from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.delivery.subscription import Subscription

_LOOKED_AT_MAX: Final = 1 << 16
_SKIPPED_MAX: Final = 1_000
"""Pairs of group and topic."""


class LeaseState:
    """Subscriptions by group and topic, when their leases end, and what became visible. One thread only."""

    def __init__(
        self,
        reader: QueueReader,
        *,
        options: DeliveryOptions,
        stored_offset: Callable[[str, str, int], int | None],
    ) -> None:
        self.reader = reader
        self.options = options
        self.stored_offset = stored_offset
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.journal = LeaseJournal()
        self.visible: set[Subscription] = set()
        """May have something to deliver which they had not before."""
        self.renewed: dict[str, set[Lease]] = {}
        """Leases renewed for each client."""
        self.ended: deque[Lease] = deque(maxlen=_LOOKED_AT_MAX)
        """Since the owner looked last, whether their messages may be delivered once more; it looks each second, but for
        a slave that serves reads. What falls out is looked at by the group's next receive."""
        self.used_up: deque[tuple[Lease, int]] = deque(maxlen=_LOOKED_AT_MAX)
        """Messages under the last lease that they may have; one that is finished, or leased anew, does not count."""
        self.moved: list[Subscription] = []
        """Whose committed offsets may have changed since they were last told; each once, by its `has_moved`."""
        self.skipped: dict[tuple[str, str], dict[int, int]] = {}
        """Where groups began at the newest message beside older ones, by queue; the latest such groups."""
        self.new_skips: set[tuple[str, str]] = set()
        """Those that nobody has been told of yet."""
        self.has_begun_at_newest = False
        """Some group, since the owner asked last."""
        self.passed_over_count = 0
        """Messages of ordered queues that were found while their message group was held."""
        self._next_number = 1
        self._wakeups: list[tuple[int, int, Subscription]] = []
        """Heap of when to look at the ends of a subscription's leases; void unless equal to its wakeup_ms."""
        self._serial = 0

    # Subscriptions

    def open(self, group: str, topic: str, queue_ids: Sequence[int]) -> Subscription:
        """The group on the topic, with all of `queue_ids` opened."""
        subscription = self.subscriptions.get((group, topic))
        if subscription is None:
            subscription = Subscription(self._next_number, group, topic)
            self._next_number += 1
            self.subscriptions[group, topic] = subscription
            self.journal.subscription(subscription)
        queues = subscription.queues
        if len(queues) < len(queue_ids) or not all(map(queues.__contains__, queue_ids)):
            self._open_all(subscription, [queue_id for queue_id in queue_ids if queue_id not in queues])
        return subscription

    def _open_all(self, subscription: Subscription, queue_ids: list[int]) -> None:
        """Fixes where the group starts. In queues added to a topic it consumes already, it misses nothing."""
        group, topic = subscription.group, subscription.topic
        stored = {queue_id: self.stored_offset(group, topic, queue_id) for queue_id in queue_ids}
        is_known = bool(subscription.queues) or any(offset is not None for offset in stored.values())
        from_earliest = is_known or self.options.consume_from_earliest
        self.has_begun_at_newest |= not from_earliest
        for queue_id, offset in stored.items():
            min_offset = self.reader.min_offset(topic, queue_id)
            max_offset = self.reader.max_offset(topic, queue_id)
            if offset is not None:
                start = min(max(offset, min_offset), max_offset)
            else:
                start = min_offset if from_earliest else max_offset
            self.open_queue(subscription, queue_id, start)
            if offset is None and start > min_offset:
                self._note_skip((group, topic), queue_id, start)

    def _note_skip(self, pair: tuple[str, str], queue_id: int, start: int) -> None:
        if pair not in self.skipped:
            self.skipped[pair] = {}
            self.new_skips.add(pair)
        self.skipped[pair][queue_id] = start
        if len(self.skipped) > _SKIPPED_MAX:
            oldest = next(iter(self.skipped))
            del self.skipped[oldest]
            self.new_skips.discard(oldest)

    def open_queue(self, subscription: Subscription, queue_id: int, offset: int) -> None:
        """The group starts in the queue at `offset`, whatever was known of it."""
        queue = subscription.queues[queue_id] = QueueProgress(subscription, queue_id, offset)
        self.journal.at(EntryKind.POSITION, queue, offset)
        self._note_move(subscription)

    def adopt(self, subscriptions: Iterable[Subscription]) -> None:
        """Takes the subscriptions of an earlier run; the caller resumes their queues."""
        for subscription in subscriptions:
            self.subscriptions[subscription.group, subscription.topic] = subscription
            self._next_number = max(self._next_number, subscription.number + 1)
            self._note_move(subscription)

    def forget(self, subscription: Subscription) -> None:
        """The group does not consume the topic any more."""
        del self.subscriptions[subscription.group, subscription.topic]
        self.skipped.pop((subscription.group, subscription.topic), None)
        for queue in subscription.queues.values():
            self.drop(queue, queue.trim(queue.next_offset))
        subscription.queues.clear()
        self.visible.discard(subscription)
        self.journal.forget(subscription)

    def _note_move(self, subscription: Subscription) -> None:
        if not subscription.has_moved:
            subscription.has_moved = True
            self.moved.append(subscription)

    # Leases

    def start(self, lease: Lease, next_offset: int) -> None:
        """A lease begins; its messages belong to none or were let go of."""
        lease.queue.grant(lease, next_offset)
        self.journal.grant(lease, lease.offsets, next_offset)
        self._note_move(lease.queue.subscription)
        self.note_end(lease, is_new=True)

    def note_end(self, lease: Lease, *, is_new: bool) -> None:
        """The end of a lease is known, for the first time or anew."""
        subscription = lease.queue.subscription
        self._serial += 1
        if is_new:
            subscription.lease_started(lease, self._serial)
            if lease.auto_renew:
                self.renewed.setdefault(lease.client_id, set()).add(lease)
        else:
            subscription.lease_moved(lease, self._serial)
        if subscription.wakeup_ms is None or lease.deadline_ms < subscription.wakeup_ms:
            self._plan_wakeup(subscription)

    def finish(self, queue: QueueProgress, offset: int) -> None:
        lease = queue.finish(offset)
        lease.held -= 1
        if lease.held == 0:
            self._retire(lease)
        self.journal.finish(queue, offset)
        if not queue.subscription.has_moved:
            self._note_move(queue.subscription)
        order = queue.order
        if order is not None and order.next_free() >= 0:
            queue.subscription.ready_queues.add(queue.queue_id)
            self.visible.add(queue.subscription)
        if queue.refused:
            queue.refused = False
            self.visible.add(queue.subscription)

    def end(self, lease: Lease) -> None:
        """The messages still under a lease become ready."""
        self._retire(lease)
        self.make_ready(lease)

    def make_ready(self, lease: Lease) -> None:
        """The same for a lease whose end was noticed before."""
        queue = lease.queue
        queue.end(lease)
        if lease.attempt:
            self.ended.append(lease)
        if queue.order is None or queue.order.next_free() >= 0:
            queue.subscription.ready_queues.add(queue.queue_id)
        self.visible.add(queue.subscription)

    def pass_over(self, queue: QueueProgress, offsets: list[int], next_offset: int, now_ms: int) -> None:
        """New messages, ascending and not empty, are kept for later: their message groups are held."""
        lease = Lease(
            queue,
            offsets,
            nonce=0,
            attempt=0,
            granted_ms=now_ms,
            deadline_ms=ENDED,
            client_id="",
            auto_renew=False,
        )
        queue.grant(lease, next_offset)
        self.journal.grant(lease, offsets, next_offset)
        self._note_move(queue.subscription)
        self.passed_over_count += len(offsets)

    def let_run_out(self, lease: Lease) -> None:
        """The lease ends with its time, also after a restart: it is not renewed any more."""
        queue = lease.queue
        subscription = queue.subscription
        # Not one of a former term of this master.
        is_ours = self.subscriptions.get((subscription.group, subscription.topic)) is subscription
        if is_ours and lease.held and lease.auto_renew:
            self._renew_no_longer(lease)
            lease.auto_renew = False
            offsets = [offset for offset in lease.offsets if queue.pending.get(offset) is lease]
            self.journal.grant(lease, offsets, queue.next_offset)

    def let_go(self, lease: Lease) -> None:
        """One message is not under the lease any more."""
        lease.held -= 1
        if lease.held == 0:
            self._retire(lease)

    def _retire(self, lease: Lease) -> None:
        """A running lease is over; for one that ended before, nothing is left to do."""
        if lease.deadline_ms == ENDED:
            return
        lease.queue.subscription.lease_over()
        if lease.auto_renew:
            self._renew_no_longer(lease)

    def _renew_no_longer(self, lease: Lease) -> None:
        leases = self.renewed.get(lease.client_id)
        if leases is not None:
            leases.discard(lease)
            if not leases:
                del self.renewed[lease.client_id]

    # Messages that are not delivered any more

    def skip(self, queue: QueueProgress, offset: int) -> None:
        """Nothing below `offset` that was never delivered is wanted."""
        queue.skip_to(offset)
        self.journal.at(EntryKind.SKIP, queue, offset)
        self._note_move(queue.subscription)

    def trim(self, queue: QueueProgress, offset: int) -> None:
        """Everything below `offset` is finished."""
        self.drop(queue, queue.trim(offset))
        self.journal.at(EntryKind.TRIM, queue, offset)
        self._note_move(queue.subscription)

    def truncate(self, queue: QueueProgress, offset: int) -> None:
        """The queue ends earlier than it did when the group consumed it."""
        if not self.reader.knows_end(queue.subscription.topic):
            return
        self.drop(queue, queue.truncate(offset))
        self.journal.at(EntryKind.TRUNCATE, queue, offset)
        self._note_move(queue.subscription)

    def drop(self, queue: QueueProgress, leases: Iterable[Lease]) -> None:
        """Messages were taken out of the queue; `leases` has the lease of each."""
        for lease in leases:
            self.let_go(lease)
        if not queue.has_ready:
            queue.subscription.ready_queues.discard(queue.queue_id)

    # Time

    def next_wakeup_ms(self) -> int | None:
        """When the next lease of any subscription ends."""
        while self._wakeups and self._wakeups[0][2].wakeup_ms != self._wakeups[0][0]:
            heappop(self._wakeups)
        return self._wakeups[0][0] if self._wakeups else None

    def end_due(self, now_ms: int) -> None:
        """Ends or renews the leases of all subscriptions whose time has come."""
        while self._wakeups and self._wakeups[0][0] <= now_ms:
            wakeup_ms, _, subscription = heappop(self._wakeups)
            if subscription.wakeup_ms == wakeup_ms:
                subscription.wakeup_ms = None
                self.end_due_of(subscription, now_ms)
                self._plan_wakeup(subscription)

    def end_due_of(self, subscription: Subscription, now_ms: int) -> None:
        """The same for one subscription."""
        while (lease := subscription.take_ended(now_ms)) is not None:
            last_ms = lease.granted_ms + self.options.renew_total_ms
            if lease.auto_renew and now_ms < last_ms:
                lease.deadline_ms = min(now_ms + self.options.renew_interval_ms, last_ms)
                self.note_end(lease, is_new=False)
            else:
                self.end(lease)

    def _plan_wakeup(self, subscription: Subscription) -> None:
        subscription.wakeup_ms = subscription.next_end_ms()
        if subscription.wakeup_ms is not None:
            self._serial += 1
            heappush(self._wakeups, (subscription.wakeup_ms, self._serial, subscription))

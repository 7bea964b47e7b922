"""Who has which message: delivery with leases, as RocketMQ 5's pop consumption gives it, without its CommitLog traffic.

Life of a message in one group:

    new --receive--> leased --acknowledge--> finished
                       |  ^
        lease ends,    |  | receive, attempt + 1, new handle
        client gone,   v  |
        invisible 0   ready --receive, all attempts used--> leased as a dead letter

- At least once: a message is finished only by an acknowledgement with the handle of its running lease, by a filter that
  does not want it, or by expiry of the store. Whatever the table forgets in a crash is delivered again.
- The committed offset of a queue is its lowest unfinished one. It moves back only in `reset`, and where the log lost
  messages that were delivered before.
- Persist, then answer: the caller appends `take_journal()` to its file before an answer that depends on it leaves.

One thread only. Times are wall-clock milliseconds, since deadlines outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from mqcore.delivery.journal import EntryKind, LeaseJournal, read_frames
from mqcore.delivery.lease_values import Delivery, QueueState, Received, RestoreReport
from mqcore.delivery.options import DeliveryOptions
from mqcore.delivery.queue_progress import ENDED, Lease, QueueProgress
from mqcore.delivery.queue_reader import QueueReader
from mqcore.delivery.receipt_handle import encode_broker_name, make_handles, read_handle
from mqcore.delivery.replay import LeaseReplay, write_snapshot
from mqcore.delivery.subscription import Subscription
from mqcore.delivery.tag_filter import TagFilter
from mqcore.message import MessageRecord
from mqcore.metadata import GroupOffset
from mqcore.offsets import ConsumerOffset

__all__ = ["LeaseTable"]

_FILTERED_CHUNK: Final = 256
"""Entries read at once when a filter lets few pass."""
_COMPACTION_FACTOR: Final = 4
"""A journal so many times as long as the last snapshot is worth the next one."""


@dataclass(slots=True)
class _Request:
    """A receive under way."""

    tag_filter: TagFilter
    remaining: int
    """Messages still wanted."""
    scan_budget: int
    """Entries that may still be looked at."""
    nonce: int
    now_ms: int
    deadline_ms: int
    max_attempts: int
    auto_renew: bool
    client_id: str
    attempt_id: str
    received: Received


class LeaseTable:
    """All groups of one broker; see the module's docstring."""

    def __init__(
        self,
        queues: QueueReader,
        *,
        options: DeliveryOptions,
        broker_name: str,
        nonce: Callable[[], int],
        stored_offset: Callable[[str, str, int], int | None] = lambda _group, _topic, _queue_id: None,
    ) -> None:
        """`nonce` gives 64 unpredictable bits. `stored_offset` is the replicated progress of (group, topic, queue id),
        where a group resumes that this table does not know: after a failover, or when its files were lost.
        """
        self._reader = queues
        self._options = options
        self._broker_name = encode_broker_name(broker_name)
        self._nonce = nonce
        self._stored_offset = stored_offset
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._next_subscription = 1
        self._wakeups: list[tuple[int, int, Subscription]] = []
        """Heap of when to look at the ends of a subscription's leases; void unless equal to its wakeup_ms."""
        self._serial = 0
        self._renewed: dict[str, set[Lease]] = {}
        """Leases renewed for each client."""
        self._unseen_clients: set[str] = set()
        """Had leases before the restart and did not ask for anything since."""
        self._grace_end_ms: int | None = None
        self._visible: set[Subscription] = set()
        self._journal = LeaseJournal()
        self._journal_bytes = 0
        self._snapshot_bytes = 0

    # Receive

    def receive(
        self,
        *,
        group: str,
        topic: str,
        queue_ids: Sequence[int],
        tag_filter: TagFilter,
        batch_size: int,
        invisible_ms: int,
        now_ms: int,
        max_attempts: int,
        auto_renew: bool,
        client_id: str,
        ordered: bool = False,
        attempt_id: str = "",
    ) -> Received:
        """Leases up to `batch_size` messages of the queues: redeliveries first, oldest first, then new ones.

        The first receive of a group fixes where it starts in all of `queue_ids`. With `auto_renew` the lease has the
        options' length and `invisible_ms` is not looked at. With `ordered` a queue gives nothing while something of
        its last batch is leased, except that batch again to a request with the same `attempt_id`: its answer was lost.

        RecordCorrupt from the reader passes through; what was leased before it stays so until the lease ends.
        """
        subscription = self._subscription(group, topic, queue_ids)
        self._unseen_clients.discard(client_id)
        self._end_leases(subscription, now_ms)
        request = _Request(
            tag_filter=tag_filter,
            remaining=batch_size,
            scan_budget=self._options.max_scanned_per_receive,
            nonce=self._nonce(),
            now_ms=now_ms,
            deadline_ms=now_ms + (self._options.renew_interval_ms if auto_renew else invisible_ms),
            max_attempts=max_attempts,
            auto_renew=auto_renew,
            client_id=client_id,
            attempt_id=attempt_id,
            received=Received([], []),
        )
        queues = self._in_turn(subscription, queue_ids)
        if ordered:
            self._receive_ordered(queues, request)
            return request.received
        if subscription.ready_queues:
            for queue in queues:
                if queue.ready:
                    self._deliver_again(queue, request)
        for queue in queues:
            if request.remaining <= 0:
                break
            queue.ordered = False
            self._deliver_new(queue, request)
        return request.received

    def _in_turn(self, subscription: Subscription, queue_ids: Sequence[int]) -> list[QueueProgress]:
        queues = subscription.queues
        found = [queues[queue_id] for queue_id in queue_ids]
        if len(found) > 1:
            first = subscription.turn % len(found)
            subscription.turn += 1
            found = found[first:] + found[:first]
        return found

    def _receive_ordered(self, queues: list[QueueProgress], request: _Request) -> None:
        for queue in queues:
            if request.remaining <= 0:
                return
            queue.ordered = True
            if queue.leased_count:
                if request.attempt_id and request.attempt_id == queue.attempt_id:
                    self._deliver_leased(queue, request)
                continue
            if queue.ready:
                self._deliver_again(queue, request)
            else:
                self._deliver_new(queue, request)
            queue.attempt_id = request.attempt_id

    def _deliver_new(self, queue: QueueProgress, request: _Request) -> None:
        """Leases messages from `next_offset` on. Nothing changes if the reader raises."""
        reader, topic, queue_id = self._reader, queue.subscription.topic, queue.queue_id
        end = reader.max_offset(topic, queue_id)
        offset = queue.next_offset
        if offset >= end:
            if offset > end:
                self._truncate(queue, end)
            return
        wanted = min(request.remaining, self._options.max_inflight_per_queue - len(queue.pending))
        if wanted <= 0:
            queue.refused = True
            return
        min_offset = reader.min_offset(topic, queue_id)
        if offset < min_offset:
            self._trim(queue, min_offset)
            offset = queue.next_offset
        codes, matches, message = request.tag_filter.codes, request.tag_filter.matches, reader.message
        offsets: list[int] = []
        records: list[MessageRecord] = []
        while offset < end and len(offsets) < wanted:
            if request.scan_budget <= 0:
                request.received.more = True
                break
            count = wanted - len(offsets) if codes is None else min(_FILTERED_CHUNK, request.scan_budget)
            entries = reader.entries(topic, queue_id, offset, min(count, end - offset))
            assert entries, f"{topic} queue {queue_id} has no entry at {offset}, below its end {end}"
            request.scan_budget -= len(entries)
            for entry in entries:
                if codes is None or entry.tags_code in codes:
                    record = message(entry)
                    if record is not None and (codes is None or matches(record.properties)):
                        offsets.append(offset)
                        records.append(record)
                offset += 1
                if len(offsets) == wanted:
                    break
        if offsets:
            self._lease(queue, offsets, records, request, attempt=1, next_offset=offset)
        elif offset > queue.next_offset:
            queue.skip_to(offset)
            self._journal.at(EntryKind.SKIP, queue, offset)

    def _deliver_again(self, queue: QueueProgress, request: _Request) -> None:
        """Leases ready messages, or hands them over as dead letters."""
        reader, topic, queue_id = self._reader, queue.subscription.topic, queue.queue_id
        min_offset, end = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
        if queue.committed < min_offset:
            self._trim(queue, min_offset)
        if queue.next_offset > end:
            self._truncate(queue, end)
        while queue.ready and request.remaining > 0:
            offset = queue.ready[0]
            record = self._record_at(queue, offset)
            queue.take_ready()
            before = queue.pending[offset]
            if record is None or not request.tag_filter.matches(record.properties):
                self._finish(queue, offset)
            else:
                attempt = before.attempt + 1
                self._let_go(before)
                self._lease(queue, [offset], [record], request, attempt=attempt, next_offset=queue.next_offset)
        if not queue.ready:
            queue.subscription.ready_queues.discard(queue_id)

    def _deliver_leased(self, queue: QueueProgress, request: _Request) -> None:
        """Gives a batch again that is still leased, because its answer was lost: the attempt stays the same."""
        waiting = set(queue.ready)
        for offset in sorted(queue.pending.keys() - waiting)[: request.remaining]:
            record = self._record_at(queue, offset)
            before = queue.pending[offset]
            if record is None:
                self._finish(queue, offset)
                continue
            self._let_go(before)
            self._lease(queue, [offset], [record], request, attempt=before.attempt, next_offset=queue.next_offset)

    def _record_at(self, queue: QueueProgress, offset: int) -> MessageRecord | None:
        entries = self._reader.entries(queue.subscription.topic, queue.queue_id, offset, 1)
        return self._reader.message(entries[0]) if entries else None

    def _lease(
        self,
        queue: QueueProgress,
        offsets: list[int],
        records: list[MessageRecord],
        request: _Request,
        *,
        attempt: int,
        next_offset: int,
    ) -> None:
        """Puts messages under a new lease and adds them to what was received."""
        is_dead_letter = attempt > request.max_attempts
        lease = Lease(
            queue,
            offsets,
            nonce=request.nonce,
            attempt=attempt - 1 if is_dead_letter else attempt,
            granted_ms=request.now_ms,
            deadline_ms=request.deadline_ms,
            client_id=request.client_id,
            auto_renew=request.auto_renew and not is_dead_letter,
        )
        self._start(lease, next_offset)
        queue_id = queue.queue_id
        received = request.received
        target = received.dead_letters if is_dead_letter else received.deliveries
        target += [
            Delivery(record, handle, attempt, queue_id, offset)
            for record, handle, offset in zip(records, self._handles(lease), offsets)
        ]
        request.remaining -= len(offsets)

    # Settle

    def acknowledge(self, *, group: str, topic: str, handle: str, now_ms: int) -> bool:
        """Finishes a message; False when the handle is not that of its running lease."""
        lease, offset = self._held(group, topic, handle, now_ms)
        if lease is None:
            return False
        self._finish(lease.queue, offset)
        return True

    def change_invisible(self, *, group: str, topic: str, handle: str, invisible_ms: int, now_ms: int) -> str | None:
        """Ends the lease `invisible_ms` from now, 0 at once. The new handle, or None as in `acknowledge`.

        The handle given stops working, and the server does not renew the lease any more.
        """
        before, offset = self._held(group, topic, handle, now_ms)
        if before is None:
            return None
        lease = Lease(
            before.queue,
            [offset],
            nonce=self._nonce(),
            attempt=before.attempt,
            granted_ms=now_ms,
            deadline_ms=now_ms + invisible_ms,
            client_id=before.client_id,
            auto_renew=False,
        )
        self._let_go(before)
        self._start(lease, lease.queue.next_offset)
        changed_handle = self._handles(lease)[0]
        if invisible_ms <= 0:
            self._end(lease)
        return changed_handle

    def leased(self, *, group: str, topic: str, handle: str, now_ms: int) -> Delivery | None:
        """The message of a running lease, to be read again; None as in `acknowledge`, or when the store lost it."""
        lease, offset = self._held(group, topic, handle, now_ms)
        if lease is None:
            return None
        record = self._record_at(lease.queue, offset)
        return None if record is None else Delivery(record, handle, lease.attempt, lease.queue.queue_id, offset)

    def client_gone(self, client_id: str, now_ms: int) -> None:
        """The client left or fell silent: leases renewed for it end shortly."""
        self._unseen_clients.discard(client_id)
        for lease in self._renewed.pop(client_id, ()):
            lease.auto_renew = False
            lease.deadline_ms = min(lease.deadline_ms, now_ms + self._options.client_gone_visible_ms)
            self._note_end(lease, is_new=False)

    def client_seen(self, client_id: str) -> None:
        """The client lives; `receive` says so too. Needed for one that after a restart beats without receiving."""
        self._unseen_clients.discard(client_id)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        while self._wakeups and self._wakeups[0][2].wakeup_ms != self._wakeups[0][0]:
            heappop(self._wakeups)
        deadlines = [self._wakeups[0][0]] if self._wakeups else []
        if self._grace_end_ms is not None:
            deadlines.append(self._grace_end_ms)
        return min(deadlines, default=None)

    def expire(self, now_ms: int) -> None:
        """Ends leases whose time has come, renewing those of living clients; `take_visible` tells what came of it."""
        self._watch_for_unseen_clients(now_ms)
        while self._wakeups and self._wakeups[0][0] <= now_ms:
            wakeup_ms, _, subscription = heappop(self._wakeups)
            if subscription.wakeup_ms == wakeup_ms:
                subscription.wakeup_ms = None
                self._end_leases(subscription, now_ms)
                self._plan_wakeup(subscription)

    def take_visible(self) -> list[tuple[str, str]]:
        """(group, topic) pairs that may have something to deliver which they had not at the last call."""
        visible = [(subscription.group, subscription.topic) for subscription in self._visible]
        self._visible.clear()
        return visible

    def next_visible_ms(self, group: str, topic: str) -> int | None:
        """When the next leased message may be visible again, 0 when one is now; None when nothing is leased."""
        subscription = self._subscriptions.get((group, topic))
        if subscription is None:
            return None
        return 0 if subscription.ready_queues else subscription.next_end_ms()

    # Progress

    def committed(self, group: str, topic: str, queue_id: int) -> ConsumerOffset | None:
        """First unfinished message; None when the group did not consume the queue here yet."""
        subscription = self._subscriptions.get((group, topic))
        queue = subscription.queues.get(queue_id) if subscription else None
        return None if queue is None else ConsumerOffset(queue.committed)

    def progress(self) -> Iterator[QueueState]:
        """Every group in every queue it consumes."""
        for (group, topic), subscription in self._subscriptions.items():
            for queue in subscription.queues.values():
                yield QueueState(
                    group,
                    topic,
                    queue.queue_id,
                    queue.committed,
                    queue.next_offset,
                    queue.leased_count,
                    len(queue.ready),
                )

    def committed_offsets(self) -> Iterator[GroupOffset]:
        """Committed offsets of all groups, for ConsumerOffsetTable.commit_all."""
        for (group, topic), subscription in self._subscriptions.items():
            for queue in subscription.queues.values():
                yield GroupOffset(group, topic, queue.queue_id, queue.committed)

    def reset(self, *, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group goes on at `offset`, forward or back, because an operator says so; leases in the queue are void."""
        subscription = self._subscription(group, topic, ())
        queue = subscription.queues.get(queue_id)
        if queue is not None:
            self._drop(queue, queue.trim(queue.next_offset))
        self._open(subscription, queue_id, offset)
        self._visible.add(subscription)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: a later one of its name starts anew."""
        for key in [key for key in self._subscriptions if key[1] == topic]:
            subscription = self._subscriptions.pop(key)
            for queue in subscription.queues.values():
                self._drop(queue, queue.trim(queue.next_offset))
            self._visible.discard(subscription)
            self._journal.forget(subscription)

    # Journal

    @property
    def compaction_due(self) -> bool:
        """The journal since the last snapshot is long enough to be replaced by a new one."""
        limit = max(self._options.compaction_floor_bytes, _COMPACTION_FACTOR * self._snapshot_bytes)
        return self._journal_bytes > limit

    def take_journal(self) -> bytes:
        """All changes since the last call, to be appended to the journal; empty without any."""
        frame = self._journal.take()
        self._journal_bytes += len(frame)
        return frame

    def snapshot(self) -> bytes:
        """The whole state; a journal for it begins with the next `take_journal`, so the last one comes before."""
        frame = write_snapshot(self._subscriptions.values())
        self._snapshot_bytes = len(frame)
        self._journal_bytes = 0
        return frame

    def restore(self, snapshot: bytes, journal: bytes) -> RestoreReport:
        """Takes the state from the files of an earlier run; both may be empty. Only on a new table, its store loaded.

        Progress that lies beyond the end of a queue, because the log lost its tail, goes back to that end, or messages
        put there from now on would never be delivered.
        """
        assert not self._subscriptions, "restore comes first"
        replay = LeaseReplay()
        entries, valid_bytes = read_frames(snapshot)
        replay.apply(entries)
        snapshot_valid = valid_bytes == len(snapshot)
        changes, journal_bytes = read_frames(journal)
        if snapshot_valid:
            replay.apply(changes)
        self._next_subscription = max(replay.subscriptions, default=0) + 1
        for subscription in replay.subscriptions.values():
            self._subscriptions[subscription.group, subscription.topic] = subscription
            for queue in subscription.queues.values():
                self._resume(queue)
        return RestoreReport(snapshot_valid, journal_bytes, len(journal) - journal_bytes)

    def _resume(self, queue: QueueProgress) -> None:
        """Counts the leases of a replayed queue, starts their time and puts the queue in line with the store."""
        topic, queue_id = queue.subscription.topic, queue.queue_id
        held: dict[Lease, int] = {}
        for lease in queue.pending.values():
            held[lease] = held.get(lease, 0) + 1
        for lease, count in held.items():
            lease.held = count
            if lease.deadline_ms == ENDED:
                self._make_ready(lease)
                continue
            self._note_end(lease, is_new=True)
            if lease.auto_renew:
                self._unseen_clients.add(lease.client_id)
        if queue.next_offset > (end := self._reader.max_offset(topic, queue_id)):
            self._truncate(queue, end)
        stored = min(self._stored_offset(queue.subscription.group, topic, queue_id) or 0, end)
        if queue.committed < (start := max(stored, self._reader.min_offset(topic, queue_id))):
            self._trim(queue, start)

    # Transitions shared by the above

    def _subscription(self, group: str, topic: str, queue_ids: Sequence[int]) -> Subscription:
        """The group on the topic, with all of `queue_ids` opened."""
        subscription = self._subscriptions.get((group, topic))
        if subscription is None:
            subscription = Subscription(self._next_subscription, group, topic)
            self._next_subscription += 1
            self._subscriptions[group, topic] = subscription
            self._journal.subscription(subscription)
        queues = subscription.queues
        unopened = [queue_id for queue_id in queue_ids if queue_id not in queues]
        if unopened:
            self._open_all(subscription, unopened)
        return subscription

    def _open_all(self, subscription: Subscription, queue_ids: list[int]) -> None:
        """Fixes where the group starts. In queues added to a topic it consumes already, it misses nothing."""
        group, topic = subscription.group, subscription.topic
        stored = {queue_id: self._stored_offset(group, topic, queue_id) for queue_id in queue_ids}
        is_known = bool(subscription.queues) or any(offset is not None for offset in stored.values())
        from_earliest = is_known or self._options.consume_from_earliest
        for queue_id, offset in stored.items():
            min_offset = self._reader.min_offset(topic, queue_id)
            max_offset = self._reader.max_offset(topic, queue_id)
            if offset is not None:
                start = min(max(offset, min_offset), max_offset)
            else:
                start = min_offset if from_earliest else max_offset
            self._open(subscription, queue_id, start)

    def _open(self, subscription: Subscription, queue_id: int, offset: int) -> None:
        queue = subscription.queues[queue_id] = QueueProgress(subscription, queue_id, offset)
        self._journal.at(EntryKind.POSITION, queue, offset)

    def _held(self, group: str, topic: str, handle: str, now_ms: int) -> tuple[Lease, int] | tuple[None, int]:
        """The running lease a handle belongs to, and the offset it names."""
        receipt = read_handle(handle)
        subscription = self._subscriptions.get((group, topic))
        if receipt is None or subscription is None:
            return None, 0
        queue = subscription.queues.get(receipt.queue_id)
        lease = queue.pending.get(receipt.queue_offset) if queue is not None else None
        if lease is None or lease.nonce != receipt.nonce or (lease.deadline_ms <= now_ms and not lease.auto_renew):
            return None, 0
        return lease, receipt.queue_offset

    def _start(self, lease: Lease, next_offset: int) -> None:
        """A lease begins; its messages belong to none or were let go of."""
        queue = lease.queue
        queue.grant(lease, next_offset)
        self._journal.grant(lease, lease.offsets, next_offset)
        self._note_end(lease, is_new=True)

    def _note_end(self, lease: Lease, *, is_new: bool) -> None:
        """The end of a lease is known, for the first time or anew."""
        subscription = lease.queue.subscription
        self._serial += 1
        if is_new:
            subscription.lease_started(lease, self._serial)
            if lease.auto_renew:
                self._renewed.setdefault(lease.client_id, set()).add(lease)
        else:
            subscription.lease_moved(lease, self._serial)
        if subscription.wakeup_ms is None or lease.deadline_ms < subscription.wakeup_ms:
            self._plan_wakeup(subscription)

    def _plan_wakeup(self, subscription: Subscription) -> None:
        subscription.wakeup_ms = subscription.next_end_ms()
        if subscription.wakeup_ms is not None:
            self._serial += 1
            heappush(self._wakeups, (subscription.wakeup_ms, self._serial, subscription))

    def _end_leases(self, subscription: Subscription, now_ms: int) -> None:
        """Ends or renews the leases of one subscription whose time has come."""
        while (lease := subscription.take_ended(now_ms)) is not None:
            last_ms = lease.granted_ms + self._options.renew_total_ms
            if lease.auto_renew and now_ms < last_ms:
                lease.deadline_ms = min(now_ms + self._options.renew_interval_ms, last_ms)
                self._note_end(lease, is_new=False)
            else:
                self._end(lease)

    def _end(self, lease: Lease) -> None:
        """The messages still under a lease become ready."""
        self._retire(lease)
        self._make_ready(lease)

    def _make_ready(self, lease: Lease) -> None:
        queue = lease.queue
        queue.end(lease)
        queue.subscription.ready_queues.add(queue.queue_id)
        self._visible.add(queue.subscription)

    def _finish(self, queue: QueueProgress, offset: int) -> None:
        """A message is done with."""
        self._let_go(queue.finish(offset))
        self._journal.finish(queue, offset)
        is_free = not queue.leased_count if queue.ordered else queue.refused
        if is_free:
            queue.refused = False
            self._visible.add(queue.subscription)

    def _trim(self, queue: QueueProgress, offset: int) -> None:
        """Everything below `offset` is finished."""
        self._drop(queue, queue.trim(offset))
        self._journal.at(EntryKind.TRIM, queue, offset)

    def _truncate(self, queue: QueueProgress, offset: int) -> None:
        """The queue became shorter than it was when the group consumed it."""
        self._drop(queue, queue.truncate(offset))
        self._journal.at(EntryKind.TRUNCATE, queue, offset)

    def _drop(self, queue: QueueProgress, leases: list[Lease]) -> None:
        """Messages were taken out of the queue; `leases` has the lease of each."""
        for lease in leases:
            self._let_go(lease)
        if not queue.ready:
            queue.subscription.ready_queues.discard(queue.queue_id)

    def _let_go(self, lease: Lease) -> None:
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
            leases = self._renewed.get(lease.client_id)
            if leases is not None:
                leases.discard(lease)
                if not leases:
                    del self._renewed[lease.client_id]

    def _watch_for_unseen_clients(self, now_ms: int) -> None:
        """After a restart, gives clients some time to show that they live, since their leases are renewed meanwhile."""
        if not self._unseen_clients:
            self._grace_end_ms = None
        elif self._grace_end_ms is None:
            self._grace_end_ms = now_ms + self._options.reconnect_grace_ms
        elif now_ms >= self._grace_end_ms:
            for client_id in list(self._unseen_clients):
                self.client_gone(client_id, now_ms)
            self._grace_end_ms = None

    def _handles(self, lease: Lease) -> list[str]:
        return make_handles(
            lease.offsets,
            queue_id=lease.queue.queue_id,
            nonce=lease.nonce,
            deadline_ms=lease.deadline_ms,
            encoded_broker_name=self._broker_name,
        )

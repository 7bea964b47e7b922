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

One thread only. Callers give and get monotonic milliseconds: a lease is a duration, and a wall clock that jumps must
not make it longer or shorter. Inside, in handles and in the journal stands *lease time*, the same plus an offset, which
the owner keeps for as long as the machine runs: deadlines outlive the process. Another run of the machine goes by the
wall clock, and a lease that seems to begin in the future begins then: none lasts longer than it was given for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tandemmq.core.delivery.handout import UNPROVEN_COST, Handout
from tandemmq.core.delivery.journal import LeaseReplay, is_beginning_of_frame, read_frames, write_snapshot
from tandemmq.core.delivery.lease_state import LeaseState
from tandemmq.core.delivery.lease_terms import DeliveryOptions, encode_broker_name, make_handles, read_numbers
from tandemmq.core.delivery.queue_progress import (
    ENDED,
    Backlog,
    Lease,
    LeasedRecord,
    OrderFigures,
    Pulled,
    QueueProgress,
    QueueState,
    Received,
    RestoreReport,
    SkippedBacklog,
)
from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.delivery.subscription import EVERY_TAG, NO_PRIORITIES, MessageFilter, Subscription
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.offset_tables import GroupOffset
from tandemmq.core.offsets import ConsumerOffset, PhysicalOffset

_COMPACTION_FACTOR: Final = 4
"""A journal so many times as long as the last snapshot is worth the next one."""
# Places of a handle's numbers.
_QUEUE_ID: Final = 1
_OFFSET: Final = 2
_NONCE: Final = 3
_USED_UP_PER_CALL: Final = 64
_ON_THE_WAY_MS: Final = 16_000
"""How long before its process was killed an answer may have been given that its client never read, and nobody knows it:
what lies unread in a client's socket is dropped when the other end resets it, and a client that is silent is given up
after 15 s."""


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
        handed_out: QueueReader | None = None,
    ) -> None:
        """`nonce` gives 64 unpredictable bits. `stored_offset` is the replicated progress of (group, topic, queue id),
        where a group resumes that this table does not know: after a failover, or when its files were lost. `handed_out`
        reads what receives are given, and may let them wait for it; default: `queues`, which reads all else.
        """
        self._queues = queues
        self._handed_out = handed_out or queues
        self._stored_offset = stored_offset
        self._options = options
        self._broker_name = encode_broker_name(broker_name)
        self._nonce = nonce
        self.clear()

    def clear(self) -> None:
        """Forgets everything: the files belong to another master's table from now on."""
        self._state = LeaseState(self._handed_out, options=self._options, stored_offset=self._stored_offset)
        self._unseen_clients: set[str] = set()
        """Had leases before the restart and did not ask for anything since."""
        self._grace_end_ms: int | None = None
        self._resets: list[GroupOffset] = []
        self._journal_bytes = 0
        self._snapshot_bytes = 0
        self._clock_offset_ms = 0

    def change_options(self, options: DeliveryOptions) -> None:
        """Other limits and habits, from the next receive on; what is leased stays so."""
        self._options = self._state.options = options

    # Receive

    def receive(
        self,
        *,
        group: str,
        topic: str,
        queue_ids: Sequence[int],
        tag_filter: MessageFilter,
        batch_size: int,
        invisible_ms: int,
        now_ms: int,
        max_attempts: int,
        auto_renew: bool,
        client_id: str,
        ordered: bool = False,
        attempt_id: str = "",
        priority_factor: int = NO_PRIORITIES,
        nonce: int | None = None,
    ) -> Received:
        """Leases up to `batch_size` messages of the queues: redeliveries first, oldest first, then new ones.

        The first receive of a group fixes where it starts in all of `queue_ids`. With `auto_renew` the lease has the
        options' length and `invisible_ms` is not looked at. With `ordered` a message group gives nothing while
        something of it is leased; a request with the `attempt_id` of an earlier one gets the unfinished rest of that
        one's batch again: its answer was lost. `priority_factor`, 0 to 100: without `ordered`, of so many of a hundred
        receives the queues are emptied from the highest id down, redeliveries of each before its new messages. `nonce`:
        the leases' own, by which whoever passed the receive on knows them (`doubt_receive`).

        RecordCorrupt from the reader passes through; what was leased before it stays so until the lease ends.
        """
        now_ms += self._clock_offset_ms
        subscription = self._state.open(group, topic, queue_ids)
        self._unseen_clients.discard(client_id)
        self._state.end_due_of(subscription, now_ms)
        handout = Handout(
            state=self._state,
            tag_filter=tag_filter,
            remaining=batch_size,
            scan_budget=self._options.max_scanned_per_receive,
            nonce=self._nonce() if nonce is None else nonce,
            now_ms=now_ms,
            deadline_ms=now_ms + (self._options.renew_interval_ms if auto_renew else invisible_ms),
            max_attempts=max_attempts,
            auto_renew=auto_renew,
            client_id=client_id,
            attempt_id=attempt_id,
            encoded_broker_name=self._broker_name,
        )
        if ordered:
            handout.take_ordered(subscription.in_turn(queue_ids))
        elif (
            priority_factor == NO_PRIORITIES or (ranked := subscription.by_priority(queue_ids, priority_factor)) is None
        ):
            handout.take(subscription.in_turn(queue_ids))
        else:
            for queue in ranked:
                handout.take([queue])
        handout.received.scan_cost = self._options.max_scanned_per_receive - handout.scan_budget
        return handout.received

    # Reading without leases

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First message held, and one past the last that no change of master takes away."""
        begin, end = self._queues.min_offset(topic, queue_id), self._queues.max_offset(topic, queue_id)
        return begin, self._queues.confirmed_end(topic, queue_id, begin, end) if begin < end else end

    def pull(self, *, topic: str, queue_id: int, offset: int, message_filter: MessageFilter, batch_size: int) -> Pulled:
        """Up to `batch_size` messages from `offset`, within the queue's `bounds`, that the filter lets pass."""
        _, end = self.bounds(topic, queue_id)
        records: list[StoredMessage] = []
        scan_budget = self._options.max_scanned_per_receive // UNPROVEN_COST
        while offset < end and len(records) < batch_size:
            if scan_budget <= 0:
                return Pulled(records, offset, more=not records)
            count = min(batch_size, end - offset)
            entries = self._queues.entries(topic, queue_id, offset, count)
            found = self._queues.messages(topic, queue_id, range(offset, offset + len(entries)), entries)
            scan_budget -= len(entries)
            if not found:
                break  # The entry is damaged: it is mended, and asked for again.
            for record in found:
                offset += 1
                if record is not None and message_filter.matches(record.properties):
                    records.append(record)
                    if len(records) == batch_size:
                        break
        return Pulled(records, offset, more=False)

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Of the first message stored at the wall-clock time or later; the end without one. Some 30 reads."""
        begin, end = self.bounds(topic, queue_id)
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._stored_ms(topic, queue_id, middle)
            # What cannot be read is as old as what lies before it.
            if stored_ms is None or stored_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        entries = self._queues.entries(topic, queue_id, offset, 1)
        found = self._queues.messages(topic, queue_id, (offset,), entries) if entries else []
        return found[0].store_timestamp_ms if found and found[0] is not None else None

    def has_more(self, *, group: str, topic: str) -> bool:
        """Whether a receive of the group may find something now. Cheap, and wrong only in saying yes too often."""
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is None:
            return True
        if subscription.ready_queues:
            return True
        max_offset = self._state.reader.max_offset
        return any(queue.next_offset != max_offset(topic, queue.queue_id) for queue in subscription.queues.values())

    # Settle

    def acknowledge(self, *, group: str, topic: str, handle: str, now_ms: int) -> bool:
        """Finishes a message; False when the handle is not that of its running lease."""
        finished = self.acknowledge_all(group=group, topic=topic, handles=(handle,), now_ms=now_ms)
        return finished is not None and finished[0]

    def acknowledge_all(self, *, group: str, topic: str, handles: Sequence[str], now_ms: int) -> list[bool] | None:
        """Finishes messages; for each whether its handle was that of its running lease. One that comes twice fails.

        None when the group never received from the topic, so that neither name was looked at before.
        """
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is None:
            return None
        now_ms += self._clock_offset_ms
        state = self._state
        finished: list[bool] = []
        for handle in handles:
            numbers = read_numbers(handle)
            lease = None if numbers is None else _running_lease(subscription, numbers, now_ms)
            if lease is not None and numbers is not None:
                state.finish(lease.queue, numbers[_OFFSET])
            finished.append(lease is not None)
        return finished

    def change_invisible(
        self, *, group: str, topic: str, handle: str, invisible_ms: int, now_ms: int, counts: bool = True
    ) -> str | None:
        """Ends the lease `invisible_ms` from now, 0 at once. The new handle, or None as in `acknowledge`. Without
        `counts` it was no failure: the next delivery is the same attempt again.

        The handle given stops working, and the server does not renew the lease any more.
        """
        now_ms += self._clock_offset_ms
        subscription = self._state.subscriptions.get((group, topic))
        before, offset = _held(subscription, handle, now_ms) if subscription is not None else (None, 0)
        if before is None:
            return None
        lease = Lease(
            before.queue,
            [offset],
            nonce=self._nonce(),
            attempt=before.attempt if counts else max(0, before.attempt - 1),
            granted_ms=now_ms,
            deadline_ms=now_ms + invisible_ms,
            client_id=before.client_id,
            auto_renew=False,
        )
        self._state.let_go(before)
        self._state.start(lease, lease.queue.next_offset)
        (changed_handle,) = make_handles(
            lease.offsets,
            queue_id=lease.queue.queue_id,
            nonce=lease.nonce,
            deadline_ms=lease.deadline_ms,
            encoded_broker_name=self._broker_name,
        )
        if invisible_ms <= 0:
            self._state.end(lease)
        return changed_handle

    def leased(self, *, group: str, topic: str, handle: str, now_ms: int) -> LeasedRecord | None:
        """The record of a running lease; None as in `acknowledge`, or when the store lost it."""
        now_ms += self._clock_offset_ms
        subscription = self._state.subscriptions.get((group, topic))
        lease, offset = _held(subscription, handle, now_ms) if subscription is not None else (None, 0)
        if lease is None:
            return None
        entries = self._state.reader.entries(topic, lease.queue.queue_id, offset, 1)
        record = self._state.reader.record(topic, lease.queue.queue_id, offset, entries[0]) if entries else None
        return None if record is None else LeasedRecord(record, handle, lease.attempt, lease.queue.queue_id, offset)

    def is_leased(self, group: str, topic: str, handle: str, now_ms: int) -> bool:
        subscription = self._state.subscriptions.get((group, topic))
        return subscription is not None and _held(subscription, handle, now_ms + self._clock_offset_ms)[0] is not None

    def take_used_up(self, now_ms: int, max_attempts: Callable[[str], int]) -> list[tuple[str, str, LeasedRecord]]:
        """Group, topic and record of messages whose last attempt has ended, some at a time, leased like dead letters of
        a receive: the group may have no consumer that asks. `max_attempts` knows those of a group."""
        state = self._state
        while state.ended:
            lease = state.ended.popleft()
            if lease.attempt >= max_attempts(lease.queue.subscription.group):
                state.used_up += [(lease, offset) for offset in lease.offsets]
        if not state.used_up:
            return []
        now_ms += self._clock_offset_ms
        handout = Handout(
            state=state,
            tag_filter=EVERY_TAG,
            remaining=_USED_UP_PER_CALL,
            scan_budget=_USED_UP_PER_CALL,
            nonce=self._nonce(),
            now_ms=now_ms,
            deadline_ms=now_ms + self._options.renew_interval_ms,
            max_attempts=0,
            auto_renew=False,
            client_id="",
            attempt_id="",
            encoded_broker_name=self._broker_name,
        )
        return handout.take_used_up()

    @property
    def has_used_up(self) -> bool:
        """`take_used_up` may have something."""
        return bool(self._state.ended or self._state.used_up)

    def doubt(self, leases: Sequence[Lease]) -> None:
        """Nobody may have read the answer that they were given in: they are renewed no longer."""
        for lease in leases:
            self._state.let_run_out(lease)

    def doubt_receive(self, client_id: str, nonce: int) -> None:
        """The same for the leases that one receive of the client was given, here or by a former master."""
        self.doubt([lease for lease in self._state.renewed.get(client_id, ()) if lease.nonce == nonce])

    def client_gone(self, client_id: str, now_ms: int) -> None:
        """The client left or fell silent: leases renewed for it end shortly."""
        self._client_gone(client_id, now_ms + self._clock_offset_ms)

    def _client_gone(self, client_id: str, now_ms: int) -> None:
        self._unseen_clients.discard(client_id)
        for lease in self._state.renewed.pop(client_id, ()):
            lease.auto_renew = False
            lease.deadline_ms = min(lease.deadline_ms, now_ms + self._options.client_gone_visible_ms)
            self._state.note_end(lease, is_new=False)

    def client_seen(self, client_id: str) -> None:
        """The client lives; `receive` says so too. Needed for one that after a restart beats without receiving."""
        self._unseen_clients.discard(client_id)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        wakeup_ms, grace_end_ms = self._state.next_wakeup_ms(), self._grace_end_ms
        if wakeup_ms is None or (grace_end_ms is not None and grace_end_ms < wakeup_ms):
            wakeup_ms = grace_end_ms
        return None if wakeup_ms is None else wakeup_ms - self._clock_offset_ms

    def expire(self, now_ms: int) -> None:
        """Ends leases whose time has come, renewing those of living clients; `take_visible` tells what came of it."""
        now_ms += self._clock_offset_ms
        self._watch_for_unseen_clients(now_ms)
        self._state.end_due(now_ms)

    def take_visible(self) -> list[tuple[str, str]]:
        """(group, topic) pairs that may have something to deliver which they had not at the last call."""
        visible = self._state.visible
        if not visible:
            return []
        pairs = [(subscription.group, subscription.topic) for subscription in visible]
        visible.clear()
        return pairs

    def next_visible_ms(self, group: str, topic: str) -> int | None:
        """When the next leased message may be visible again, 0 when one is now; None when nothing is leased."""
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is None:
            return None
        if subscription.ready_queues:
            return 0
        end_ms = subscription.next_end_ms()
        return None if end_ms is None else end_ms - self._clock_offset_ms

    # Progress

    def committed(self, group: str, topic: str, queue_id: int) -> ConsumerOffset | None:
        """First unfinished message; None when the group did not consume the queue here yet."""
        subscription = self._state.subscriptions.get((group, topic))
        queue = subscription.queues.get(queue_id) if subscription else None
        return None if queue is None else ConsumerOffset(queue.committed)

    def progress_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The same, or where the group would resume by the replicated progress."""
        committed = self.committed(group, topic, queue_id)
        return self._stored_offset(group, topic, queue_id) if committed is None else committed

    def progress(self) -> Iterator[QueueState]:
        """Every group in every queue it consumes."""
        for group, topic in self._state.subscriptions:
            yield from self.progress_of(group, topic)

    def pairs(self) -> list[tuple[str, str]]:
        """Every group and topic it consumes; for who looks at one after the other and lets others work meanwhile."""
        return list(self._state.subscriptions)

    def backlog_of(self, group: str, topic: str) -> Backlog:
        """What a group has to do in all queues of one topic. With 10,000 topics it is asked 10,000 times in a row."""
        subscription = self._state.subscriptions.get((group, topic))
        new_count = pending_count = ready_count = 0
        if subscription is not None:
            max_offset = self._state.reader.max_offset
            for queue_id, queue in subscription.queues.items():
                behind = max_offset(topic, queue_id) - queue.next_offset
                if behind > 0:
                    new_count += behind
                pending_count += len(queue.pending)
                ready_count += queue.ready_count
        return Backlog(new_count, pending_count - ready_count, ready_count)

    def order_figures(self) -> OrderFigures:
        """Of all ordered queues; looks at every message group that is unfinished."""
        blocked_count = 0
        for subscription in self._state.subscriptions.values():
            for queue in subscription.queues.values():
                if queue.order is not None:
                    blocked_count += queue.order.blocked_count
        return OrderFigures(blocked_count, self._state.passed_over_count)

    def progress_of(self, group: str, topic: str) -> list[QueueState]:
        """A group in the queues of one topic; empty when it consumes none of them."""
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is None:
            return []
        return [
            QueueState(
                group,
                topic,
                queue.queue_id,
                queue.committed,
                queue.next_offset,
                queue.leased_count,
                queue.ready_count,
                0 if queue.order is None else queue.order.blocked_count,
            )
            for queue in subscription.queues.values()
        ]

    def take_moved_offsets(self) -> list[GroupOffset]:
        """Committed offsets that changed since the last call, for ConsumerOffsetTable.commit_all.

        With ten thousand topics, telling all of them each time would hold the event loop for a tenth of a second.
        """
        moved, self._state.moved = self._state.moved, []
        offsets = []
        for subscription in moved:
            subscription.has_moved = False
            for queue in subscription.queues.values():
                if queue.committed != queue.reported:
                    queue.reported = queue.committed
                    offsets.append(GroupOffset(subscription.group, subscription.topic, queue.queue_id, queue.committed))
        return offsets

    def take_reset_offsets(self) -> list[GroupOffset]:
        """Where operators set groups to since the last call; of all moves only these may go back."""
        resets, self._resets = self._resets, []
        return resets

    def skipped_backlogs(self) -> list[SkippedBacklog]:
        """Groups that began at the newest message beside older ones, while these are there and no operator has set
        the group. Of this run."""
        min_offset = self._state.reader.min_offset
        skipped = []
        for (group, topic), starts in self._state.skipped.items():
            count = sum(max(start - min_offset(topic, queue_id), 0) for queue_id, start in starts.items())
            if count:
                skipped.append(SkippedBacklog(group, topic, count))
        return skipped

    def take_new_skips(self) -> list[SkippedBacklog]:
        """Those that came since the last call; cheap without any."""
        new_skips, self._state.new_skips = self._state.new_skips, set()
        return [one for one in self.skipped_backlogs() if (one.group, one.topic) in new_skips] if new_skips else []

    def topics_of(self, group: str) -> list[str]:
        return [topic for name, topic in self._state.subscriptions if name == group]

    def open(self, group: str, topic: str, queue_ids: Sequence[int]) -> None:
        """Fixes where the group starts in queues it has not read, as its first receive would."""
        self._state.open(group, topic, queue_ids)

    def reset(self, *, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group goes on at `offset`, forward or back, because an operator says so; leases in the queue are void.

        The caller hands `take_reset_offsets` on before it answers: after a restart the stored offset counts.
        """
        subscription = self._state.open(group, topic, ())
        queue = subscription.queues.get(queue_id)
        if queue is not None:
            self._state.drop(queue, queue.trim(queue.next_offset))
        self._state.open_queue(subscription, queue_id, offset)
        skipped = self._state.skipped.get((group, topic))
        if skipped is not None:
            # Wherever it goes on now is what an operator wants.
            skipped.pop(queue_id, None)
        self._state.visible.add(subscription)
        self._resets.append(GroupOffset(group, topic, queue_id, offset))

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: a later one of its name starts anew."""
        for subscription in [one for one in self._state.subscriptions.values() if one.topic == topic]:
            self._state.forget(subscription)
        self._resets = [reset for reset in self._resets if reset.topic != topic]

    def forget_pair(self, group: str, topic: str) -> None:
        """The same for one group."""
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is not None:
            self._state.forget(subscription)

    def forget_group(self, group: str) -> None:
        """The group was removed: a later one of its name starts anew, and what it has in hand cannot be settled."""
        for subscription in [one for one in self._state.subscriptions.values() if one.group == group]:
            self._state.forget(subscription)
        self._resets = [reset for reset in self._resets if reset.group != group]

    # Journal

    @property
    def compaction_due(self) -> bool:
        """The journal since the last snapshot is long enough to be replaced by a new one."""
        limit = max(self._options.compaction_floor_bytes, _COMPACTION_FACTOR * self._snapshot_bytes)
        return self._journal_bytes > limit

    def take_journal(self) -> bytes:
        """All changes since the last call, to be appended to the journal; empty without any."""
        frame = self._state.journal.take()
        self._journal_bytes += len(frame)
        return frame

    def end_journal(self) -> bytes:
        """The last changes, and that there are no more: for a process, or a master, that ends in order."""
        self._state.journal.end()
        return self.take_journal()

    def snapshot(self) -> bytes:
        """The whole state; a journal for it begins with the next `take_journal`, so the last one comes before."""
        frame = write_snapshot(self._state.subscriptions.values())
        self._snapshot_bytes = len(frame)
        self._journal_bytes = 0
        return frame

    def restore(
        self,
        snapshot: bytes,
        journal: bytes,
        *,
        now_ms: int,
        clock_offset_ms: int = 0,
    ) -> RestoreReport:
        """Takes the state from the files of an earlier run; both may be empty. Only on a new table, its store loaded.

        `clock_offset_ms`: lease time minus monotonic time; that of the earlier run if the machine has run ever since.
        Progress that lies beyond the end of a queue, because the log lost its tail, goes back to that end, or messages
        put there from now on would never be delivered. Where the files do not say that whoever gave the leases ended in
        order, the last ones are not renewed: nobody may have them.
        """
        assert not self._state.subscriptions, "restore comes first"
        self._clock_offset_ms = clock_offset_ms
        replay = LeaseReplay()
        entries, valid_bytes = read_frames(snapshot)
        replay.apply(entries)
        snapshot_valid = valid_bytes == len(snapshot)
        changes, journal_bytes = read_frames(journal)
        if snapshot_valid:
            replay.apply(changes)
        doubted_ms = sys.maxsize if replay.has_ended else replay.last_grant_ms - _ON_THE_WAY_MS
        self._state.adopt(replay.subscriptions.values())
        for subscription in replay.subscriptions.values():
            for queue in subscription.queues.values():
                self._resume(queue, now_ms + clock_offset_ms, doubted_ms=doubted_ms)
        return RestoreReport(
            snapshot_valid,
            journal_bytes,
            len(journal) - journal_bytes,
            is_torn=is_beginning_of_frame(journal[journal_bytes:]),
            orphan_count=replay.orphan_count,
        )

    def merge(self, theirs: LeaseReplay, *, now_ms: int, their_min_offset: PhysicalOffset) -> MergedProgress:
        """Takes what another replica's leases know better; see `merge_progress`. `theirs` is used up."""
        merged = merge_progress(self._state, theirs, now_ms + self._clock_offset_ms, their_min_offset=their_min_offset)
        self._unseen_clients |= merged.clients
        return merged

    def knows(self, group: str, topic: str, queue_ids: Sequence[int]) -> bool:
        """How far the group is in the topic is known: it need not begin anywhere."""
        subscription = self._state.subscriptions.get((group, topic))
        if subscription is not None and subscription.queues:
            return True
        return any(self._stored_offset(group, topic, queue_id) is not None for queue_id in queue_ids)

    def _resume(self, queue: QueueProgress, now_ms: int, *, doubted_ms: int) -> None:
        """Counts the leases of a replayed queue, starts their time and puts the queue in line with the store. Those
        that were given from `doubted_ms` on run out."""
        topic, queue_id = queue.subscription.topic, queue.queue_id
        held: dict[Lease, int] = {}
        for lease in queue.pending.values():
            held[lease] = held.get(lease, 0) + 1
        for lease, count in held.items():
            lease.held = count
            if lease.deadline_ms == ENDED:
                self._state.make_ready(lease)
                continue
            if lease.granted_ms >= doubted_ms:
                lease.auto_renew = False
            if lease.granted_ms > now_ms:  # By a clock that was wrong then, or is now.
                lease.deadline_ms -= lease.granted_ms - now_ms
                lease.granted_ms = now_ms
            self._state.note_end(lease, is_new=True)
            if lease.auto_renew:
                self._unseen_clients.add(lease.client_id)
        if queue.next_offset > (end := self._state.reader.max_offset(topic, queue_id)):
            self._state.truncate(queue, end)
        stored = min(self._state.stored_offset(queue.subscription.group, topic, queue_id) or 0, end)
        if queue.committed < (start := max(stored, self._state.reader.min_offset(topic, queue_id))):
            self._state.trim(queue, start)

    def _watch_for_unseen_clients(self, now_ms: int) -> None:
        """After a restart, gives clients some time to show that they live, since their leases are renewed meanwhile."""
        if not self._unseen_clients:
            self._grace_end_ms = None
        elif self._grace_end_ms is None:
            self._grace_end_ms = now_ms + self._options.reconnect_grace_ms
        elif now_ms >= self._grace_end_ms:
            for client_id in list(self._unseen_clients):
                self._client_gone(client_id, now_ms)
            self._grace_end_ms = None


def _held(subscription: Subscription, handle: str, now_ms: int) -> tuple[Lease, int] | tuple[None, int]:
    """The running lease a handle belongs to, and the offset it names."""
    numbers = read_numbers(handle)
    lease = None if numbers is None else _running_lease(subscription, numbers, now_ms)
    return (None, 0) if lease is None or numbers is None else (lease, numbers[_OFFSET])


def _running_lease(subscription: Subscription, numbers: tuple[int, ...], now_ms: int) -> Lease | None:
    """The lease a handle with these numbers is of, if it is running."""
    queue = subscription.queues.get(numbers[_QUEUE_ID])
    lease = queue.pending.get(numbers[_OFFSET]) if queue is not None else None
    if lease is None or lease.nonce != numbers[_NONCE] or (lease.deadline_ms <= now_ms and not lease.auto_renew):
        return None
    return lease


# Takes into a lease table what another replica's leases know better: those of a slave that served reads alone.
#
# Both began with the same leases, and each went on. A message is finished if either side has finished it, and only
# then:
#
#     here \ there        finished         pending                           never delivered
#     finished            finished         finished                          finished
#     pending             finished         the later delivery's lease        pending, under our lease
#     never delivered     finished         pending, under their lease        never delivered
#
# So nothing that was acknowledged comes again, nothing that was not is lost, a committed offset never moves back, and
# the same leases a second time change nothing. Of messages that the other's retention had deleted it says "finished" as
# well, and that counts for nothing.


class MergedProgress(NamedTuple):
    finished_count: int
    """Messages that only the other replica knew to be finished, those that it did not want included."""
    leased_count: int
    """Messages that are under a lease of the other replica now."""
    clients: set[str]
    """Whose leases, renewed by the server, came."""


def merge_progress(
    state: LeaseState, theirs: LeaseReplay, now_ms: int, *, their_min_offset: PhysicalOffset
) -> MergedProgress:
    """Changes `state`; `now_ms` is lease time. What `theirs` says beyond the end of a queue is of messages that are not
    here, and does not count: `theirs` is cut to it. `their_min_offset`: where their log begins."""
    finished_count = leased_count = 0
    clients: set[str] = set()
    for subscription in theirs.subscriptions.values():
        for queue in subscription.queues.values():
            queue.truncate(state.reader.max_offset(subscription.topic, queue.queue_id))
            ours = _opened(state, subscription, queue)
            # Messages change hands here in ways that message groups do not: they are looked at anew afterwards.
            ours.leave_order()
            first = _first_held(state, ours, their_min_offset)
            finished_count += _finish(state, ours, queue, first)
            _keep_unseen(state, ours, min(first, queue.next_offset), now_ms)
            came = _take_leases(state, ours, queue, now_ms, theirs)
            leased_count += sum(len(lease.offsets) for lease in came)
            clients.update(lease.client_id for lease in came if lease.auto_renew)
            if queue.next_offset > ours.next_offset:
                finished_count += queue.next_offset - ours.next_offset
                state.skip(ours, queue.next_offset)
            state.visible.add(ours.subscription)
    return MergedProgress(finished_count, leased_count, clients)


def _opened(state: LeaseState, subscription: Subscription, queue: QueueProgress) -> QueueProgress:
    group, topic, queue_id = subscription.group, subscription.topic, queue.queue_id
    ours = state.open(group, topic, ())
    if queue_id not in ours.queues:
        stored = state.stored_offset(group, topic, queue_id) or 0
        start = max(queue.committed, stored, state.reader.min_offset(topic, queue_id))
        state.open_queue(ours, queue_id, min(start, state.reader.max_offset(topic, queue_id)))
    return ours.queues[queue_id]


def _first_held(state: LeaseState, queue: QueueProgress, their_min_offset: PhysicalOffset) -> int:
    """The first message of the queue that their log holds."""
    topic, queue_id = queue.subscription.topic, queue.queue_id
    low, high = state.reader.min_offset(topic, queue_id), state.reader.max_offset(topic, queue_id)
    while low < high:
        middle = (low + high) // 2
        entries = state.reader.entries(topic, queue_id, middle, 1)
        if entries and entries[0].physical_offset >= their_min_offset:
            high = middle
        else:
            low = middle + 1
    return low


def _keep_unseen(state: LeaseState, ours: QueueProgress, end: int, now_ms: int) -> None:
    """What neither side has delivered before `end` is to be delivered by us, though they are further."""
    if ours.next_offset >= end:
        return
    unseen = Lease(
        ours,
        list(range(ours.next_offset, end)),
        nonce=0,
        attempt=0,
        granted_ms=now_ms,
        deadline_ms=now_ms,
        client_id="",
        auto_renew=False,
    )
    state.start(unseen, end)
    state.end(unseen)


def _finish(state: LeaseState, ours: QueueProgress, theirs: QueueProgress, first: int) -> int:
    finished = [
        offset for offset in ours.pending if first <= offset < theirs.next_offset and offset not in theirs.pending
    ]
    ours.leave_ready(set(finished))
    for offset in finished:
        state.finish(ours, offset)
    return len(finished)


def _take_leases(
    state: LeaseState, ours: QueueProgress, theirs: QueueProgress, now_ms: int, replay: LeaseReplay
) -> list[Lease]:
    """Lowest offset first: it keeps the committed offset where it is while the others come. Whoever gave them gives no
    more, and perhaps was cut off: its last ones run out."""
    doubted_ms = replay.last_grant_ms - _ON_THE_WAY_MS
    taken: dict[Lease, list[int]] = {}
    for offset in sorted(theirs.pending):
        lease, known = theirs.pending[offset], ours.pending.get(offset)
        is_later = known is None or lease.turn > known.turn or (known.nonce, offset) in replay.overtaken
        if is_later and (known is not None or offset >= ours.next_offset):
            taken.setdefault(lease, []).append(offset)
    came = []
    for lease, offsets in taken.items():
        ours.leave_ready(set(offsets))
        for offset in offsets:
            if (known := ours.pending.get(offset)) is not None:
                state.let_go(known)
        came.append(_copied(lease, ours, offsets, now_ms, is_in_doubt=lease.granted_ms >= doubted_ms))
        state.start(came[-1], max(ours.next_offset, offsets[-1] + 1))
        if came[-1].deadline_ms <= now_ms:
            state.end(came[-1])
    return came


def _copied(lease: Lease, ours: QueueProgress, offsets: list[int], now_ms: int, *, is_in_doubt: bool) -> Lease:
    """A lease that seems to begin in the future begins now."""
    early_ms = max(0, lease.granted_ms - now_ms)
    return Lease(
        ours,
        offsets,
        nonce=lease.nonce,
        attempt=lease.attempt,
        granted_ms=lease.granted_ms - early_ms,
        deadline_ms=now_ms if lease.deadline_ms == ENDED else lease.deadline_ms - early_ms,
        client_id=lease.client_id,
        auto_renew=lease.auto_renew and lease.deadline_ms != ENDED and not is_in_doubt,
    )

"""One receive under way: which messages it gets, queue by queue, and under which leases.

Redeliveries come first, oldest first, then new messages, up to the first that a change of master might take away.

A queue that is consumed in order gives messages of those message groups that nobody holds, see `MessageGroups`. New
messages of a group that is held are passed over: from then on they are pending like those whose lease ended, so that a
restart and another master know them, and count towards `max_inflight_per_queue`, where the queue gives no new ones. A
batch may hold several messages of a group; clients handle a batch in its order. Who asks again with the same attempt
id gets what it holds, and nothing else: its answer was lost. If it asks for fewer messages it holds no more than those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tandemmq.core.delivery.lease_state import LeaseState
from tandemmq.core.delivery.lease_terms import make_handles
from tandemmq.core.delivery.queue_progress import (
    Delivery,
    Lease,
    LeasedRecord,
    MessageGroups,
    QueueProgress,
    Received,
    message_group_of,
)
from tandemmq.core.delivery.subscription import MessageFilter
from tandemmq.core.message.stored_message import StoredMessage

_FILTERED_CHUNK: Final = 256
"""Entries read at once when a filter lets few pass."""
UNPROVEN_COST: Final = 8
"""What an entry costs of the scan budget where its record has to be read as well."""


@dataclass(slots=True)
class Handout:
    """See the module's docstring. RecordCorrupt from the reader passes through; nothing changed in that queue then."""

    state: LeaseState
    tag_filter: MessageFilter
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
    encoded_broker_name: str
    received: Received = field(default_factory=lambda: Received([], []))

    def take(self, queues: list[QueueProgress]) -> None:
        """Takes from the queues in their order."""
        for queue in queues:
            if queue.order is not None:
                queue.leave_order()
                if queue.ready:
                    queue.subscription.ready_queues.add(queue.queue_id)
        if queues and queues[0].subscription.ready_queues:
            for queue in queues:
                if queue.ready:
                    self._take_ready(queue)
        for queue in queues:
            if self.remaining <= 0:
                break
            self._take_new(queue)

    def take_ordered(self, queues: list[QueueProgress]) -> None:
        """Takes from the queues in their order, of message groups nobody holds."""
        ordered: list[tuple[QueueProgress, MessageGroups]] = []
        for queue in queues:
            known = self._order_of(queue)
            if known is not None:
                ordered.append((queue, known))
        if self.attempt_id:
            for queue, order in ordered:
                self._take_again(queue, order)
            if self.received.deliveries:
                return
        for queue, order in ordered:
            if self.remaining <= 0:
                return
            own: set[bytes] = set()
            if self._take_waiting(queue, order, own):
                self._take_new_ordered(queue, order, own)
            if order.next_free() < 0:
                queue.subscription.ready_queues.discard(queue.queue_id)

    def _take_new(self, queue: QueueProgress) -> None:
        """Leases messages from `next_offset` on."""
        state, topic, queue_id = self.state, queue.subscription.topic, queue.queue_id
        reader = state.reader
        end = reader.max_offset(topic, queue_id)
        offset = queue.next_offset
        if offset >= end:
            if offset > end:
                state.truncate(queue, end)
            return
        wanted = min(self.remaining, state.options.max_inflight_per_queue - len(queue.pending))
        if wanted <= 0:
            queue.refused = True
            return
        min_offset = reader.min_offset(topic, queue_id)
        if offset < min_offset:
            state.trim(queue, min_offset)
            offset = queue.next_offset
        confirmed_end = reader.confirmed_end(topic, queue_id, offset, end)
        if confirmed_end < end:
            self.received.held_back = True
            end = confirmed_end
        codes, matches, reads_all = self.tag_filter.codes, self.tag_filter.matches, self.tag_filter.reads_all
        # Without tags codes only records tell: as many as are wanted are read first, and twice as many each time.
        chunk = _FILTERED_CHUNK if codes is not None else wanted
        offsets: list[int] = []
        records: list[StoredMessage] = []
        while offset < end and len(offsets) < wanted:
            if self.scan_budget <= 0:
                self.received.more = True
                break
            missing = wanted - len(offsets)
            count = missing if reads_all else min(chunk, self.scan_budget)
            chunk = min(2 * chunk, _FILTERED_CHUNK)
            entries = reader.entries(topic, queue_id, offset, min(count, end - offset))
            assert entries, f"{topic} queue {queue_id} has no entry at {offset}, below its end {end}"
            places: Sequence[int] = range(offset, offset + len(entries))
            offset += len(entries)
            is_chosen = codes is not None and reader.has_proven_tags(topic, queue_id, places[0])
            self.scan_budget -= len(entries) * (1 if reads_all or is_chosen else UNPROVEN_COST)
            if codes is not None and is_chosen:
                # The records of the others are not read.
                passing = [(place, entry) for place, entry in zip(places, entries) if entry.tags_code in codes]
                places = [place for place, _ in passing[:missing]]
                entries = [entry for _, entry in passing[:missing]]
                if len(passing) >= missing:
                    offset = places[-1] + 1
            found = reader.messages(topic, queue_id, places, entries)
            for place, entry, record in zip(places, entries, found):
                if record is not None and (reads_all or matches(record.properties)):
                    if codes is not None and entry.tags_code not in codes:
                        reader.wrong_tag(topic, queue_id, place)
                    offsets.append(place)
                    records.append(record)
                    if len(offsets) == wanted and not is_chosen:
                        offset = place + 1
                        break
            else:
                if len(found) < len(entries):
                    offset = places[len(found)]
                    break
        if offsets:
            self._lease(queue, offsets, records, attempt=1, next_offset=offset)
        elif offset > queue.next_offset:
            state.skip(queue, offset)

    def _take_ready(self, queue: QueueProgress) -> None:
        """Leases ready messages, or hands them over as dead letters."""
        state, topic, queue_id = self.state, queue.subscription.topic, queue.queue_id
        min_offset, end = state.reader.min_offset(topic, queue_id), state.reader.max_offset(topic, queue_id)
        if queue.committed < min_offset:
            state.trim(queue, min_offset)
        if queue.next_offset > end:
            state.truncate(queue, end)
        while queue.ready and self.remaining > 0:
            offset = queue.ready[0]
            found = self._message_at(queue, offset)
            if not found:
                return  # Its entry is damaged: it stays ready.
            (record,) = found
            before = queue.pending[offset]
            if record is None or not self.tag_filter.matches(record.properties):
                queue.take_ready()
                state.finish(queue, offset)
                continue
            attempt = before.attempt + 1
            if attempt > self.max_attempts:
                self._take_dead_letter(queue, offset, attempt=attempt)
                continue
            queue.take_ready()
            state.let_go(before)
            self._lease(queue, [offset], [record], attempt=attempt, next_offset=queue.next_offset)
        if not queue.ready:
            queue.subscription.ready_queues.discard(queue_id)

    def take_used_up(self) -> list[tuple[str, str, LeasedRecord]]:
        """Hands over as dead letters what `LeaseState.used_up` has; group and topic of each. What cannot be read now,
        or waits behind another message of its message group, comes up again."""
        state, received = self.state, self.received
        taken: list[tuple[str, str, LeasedRecord]] = []
        chosen: list[tuple[Lease, int]] = []
        by_queue: dict[QueueProgress, set[int]] = {}
        for _ in range(min(len(state.used_up), self.scan_budget)):
            lease, offset = state.used_up.popleft()
            queue = lease.queue
            known = state.subscriptions.get((queue.subscription.group, queue.subscription.topic))
            if known is None or known.queues.get(queue.queue_id) is not queue or queue.pending.get(offset) is not lease:
                continue
            found = self._message_at(queue, offset)
            if not found:
                state.used_up.append((lease, offset))
                continue
            by_queue.setdefault(queue, set()).add(offset)
            chosen.append((lease, offset))
        for queue, offsets in by_queue.items():
            queue.leave_ready(offsets)
        for lease, offset in chosen:
            queue = lease.queue
            if queue.order is not None and not queue.order.is_free(offset):
                state.used_up.append((lease, offset))
            else:
                self._lease_dead_letter(queue, offset, attempt=lease.attempt + 1)
                # None where there is no message any more.
                names = queue.subscription.group, queue.subscription.topic
                taken += [(*names, dead) for dead in received.dead_letters]
                received.dead_letters.clear()
        return taken

    def _take_dead_letter(self, queue: QueueProgress, offset: int, *, attempt: int) -> None:
        queue.take_ready()
        self._lease_dead_letter(queue, offset, attempt=attempt)

    def _lease_dead_letter(self, queue: QueueProgress, offset: int, *, attempt: int) -> None:
        """Leases a message for as long as its copy to the dead letter topic may take; nobody's attempt is counted."""
        entry = self.state.reader.entries(queue.subscription.topic, queue.queue_id, offset, 1)[0]
        record = self.state.reader.record(queue.subscription.topic, queue.queue_id, offset, entry)
        if record is None:
            self.state.finish(queue, offset)
            return
        if queue.order is not None:
            queue.order.hold(offset, queue.order.name_of(offset), "")
        self.state.let_go(queue.pending[offset])
        lease = self._new_lease(queue, [offset], attempt=attempt - 1, auto_renew=False)
        self.state.start(lease, queue.next_offset)
        (handle,) = self._handles(lease)
        self.received.dead_letters.append(LeasedRecord(record, handle, attempt, queue.queue_id, offset))
        self.remaining -= 1

    # In order

    def _order_of(self, queue: QueueProgress) -> MessageGroups | None:
        """The queue's message groups; None as long as those of all that is unfinished are not known. That takes reading
        it: after a restart, or when a group begins to consume in order."""
        state, topic, queue_id = self.state, queue.subscription.topic, queue.queue_id
        min_offset, end = state.reader.min_offset(topic, queue_id), state.reader.max_offset(topic, queue_id)
        if queue.committed < min_offset:
            state.trim(queue, min_offset)
        if queue.next_offset > end:
            state.truncate(queue, end)
        if queue.order is not None:
            return queue.order
        names = queue.group_names
        for offset in sorted(queue.pending.keys() - names.keys()):
            if self.scan_budget <= 0:
                self.received.more = True
                return None
            self.scan_budget -= UNPROVEN_COST
            found = self._message_at(queue, offset)
            if not found:
                return None  # Its entry is damaged: nobody knows what may go out before it.
            names[offset] = b"" if found[0] is None else message_group_of(found[0].properties)
        return queue.enter_order()

    def _take_again(self, queue: QueueProgress, order: MessageGroups) -> None:
        """Gives what is still held of a batch again: attempts stay the same. What there is no room for waits."""
        batch, room = order.batch(self.attempt_id), max(0, self.remaining)
        for offset in batch[room:]:
            before = queue.pending[offset]
            self.state.let_go(before)
            over = self._new_lease(queue, [offset], attempt=max(0, before.attempt - 1), auto_renew=False)
            over.deadline_ms = self.now_ms
            self.state.start(over, queue.next_offset)
            self.state.end(over)
        for offset in batch[:room]:
            found = self._message_at(queue, offset)
            if not found:
                return
            (record,) = found
            before = queue.pending[offset]
            if record is None:
                self.state.finish(queue, offset)
                continue
            self.state.let_go(before)
            self._lease(queue, [offset], [record], attempt=before.attempt, next_offset=queue.next_offset)

    def _take_waiting(self, queue: QueueProgress, order: MessageGroups, own: set[bytes]) -> bool:
        """Leases messages that wait, or hands them over as dead letters; adds their groups to `own`. False: an entry is
        damaged, and nothing behind it is given."""
        chosen: list[tuple[int, StoredMessage, int]] = []
        # Heap of the next messages of groups that this receive holds.
        following: list[int] = []
        try:
            while self.remaining > 0:
                offset = order.next_free()
                if following and (offset < 0 or following[0] < offset):
                    offset = heappop(following)
                if offset < 0:
                    break
                found = self._message_at(queue, offset)
                if not found:
                    return False
                (record,) = found
                name = order.name_of(offset)
                attempt = queue.pending[offset].attempt + 1
                if record is None or not self.tag_filter.matches(record.properties):
                    self.state.finish(queue, offset)
                elif attempt > self.max_attempts:
                    if name not in own:
                        self._lease_dead_letter(queue, offset, attempt=attempt)
                    continue
                else:
                    order.hold(offset, name, self.attempt_id)
                    chosen.append((offset, record, attempt))
                    own.add(name)
                    self.remaining -= 1
                if name in own and (behind := order.next_waiting(name)) >= 0:
                    heappush(following, behind)
        finally:
            self._lease_waiting(queue, chosen)
        return True

    def _lease_waiting(self, queue: QueueProgress, chosen: list[tuple[int, StoredMessage, int]]) -> None:
        """Leases messages, one lease for each number of attempts; they are given in the order of their offsets."""
        by_attempt: dict[int, list[int]] = {}
        for offset, _, attempt in chosen:
            by_attempt.setdefault(attempt, []).append(offset)
        handles: dict[int, str] = {}
        for attempt, offsets in by_attempt.items():
            for offset in offsets:
                self.state.let_go(queue.pending[offset])
            lease = self._new_lease(queue, offsets, attempt=attempt, auto_renew=self.auto_renew)
            self.state.start(lease, queue.next_offset)
            self.received.leases.append(lease)
            handles.update(zip(offsets, self._handles(lease)))
        for offset, record, attempt in chosen:
            self.received.deliveries.append(Delivery(record, handles[offset], attempt, queue.queue_id, offset))

    def _take_new_ordered(self, queue: QueueProgress, order: MessageGroups, own: set[bytes]) -> None:
        """Leases messages from `next_offset` on, and passes over those of groups that somebody else holds."""
        state, topic, queue_id = self.state, queue.subscription.topic, queue.queue_id
        reader = state.reader
        end = reader.max_offset(topic, queue_id)
        offset = queue.next_offset
        if offset >= end or self.remaining <= 0:
            return
        room = state.options.max_inflight_per_queue - len(queue.pending)
        confirmed_end = reader.confirmed_end(topic, queue_id, offset, end)
        if confirmed_end < end:
            self.received.held_back = True
            end = confirmed_end
        codes, matches, reads_all = self.tag_filter.codes, self.tag_filter.matches, self.tag_filter.reads_all
        offsets: list[int] = []
        records: list[StoredMessage] = []
        names: list[bytes] = []
        passed: list[int] = []
        passed_names: list[bytes] = []
        is_damaged = False
        while offset < end and len(offsets) < self.remaining and not is_damaged:
            if len(offsets) + len(passed) >= room:
                queue.refused = True
                break
            if self.scan_budget <= 0:
                self.received.more = True
                break
            # Where many are passed over more are read at once.
            count = min(self.remaining - len(offsets) + len(passed), _FILTERED_CHUNK, end - offset)
            entries = reader.entries(topic, queue_id, offset, count)
            assert entries, f"{topic} queue {queue_id} has no entry at {offset}, below its end {end}"
            places: Sequence[int] = range(offset, offset + len(entries))
            chunk_end = offset + len(entries)
            if codes is not None and reader.has_proven_tags(topic, queue_id, offset):
                # The records of the others are not read.
                self.scan_budget -= len(entries)
                passing = [(place, entry) for place, entry in zip(places, entries) if entry.tags_code in codes]
                places, entries = [place for place, _ in passing], [entry for _, entry in passing]
            found = reader.messages(topic, queue_id, places, entries)
            is_damaged = len(found) < len(entries)
            for place, entry, record in zip(places, entries, found):
                if len(offsets) == self.remaining or len(offsets) + len(passed) >= room:
                    break
                offset = place + 1
                if record is None or not (reads_all or matches(record.properties)):
                    self.scan_budget -= UNPROVEN_COST
                    continue
                if codes is not None and entry.tags_code not in codes:
                    reader.wrong_tag(topic, queue_id, place)
                name = message_group_of(record.properties)
                if order.admits(name, is_own=name in own):
                    offsets.append(place)
                    records.append(record)
                    names.append(name)
                    own.add(name)
                    self.scan_budget -= 1
                else:
                    passed.append(place)
                    passed_names.append(name)
                    self.scan_budget -= UNPROVEN_COST
            else:
                if not is_damaged:
                    offset = chunk_end
        # These first: they may be what keeps the committed offset where it is. Before what is passed over there always
        # is an unfinished message of its group.
        if offsets:
            self._lease(queue, offsets, records, attempt=1, next_offset=offset)
        if passed:
            state.pass_over(queue, passed, offset, self.now_ms)
        for place, name in zip(passed, passed_names):
            order.wait(place, name)
        for place, name in zip(offsets, names):
            order.hold(place, name, self.attempt_id)
        if not offsets and not passed and offset > queue.next_offset:
            state.skip(queue, offset)

    def _message_at(self, queue: QueueProgress, offset: int) -> list[StoredMessage | None]:
        """The message, or None for none; empty as long as its entry is damaged."""
        topic, queue_id = queue.subscription.topic, queue.queue_id
        entries = self.state.reader.entries(topic, queue_id, offset, 1)
        return self.state.reader.messages(topic, queue_id, (offset,), entries) if entries else [None]

    def _lease(
        self,
        queue: QueueProgress,
        offsets: list[int],
        records: list[StoredMessage],
        *,
        attempt: int,
        next_offset: int,
    ) -> None:
        """Puts messages under a new lease and adds them to what was received."""
        lease = self._new_lease(queue, offsets, attempt=attempt, auto_renew=self.auto_renew)
        self.state.start(lease, next_offset)
        self.received.leases.append(lease)
        deliveries, queue_id = self.received.deliveries, queue.queue_id
        for record, handle, offset in zip(records, self._handles(lease), offsets):
            deliveries.append(Delivery(record, handle, attempt, queue_id, offset))
        self.remaining -= len(offsets)

    def _new_lease(self, queue: QueueProgress, offsets: list[int], *, attempt: int, auto_renew: bool) -> Lease:
        return Lease(
            queue,
            offsets,
            nonce=self.nonce,
            attempt=attempt,
            granted_ms=self.now_ms,
            deadline_ms=self.deadline_ms,
            client_id=self.client_id,
            auto_renew=auto_renew,
        )

    def _handles(self, lease: Lease) -> list[str]:
        return make_handles(
            lease.offsets,
            queue_id=lease.queue.queue_id,
            nonce=lease.nonce,
            deadline_ms=lease.deadline_ms,
            encoded_broker_name=self.encoded_broker_name,
        )

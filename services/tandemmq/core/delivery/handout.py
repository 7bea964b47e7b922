"""One receive under way: which messages it gets, queue by queue, and under which leases.

Redeliveries come first, oldest first, then new messages, up to the first that a change of master might take away. An
ordered queue gives nothing while something of its last batch is leased. The one exception is the same batch for the
request that got it, whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.core.delivery.lease_state import LeaseState, make_handles
from tandemmq.core.delivery.queue_progress import Delivery, Lease, LeasedRecord, QueueProgress, Received
from tandemmq.core.delivery.subscription import MessageFilter
from tandemmq.core.message.stored_message import StoredMessage

__all__ = ["UNPROVEN_COST", "Handout"]

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
        if queues and queues[0].subscription.ready_queues:
            for queue in queues:
                if queue.ready:
                    self._take_ready(queue)
        for queue in queues:
            if self.remaining <= 0:
                break
            queue.ordered = False
            self._take_new(queue)

    def take_ordered(self, queues: list[QueueProgress]) -> None:
        """Takes from those queues nobody holds a batch of."""
        for queue in queues:
            if self.remaining <= 0:
                return
            queue.ordered = True
            if queue.leased_count:
                if self.attempt_id and self.attempt_id == queue.attempt_id:
                    self._take_again(queue)
                continue
            if queue.ready:
                self._take_ready(queue)
            else:
                self._take_new(queue)
            queue.attempt_id = self.attempt_id

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

    def _take_dead_letter(self, queue: QueueProgress, offset: int, *, attempt: int) -> None:
        """Leases a message for as long as its copy to the dead letter topic may take; nobody's attempt is counted."""
        entry = self.state.reader.entries(queue.subscription.topic, queue.queue_id, offset, 1)[0]
        record = self.state.reader.record(queue.subscription.topic, queue.queue_id, offset, entry)
        queue.take_ready()
        if record is None:
            self.state.finish(queue, offset)
            return
        self.state.let_go(queue.pending[offset])
        lease = self._new_lease(queue, [offset], attempt=attempt - 1, auto_renew=False)
        self.state.start(lease, queue.next_offset)
        (handle,) = self._handles(lease)
        self.received.dead_letters.append(LeasedRecord(record, handle, attempt, queue.queue_id, offset))
        self.remaining -= 1

    def _take_again(self, queue: QueueProgress) -> None:
        """Gives a batch again that is still leased: the attempt stays the same."""
        waiting = set(queue.ready)
        for offset in sorted(queue.pending.keys() - waiting)[: self.remaining]:
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

"""Takes into a lease table what another replica's leases know better: those of a slave that served reads alone.

Both began with the same leases, and each went on. A message is finished if either side has finished it, and only then:

    here \\ there        finished         pending                           never delivered
    finished            finished         finished                          finished
    pending             finished         the later delivery's lease        pending, under our lease
    never delivered     finished         pending, under their lease        never delivered

So nothing that was acknowledged comes again, nothing that was not is lost, a committed offset never moves back, and the
same leases a second time change nothing. Of messages that the other's retention had deleted it says "finished" as well,
and that counts for nothing.
"""

from __future__ import annotations

from heapq import heapify
from typing import NamedTuple

from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.delivery.lease_state import LeaseState
from tandemmq.core.delivery.queue_progress import ENDED, Lease, QueueProgress
from tandemmq.core.delivery.subscription import Subscription
from tandemmq.core.offsets import PhysicalOffset

__all__ = ["MergedProgress", "merge_progress"]


class MergedProgress(NamedTuple):
    """What came of it."""

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
            came = _take_leases(state, ours, queue, now_ms)
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
    _not_ready(ours, set(finished))
    for offset in finished:
        state.finish(ours, offset)
    return len(finished)


def _take_leases(state: LeaseState, ours: QueueProgress, theirs: QueueProgress, now_ms: int) -> list[Lease]:
    """Lowest offset first: it keeps the committed offset where it is while the others come."""
    taken: dict[Lease, list[int]] = {}
    for offset in sorted(theirs.pending):
        lease, known = theirs.pending[offset], ours.pending.get(offset)
        is_later = known is None or (lease.attempt, lease.granted_ms) > (known.attempt, known.granted_ms)
        if is_later and (known is not None or offset >= ours.next_offset):
            taken.setdefault(lease, []).append(offset)
    came = []
    for lease, offsets in taken.items():
        _not_ready(ours, set(offsets))
        for offset in offsets:
            if (known := ours.pending.get(offset)) is not None:
                state.let_go(known)
        came.append(_copied(lease, ours, offsets, now_ms))
        state.start(came[-1], max(ours.next_offset, offsets[-1] + 1))
        if came[-1].deadline_ms <= now_ms:
            state.end(came[-1])
    return came


def _copied(lease: Lease, ours: QueueProgress, offsets: list[int], now_ms: int) -> Lease:
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
        auto_renew=lease.auto_renew and lease.deadline_ms != ENDED,
    )


def _not_ready(queue: QueueProgress, offsets: set[int]) -> None:
    """Takes them from those that wait to be delivered again; they stay pending."""
    if offsets.isdisjoint(queue.ready):
        return
    queue.ready = [offset for offset in queue.ready if offset not in offsets]
    heapify(queue.ready)
    if not queue.ready:
        queue.subscription.ready_queues.discard(queue.queue_id)

"""How far one group has come in one queue, and what of it is still in somebody's hands.

    finished | committed ... some finished, the others in `pending` ... next_offset | never delivered

Everything below `committed` is finished; `committed` itself is not, unless it equals `next_offset`. A pending message
is leased, or it is *ready*: its lease ended and it waits to be delivered again. What is finished between the two bounds
is only known by not being in `pending`, so memory depends on what is unfinished and not on how far apart they are.

Of a queue that is consumed in order a ready message may also be one that was passed over: it is pending, under a lease
of nobody that has ended, and was never delivered. `MessageGroups` has those that may go out.

All transitions are here, made by the live table and by the replay of its journal alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.core.message.properties import PROPERTY_SHARDING_KEY

if TYPE_CHECKING:
    from tandemmq.core.delivery.subscription import Subscription
    from tandemmq.core.message.record import MessageRecord
    from tandemmq.core.message.stored_message import StoredMessage

# Which messages of an ordered queue may go out: those of message groups that nobody holds.
#
# A message that is unfinished is *held*, in somebody's hands, or it *waits*: its lease ended, or it was passed over
# when its group was held. What has no message group is one group of its own.
#
#     a group nobody holds     its waiting messages may go out, lowest offset first
#     a group somebody holds   nothing of it goes out, until all that is held is finished or its lease ended
#
# So the messages of a group are in one client's hands at a time, in the order of their offsets, and a group that is
# held keeps back no other. Costs depend on what is asked for, not on how many groups or messages wait.


_FIRST_KEY: Final = f"{PROPERTY_SHARDING_KEY}\x01".encode()
_LATER_KEY: Final = b"\x02" + _FIRST_KEY
_PAIR_END: Final = b"\x02"


def message_group_of(properties: bytes) -> bytes:
    """The message group in a record's property string; empty without one. Does not decode the other properties."""
    if properties.startswith(_FIRST_KEY):
        begin = len(_FIRST_KEY)
    else:
        found = properties.find(_LATER_KEY)
        if found < 0:
            return b""
        begin = found + len(_LATER_KEY)
    end = properties.find(_PAIR_END, begin)
    return properties[begin:] if end < 0 else properties[begin:end]


class _Group:
    __slots__ = ("held_count", "name", "waiting", "waiting_count")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.held_count = 0
        self.waiting: list[int] = []
        """Heap of offsets. Those that are gone stay in it until they surface."""
        self.waiting_count = 0


class MessageGroups:
    """The unfinished messages of one ordered queue by message group."""

    __slots__ = ("_attempts", "_batches", "_free", "_group_of", "_groups", "waiting_count")

    def __init__(self) -> None:
        self._groups: dict[bytes, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        """By the offset of each unfinished message."""
        self._free: list[int] = []
        """Heap with the lowest waiting offset of each group that nobody holds; void where the message is finished, or
        the group held."""
        self._attempts: dict[int, str] = {}
        """Attempt id of the receive that a held message went to, if it had one."""
        self._batches: dict[str, set[int]] = {}
        """The same by attempt id."""
        self.waiting_count = 0
        """Messages in nobody's hands."""

    # Questions

    def next_free(self) -> int:
        """The lowest offset that may go out; -1: none."""
        free = self._free
        while free:
            offset = free[0]
            group = self._group_of.get(offset)
            if group is not None and not group.held_count:
                return offset
            heappop(free)
        return -1

    def next_waiting(self, name: bytes) -> int:
        """The lowest offset of the group that waits, whoever holds the group; -1: none."""
        group = self._groups.get(name)
        return -1 if group is None else self._lowest(group)

    def is_free(self, offset: int) -> bool:
        """A waiting message may go out."""
        group = self._group_of.get(offset)
        return group is not None and not group.held_count and self._lowest(group) == offset

    def name_of(self, offset: int) -> bytes:
        return self._group_of[offset].name

    def admits(self, name: bytes, *, is_own: bool) -> bool:
        """A message behind all others may go out. `is_own`: whoever asks holds all that is held of the group."""
        group = self._groups.get(name)
        return group is None or (not group.waiting_count and (is_own or not group.held_count))

    def batch(self, attempt_id: str) -> list[int]:
        """What the receive with that attempt id holds, ascending."""
        return sorted(self._batches.get(attempt_id, ()))

    @property
    def blocked_count(self) -> int:
        """Groups with messages that wait for somebody to finish."""
        return sum(1 for group in self._groups.values() if group.held_count and group.waiting_count)

    # Changes

    def hold(self, offset: int, name: bytes, attempt_id: str) -> None:
        """A message goes out: the lowest of its group that waits, or a new one."""
        group = self._group_of.get(offset)
        if group is None:
            group = self._join(offset, name)
        else:
            assert self._lowest(group) == offset, f"{offset} is not the next one of its message group"
            heappop(group.waiting)
            group.waiting_count -= 1
            self.waiting_count -= 1
        group.held_count += 1
        if attempt_id:
            self._attempts[offset] = attempt_id
            batch = self._batches.get(attempt_id)
            if batch is None:
                self._batches[attempt_id] = {offset}
            else:
                batch.add(offset)

    def wait(self, offset: int, name: bytes) -> None:
        """A message that was in nobody's hands is unfinished."""
        self._wait(self._join(offset, name), offset)

    def ended(self, offset: int) -> None:
        """The lease of a held message ended."""
        group = self._group_of[offset]
        group.held_count -= 1
        self._leave_batch(offset)
        self._wait(group, offset)

    def gone(self, offset: int, *, is_waiting: bool) -> None:
        group = self._group_of.pop(offset)
        if is_waiting:
            group.waiting_count -= 1
            self.waiting_count -= 1
        else:
            group.held_count -= 1
            self._leave_batch(offset)
        if group.held_count:
            return
        if group.waiting_count:
            heappush(self._free, self._lowest(group))
        else:
            del self._groups[group.name]

    def _join(self, offset: int, name: bytes) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(name)
        self._group_of[offset] = group
        return group

    def _wait(self, group: _Group, offset: int) -> None:
        heappush(group.waiting, offset)
        group.waiting_count += 1
        self.waiting_count += 1
        if not group.held_count:
            heappush(self._free, self._lowest(group))

    def _lowest(self, group: _Group) -> int:
        waiting = group.waiting
        while waiting:
            if self._group_of.get(waiting[0]) is group:
                return waiting[0]
            heappop(waiting)
        return -1

    def _leave_batch(self, offset: int) -> None:
        attempt_id = self._attempts.pop(offset, None)
        if attempt_id is not None:
            batch = self._batches[attempt_id]
            batch.discard(offset)
            if not batch:
                del self._batches[attempt_id]


ENDED: Final = 0
"""Deadline of a lease that is over: below every time of a lease."""


class Lease:
    """Messages of one queue given to one client in one delivery. Identity matters, not content.

    One object for all of them keeps a delivery cheap; a message leaves its lease by being put under another one or by
    being finished, and the lease is forgotten with the last.
    """

    __slots__ = (
        "attempt",
        "auto_renew",
        "client_id",
        "deadline_ms",
        "granted_ms",
        "held",
        "nonce",
        "offsets",
        "queue",
    )

    def __init__(
        self,
        queue: QueueProgress,
        offsets: list[int],
        *,
        nonce: int,
        attempt: int,
        granted_ms: int,
        deadline_ms: int,
        client_id: str,
        auto_renew: bool,
    ) -> None:
        self.queue = queue
        self.offsets = offsets
        """What was given, ascending; part of it may be finished or under another lease by now."""
        self.held = len(offsets)
        """How many of `offsets` are still under this lease."""
        self.nonce = nonce
        """64 bits, unsigned; must be shown to finish one of the messages."""
        self.attempt = attempt
        """Deliveries of these messages so far, this one included."""
        self.granted_ms = granted_ms
        self.deadline_ms = deadline_ms
        """Lease time of the end; ENDED when it was noticed."""
        self.client_id = client_id
        self.auto_renew = auto_renew

    @property
    def turn(self) -> tuple[int, int]:
        """Of two leases of a message the later one has the higher, wherever they were given: clocks come second."""
        return self.attempt, self.granted_ms


class QueueProgress:
    """One group in one queue; see the module's docstring."""

    __slots__ = (
        "committed",
        "group_names",
        "next_offset",
        "order",
        "pending",
        "queue_id",
        "ready",
        "refused",
        "reported",
        "subscription",
    )

    def __init__(self, subscription: Subscription, queue_id: int, offset: int) -> None:
        self.subscription = subscription
        self.queue_id = queue_id
        self.committed = offset
        self.next_offset = offset
        self.reported = -1
        """`committed` as it was told last; see LeaseTable.take_moved_offsets."""
        self.pending: dict[int, Lease] = {}
        """Unfinished messages by queue offset, under their last lease."""
        self.ready: list[int] = []
        """Heap of the offsets whose lease ended; each is in `pending`. Empty while there is an `order`."""
        self.order: MessageGroups | None = None
        """Of `pending`, while the queue is consumed in order."""
        self.group_names: dict[int, bytes] = {}
        """Message groups of pending messages, as far as they are known before there is an `order`."""
        self.refused = False
        """A receive got nothing because too much is unfinished: an acknowledgement makes room."""

    @property
    def leased_count(self) -> int:
        """Messages in somebody's hands."""
        return len(self.pending) - self.ready_count

    @property
    def ready_count(self) -> int:
        """Unfinished messages in nobody's hands."""
        return len(self.ready) if self.order is None else self.order.waiting_count

    @property
    def has_ready(self) -> bool:
        """One of them may be delivered now."""
        return bool(self.ready) if self.order is None else self.order.next_free() >= 0

    def enter_order(self) -> MessageGroups:
        """From now on messages go out by message group. `group_names` has those of all that is pending."""
        order = MessageGroups()
        for offset in sorted(self.pending):
            if self.pending[offset].deadline_ms == ENDED:
                order.wait(offset, self.group_names[offset])
            else:
                order.hold(offset, self.group_names[offset], "")
        self.order, self.ready, self.group_names = order, [], {}
        return order

    def leave_order(self) -> None:
        """Message groups do not count any more, or have to be looked at anew."""
        if self.order is not None:
            self.order = None
            self.ready = sorted(offset for offset, lease in self.pending.items() if lease.deadline_ms == ENDED)

    def grant(self, lease: Lease, next_offset: int) -> None:
        """Puts the messages of `lease` under it. New ones reach up to `next_offset`; between them nothing was wanted.

        Messages that come from another lease have to be let go of there first.
        """
        self.pending.update(dict.fromkeys(lease.offsets, lease))
        if next_offset > self.next_offset:
            self.next_offset = next_offset
        self._settle()

    def finish(self, offset: int) -> Lease:
        """The message is done with. Returns the lease it was under."""
        lease = self.pending.pop(offset)
        if self.order is not None:
            self.order.gone(offset, is_waiting=lease.deadline_ms == ENDED)
        if offset == self.committed:
            self._settle()
        return lease

    def end(self, lease: Lease) -> None:
        """Everything still under the lease waits to be delivered again."""
        lease.deadline_ms = ENDED
        lease.auto_renew = False
        order = self.order
        for offset in lease.offsets:
            if self.pending.get(offset) is lease:
                if order is None:
                    heappush(self.ready, offset)
                else:
                    order.ended(offset)

    def take_ready(self) -> int:
        """Removes the oldest ready offset; the caller grants or finishes it."""
        return heappop(self.ready)

    def leave_ready(self, offsets: set[int]) -> None:
        """Takes them from those that wait to be delivered again, wherever they are among them; they stay pending."""
        if self.ready and not offsets.isdisjoint(self.ready):
            self.ready = [offset for offset in self.ready if offset not in offsets]
            heapify(self.ready)
            if not self.ready:
                self.subscription.ready_queues.discard(self.queue_id)

    def skip_to(self, offset: int) -> None:
        """No message below `offset` that was never delivered is wanted."""
        if offset > self.next_offset:
            self.next_offset = offset
        self._settle()

    def trim(self, offset: int) -> list[Lease]:
        """Everything below `offset` is finished, because the store does not hold it any more or the group is further.

        Returns the leases of what was pending there, one for each message.
        """
        gone = self._drop([pending for pending in self.pending if pending < offset])
        self.committed = max(self.committed, offset)
        self.skip_to(offset)
        return gone

    def truncate(self, offset: int) -> list[Lease]:
        """The queue ends at `offset` now: what was known beyond it was another message. Moves back where it has to.

        Returns the leases of what was pending there, one for each message.
        """
        self.leave_order()
        self.group_names.clear()
        gone = self._drop([pending for pending in self.pending if pending >= offset])
        self.next_offset = min(self.next_offset, offset)
        self.committed = min(self.committed, offset)
        self._settle()
        return gone

    def _drop(self, offsets: list[int]) -> list[Lease]:
        leases = [self.pending.pop(offset) for offset in offsets]
        if self.order is not None:
            for offset, lease in zip(offsets, leases):
                self.order.gone(offset, is_waiting=lease.deadline_ms == ENDED)
        self.ready = [offset for offset in self.ready if offset in self.pending]
        heapify(self.ready)
        return leases

    def _settle(self) -> None:
        """Moves `committed` up to the first unfinished message: one step for each offset in the life of the queue."""
        pending = self.pending
        if not pending:
            self.committed = self.next_offset
            return
        committed, limit = self.committed, self.next_offset
        while committed < limit and committed not in pending:
            committed += 1
        self.committed = committed


# What a lease table gives back.


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
    deliveries: list[Delivery]
    dead_letters: list[LeasedRecord]
    """Messages delivered as often as allowed. The caller copies them to the dead letter topic, then acknowledges."""
    more: bool = False
    """The receive stopped at `max_scanned_per_receive`, not at the end: another one may find something at once."""
    held_back: bool = False
    """There are messages that may not be given before every member of the in-sync set holds them."""
    scan_cost: int = 0
    """What looking cost, in the unit of `max_scanned_per_receive`."""
    leases: list[Lease] = field(default_factory=list)
    """Those of the deliveries."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was read by offset."""

    records: list[StoredMessage]
    next_offset: int
    """Where to go on."""
    more: bool
    """It stopped before the end, with nothing: enough was looked at."""


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
    is_torn: bool = True
    """That is the beginning of one frame at most, as a kill leaves it. False: zeros or something else lie there."""
    orphan_count: int = 0
    """Entries of subscriptions that no entry names: what came before them is gone."""


class Backlog(NamedTuple):
    """What one group has to do in all queues of a topic, in messages."""

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


class OrderFigures(NamedTuple):
    """What order costs consumers."""

    blocked_count: int
    """Message groups with messages that wait for somebody to finish earlier ones."""
    passed_over_count: int
    """Messages that were found while their message group was held, since the start."""


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
    blocked_count: int = 0
    """Message groups whose next message waits for somebody to finish an earlier one."""

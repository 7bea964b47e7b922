"""One consumer group on one topic: its queues, when its leases end, and which messages it wants.

The tag is asked about twice. The tags code in the ConsumeQueue entry comes first: it costs no read of the CommitLog,
but tags with equal hash pass. Then the tag itself is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from tandemmq.core.message.properties import PROPERTY_TAGS, tags_code

if TYPE_CHECKING:
    from tandemmq.core.delivery.queue_progress import Lease, QueueProgress

NO_PRIORITIES: Final = -1
"""The `priority_factor` of topics whose queues are all alike."""
_PRUNE_FLOOR: Final = 64
"""So many ends of leases that are gone are no reason to rebuild the heap."""


class Subscription:
    """State of a group on a topic. Ends of leases are a heap; what is over early stays in it until it surfaces."""

    __slots__ = (
        "_ends",
        "_running",
        "group",
        "has_moved",
        "number",
        "priority_turn",
        "queues",
        "ready_queues",
        "topic",
        "turn",
        "wakeup_ms",
    )

    def __init__(self, number: int, group: str, topic: str) -> None:
        self.number = number
        """Names the subscription in the journal."""
        self.group = group
        self.topic = topic
        self.queues: dict[int, QueueProgress] = {}
        self.ready_queues: set[int] = set()
        """Queues with ready messages."""
        self.has_moved = False
        """A queue may have another committed offset than was told last."""
        self.turn = 0
        """Receives so far. Each starts at another queue, so that no queue is always served last."""
        self.priority_turn = 0
        """Receives of a PRIORITY topic so far."""
        self.wakeup_ms: int | None = None
        """For when the table has noted to look at the ends of leases; None when it has not."""
        self._ends: list[tuple[int, int, Lease]] = []
        self._running = 0

    def in_turn(self, queue_ids: Sequence[int]) -> list[QueueProgress]:
        """The queues of `queue_ids`, beginning with another one each time."""
        found = [self.queues[queue_id] for queue_id in queue_ids]
        if len(found) > 1:
            first = self.turn % len(found)
            self.turn += 1
            found = found[first:] + found[:first]
        return found

    def by_priority(self, queue_ids: Sequence[int], factor: int) -> list[QueueProgress] | None:
        """The queues from the highest id down, in `factor` of a hundred receives, evenly spread; None in the others."""
        turn = self.priority_turn
        self.priority_turn = turn + 1
        if (turn + 1) * factor // 100 == turn * factor // 100:
            return None
        return [self.queues[queue_id] for queue_id in sorted(queue_ids, reverse=True)]

    def lease_started(self, lease: Lease, serial: int) -> None:
        """Notes the end of a new lease. `serial` orders equal ends and is never used twice."""
        self._running += 1
        self.lease_moved(lease, serial)

    def lease_moved(self, lease: Lease, serial: int) -> None:
        """Notes another end of a running lease; the former one is void."""
        if len(self._ends) > 2 * self._running + _PRUNE_FLOOR:
            self._ends = [end for end in self._ends if _is_current(end)]
            heapify(self._ends)
        heappush(self._ends, (lease.deadline_ms, serial, lease))

    def lease_over(self) -> None:
        """A lease ended, or nothing is left under it."""
        self._running -= 1

    def next_end_ms(self) -> int | None:
        """When the next running lease ends."""
        while self._ends and not _is_current(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def take_ended(self, now_ms: int) -> Lease | None:
        """The next lease whose end has come, if there is one; the caller ends or renews it."""
        end_ms = self.next_end_ms()
        if end_ms is None or end_ms > now_ms:
            return None
        return heappop(self._ends)[2]


def _is_current(end: tuple[int, int, Lease]) -> bool:
    deadline_ms, _, lease = end
    return lease.held > 0 and lease.deadline_ms == deadline_ms


# Filters.


class MessageFilter:
    """Which messages a subscription wants; by tag below, by SQL92 in `sql_filter`."""

    __slots__ = ("codes", "reads_all")

    def __init__(self, *, codes: frozenset[int] | None, reads_all: bool) -> None:
        self.codes: Final = codes
        """Tags codes of what may be wanted; None: an entry of a ConsumeQueue does not tell."""
        self.reads_all: Final = reads_all
        """Every message is wanted."""

    def matches(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted."""
        raise NotImplementedError


# By tag.

_SEPARATOR: Final = "||"
_FIRST_TAG: Final = f"{PROPERTY_TAGS}\x01".encode()
_LATER_TAG: Final = b"\x02" + _FIRST_TAG
_PAIR_END: Final = b"\x02"
_FIRST_PRINTABLE: Final = " "
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What Java's String.trim takes off."""


class TagFilter(MessageFilter):
    """A set of tags, or all messages."""

    __slots__ = ("tags",)

    def __init__(self, tags: frozenset[bytes] | None, codes: frozenset[int] | None) -> None:
        super().__init__(codes=codes, reads_all=tags is None)
        self.tags: Final = tags
        """UTF-8; None lets everything pass, messages without tag included."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self.tags == other.tags

    def __hash__(self) -> int:
        return hash(self.tags)

    @classmethod
    def parse(cls, expression: str) -> TagFilter | None:
        """Reads `*`, an empty text or `a || b`, as RocketMQ's FilterAPI does; None for anything else."""
        text = expression.strip(_TRIMMED)
        if text in ("", "*"):
            return EVERY_TAG
        tags = [tag for part in text.split(_SEPARATOR) if (tag := part.strip(_TRIMMED))]
        if not tags or any("|" in tag or min(tag) < _FIRST_PRINTABLE for tag in tags):
            return None
        return cls(frozenset(tag.encode("utf-8", "replace") for tag in tags), frozenset(map(tags_code, tags)))

    def matches(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted."""
        return self.tags is None or _tag_of(properties) in self.tags


EVERY_TAG: Final = TagFilter(None, None)
"""Lets all messages pass."""


def _tag_of(properties: bytes) -> bytes:
    """The tag in a property string; empty without one. Does not decode the other properties."""
    if properties.startswith(_FIRST_TAG):
        begin = len(_FIRST_TAG)
    else:
        found = properties.find(_LATER_TAG)
        if found < 0:
            return b""
        begin = found + len(_LATER_TAG)
    end = properties.find(_PAIR_END, begin)
    return properties[begin:] if end < 0 else properties[begin:end]

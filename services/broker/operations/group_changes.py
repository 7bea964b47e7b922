"""What operators change about consumption: where a group goes on, and which groups there are.

Each change is durable in the lease journal when its method returns, and in the tables slaves copy after `written`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import structlog

from broker.api.sessions import ClientSession, ClientSessions
from broker.metadata_tables import MetadataTables
from broker.queries.values import FoundOffset
from mqcore.delivery.lease_table import LeaseTable
from mqcore.storage.message_store import MessageStore

__all__ = [
    "Edge",
    "FindOffsets",
    "GroupChanges",
    "GroupRemoval",
    "InvalidOffsets",
    "OffsetMove",
    "ResetTarget",
    "StoreTime",
]

log = structlog.get_logger(__name__)


class Edge(Enum):
    """An end of every queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class StoreTime:
    """The first message of each queue that was stored at this time or later."""

    wall_ms: int


ResetTarget: TypeAlias = Edge | StoreTime | Mapping[int, int]
"""Where to go on; a mapping has the offset of each queue that is to be moved."""


FindOffsets: TypeAlias = Callable[[str, int], Awaitable[Sequence[FoundOffset]]]
"""(topic, wall-clock ms) -> where each of its queues is at that moment. May read from the disk."""


class InvalidOffsets(ValueError):
    """A group cannot go on there; the message says why and what is possible. The operator's fault."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One queue's move."""

    queue_id: int
    # All below was acknowledged; -1: the group had not read this queue.
    from_offset: int
    to_offset: int
    max_offset: int
    inflight_count: int


@dataclass(frozen=True, slots=True)
class GroupRemoval:
    """What goes with a group."""

    existed: bool
    # In which it has progress.
    topics: list[str]
    inflight_count: int


class GroupChanges:
    """Changes groups on a master. `persist_leases` makes what changed outlive a loss of power; `consumes_anew` is told
    of group and topic, empty for all; `wake` lets receives that wait look for messages again. Event loop only."""

    def __init__(
        self,
        *,
        store: MessageStore,
        tables: MetadataTables,
        leases: LeaseTable,
        sessions: ClientSessions,
        find_offsets: FindOffsets,
        persist_leases: Callable[[], None],
        consumes_anew: Callable[[str, str], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._tables = tables
        self._leases = leases
        self._sessions = sessions
        self._find_offsets = find_offsets
        self._persist_leases = persist_leases
        self._consumes_anew = consumes_anew
        self._wake = wake

    async def written(self) -> None:
        """Returns when everything changed so far is durable: before anybody is told of it."""
        await self._tables.written()

    # Groups and topics

    def has_group(self, group: str) -> bool:
        """Whether there is such a group."""
        return self._tables.groups.get(group) is not None

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return self._tables.topics.get(topic) is not None

    def members(self, group: str) -> list[ClientSession]:
        """Its connected consumers."""
        return [session for session in self._sessions.all() if session.group == group]

    def removal_of(self, group: str) -> GroupRemoval:
        """What `remove_group` would remove."""
        topics = {topic for name, topic in self._tables.consumer_offsets.pairs() if name == group}
        leased = self._leases.topics_of(group)
        return GroupRemoval(
            existed=self.has_group(group),
            topics=sorted(topics.union(leased)),
            inflight_count=sum(self._leases.backlog_of(group, topic).inflight_count for topic in leased),
        )

    def remove_group(self, group: str) -> GroupRemoval:
        """Removes a group and its progress. Its dead letters stay in their topic."""
        removal = self.removal_of(group)
        self._leases.forget_group(group)
        self._persist_leases()
        self._tables.remove_group(group)
        self._consumes_anew(group, "")
        if removal.existed or removal.topics:
            log.info(
                "consumer_group_deleted",
                by="operator",
                group=group,
                topics=len(removal.topics),
                inflight=removal.inflight_count,
            )
        return removal

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: groups start anew in one made later under its name."""
        self._leases.forget_topic(topic)
        self._persist_leases()
        self._tables.forget_progress_in(topic)
        self._consumes_anew("", topic)

    # Offsets

    async def moves(self, group: str, topic: str, target: ResetTarget) -> list[OffsetMove]:
        """What `move` would do, ordered by queue id. InvalidOffsets: a queue does not reach there.

        With a time also what `find_offsets` raises. The topic exists at the call, but perhaps not any more afterwards.
        """
        queue_ids = self._queue_ids(group, topic)
        if isinstance(target, Mapping):
            to_offsets = self._checked(topic, queue_ids, target)
        else:
            to_offsets = await self._offsets(topic, queue_ids, target)
        standing = {state.queue_id: state for state in self._leases.progress_of(group, topic)}
        stored = self._tables.consumer_offsets.offsets_of(group, topic)
        moves = []
        for queue_id, to_offset in sorted(to_offsets.items()):
            state = standing.get(queue_id)
            moves.append(
                OffsetMove(
                    queue_id=queue_id,
                    from_offset=stored.get(queue_id, -1) if state is None else state.committed_offset,
                    to_offset=to_offset,
                    max_offset=self._store.queue_max_offset(topic, queue_id),
                    inflight_count=0 if state is None else state.inflight_count,
                )
            )
        return moves

    def move(self, group: str, topic: str, moves: list[OffsetMove]) -> None:
        """Lets the group go on at `to_offset` of each move, forward or back; leases in these queues end."""
        # Queues that are not moved begin as if the group had come by itself.
        self._leases.open(group, topic, self._queue_ids(group, topic))
        for move in moves:
            self._leases.reset(group=group, topic=topic, queue_id=move.queue_id, offset=move.to_offset)
        self._persist_leases()
        self._tables.collect_progress(self._leases)
        self._consumes_anew(group, topic)
        log.info(
            "consumer_offsets_reset",
            by="operator",
            group=group,
            topic=topic,
            queues={move.queue_id: f"{move.from_offset} to {move.to_offset}" for move in moves},
            inflight=sum(move.inflight_count for move in moves),
        )
        self._wake()

    def _queue_ids(self, group: str, topic: str) -> list[int]:
        """Those consumers see, and those the group has read when there were more."""
        config = self._tables.topics.get(topic)
        count = 0 if config is None else config.read_queue_count
        read = {state.queue_id for state in self._leases.progress_of(group, topic)}
        return sorted(read.union(range(count), self._tables.consumer_offsets.offsets_of(group, topic)))

    def _checked(self, topic: str, queue_ids: list[int], offsets: Mapping[int, int]) -> dict[int, int]:
        for queue_id, offset in offsets.items():
            if queue_id not in queue_ids:
                raise InvalidOffsets(
                    f"topic {topic} has no queue {queue_id} to read; its last one is {max(queue_ids, default=-1)}"
                )
            start, end = self._store.queue_min_offset(topic, queue_id), self._store.queue_max_offset(topic, queue_id)
            if not start <= offset <= end:
                raise InvalidOffsets(
                    f"queue {queue_id} of topic {topic} holds {start} to {end}, not {offset}; choose one of these"
                )
        return dict(offsets)

    async def _offsets(self, topic: str, queue_ids: list[int], target: Edge | StoreTime) -> dict[int, int]:
        match target:
            case Edge.EARLIEST:
                return {queue_id: self._store.queue_min_offset(topic, queue_id) for queue_id in queue_ids}
            case Edge.LATEST:
                return {queue_id: self._store.queue_max_offset(topic, queue_id) for queue_id in queue_ids}
            case StoreTime(wall_ms):
                found = {queue.queue_id: queue.offset for queue in await self._find_offsets(topic, wall_ms)}
                # One that it does not know is empty.
                return {queue_id: found.get(queue_id, 0) for queue_id in queue_ids}

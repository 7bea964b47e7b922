"""What operators change about consumption: where a group goes on, and which groups there are.

Each change is durable in the lease journal when its method returns, and in the tables slaves copy after `written`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog

from tandemmq.broker.client_api.sessions import ClientSession, ClientSessions
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.queries.stored_records import read_stored_at_ms
from tandemmq.broker.queries.values import FoundOffset
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lite_topics import parent_of_lmq
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.service.event_loop import TurnLimit

if TYPE_CHECKING:
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.message_store import MessageStore

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
    queue_id: int
    # All below was acknowledged; -1: the group had not read this queue.
    from_offset: int
    to_offset: int
    max_offset: int
    inflight_count: int


@dataclass(frozen=True, slots=True)
class GroupRemoval:
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
        await self._tables.confirmed()

    # Groups and topics

    def has_group(self, group: str) -> bool:
        return self._tables.groups.get(group) is not None

    def has_topic(self, topic: str) -> bool:
        return self._tables.topics.get(topic) is not None

    def members(self, group: str) -> list[ClientSession]:
        return [session for session in self._sessions.all() if session.group == group]

    def removal_of(self, group: str) -> GroupRemoval:
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
        known = {*self._leases.pairs(), *self._tables.consumer_offsets.pairs()}
        in_lite_topics = [(group, name) for group, name in known if parent_of_lmq(name) == topic]
        for group, name in in_lite_topics:
            self._leases.forget_pair(group, name)
        self._persist_leases()
        self._tables.forget_progress_in(topic)
        if in_lite_topics:
            self._tables.forget_progress(in_lite_topics)
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


# How far consumer groups are on this broker, for those who ask about a few of them or about all.

_AGES_MAX: Final = 4_096


class QueueStanding(NamedTuple):
    topic: str
    queue_id: int
    # Everything below is acknowledged.
    committed_offset: int
    # One past the last message of the queue.
    max_offset: int
    # Delivered and not yet acknowledged.
    inflight_count: int
    # Age of the oldest message that is not acknowledged; 0: there is none, or it was not looked for.
    oldest_age_ms: int
    # Message groups whose next message waits for an earlier one.
    blocked_count: int = 0


class GroupProgressView:
    """Reads the lease table, and where that knows nothing (on a slave, or after a failover) the stored offsets.

    Topics that are not there any more are left out: nobody can receive what a group lacks of them.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        leases: LeaseTable,
        stored: ConsumerOffsetTable,
        sessions: ClientSessions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._leases = leases
        self._stored = stored
        self._sessions = sessions
        self._clock = clock

    def member_counts(self) -> Counter[str]:
        return Counter(session.group for session in self._sessions.all() if session.group)

    async def of(self, groups: Collection[str], *, with_ages: bool) -> dict[str, list[QueueStanding]]:
        """Each group in all queues it consumes, ordered by topic and queue id.

        An age costs a read of a record's head, perhaps from the disk: only for a few groups, and only for the first
        4,096 queues. Others have their turn after each millisecond.
        """
        turn = TurnLimit(self._clock)
        ages_left = _AGES_MAX if with_ages else 0
        wanted = set(groups)
        pairs = {pair for pair in self._leases.pairs() if pair[0] in wanted}
        pairs.update(pair for pair in self._stored.pairs() if pair[0] in wanted)
        standings: dict[str, list[QueueStanding]] = {group: [] for group in groups}
        for group, topic in sorted(pairs):
            if self._topics.get(topic) is None:
                continue
            for standing in self._in_topic(group, topic):
                if ages_left and standing.committed_offset < standing.max_offset:
                    ages_left -= 1
                    standing = self._with_age(standing)
                standings[group].append(standing)
                if turn.is_reached:
                    await turn.pause()
        return standings

    def _in_topic(self, group: str, topic: str) -> list[QueueStanding]:
        committed = {queue_id: (offset, 0, 0) for queue_id, offset in self._stored.offsets_of(group, topic).items()}
        for state in self._leases.progress_of(group, topic):
            committed[state.queue_id] = (state.committed_offset, state.inflight_count, state.blocked_count)
        max_offset = self._store.queue_max_offset
        return [
            QueueStanding(topic, queue_id, offset, max_offset(topic, queue_id), inflight_count, 0, blocked_count)
            for queue_id, (offset, inflight_count, blocked_count) in sorted(committed.items())
        ]

    def _with_age(self, standing: QueueStanding) -> QueueStanding:
        queue = self._store.consume_queue(standing.topic, standing.queue_id)
        if queue is None:
            return standing
        entries = queue.read(max(standing.committed_offset, queue.min_offset), 1)
        stored_at_ms = read_stored_at_ms(self._store, entries[0].physical_offset) if entries else None
        if stored_at_ms is None:
            return standing
        return standing._replace(oldest_age_ms=max(0, self._clock.wall_ms() - stored_at_ms))

"""How far consumer groups are on this broker, for those who ask about a few of them or about all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from broker.api.sessions import ClientSessions
from broker.metrics.store_time import read_stored_at_ms
from broker.metrics.turn_limit import TurnLimit
from mqcore.clock import Clock
from mqcore.delivery.lease_table import LeaseTable
from mqcore.metadata.offset_tables import ConsumerOffsetTable
from mqcore.metadata.topic_table import TopicTable
from mqcore.storage.message_store import MessageStore

__all__ = ["GroupProgressView", "QueueStanding"]


_AGES_MAX: Final = 4_096


class QueueStanding(NamedTuple):
    """A group in one queue."""

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
        """Connected consumers by group."""
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
        committed = {queue_id: (offset, 0) for queue_id, offset in self._stored.offsets_of(group, topic).items()}
        for state in self._leases.progress_of(group, topic):
            committed[state.queue_id] = (state.committed_offset, state.inflight_count)
        max_offset = self._store.queue_max_offset
        return [
            QueueStanding(topic, queue_id, offset, max_offset(topic, queue_id), inflight_count, 0)
            for queue_id, (offset, inflight_count) in sorted(committed.items())
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

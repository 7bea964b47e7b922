"""How far consumer groups are behind, in messages and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.metrics.message_metrics import flag
from broker.metrics.store_time import read_stored_at_ms
from broker.metrics.turn_limit import TurnLimit
from mqcore.clock import Clock
from mqcore.delivery.lease_table import LeaseTable
from mqcore.delivery.queue_progress import Backlog
from mqcore.storage.message_store import MessageStore
from mqservice.metrics.metric_samples import MetricSamples
from mqservice.metrics.series_limit import OTHER, SeriesLimit

__all__ = ["ConsumerMetrics"]

_FIRST: Final = flag(False)
_AGAIN: Final = flag(True)

_POSITIONS_MAX: Final = 200_000
"""Remembered of calls that were given up, in 40 MB: as many as there are queues with a group that stands still."""

_Position = tuple[str, int, int]


class ConsumerMetrics:
    """Tells lags from what the lease table holds.

    The age of a message costs a read of its record's head, which may have to come from the disk. So it is read once for
    each place where a group stands still, and only for groups with series of their own.
    """

    def __init__(
        self,
        *,
        leases: LeaseTable,
        store: MessageStore,
        has_topic: Callable[[str], bool],
        clock: Clock,
        pair_limit: SeriesLimit[tuple[str, str]],
    ) -> None:
        """What a group had of a topic that is not there any more is no lag: nobody can receive it."""
        self._leases = leases
        self._has_topic = has_topic
        self._store = store
        self._clock = clock
        self._pair_limit = pair_limit
        # Of the last call, by topic, queue id and queue offset.
        self._stored_at_ms: dict[_Position, int] = {}

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        """Adds its samples."""
        stored_at_ms: dict[_Position, int] = {}
        try:
            await self._tell_groups(samples, turn, stored_at_ms)
        except asyncio.CancelledError:
            # Given up because it took too long: the next call need not read again what this one has read.
            if len(self._stored_at_ms) + len(stored_at_ms) > _POSITIONS_MAX:
                self._stored_at_ms = {}
            self._stored_at_ms |= stored_at_ms
            raise
        self._stored_at_ms = stored_at_ms

    async def _tell_groups(self, samples: MetricSamples, turn: TurnLimit, stored_at_ms: dict[_Position, int]) -> None:
        others: list[Backlog] = []
        for group, topic in self._leases.pairs():
            if not self._has_topic(topic):
                continue
            backlog = self._leases.backlog_of(group, topic)
            if self._pair_limit.admits((topic, group)):
                _tell_backlog(samples, topic, group, backlog)
                self._tell_ages(samples, topic, group, backlog, stored_at_ms)
            else:
                others.append(backlog)
            if turn.is_reached:
                await turn.pause()
        if others:
            _tell_backlog(samples, OTHER, OTHER, Backlog(*map(sum, zip(*others, strict=True))))

    def _tell_ages(
        self,
        samples: MetricSamples,
        topic: str,
        group: str,
        backlog: Backlog,
        stored_at_ms: dict[_Position, int],
    ) -> None:
        now_ms = self._clock.wall_ms()
        oldest_unfinished_ms = oldest_new_ms = now_ms
        for state in () if backlog.is_empty else self._leases.progress_of(group, topic):
            if state.committed_offset < state.next_offset:
                unfinished_ms = self._stored_at(topic, state.queue_id, state.committed_offset, stored_at_ms)
                oldest_unfinished_ms = min(oldest_unfinished_ms, unfinished_ms or now_ms)
            new_ms = self._stored_at(topic, state.queue_id, state.next_offset, stored_at_ms)
            oldest_new_ms = min(oldest_new_ms, new_ms or now_ms)
        oldest_unfinished_ms = min(oldest_unfinished_ms, oldest_new_ms)
        samples.add("rocketmq_consumer_lag_latency", now_ms - oldest_unfinished_ms, topic, group, _FIRST)
        samples.add("rocketmq_consumer_queueing_latency", now_ms - oldest_new_ms, topic, group, _FIRST)

    def _stored_at(self, topic: str, queue_id: int, offset: int, stored_at_ms: dict[_Position, int]) -> int | None:
        """Wall clock at which the message was stored; None if there is none."""
        queue = self._store.consume_queue(topic, queue_id)
        if queue is None or offset >= queue.max_offset:
            return None
        offset = max(offset, queue.min_offset)
        position = (topic, queue_id, offset)
        found = self._stored_at_ms.get(position) or stored_at_ms.get(position)
        if found is None:
            entries = queue.read(offset, 1)
            if not entries:
                return None
            found = read_stored_at_ms(self._store, entries[0].physical_offset)
        if found is not None:
            stored_at_ms[position] = found
        return found


def _tell_backlog(samples: MetricSamples, topic: str, group: str, backlog: Backlog) -> None:
    new, inflight, again = backlog
    samples.add("rocketmq_consumer_lag_messages", new + inflight, topic, group, _FIRST)
    samples.add("rocketmq_consumer_lag_messages", again, topic, group, _AGAIN)
    samples.add("rocketmq_consumer_inflight_messages", inflight, topic, group, _FIRST)
    samples.add("rocketmq_consumer_ready_messages", new, topic, group, _FIRST)
    samples.add("rocketmq_consumer_ready_messages", again, topic, group, _AGAIN)

"""A broker's metrics, read when somebody asks.

Where messages pass, plain numbers are counted in place; everything here runs once a scrape, on the event loop, and lets
it go on between topics. So two figures of one scrape may be some milliseconds apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.broker.metrics_catalogue import BROKER_METRICS, NODE_TYPE
from tandemmq.broker.put import DeliveryCounts, DeliveryMeter, PutMeter, TopicPuts
from tandemmq.broker.queries.stored_records import read_stored_at_ms
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.half_messages import Resolution
from tandemmq.core.delivery.queue_progress import Backlog
from tandemmq.core.histogram import Histogram
from tandemmq.core.metadata.subscription_group_table import system_subscription_groups
from tandemmq.core.metadata.topic_table import PERM_READ, PERM_READ_WRITE, TopicTable
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.disk import Disk
from tandemmq.core.storage.kept_tail import kept_repairs, kept_tails
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.core.tracing.send_spans import OffsetTimeline
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.metrics import OTHER, MetricFamily, MetricSamples, SeriesLimit
from tandemmq.service.settings import VERSION

if TYPE_CHECKING:
    # Its roles are built on this module.
    from tandemmq.broker.client_api.forwarding import CallForwarder
    from tandemmq.broker.failover.controller import Failover
    from tandemmq.broker.far_reads import FarReads
    from tandemmq.broker.master.role import MasterRole
    from tandemmq.broker.parts import BrokerParts
    from tandemmq.broker.retention import Retention
    from tandemmq.broker.runtime_settings import RuntimeSettings
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.message_store import MessageStore


# What the store holds, how far it is behind itself, and how full its disk is.


def tell_recovery(samples: MetricSamples, store: MessageStore, clock: Clock) -> None:
    """Adds what is known from the first moment on."""
    progress = store.recovery_progress
    elapsed_ms = progress.elapsed_ms(now_ms=clock.monotonic_ms())
    samples.add("rocketmq_store_recovery_progress_ratio", progress.ratio)
    samples.add("rocketmq_store_recovery_duration_seconds", elapsed_ms / 1_000)


async def tell_store(
    samples: MetricSamples,
    store: MessageStore,
    *,
    disk: Disk,
    clock: Clock,
    flush_seconds: Mapping[str, Histogram],
    retention: Retention,
    disk_warning_ratio: float,
    damaged: DamagedEntries,
    far_reads: FarReads,
) -> None:
    """Of a store that is recovered. `flush_seconds` are durations by what was flushed."""
    usage, tail_count, repairs = await asyncio.to_thread(
        lambda: (disk.usage(), len(kept_tails(disk)), kept_repairs(disk))
    )
    end_offset = store.end_offset
    oldest_ms = read_stored_at_ms(store, store.min_offset)
    oldest_age_ms = max(0, clock.wall_ms() - oldest_ms) if oldest_ms is not None else 0
    samples.add("rocketmq_storage_size", end_offset - store.min_offset)
    samples.add("rocketmq_storage_flush_behind_bytes", max(0, end_offset - store.flushed_offset))
    samples.add("rocketmq_storage_dispatch_behind_bytes", max(0, end_offset - store.dispatched_offset))
    samples.add("rocketmq_storage_message_reserve_time", oldest_age_ms)
    samples.add("rocketmq_store_commitlog_min_offset", store.min_offset)
    samples.add("rocketmq_store_commitlog_end_offset", end_offset)
    samples.add("rocketmq_store_queue_entries_damaged_total", damaged.count)
    samples.add("rocketmq_store_queue_entries_mended_total", damaged.mended_count)
    samples.add("rocketmq_store_messages_unreadable_total", damaged.lost_count)
    samples.add("rocketmq_store_far_read_bytes_total", far_reads.from_slave_bytes, "slave")
    samples.add("rocketmq_store_far_read_bytes_total", far_reads.from_disk_bytes, "disk")
    samples.add("rocketmq_store_kept_tails", tail_count)
    samples.add("rocketmq_store_kept_repairs_bytes", repairs[1])
    for file, histogram in flush_seconds.items():
        samples.add_histogram("rocketmq_store_flush_seconds", histogram.reading(), file)
    samples.add("rocketmq_store_needed_bytes_deleted_total", retention.deleted_needed_bytes)
    samples.add("rocketmq_store_wall_clock_jump_seconds", retention.clock_jumped_ms / 1_000)
    samples.add("rocketmq_disk_used_ratio", usage.used_ratio)
    samples.add("rocketmq_disk_warning_ratio", disk_warning_ratio)


# Who is connected, and what the client plane refuses.

_PRODUCER: Final = "PRODUCER"


async def tell_clients(
    samples: MetricSamples, turn: TurnLimit, parts: BrokerParts, group_limit: SeriesLimit[str]
) -> None:
    """Of clients and of what waits for them."""
    samples.add("rocketmq_broker_clients", len(parts.sessions))
    samples.add("rocketmq_broker_client_connections", parts.client_plane.connection_count)
    samples.add_counts("rocketmq_broker_client_plane_events_total", parts.client_plane.counters)
    samples.add("rocketmq_processor_watermark", parts.role.waiting_count, "send")
    samples.add("rocketmq_processor_watermark", parts.client_api.waiting_receive_count, "receive")
    producer_count = 0
    consumers: Counter[str] = Counter()
    for session in parts.sessions.all():
        if session.client_type == _PRODUCER:
            producer_count += 1
        elif session.group:
            consumers[session.group if group_limit.admits(session.group) else OTHER] += 1
        if turn.is_reached:
            await turn.pause()
    samples.add("rocketmq_producer_connections", producer_count)
    samples.add_counts("rocketmq_consumer_connections", consumers)


# What went in and out, by topic and consumer group.

_NORMAL: Final = "NORMAL"
_SYSTEM_GROUPS: Final = frozenset(group.group_name for group in system_subscription_groups())


def flag(value: bool) -> str:
    """A label that says yes or no, as RocketMQ writes it."""
    return "true" if value else "false"


class MessageMetrics:
    """Tells the counts of what producers put and consumers were given; the rest of too many is told as `OTHER`."""

    def __init__(
        self,
        *,
        puts: PutMeter,
        deliveries: DeliveryMeter,
        topics: TopicTable,
        is_system_topic: Callable[[str], bool],
        preset: str,
        topic_limit: SeriesLimit[str],
        pair_limit: SeriesLimit[tuple[str, str]],
    ) -> None:
        """`preset` says what a send waits for."""
        self._puts = puts
        self._deliveries = deliveries
        self._topics = topics
        self._is_system_topic = is_system_topic
        self._preset = preset
        self._topic_limit = topic_limit
        self._pair_limit = pair_limit

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        samples.add_histogram("rocketmq_message_size", self._puts.message_bytes)
        for status, histogram in self._puts.send_to_ack_s.items():
            samples.add_histogram("rocketmq_send_to_ack_seconds", histogram.reading(), self._preset, status.name)
        await self._tell_puts(samples, turn)
        await self._tell_deliveries(samples, turn)

    async def _tell_puts(self, samples: MetricSamples, turn: TurnLimit) -> None:
        others: defaultdict[bool, TopicPuts] = defaultdict(TopicPuts)
        for topic, puts in list(self._puts.topics.items()):
            is_system = self._is_system_topic(topic)
            if topic != OTHER and self._topic_limit.admits(topic):
                config = self._topics.get(topic)
                message_type = config.message_type if config is not None else _NORMAL
                _tell_topic(samples, topic, message_type, is_system, puts)
            else:
                other = others[is_system]
                other.messages += puts.messages
                other.bytes += puts.bytes
            if turn.is_reached:
                await turn.pause()
        for is_system, puts in others.items():
            _tell_topic(samples, OTHER, OTHER, is_system, puts)

    async def _tell_deliveries(self, samples: MetricSamples, turn: TurnLimit) -> None:
        others: defaultdict[bool, DeliveryCounts] = defaultdict(DeliveryCounts)
        for (topic, group), counts in list(self._deliveries.counts.items()):
            is_system = group in _SYSTEM_GROUPS or self._is_system_topic(topic)
            if topic != OTHER and self._pair_limit.admits((topic, group)):
                _tell_pair(samples, topic, group, is_system, counts)
            else:
                _add(others[is_system], counts)
            if turn.is_reached:
                await turn.pause()
        for is_system, counts in others.items():
            _tell_pair(samples, OTHER, OTHER, is_system, counts)


def _tell_topic(samples: MetricSamples, topic: str, message_type: str, is_system: bool, puts: TopicPuts) -> None:
    labels = (topic, message_type, flag(is_system))
    samples.add("rocketmq_messages_in_total", puts.messages, *labels)
    samples.add("rocketmq_throughput_in_total", puts.bytes, *labels)


def _tell_pair(samples: MetricSamples, topic: str, group: str, is_system: bool, counts: DeliveryCounts) -> None:
    labels = (topic, group, flag(is_system))
    first_messages = counts.messages - counts.redelivered_messages
    samples.add("rocketmq_messages_out_total", first_messages, *labels, flag(False))
    samples.add("rocketmq_messages_out_total", counts.redelivered_messages, *labels, flag(True))
    samples.add("rocketmq_throughput_out_total", counts.bytes - counts.redelivered_bytes, *labels, flag(False))
    samples.add("rocketmq_throughput_out_total", counts.redelivered_bytes, *labels, flag(True))
    samples.add("rocketmq_send_to_dlq_messages_total", counts.dead_letters, *labels)


def _add(total: DeliveryCounts, counts: DeliveryCounts) -> None:
    total.messages += counts.messages
    total.bytes += counts.bytes
    total.redelivered_messages += counts.redelivered_messages
    total.redelivered_bytes += counts.redelivered_bytes
    total.dead_letters += counts.dead_letters


# How far consumer groups are behind, in messages and in time.

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


# For how long a slave has been behind: its lag in seconds, which bytes alone do not tell.

_TICKS_MAX: Final = 43_200
"""Twelve hours of seconds, in 1.4 MB at most; who is further behind is told as that far."""


class LagAge:
    """Remembers where the log ended at each second. `tick` once a second."""

    def __init__(self, *, end_offset: Callable[[], int], clock: Clock) -> None:
        self._end_offset = end_offset
        self._clock = clock
        self._ends = OffsetTimeline(entries_max=_TICKS_MAX)

    def tick(self) -> None:
        """Notes where the log ends now. After a cut ages count from there: what was before is not known any more."""
        end_offset = self._end_offset()
        if end_offset < self._ends.newest_offset:
            self._ends = OffsetTimeline(entries_max=_TICKS_MAX)
        self._ends.note(end_offset, self._clock.monotonic_ns())

    def lag_s(self, acked_offset: int) -> float:
        """Since the first second at whose end a byte was there that a slave at `acked_offset` lacks; 0.0 for none."""
        if acked_offset >= self._ends.newest_offset:
            return 0.0
        reached = self._ends.first_at_or_above(acked_offset + 1)
        if reached is None:
            return float(_TICKS_MAX)
        return (self._clock.monotonic_ns() - reached.at_ns) / 1e9


# How far slaves are behind, as their master sees it, and as a slave sees itself.

_UNPROVEN: Final = "unproven"


def tell_slaves(
    samples: MetricSamples,
    slaves: Sequence[SlaveView],
    lag_age: LagAge,
    *,
    needed_count: int,
    refused_report_count: int,
    refused_connections: Mapping[str, int],
) -> None:
    """What a master knows of its slaves."""
    samples.add("rocketmq_store_ha_slaves_connected", len(slaves))
    samples.add("rocketmq_store_ha_slaves_in_sync", sum(slave.in_sync for slave in slaves))
    for slave in _by_name(slaves):
        samples.add("rocketmq_store_ha_replication_lag_bytes", slave.lag_bytes, slave.name)
        samples.add("rocketmq_store_ha_replication_lag_seconds", lag_age.lag_s(slave.acked_offset), slave.name)
        samples.add("rocketmq_store_ha_slave_in_sync", slave.in_sync, slave.name)
    samples.add("rocketmq_store_ha_slaves_needed", needed_count)
    samples.add("rocketmq_store_ha_reports_refused_total", refused_report_count)
    samples.add_counts("rocketmq_store_ha_connections_refused_total", refused_connections)


class _Slave(NamedTuple):
    name: str
    acked_offset: int
    lag_bytes: int
    in_sync: bool


def _by_name(slaves: Iterable[SlaveView]) -> Iterator[_Slave]:
    """Once for each name: two connections of one slave are one series, the worst.

    Connections that have not proven who they are have only a port number to go by, and every retry has a new one; they
    share a name, as labels have to be bounded.
    """
    found: dict[str, _Slave] = {}
    for view in slaves:
        name = str(view.broker_id) if view.broker_id is not None else _UNPROVEN
        slave = _Slave(name, view.acked_offset, view.lag_bytes, view.in_sync)
        known = found.get(name)
        if known is None or slave.lag_bytes > known.lag_bytes:
            found[name] = slave
    yield from (found[name] for name in sorted(found))


_NO_PUTS: Final = dict.fromkeys(PutStatus.__members__, 0)
"""A counter that is there from the start: a rate over one that appears with the first failure would miss that one."""


class MasterRoleMetrics:
    """What a master tells, and a slave does not: what is put and delivered, and how far its slaves are."""

    def __init__(self, parts: BrokerParts, role: MasterRole) -> None:
        self._parts = parts
        self._role = role
        settings = parts.settings
        pair_limit: SeriesLimit[tuple[str, str]] = SeriesLimit(settings.metrics_series_max)
        self._messages = MessageMetrics(
            puts=parts.observability.put_meter,
            deliveries=parts.client_api.delivery_meter,
            topics=parts.topics,
            is_system_topic=parts.is_system_topic,
            preset=f"{settings.broker_role}/{settings.flush_disk_type}",
            topic_limit=SeriesLimit(settings.metrics_series_max),
            pair_limit=pair_limit,
        )
        self._consumers = ConsumerMetrics(
            leases=parts.leases,
            store=parts.store,
            has_topic=lambda name: parts.topics.get(name) is not None,
            clock=parts.clock,
            pair_limit=pair_limit,
        )

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        parts, role, write_path = self._parts, self._role, self._role.write_path
        samples.add("rocketmq_broker_writable", _permission(parts) == PERM_READ_WRITE)
        samples.add("rocketmq_broker_waiting_sends", write_path.waiting_count)
        samples.add_counts("rocketmq_broker_messages_put_total", _NO_PUTS | write_path.put_counts)
        self._tell_transactions(samples)
        samples.add("rocketmq_store_ha_start_waiting_seconds", role.recovery.waited_ms / 1_000)
        self._tell_delayed(samples)
        self._tell_lite(samples)
        tell_slaves(
            samples,
            role.slaves(),
            role.lag_age,
            needed_count=parts.settings.needed_replicas - 1,
            refused_report_count=write_path.refused_report_count,
            refused_connections=write_path.refused_counts,
        )
        samples.add_histogram(
            "rocketmq_store_ha_ack_latency_seconds", parts.observability.put_meter.ack_latency_s.reading()
        )
        await self._messages.tell(samples, turn)
        await self._consumers.tell(samples, turn)

    def _tell_transactions(self, samples: MetricSamples) -> None:
        transactions = self._parts.client_api.transactions
        samples.add("rocketmq_broker_transactions_undecided", transactions.undecided_count)
        samples.add("rocketmq_broker_transactions_oldest_age_seconds", transactions.oldest_age_ms / 1_000)
        samples.add("rocketmq_half_messages_total", transactions.half_count)
        samples.add("rocketmq_commit_messages_total", transactions.ended_counts[Resolution.COMMIT])
        samples.add("rocketmq_rollback_messages_total", transactions.ended_counts[Resolution.ROLLBACK])
        samples.add("rocketmq_broker_transactions_given_up_total", transactions.ended_counts[Resolution.GIVEN_UP])
        samples.add("rocketmq_broker_transaction_checks_total", transactions.check_count)
        samples.add("rocketmq_broker_transaction_checks_without_producer_total", transactions.unasked_count)
        samples.add("rocketmq_broker_transactions_doubled_total", transactions.doubled_count)
        samples.add("rocketmq_broker_transactions_lost_total", transactions.lost_count)

    def _tell_delayed(self, samples: MetricSamples) -> None:
        delayed = self._parts.delayed
        samples.add("rocketmq_timing_messages", delayed.waiting_count)
        samples.add("rocketmq_timer_dequeue_total", delayed.delivered_count)
        samples.add("rocketmq_timer_dequeue_latency", delayed.overdue_ms)
        samples.add("rocketmq_timer_recalled_total", delayed.recalled_count)
        samples.add("rocketmq_timer_rolled_total", delayed.rolled_count)
        samples.add_histogram("rocketmq_timer_lateness_seconds", delayed.lateness_s.reading())

    def _tell_lite(self, samples: MetricSamples) -> None:
        lite, deduplication = self._parts.client_api.lite, self._parts.client_api.deduplication
        samples.add("rocketmq_broker_lite_topics", self._parts.lite_topics.count)
        samples.add("rocketmq_broker_lite_subscriptions", lite.subscription_count)
        samples.add("rocketmq_broker_lite_topics_expired_total", lite.expired_count)
        samples.add("rocketmq_broker_duplicates_total", deduplication.duplicate_count)
        samples.add("rocketmq_broker_deduplication_ids", deduplication.count)
        samples.add("rocketmq_broker_deduplication_cut_short_total", deduplication.cut_short_count)


_MADE_GOOD_TOLD_MS: Final = 600_000


def _permission(parts: BrokerParts) -> int:
    """What clients may do here now."""
    if parts.refusal is not None:
        return 0
    return PERM_READ if parts.store.refusal is not None else PERM_READ_WRITE


def tell_failover(samples: MetricSamples, failover: Failover, forwarder: CallForwarder) -> None:
    """Of a group that fails over."""
    record = failover.record
    samples.add("rocketmq_store_ha_failover_epoch", 0 if record is None else record.epoch)
    samples.add("rocketmq_store_ha_failover_acting", failover.acts)
    samples.add("rocketmq_store_ha_failover_authority_away", failover.is_authority_away)
    if failover.acts and record is not None:
        samples.add("rocketmq_store_ha_in_sync_replicas", len(record.in_sync))
    samples.add_counts("rocketmq_store_ha_failovers_total", failover.claim_counts)
    samples.add_histogram("rocketmq_store_ha_failover_duration_seconds", failover.claim_seconds.reading())
    samples.add("rocketmq_broker_held_calls", forwarder.held_count)
    samples.add_counts("rocketmq_broker_held_calls_ended_total", forwarder.held_counts)


class BrokerMetrics:
    """Collects what is in `metrics_catalogue.py`. Event loop only.

    Before `recovered` it tells of the recovery alone: the store belongs to another thread then.
    """

    def __init__(
        self,
        parts: BrokerParts,
        *,
        settings: RuntimeSettings,
        retention: Retention,
        problem_count: Callable[[], int],
        forwarder: CallForwarder,
        failover: Failover | None = None,
        service_refusals: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`service_refusals` are the metadata plane's, by reason."""
        identity = parts.identity
        self._parts = parts
        self._problem_count = problem_count
        self._failover = failover
        self._forwarder = forwarder
        self._service_refusals = service_refusals
        self._started_ms = parts.clock.monotonic_ms()
        self._base = (identity.cluster, NODE_TYPE, identity.broker_name, str(identity.broker_id))
        self._settings = settings
        self._retention = retention
        self._group_limit: SeriesLimit[str] = SeriesLimit(parts.settings.metrics_series_max)
        self._is_recovered = False

    def recovered(self) -> None:
        """The store, and what is loaded after it, may be read from here on."""
        self._is_recovered = True

    async def collect(self) -> list[MetricFamily]:
        samples = MetricSamples(BROKER_METRICS, base=self._base)
        self._tell_process(samples)
        tell_recovery(samples, self._parts.store, self._parts.clock)
        if self._is_recovered:
            await self._tell_broker(samples)
        return samples.families()

    def _tell_process(self, samples: MetricSamples) -> None:
        parts, meter = self._parts, self._parts.loop_meter
        role, flush_disk_type = parts.role_name, str(parts.settings.flush_disk_type)
        samples.add("rocketmq_broker_info", 1, role, flush_disk_type, VERSION)
        samples.add("rocketmq_broker_uptime_seconds", (parts.clock.monotonic_ms() - self._started_ms) / 1_000)
        samples.add("rocketmq_broker_event_loop_stalls_total", meter.stall_count)
        samples.add("rocketmq_broker_event_loop_stalled_seconds_total", meter.stalled_s)
        samples.add("rocketmq_broker_event_loop_longest_stall_seconds", meter.longest_stall_s)
        for link in parts.links.links:
            samples.add("rocketmq_route_age_seconds", link.silent_ms / 1_000, link.address)
        samples.add_counts("rocketmq_trace_spans_total", parts.observability.span_counts())
        if parts.access is not None:
            samples.add_counts("rocketmq_broker_access_refused_total", parts.access.refused, "client")
        samples.add_counts("rocketmq_broker_access_refused_total", self._service_refusals, "service")

    async def _tell_broker(self, samples: MetricSamples) -> None:
        parts, turn = self._parts, TurnLimit(self._parts.clock)
        samples.add("rocketmq_broker_problems", self._problem_count())
        samples.add("rocketmq_store_log_damaged", _is_log_damage_told(parts))
        samples.add("rocketmq_store_ha_epoch", parts.member.history.last_epoch)
        if self._failover is not None:
            tell_failover(samples, self._failover, self._forwarder)
        samples.add("rocketmq_topic_number", len(parts.topics))
        samples.add("rocketmq_consumer_group_number", len(parts.groups))
        samples.add("rocketmq_broker_permission", _permission(parts))
        await tell_store(
            samples,
            parts.store,
            disk=parts.disk,
            clock=parts.clock,
            flush_seconds={"log": parts.workers.log.durations_s, "queues": parts.workers.queues.durations_s},
            retention=self._retention,
            disk_warning_ratio=self._settings.current.disk_space_warning_level_ratio,
            damaged=parts.damaged_entries,
            far_reads=parts.far_reads,
        )
        await tell_clients(samples, turn, parts, self._group_limit)
        figures = parts.leases.order_figures()
        samples.add("rocketmq_consumer_blocked_message_groups", figures.blocked_count)
        samples.add("rocketmq_consumer_passed_over_messages_total", figures.passed_over_count)
        samples.add_counts("rocketmq_broker_forwarded_calls_total", parts.group_calls.forwarded_counts)
        samples.add_counts("rocketmq_broker_forwarded_calls_failed_total", parts.group_calls.failed_counts)
        await parts.role.tell(samples, turn)


def _is_log_damage_told(parts: BrokerParts) -> bool:
    """Also for a while after it was made good, so that an alert sees it."""
    made_good_ms = parts.log_made_good_ms
    if parts.log_damage is None or made_good_ms is None:
        return parts.log_damage is not None
    return parts.clock.monotonic_ms() - made_good_ms < _MADE_GOOD_TOLD_MS

"""A broker's metrics, read when somebody asks.

Where messages pass, plain numbers are counted in place; everything here runs once a scrape, on the event loop, and lets
it go on between topics. So two figures of one scrape may be some milliseconds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.api.client_api import ClientApi
from broker.api.sessions import ClientSessions
from broker.client_plane import ClientPlane
from broker.lag_age import LagAge
from broker.metrics.catalogue import BROKER_METRICS, NODE_TYPE
from broker.metrics.client_metrics import ClientMetrics
from broker.metrics.consumer_metrics import ConsumerMetrics
from broker.metrics.message_metrics import MessageMetrics
from broker.metrics.replication_metrics import MasterMetrics, SlaveMetrics
from broker.metrics.store_metrics import RetentionFigures, StoreMetrics
from broker.metrics.turn_limit import TurnLimit
from broker.put_meter import PutMeter
from broker.queue_reader import DamagedEntries
from broker.settings import BrokerSettings
from broker.slave.follower import Follower
from broker.write_path import WritePath
from mqcore.clock import Clock
from mqcore.delivery.lease_table import LeaseTable
from mqcore.histogram import Histogram
from mqcore.metadata.subscription_group_table import SubscriptionGroupTable
from mqcore.metadata.topic_table import PERM_READ, PERM_READ_WRITE, TopicTable, is_system_topic
from mqcore.replication.master_replica import MasterReplica
from mqcore.routing.values import BrokerIdentity
from mqcore.storage.disk import Disk
from mqcore.storage.message_store import MessageStore
from mqcore.storage.put_result import PutStatus
from mqservice.loop_meter import LoopMeter
from mqservice.metrics.metric_samples import MetricFamily, MetricSamples
from mqservice.metrics.series_limit import SeriesLimit
from mqservice.name_server_link import NameServerLinks
from mqservice.version import VERSION

__all__ = ["BrokerMetrics"]

_NO_PUTS: Final = dict.fromkeys(PutStatus.__members__, 0)
"""A counter that is there from the start: a rate over one that appears with the first failure would miss that one."""


class BrokerMetrics:
    """Collects what is in `catalogue.py`. Event loop only.

    Before `recovered` it tells of the recovery alone: the store belongs to another thread then.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        identity: BrokerIdentity,
        clock: Clock,
        store: MessageStore,
        disk: Disk,
        replica: MasterReplica,
        follower: Follower,
        write_path: WritePath,
        put_meter: PutMeter,
        client_api: ClientApi,
        client_plane: ClientPlane,
        leases: LeaseTable,
        sessions: ClientSessions,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        links: NameServerLinks,
        loop_meter: LoopMeter,
        lag_age: LagAge,
        current_settings: Callable[[], BrokerSettings],
        flush_seconds: Mapping[str, Histogram],
        retention: RetentionFigures,
        refusal: Callable[[], str | None],
        span_counts: Callable[[], Mapping[str, int]],
        epoch: Callable[[], int],
        start_waited_ms: Callable[[], int],
        is_log_damaged: Callable[[], bool],
        problem_count: Callable[[], int],
        damaged_entries: DamagedEntries,
    ) -> None:
        """`flush_seconds` by what is flushed; `span_counts` by what became of spans."""
        self._settings = settings
        self._clock = clock
        self._store = store
        self._write_path = write_path
        self._topics = topics
        self._groups = groups
        self._links = links
        self._loop_meter = loop_meter
        self._refusal = refusal
        self._span_counts = span_counts
        self._epoch = epoch
        self._start_waited_ms = start_waited_ms
        self._is_log_damaged = is_log_damaged
        self._problem_count = problem_count
        self._started_ms = clock.monotonic_ms()
        self._base = (identity.cluster, NODE_TYPE, identity.broker_name, str(identity.broker_id))
        pair_limit: SeriesLimit[tuple[str, str]] = SeriesLimit(settings.metrics_series_max)
        self._messages = MessageMetrics(
            puts=put_meter,
            deliveries=client_api.delivery_meter,
            topics=topics,
            is_system_topic=lambda name: is_system_topic(
                name, cluster=identity.cluster, broker_name=identity.broker_name
            ),
            preset=f"{settings.broker_role}/{settings.flush_disk_type}",
            topic_limit=SeriesLimit(settings.metrics_series_max),
            pair_limit=pair_limit,
        )
        self._consumers = ConsumerMetrics(
            leases=leases,
            store=store,
            has_topic=lambda name: topics.get(name) is not None,
            clock=clock,
            pair_limit=pair_limit,
        )
        self._master = MasterMetrics(
            slaves=replica.slaves,
            lag_age=lag_age,
            refused_connections=lambda: write_path.refused_counts,
            refused_report_count=lambda: write_path.refused_report_count,
            puts=put_meter,
            needed_slaves=settings.needed_replicas - 1,
        )
        self._slave = SlaveMetrics(follower)
        self._store_metrics = StoreMetrics(
            store=store,
            disk=disk,
            clock=clock,
            flush_seconds=flush_seconds,
            retention=retention,
            disk_warning_ratio=lambda: current_settings().disk_space_warning_level_ratio,
            damaged_entries=damaged_entries,
        )
        self._clients = ClientMetrics(
            sessions=sessions,
            client_api=client_api,
            client_plane=client_plane,
            write_path=write_path,
            group_limit=SeriesLimit(settings.metrics_series_max),
        )
        self._is_recovered = False

    def recovered(self) -> None:
        """The store, and what is loaded after it, may be read from here on."""
        self._is_recovered = True

    async def collect(self) -> list[MetricFamily]:
        """All metrics as of now."""
        samples = MetricSamples(BROKER_METRICS, base=self._base)
        self._tell_process(samples)
        self._store_metrics.tell_recovery(samples)
        if self._is_recovered:
            await self._tell_broker(samples)
        return samples.families()

    def _tell_process(self, samples: MetricSamples) -> None:
        settings, meter = self._settings, self._loop_meter
        role, flush_disk_type = str(settings.broker_role), str(settings.flush_disk_type)
        samples.add("rocketmq_broker_info", 1, role, flush_disk_type, VERSION)
        samples.add("rocketmq_broker_uptime_seconds", (self._clock.monotonic_ms() - self._started_ms) / 1_000)
        samples.add("rocketmq_broker_event_loop_stalls_total", meter.stall_count)
        samples.add("rocketmq_broker_event_loop_stalled_seconds_total", meter.stalled_s)
        samples.add("rocketmq_broker_event_loop_longest_stall_seconds", meter.longest_stall_s)
        for link in self._links.links:
            samples.add("rocketmq_route_age_seconds", link.silent_ms / 1_000, link.address)
        samples.add_counts("rocketmq_trace_spans_total", self._span_counts())

    async def _tell_broker(self, samples: MetricSamples) -> None:
        turn = TurnLimit(self._clock)
        samples.add("rocketmq_broker_problems", self._problem_count())
        samples.add("rocketmq_store_log_damaged", self._is_log_damaged())
        samples.add("rocketmq_store_ha_epoch", self._epoch())
        samples.add("rocketmq_topic_number", len(self._topics))
        samples.add("rocketmq_consumer_group_number", len(self._groups))
        samples.add("rocketmq_broker_permission", self._permission)
        await self._store_metrics.tell(samples)
        await self._clients.tell(samples, turn)
        if self._settings.is_master:
            samples.add("rocketmq_broker_writable", self._permission == PERM_READ_WRITE)
            samples.add("rocketmq_broker_waiting_sends", self._write_path.waiting_count)
            samples.add_counts("rocketmq_broker_messages_put_total", _NO_PUTS | self._write_path.put_counts)
            samples.add("rocketmq_store_ha_start_waiting_seconds", self._start_waited_ms() / 1_000)
            self._master.tell(samples)
            await self._messages.tell(samples, turn)
            await self._consumers.tell(samples, turn)
        else:
            self._slave.tell(samples)

    @property
    def _permission(self) -> int:
        """What clients may do here now."""
        if self._refusal() is not None:
            return 0
        return PERM_READ if self._store.refusal is not None else PERM_READ_WRITE

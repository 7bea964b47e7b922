"""The cluster in Prometheus' terms, made from the newest reading when somebody scrapes.

Names are RocketMQ 5's where it has one (`rocketmq_storage_size`, `rocketmq_storage_flush_behind_bytes`), and are built
in that spirit where it has none; what RocketMQ has nothing like (`tandemmq_consistency_…`) has our own. Labels are
bounded by the cluster's size: brokers, put statuses, refusal reasons, kinds of findings.
`METRICS` is the list of all of them; the documentation is held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from admin.cluster_cache import CachedCluster, ClusterReading
from admin.cluster_state import BrokerState, BrokerStatus, ClusterState, Severity
from admin.consistency_runs import ConsistencyRuns
from admin.consistency_state import ConsistencyReading, finished_at_ms
from mqcore.audit.run_summary import Outcome, Tier
from mqcore.clock import Clock
from mqservice.version import VERSION

__all__ = ["CONTENT_TYPE", "METRICS", "ClusterMetrics", "MetricInfo"]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric."""

    name: str
    # gauge or counter.
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


_BROKER: Final = ("cluster", "broker_group", "broker_id")
_GROUP: Final = ("cluster", "broker_group")
_TIER: Final = ("cluster", "tier")

METRICS: Final = (
    MetricInfo("rocketmq_admin_info", "gauge", "1; the version of the admin service.", ("version",)),
    MetricInfo("rocketmq_admin_reads_total", "counter", "Readings of the cluster since the admin service started."),
    MetricInfo("rocketmq_admin_read_age_seconds", "gauge", "Age of the reading that these figures come from."),
    MetricInfo("rocketmq_admin_read_duration_seconds", "gauge", "How long that reading took."),
    MetricInfo("rocketmq_cluster_healthy", "gauge", "1 when no finding is a problem, else 0."),
    MetricInfo("rocketmq_cluster_findings", "gauge", "Findings of `tandemmq status` by severity.", ("severity",)),
    MetricInfo("rocketmq_nameserver_up", "gauge", "1 when the NameServer answers, else 0.", ("nameserver",)),
    MetricInfo("rocketmq_nameserver_brokers", "gauge", "Live brokers the NameServer knows.", ("nameserver",)),
    MetricInfo(
        "rocketmq_nameserver_agrees",
        "gauge",
        "1 when the NameServer knows every broker that another one knows, else 0.",
        ("nameserver",),
    ),
    MetricInfo("rocketmq_broker_up", "gauge", "1 when the broker answers, else 0.", _BROKER),
    MetricInfo("rocketmq_broker_registered", "gauge", "1 when a NameServer knows the broker, else 0.", _BROKER),
    MetricInfo(
        "rocketmq_broker_info", "gauge", "1; what the broker is.", (*_BROKER, "role", "flush_disk_type", "version")
    ),
    MetricInfo("rocketmq_broker_uptime_seconds", "gauge", "Time since the broker's process started.", _BROKER),
    MetricInfo("rocketmq_broker_writable", "gauge", "1 when a master takes writes, 0 when it refuses them.", _BROKER),
    MetricInfo("rocketmq_broker_resident_memory_bytes", "gauge", "Resident memory of the process.", _BROKER),
    MetricInfo("rocketmq_broker_clients", "gauge", "Clients with a session.", _BROKER),
    MetricInfo("rocketmq_broker_client_connections", "gauge", "Client connections open.", _BROKER),
    MetricInfo(
        "rocketmq_broker_client_plane_events_total",
        "counter",
        "Connections accepted, and what the client plane's limits refused, by limit.",
        (*_BROKER, "event"),
    ),
    MetricInfo("rocketmq_broker_waiting_sends", "gauge", "Sends that wait for a slave or a flush.", _BROKER),
    MetricInfo("rocketmq_broker_event_loop_stalls_total", "counter", "Turns of the event loop above 20 ms.", _BROKER),
    MetricInfo(
        "rocketmq_broker_event_loop_longest_stall_seconds", "gauge", "Longest such turn since the start.", _BROKER
    ),
    MetricInfo(
        "rocketmq_broker_messages_put_total",
        "counter",
        "Messages put since the start, by put status.",
        (*_BROKER, "status"),
    ),
    MetricInfo("rocketmq_storage_size", "gauge", "Bytes of CommitLog held.", _BROKER),
    MetricInfo("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes not known to be on disk.", _BROKER),
    MetricInfo(
        "rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes whose ConsumeQueue entries are missing.", _BROKER
    ),
    MetricInfo("rocketmq_store_commitlog_min_offset", "gauge", "First byte of the CommitLog still held.", _BROKER),
    MetricInfo("rocketmq_store_commitlog_end_offset", "gauge", "One past the last byte of the CommitLog.", _BROKER),
    MetricInfo("rocketmq_store_kept_tails", "gauge", "Cut-off CommitLog tails kept aside.", _BROKER),
    MetricInfo(
        "rocketmq_store_ha_replication_lag_bytes",
        "gauge",
        "Bytes the slave is behind, as its master sees it; 'unproven' before its log was compared.",
        (*_GROUP, "slave"),
    ),
    MetricInfo("rocketmq_store_ha_slave_in_sync", "gauge", "1 when the master counts it.", (*_GROUP, "slave")),
    MetricInfo("rocketmq_store_ha_slaves_connected", "gauge", "Slaves connected to the master.", _GROUP),
    MetricInfo("rocketmq_store_ha_slaves_in_sync", "gauge", "Slaves in sync.", _GROUP),
    MetricInfo(
        "rocketmq_store_ha_slaves_needed", "gauge", "Slaves that must hold a message before it is acknowledged.", _GROUP
    ),
    MetricInfo(
        "rocketmq_store_ha_slave_following",
        "gauge",
        "1 when the slave itself says that it follows its master, else 0.",
        (*_GROUP, "slave"),
    ),
    MetricInfo(
        "rocketmq_store_ha_connections_refused_total",
        "counter",
        "Replication connections refused since the start, by reason.",
        (*_BROKER, "reason"),
    ),
    MetricInfo(
        "tandemmq_consistency_last_run_timestamp_seconds", "gauge", "When the last run of the job ended.", _TIER
    ),
    MetricInfo(
        "tandemmq_consistency_last_success_timestamp_seconds",
        "gauge",
        "When the last run ended that found all replicas equal.",
        _TIER,
    ),
    MetricInfo("tandemmq_consistency_outcome", "gauge", "1 for the outcome of the last run.", (*_TIER, "outcome")),
    MetricInfo("tandemmq_consistency_run_duration_seconds", "gauge", "How long the last run took.", _TIER),
    MetricInfo("tandemmq_consistency_read_bytes", "gauge", "Bytes the last run read, over all replicas.", _TIER),
    MetricInfo(
        "tandemmq_consistency_findings",
        "gauge",
        "Findings that stand; 0 without a kind for a group that has none.",
        (*_GROUP, "kind"),
    ),
    MetricInfo(
        "tandemmq_consistency_verified_bytes", "gauge", "Bytes of the group's log the last run compared.", _GROUP
    ),
    MetricInfo("tandemmq_consistency_watermark_offset", "gauge", "Everything below was compared once.", _GROUP),
    MetricInfo("tandemmq_consistency_overdue", "gauge", "1 when no run has ended for too long, else 0."),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}
_UNPROVEN: Final = "unproven"


class ClusterMetrics(Collector):
    """Prometheus' view of the cache, of the consistency job's runs, and of this process."""

    def __init__(self, cluster: CachedCluster, consistency: ConsistencyRuns, *, clock: Clock) -> None:
        self._cluster = cluster
        self._consistency = consistency
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """All metrics of the newest reading; only the service's own before the first."""
        samples = _Samples()
        samples.add("rocketmq_admin_info", 1, VERSION)
        reading = self._cluster.latest
        samples.add("rocketmq_admin_reads_total", reading.revision if reading is not None else 0)
        if reading is not None:
            samples.add("rocketmq_admin_read_age_seconds", reading.age_ms(self._clock.monotonic_ms()) / 1_000)
            samples.add("rocketmq_admin_read_duration_seconds", reading.duration_ms / 1_000)
            _cluster(reading, samples)
        if self._consistency.latest is not None:
            _consistency(self._consistency.latest, self._clock.wall_ms(), samples)
        return samples.families()


class _Samples:
    """Metric families, made when their first sample comes."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """One sample of a metric in METRICS."""
        family = self._families.get(name)
        if family is None:
            info = _BY_NAME[name]
            kind = CounterMetricFamily if info.kind == "counter" else GaugeMetricFamily
            family = self._families[name] = kind(name, info.meaning, labels=info.labels)
        family.add_metric(labels, value)

    def add_counts(self, name: str, counts: Mapping[str, int], *labels: str) -> None:
        """A sample for each key, which is the last label."""
        for key, count in sorted(counts.items()):
            self.add(name, count, *labels, key)

    def families(self) -> list[Metric]:
        """In the order of METRICS."""
        return [self._families[metric.name] for metric in METRICS if metric.name in self._families]


def _cluster(reading: ClusterReading, samples: _Samples) -> None:
    samples.add("rocketmq_cluster_healthy", reading.healthy)
    for severity in Severity:
        count = sum(finding.severity is severity for finding in reading.findings)
        samples.add("rocketmq_cluster_findings", count, severity.value)
    _name_servers(reading.state, samples)
    for broker in reading.state.brokers:
        _broker(broker, samples)


def _name_servers(state: ClusterState, samples: _Samples) -> None:
    known = {key for server in state.name_servers if server.error is None for key in server.brokers}
    for server in state.name_servers:
        samples.add("rocketmq_nameserver_up", server.error is None, server.address)
        if server.error is None:
            samples.add("rocketmq_nameserver_brokers", len(server.brokers), server.address)
            samples.add("rocketmq_nameserver_agrees", known <= set(server.brokers), server.address)


def _broker(broker: BrokerState, samples: _Samples) -> None:
    labels = (broker.cluster, broker.broker_name, str(broker.broker_id))
    status = broker.status
    samples.add("rocketmq_broker_up", status is not None, *labels)
    samples.add("rocketmq_broker_registered", broker.registered, *labels)
    if status is None:
        return
    samples.add("rocketmq_broker_info", 1, *labels, status.role, status.flush_disk_type, status.version)
    samples.add("rocketmq_broker_uptime_seconds", status.uptime_seconds, *labels)
    samples.add("rocketmq_broker_resident_memory_bytes", status.resident_bytes, *labels)
    samples.add("rocketmq_broker_clients", status.client_count, *labels)
    samples.add("rocketmq_broker_client_connections", status.client_connection_count, *labels)
    samples.add_counts("rocketmq_broker_client_plane_events_total", status.client_plane_counts, *labels)
    samples.add("rocketmq_broker_waiting_sends", status.waiting_send_count, *labels)
    samples.add("rocketmq_broker_event_loop_stalls_total", status.loop_stall_count, *labels)
    samples.add("rocketmq_broker_event_loop_longest_stall_seconds", status.longest_loop_stall_ms / 1_000, *labels)
    samples.add_counts("rocketmq_broker_messages_put_total", status.put_counts, *labels)
    samples.add("rocketmq_storage_size", status.end_offset - status.min_offset, *labels)
    samples.add("rocketmq_storage_flush_behind_bytes", max(0, status.end_offset - status.flushed_offset), *labels)
    samples.add("rocketmq_storage_dispatch_behind_bytes", max(0, status.end_offset - status.dispatched_offset), *labels)
    samples.add("rocketmq_store_commitlog_min_offset", status.min_offset, *labels)
    samples.add("rocketmq_store_commitlog_end_offset", status.end_offset, *labels)
    samples.add("rocketmq_store_kept_tails", len(status.kept_tails), *labels)
    samples.add_counts("rocketmq_store_ha_connections_refused_total", status.refused_counts, *labels)
    if broker.is_master:
        samples.add("rocketmq_broker_writable", not status.write_refusal, *labels)
        _slaves(broker, status, samples)
    if status.master_link is not None:
        following = status.master_link.state == "transfer"
        group = (broker.cluster, broker.broker_name)
        samples.add("rocketmq_store_ha_slave_following", following, *group, str(broker.broker_id))


def _slaves(broker: BrokerState, status: BrokerStatus, samples: _Samples) -> None:
    group = (broker.cluster, broker.broker_name)
    samples.add("rocketmq_store_ha_slaves_connected", len(status.slaves), *group)
    samples.add("rocketmq_store_ha_slaves_in_sync", sum(slave.in_sync for slave in status.slaves), *group)
    samples.add("rocketmq_store_ha_slaves_needed", status.needed_slave_count, *group)
    for slave, lag_bytes, in_sync in _by_slave(status):
        samples.add("rocketmq_store_ha_replication_lag_bytes", lag_bytes, *group, slave)
        samples.add("rocketmq_store_ha_slave_in_sync", in_sync, *group, slave)


def _consistency(reading: ConsistencyReading, now_wall_ms: int, samples: _Samples) -> None:
    samples.add("tandemmq_consistency_overdue", reading.overdue_ms(now_wall_ms) is not None)
    for tier in Tier:
        run = reading.newest(tier)
        if run is None:
            continue
        labels = (run.cluster, tier.value)
        samples.add("tandemmq_consistency_last_run_timestamp_seconds", finished_at_ms(run) / 1_000, *labels)
        sound = next((each for each in reading.runs if each.tier is tier and each.outcome is Outcome.EQUAL), None)
        if sound is not None:
            samples.add("tandemmq_consistency_last_success_timestamp_seconds", finished_at_ms(sound) / 1_000, *labels)
        for outcome in Outcome:
            samples.add("tandemmq_consistency_outcome", run.outcome is outcome, *labels, outcome.value)
        samples.add("tandemmq_consistency_run_duration_seconds", run.duration_seconds, *labels)
        samples.add("tandemmq_consistency_read_bytes", run.bytes_read, *labels)
    for standing in reading.standings:
        group = (standing.run.cluster, standing.group)
        counts = Counter(str(finding.kind) for finding in standing.findings)
        if standing.unlisted or not counts:
            counts[""] = standing.unlisted
        samples.add_counts("tandemmq_consistency_findings", counts, *group)
        verified_bytes = standing.summary.new_bytes + standing.summary.scrubbed_bytes
        samples.add("tandemmq_consistency_verified_bytes", verified_bytes, *group)
        samples.add("tandemmq_consistency_watermark_offset", standing.summary.watermark, *group)


def _by_slave(status: BrokerStatus) -> Iterator[tuple[str, int, bool]]:
    """Name, lag and whether it is in sync, once for each name: two connections of one slave are one series, the worst.

    Connections that have not proven who they are have only a port number to go by, and every retry has a new one; they
    share a name, as labels have to be bounded.
    """
    found: dict[str, tuple[int, bool]] = {}
    for slave in status.slaves:
        name = str(slave.broker_id) if slave.broker_id >= 0 else _UNPROVEN
        lag_bytes, in_sync = found.get(name, (0, True))
        found[name] = (max(lag_bytes, slave.lag_bytes), in_sync and slave.in_sync)
    for name, (lag_bytes, in_sync) in sorted(found.items()):
        yield name, lag_bytes, in_sync

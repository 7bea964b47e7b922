"""What only a look at the whole cluster shows, in Prometheus' terms, made from the newest reading when it is scraped.

Who answers, who is registered, whether NameServers agree, what `tandemmq status` finds, and what the consistency job
found. What a broker or NameServer knows of itself it tells itself (`tandemmq.broker.metrics`,
`tandemmq.nameserver.name_server`), so nothing is counted twice. Labels are bounded by the cluster's size: brokers,
NameServers, kinds of findings. docs/operations/metrics.md is made from `METRICS`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandemmq.admin.cluster_reader import CachedCluster, ClusterReading
from tandemmq.admin.cluster_state import BrokerState, ClusterState, Severity
from tandemmq.admin.consistency_runs import ConsistencyReading, ConsistencyRuns, finished_at_ms
from tandemmq.core.audit.run_summary import Outcome, Tier
from tandemmq.core.clock import Clock
from tandemmq.service.metrics import (
    TEXT_CONTENT_TYPE,
    MetricFamily,
    MetricInfo,
    MetricKind,
    MetricSamples,
    process_families,
    text_exposition,
)
from tandemmq.service.settings import VERSION

CONTENT_TYPE: Final = TEXT_CONTENT_TYPE

_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE

_BROKER: Final = ("cluster", "broker_group", "broker_id")
_GROUP: Final = ("cluster", "broker_group")
_TIER: Final = ("cluster", "tier")

METRICS: Final = (
    MetricInfo("rocketmq_admin_info", _GAUGE, "1", "1; the version of the admin service.", ("version",)),
    MetricInfo(
        "rocketmq_admin_reads_total", _COUNTER, "{read}", "Readings of the cluster since the admin service started."
    ),
    MetricInfo("rocketmq_admin_read_age_seconds", _GAUGE, "s", "Age of the reading that these figures come from."),
    MetricInfo("rocketmq_admin_read_duration_seconds", _GAUGE, "s", "How long that reading took."),
    MetricInfo("rocketmq_cluster_healthy", _GAUGE, "1", "1 when no finding is a problem, else 0."),
    MetricInfo(
        "rocketmq_cluster_findings", _GAUGE, "{finding}", "Findings of `tandemmq status` by severity.", ("severity",)
    ),
    MetricInfo("rocketmq_nameserver_up", _GAUGE, "1", "1 when the NameServer answers, else 0.", ("nameserver",)),
    MetricInfo(
        "rocketmq_nameserver_brokers", _GAUGE, "{broker}", "Live brokers the NameServer knows.", ("nameserver",)
    ),
    MetricInfo(
        "rocketmq_nameserver_agrees",
        _GAUGE,
        "1",
        "1 when the NameServer knows every broker that another one knows, else 0.",
        ("nameserver",),
    ),
    MetricInfo("rocketmq_broker_up", _GAUGE, "1", "1 when the broker answers, else 0.", _BROKER),
    MetricInfo("rocketmq_broker_registered", _GAUGE, "1", "1 when a NameServer knows the broker, else 0.", _BROKER),
    MetricInfo(
        "tandemmq_consistency_last_run_timestamp_seconds", _GAUGE, "s", "When the last run of the job ended.", _TIER
    ),
    MetricInfo(
        "tandemmq_consistency_last_success_timestamp_seconds",
        _GAUGE,
        "s",
        "When the last run ended that found all replicas equal.",
        _TIER,
    ),
    MetricInfo("tandemmq_consistency_outcome", _GAUGE, "1", "1 for the outcome of the last run.", (*_TIER, "outcome")),
    MetricInfo("tandemmq_consistency_run_duration_seconds", _GAUGE, "s", "How long the last run took.", _TIER),
    MetricInfo("tandemmq_consistency_read_bytes", _GAUGE, "By", "Bytes the last run read, over all replicas.", _TIER),
    MetricInfo(
        "tandemmq_consistency_findings",
        _GAUGE,
        "{finding}",
        "Findings that stand; 0 without a kind for a group that has none.",
        (*_GROUP, "kind"),
    ),
    MetricInfo(
        "tandemmq_consistency_verified_bytes", _GAUGE, "By", "Bytes of the group's log the last run compared.", _GROUP
    ),
    MetricInfo("tandemmq_consistency_watermark_offset", _GAUGE, "By", "Everything below was compared once.", _GROUP),
    MetricInfo("tandemmq_consistency_overdue", _GAUGE, "1", "1 when no run has ended for too long, else 0."),
)


class ClusterMetrics:
    """Prometheus' view of the cache, of the consistency job's runs, and of this process."""

    def __init__(self, cluster: CachedCluster, consistency: ConsistencyRuns, *, clock: Clock) -> None:
        self._cluster = cluster
        self._consistency = consistency
        self._clock = clock

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return text_exposition([*self.families(), *process_families()])

    def families(self) -> list[MetricFamily]:
        """All metrics of the newest reading; only the service's own before the first."""
        samples = MetricSamples(METRICS)
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


def _cluster(reading: ClusterReading, samples: MetricSamples) -> None:
    samples.add("rocketmq_cluster_healthy", reading.healthy)
    for severity in Severity:
        count = sum(finding.severity is severity for finding in reading.findings)
        samples.add("rocketmq_cluster_findings", count, severity.value)
    _name_servers(reading.state, samples)
    for broker in reading.state.brokers:
        _broker(broker, samples)


def _name_servers(state: ClusterState, samples: MetricSamples) -> None:
    known = {key for server in state.name_servers if server.error is None for key in server.brokers}
    for server in state.name_servers:
        samples.add("rocketmq_nameserver_up", server.error is None, server.address)
        if server.error is None:
            samples.add("rocketmq_nameserver_brokers", len(server.brokers), server.address)
            samples.add("rocketmq_nameserver_agrees", known <= set(server.brokers), server.address)


def _broker(broker: BrokerState, samples: MetricSamples) -> None:
    labels = (broker.cluster, broker.broker_name, str(broker.broker_id))
    samples.add("rocketmq_broker_up", broker.status is not None, *labels)
    samples.add("rocketmq_broker_registered", broker.registered, *labels)


def _consistency(reading: ConsistencyReading, now_wall_ms: int, samples: MetricSamples) -> None:
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

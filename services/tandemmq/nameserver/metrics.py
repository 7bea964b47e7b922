"""Every metric a NameServer tells of itself, read when somebody asks. docs/operations/metrics.md is made from this
table.

The admin service compares all NameServers and has metrics for that (`rocketmq_nameserver_up`, `_brokers`, `_agrees`).
Here is what each one sees and does.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandemmq.core.clock import Clock
from tandemmq.nameserver.route_registry import RouteRegistry
from tandemmq.service.command_line import VERSION
from tandemmq.service.loop_meter import LoopMeter
from tandemmq.service.metrics.exposition import MetricFamily, MetricInfo, MetricKind, MetricSamples

__all__ = ["NAME_SERVER_METRICS", "NameServerMetrics"]


# The catalogue.

_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE

NAME_SERVER_METRICS: Final = (
    MetricInfo("rocketmq_nameserver_info", _GAUGE, "1", "1; the version of the NameServer.", ("version",)),
    MetricInfo("rocketmq_nameserver_uptime_seconds", _GAUGE, "s", "Time since the process started."),
    MetricInfo(
        "rocketmq_nameserver_registered_brokers",
        _GAUGE,
        "{broker}",
        "Live brokers that are registered here, by cluster.",
        ("cluster",),
    ),
    MetricInfo("rocketmq_nameserver_topics", _GAUGE, "{topic}", "Topics with a route."),
    MetricInfo("rocketmq_nameserver_route_watchers", _GAUGE, "{stream}", "Streams of routes that are open."),
    MetricInfo(
        "rocketmq_nameserver_heartbeat_age_seconds",
        _GAUGE,
        "s",
        "Time since the broker's last sign of life.",
        ("cluster", "broker_group", "broker_id"),
    ),
    MetricInfo(
        "rocketmq_nameserver_registrations_total",
        _COUNTER,
        "{registration}",
        "Registrations by what came of them: `new`, `change`, `unchanged`, `refused`.",
        ("outcome",),
    ),
    MetricInfo("rocketmq_nameserver_heartbeats_total", _COUNTER, "{heartbeat}", "Heartbeats taken."),
    MetricInfo(
        "rocketmq_nameserver_brokers_lost_total",
        _COUNTER,
        "{broker}",
        "Brokers dropped without a goodbye, by cause: `heartbeat_stream_ended`, `silent`.",
        ("cause",),
    ),
    MetricInfo(
        "rocketmq_nameserver_route_queries_total",
        _COUNTER,
        "{query}",
        "Routes asked for one by one, by brokers' tools and by clients, and whether there was one: `found`, `missing`.",
        ("outcome",),
    ),
    MetricInfo(
        "rocketmq_nameserver_access_refused_total",
        _COUNTER,
        "{call}",
        "Calls refused for who made them, by reason: `no_certificate`, `unusable_certificate`, `not_permitted`, and "
        "`others_identity`, a broker that spoke for another one.",
        ("reason",),
    ),
    MetricInfo(
        "rocketmq_nameserver_event_loop_stalls_total", _COUNTER, "{stall}", "Turns of the event loop above 20 ms."
    ),
    MetricInfo("rocketmq_nameserver_event_loop_stalled_seconds_total", _COUNTER, "s", "Their sum."),
)


class NameServerMetrics:
    """Collects what is in the catalogue above. Event loop only."""

    def __init__(self, registry: RouteRegistry, *, clock: Clock, loop_meter: LoopMeter) -> None:
        self._registry = registry
        self._clock = clock
        self._loop_meter = loop_meter
        self._started_ms = clock.monotonic_ms()

    async def collect(self) -> list[MetricFamily]:
        """All metrics as of now: there are as many brokers as a cluster has, so nothing here takes long."""
        samples = MetricSamples(NAME_SERVER_METRICS)
        activity, table = self._registry.activity, self._registry.table
        now_ms = self._clock.monotonic_ms()
        samples.add("rocketmq_nameserver_info", 1, VERSION)
        samples.add("rocketmq_nameserver_uptime_seconds", (now_ms - self._started_ms) / 1_000)
        brokers = [broker.identity for broker in table.brokers()]
        samples.add_counts("rocketmq_nameserver_registered_brokers", Counter(broker.cluster for broker in brokers))
        samples.add("rocketmq_nameserver_topics", table.topic_count)
        samples.add("rocketmq_nameserver_route_watchers", activity.watchers)
        for broker in brokers:
            last_seen_ms = table.last_seen_ms(broker)
            if last_seen_ms is not None:
                labels = (broker.cluster, broker.broker_name, str(broker.broker_id))
                samples.add("rocketmq_nameserver_heartbeat_age_seconds", (now_ms - last_seen_ms) / 1_000, *labels)
        samples.add_counts("rocketmq_nameserver_registrations_total", activity.registrations)
        samples.add("rocketmq_nameserver_heartbeats_total", activity.heartbeats)
        samples.add_counts("rocketmq_nameserver_brokers_lost_total", activity.brokers_lost)
        samples.add_counts("rocketmq_nameserver_route_queries_total", activity.route_queries)
        samples.add_counts("rocketmq_nameserver_access_refused_total", activity.access_refused)
        samples.add("rocketmq_nameserver_event_loop_stalls_total", self._loop_meter.stall_count)
        samples.add("rocketmq_nameserver_event_loop_stalled_seconds_total", self._loop_meter.stalled_s)
        return samples.families()

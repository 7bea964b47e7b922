"""Every metric a NameServer tells of itself. docs/operations/metrics.md is made from this table.

What the admin service tells of NameServers (`rocketmq_nameserver_up`, `_brokers`, `_agrees`) is a comparison of all of
them; this is what each one sees and does.
"""

from __future__ import annotations

from typing import Final

from mqservice.metrics.metric_info import MetricInfo, MetricKind

__all__ = ["NAME_SERVER_METRICS"]

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
        "rocketmq_nameserver_event_loop_stalls_total", _COUNTER, "{stall}", "Turns of the event loop above 20 ms."
    ),
    MetricInfo("rocketmq_nameserver_event_loop_stalled_seconds_total", _COUNTER, "s", "Their sum."),
)

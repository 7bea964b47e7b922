"""Every metric a broker tells of itself. docs/operations/metrics.md is made from this table.

Names and labels are RocketMQ 5's where it has the metric (BrokerMetricsConstant, DefaultStoreMetricsConstant of 5.3.3),
so that its dashboards find them; `rocketmq_store_ha_` is RocketMQ's stem for what it has no metrics of. Units stand at
the end of a name unless RocketMQ's has none. Nothing is labelled by message or client; topics and groups are bounded by
metricsSeriesMax.
"""

from __future__ import annotations

from typing import Final

from mqservice.metrics import MetricInfo, MetricKind

__all__ = ["BASE_LABELS", "BROKER_METRICS", "NODE_TYPE"]

NODE_TYPE: Final = "broker"
BASE_LABELS: Final = ("cluster", "node_type", "node_id", "broker_id")
"""Of every metric: cluster, `broker`, the broker group's name, 0 for the master."""

_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE
_HISTOGRAM: Final = MetricKind.HISTOGRAM

_IN: Final = (*BASE_LABELS, "topic", "message_type", "is_system")
_OUT: Final = (*BASE_LABELS, "topic", "consumer_group", "is_system", "is_retry")
_CONSUMER: Final = (*BASE_LABELS, "topic", "consumer_group", "is_retry")
_SLAVE: Final = (*BASE_LABELS, "slave")

_SENDS: Final = (
    MetricInfo("rocketmq_messages_in_total", _COUNTER, "{message}", "Messages stored, by topic.", _IN),
    MetricInfo("rocketmq_throughput_in_total", _COUNTER, "By", "Bytes of those messages as stored.", _IN),
    MetricInfo("rocketmq_message_size", _HISTOGRAM, "By", "Sizes of messages as stored.", BASE_LABELS),
    MetricInfo(
        "rocketmq_broker_messages_put_total",
        _COUNTER,
        "{message}",
        "Messages by the put status their sender was given.",
        (*BASE_LABELS, "status"),
    ),
    MetricInfo(
        "rocketmq_send_to_ack_seconds",
        _HISTOGRAM,
        "s",
        "From a send's arrival to its answer, by what it waits for (`preset`: role and flush type) and put status. "
        "Exemplars name the trace.",
        (*BASE_LABELS, "preset", "status"),
    ),
    MetricInfo(
        "rocketmq_broker_waiting_sends", _GAUGE, "{request}", "Sends that wait for a slave or a flush.", BASE_LABELS
    ),
    MetricInfo(
        "rocketmq_broker_writable", _GAUGE, "1", "1 when a master takes writes, 0 when it refuses them.", BASE_LABELS
    ),
)

_RECEIVES: Final = (
    MetricInfo("rocketmq_messages_out_total", _COUNTER, "{message}", "Messages delivered.", _OUT),
    MetricInfo("rocketmq_throughput_out_total", _COUNTER, "By", "Bytes of those messages as delivered.", _OUT),
    MetricInfo(
        "rocketmq_consumer_lag_messages",
        _GAUGE,
        "{message}",
        "Messages the group has not finished, in all queues; with is_retry those waiting for another attempt.",
        _CONSUMER,
    ),
    MetricInfo(
        "rocketmq_consumer_lag_latency",
        _GAUGE,
        "ms",
        "Age of the oldest message the group has not finished; 0 when there is none.",
        _CONSUMER,
    ),
    MetricInfo(
        "rocketmq_consumer_inflight_messages",
        _GAUGE,
        "{message}",
        "Messages delivered and not yet acknowledged.",
        _CONSUMER,
    ),
    MetricInfo(
        "rocketmq_consumer_ready_messages",
        _GAUGE,
        "{message}",
        "Messages a receive would get now: never delivered, or, with is_retry, to be delivered again.",
        _CONSUMER,
    ),
    MetricInfo(
        "rocketmq_consumer_queueing_latency",
        _GAUGE,
        "ms",
        "Age of the oldest message the group was never given; 0 when there is none.",
        _CONSUMER,
    ),
    MetricInfo(
        "rocketmq_send_to_dlq_messages_total",
        _COUNTER,
        "{message}",
        "Messages given up: moved to the group's dead letter queue.",
        (*BASE_LABELS, "topic", "consumer_group", "is_system"),
    ),
)

_REPLICATION: Final = (
    MetricInfo(
        "rocketmq_store_ha_replication_lag_bytes",
        _GAUGE,
        "By",
        "Bytes the slave is behind, as its master sees it; `slave` is its broker id, `unproven` before its log was "
        "compared.",
        _SLAVE,
    ),
    MetricInfo(
        "rocketmq_store_ha_replication_lag_seconds",
        _GAUGE,
        "s",
        "How long the oldest byte the slave lacks has been on its master, counted from the master's start at the "
        "earliest; 0 when it lacks none, or none older than a second.",
        _SLAVE,
    ),
    MetricInfo("rocketmq_store_ha_slave_in_sync", _GAUGE, "1", "1 when the master counts the slave, else 0.", _SLAVE),
    MetricInfo(
        "rocketmq_store_ha_ack_latency_seconds",
        _HISTOGRAM,
        "s",
        "From a message's append until as many slaves as needed have it, and with SYNC_FLUSH the master's disk too. "
        "Exemplars name the trace.",
        BASE_LABELS,
    ),
    MetricInfo("rocketmq_store_ha_slaves_connected", _GAUGE, "{slave}", "Slaves connected to the master.", BASE_LABELS),
    MetricInfo("rocketmq_store_ha_slaves_in_sync", _GAUGE, "{slave}", "Slaves in sync.", BASE_LABELS),
    MetricInfo(
        "rocketmq_store_ha_slaves_needed",
        _GAUGE,
        "{slave}",
        "Slaves that must hold a message before it is acknowledged.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_store_ha_slave_following",
        _GAUGE,
        "1",
        "1 when this slave follows its master, else 0. Told by slaves.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_store_ha_slave_behind_bytes",
        _GAUGE,
        "By",
        "Bytes this slave knows it is behind. Told by slaves.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_store_ha_reports_refused_total",
        _COUNTER,
        "{report}",
        "Reports of slaves that could not be true; each ends its connection.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_store_ha_connections_refused_total",
        _COUNTER,
        "{connection}",
        "Replication connections refused or ended for what the slave did, by reason.",
        (*BASE_LABELS, "reason"),
    ),
)

_STORE: Final = (
    MetricInfo("rocketmq_storage_size", _GAUGE, "By", "Bytes of CommitLog held.", BASE_LABELS),
    MetricInfo("rocketmq_storage_flush_behind_bytes", _GAUGE, "By", "Bytes not known to be on disk.", BASE_LABELS),
    MetricInfo(
        "rocketmq_storage_dispatch_behind_bytes",
        _GAUGE,
        "By",
        "Bytes whose ConsumeQueue entries are missing.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_storage_message_reserve_time", _GAUGE, "ms", "Age of the oldest message still held.", BASE_LABELS
    ),
    MetricInfo(
        "rocketmq_store_commitlog_min_offset", _GAUGE, "By", "First byte of the CommitLog still held.", BASE_LABELS
    ),
    MetricInfo(
        "rocketmq_store_commitlog_end_offset", _GAUGE, "By", "One past the last byte of the CommitLog.", BASE_LABELS
    ),
    MetricInfo("rocketmq_store_kept_tails", _GAUGE, "{file}", "Cut-off CommitLog tails kept aside.", BASE_LABELS),
    MetricInfo(
        "rocketmq_store_flush_seconds",
        _HISTOGRAM,
        "s",
        "How long a flush took, by what is flushed: `log` or `queues`.",
        (*BASE_LABELS, "file"),
    ),
    MetricInfo(
        "rocketmq_store_recovery_progress_ratio",
        _GAUGE,
        "1",
        "Share of what recovery has to read at most that it has read; 1 when the store is recovered.",
        BASE_LABELS,
    ),
    MetricInfo(
        "rocketmq_store_recovery_duration_seconds", _GAUGE, "s", "How long recovery took, or runs by now.", BASE_LABELS
    ),
    MetricInfo("rocketmq_disk_used_ratio", _GAUGE, "1", "How full the store's file system is.", BASE_LABELS),
    MetricInfo(
        "rocketmq_disk_warning_ratio",
        _GAUGE,
        "1",
        "How full it may be before messages are refused (diskSpaceWarningLevelRatio).",
        BASE_LABELS,
    ),
)

_BROKER: Final = (
    MetricInfo(
        "rocketmq_broker_info",
        _GAUGE,
        "1",
        "1; what the broker is.",
        (*BASE_LABELS, "role", "flush_disk_type", "version"),
    ),
    MetricInfo("rocketmq_broker_uptime_seconds", _GAUGE, "s", "Time since the process started.", BASE_LABELS),
    MetricInfo(
        "rocketmq_broker_permission",
        _GAUGE,
        "1",
        "RocketMQ's permission bits: 4 is readable, 2 writable, 6 both.",
        BASE_LABELS,
    ),
    MetricInfo("rocketmq_topic_number", _GAUGE, "{topic}", "Topics, those of the system included.", BASE_LABELS),
    MetricInfo("rocketmq_consumer_group_number", _GAUGE, "{group}", "Consumer groups.", BASE_LABELS),
    MetricInfo("rocketmq_producer_connections", _GAUGE, "{client}", "Producers with a session.", BASE_LABELS),
    MetricInfo(
        "rocketmq_consumer_connections",
        _GAUGE,
        "{client}",
        "Consumers with a session.",
        (*BASE_LABELS, "consumer_group"),
    ),
    MetricInfo("rocketmq_broker_clients", _GAUGE, "{client}", "Clients with a session.", BASE_LABELS),
    MetricInfo("rocketmq_broker_client_connections", _GAUGE, "{connection}", "Client connections open.", BASE_LABELS),
    MetricInfo(
        "rocketmq_broker_client_plane_events_total",
        _COUNTER,
        "{event}",
        "Connections accepted, and what the client plane's limits refused, by limit.",
        (*BASE_LABELS, "event"),
    ),
    MetricInfo(
        "rocketmq_processor_watermark",
        _GAUGE,
        "{request}",
        "Requests that wait, by kind: `send` for a slave or a flush, `receive` for a message.",
        (*BASE_LABELS, "processor"),
    ),
    MetricInfo(
        "rocketmq_broker_event_loop_stalls_total",
        _COUNTER,
        "{stall}",
        "Turns of the event loop above 20 ms, in which nothing else is done.",
        BASE_LABELS,
    ),
    MetricInfo("rocketmq_broker_event_loop_stalled_seconds_total", _COUNTER, "s", "Their sum.", BASE_LABELS),
    MetricInfo(
        "rocketmq_broker_event_loop_longest_stall_seconds", _GAUGE, "s", "The longest since the start.", BASE_LABELS
    ),
    MetricInfo(
        "rocketmq_route_age_seconds",
        _GAUGE,
        "s",
        "Time since the NameServer last told something: routes, or the answer to a heartbeat.",
        (*BASE_LABELS, "nameserver"),
    ),
    MetricInfo(
        "rocketmq_trace_spans_total",
        _COUNTER,
        "{span}",
        "Spans by what became of them; `no_room`: sends that were to be traced and were too many.",
        (*BASE_LABELS, "outcome"),
    ),
)

BROKER_METRICS: Final = (*_SENDS, *_RECEIVES, *_REPLICATION, *_STORE, *_BROKER)
"""In the order in which they are told."""

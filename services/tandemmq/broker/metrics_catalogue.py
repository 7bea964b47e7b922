"""Every metric a broker tells of itself. docs/operations/metrics.md is made from this table.

Names and labels are RocketMQ 5's where it has the metric (BrokerMetricsConstant, DefaultStoreMetricsConstant of 5.3.3),
so that its dashboards find them; `rocketmq_store_ha_` is RocketMQ's stem for what it has no metrics of. Units stand at
the end of a name unless RocketMQ's has none. Nothing is labelled by message or client; topics and groups are bounded by
metricsSeriesMax.
"""

from __future__ import annotations

from typing import Final

from tandemmq.service.metrics import MetricInfo, MetricKind

NODE_TYPE: Final = "broker"
BASE_LABELS: Final = ("cluster", "node_type", "node_id", "broker_id")
"""Of every metric: cluster, `broker`, the broker group's name, 0 for the master."""

_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system", "is_retry")
_CONSUMER: Final = ("topic", "consumer_group", "is_retry")


def _counter(name: str, unit: str, meaning: str, *labels: str) -> MetricInfo:
    return MetricInfo(name, MetricKind.COUNTER, unit, meaning, (*BASE_LABELS, *labels))


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> MetricInfo:
    return MetricInfo(name, MetricKind.GAUGE, unit, meaning, (*BASE_LABELS, *labels))


def _histogram(name: str, unit: str, meaning: str, *labels: str) -> MetricInfo:
    return MetricInfo(name, MetricKind.HISTOGRAM, unit, meaning, (*BASE_LABELS, *labels))


_SENDS: Final = (
    _counter("rocketmq_messages_in_total", "{message}", "Messages stored, by topic.", *_IN),
    _counter("rocketmq_throughput_in_total", "By", "Bytes of those messages as stored.", *_IN),
    _histogram("rocketmq_message_size", "By", "Sizes of messages as stored."),
    _counter(
        "rocketmq_broker_messages_put_total",
        "{message}",
        "Messages by the put status their sender was given.",
        "status",
    ),
    _histogram(
        "rocketmq_send_to_ack_seconds",
        "s",
        "From a send's arrival to its answer, by what it waits for (`preset`: role and flush type) and put status. "
        "Exemplars name the trace.",
        "preset",
        "status",
    ),
    _gauge("rocketmq_broker_waiting_sends", "{request}", "Sends that wait for a slave or a flush."),
    _gauge("rocketmq_broker_writable", "1", "1 when a master takes writes, 0 when it refuses them."),
)

_TRANSACTIONS: Final = (
    _gauge("rocketmq_broker_transactions_undecided", "{message}", "Half messages neither committed nor rolled back."),
    _gauge("rocketmq_broker_transactions_oldest_age_seconds", "s", "Age of the oldest of them; 0 without one."),
    _counter("rocketmq_half_messages_total", "{message}", "Half messages stored."),
    _counter("rocketmq_commit_messages_total", "{message}", "Half messages committed."),
    _counter("rocketmq_rollback_messages_total", "{message}", "Half messages rolled back."),
    _counter(
        "rocketmq_broker_transactions_given_up_total",
        "{message}",
        "Half messages put aside in TRANS_CHECK_MAX_TIME_TOPIC after `transactionCheckMax` questions.",
    ),
    _counter("rocketmq_broker_transaction_checks_total", "{call}", "Questions to producers after a half message."),
    _counter(
        "rocketmq_broker_transaction_checks_without_producer_total",
        "{call}",
        "Questions that were due while no producer of the topic was connected.",
    ),
    _counter(
        "rocketmq_broker_transactions_doubled_total",
        "{message}",
        "Half messages that the log shows committed twice. Never above 0; a bug if it is.",
    ),
    _counter(
        "rocketmq_broker_transactions_lost_total",
        "{message}",
        "Half messages deleted while undecided, because a setting lets needed files go.",
    ),
)

_DELAYED: Final = (
    _gauge("rocketmq_timing_messages", "{message}", "DELAY messages that wait: neither delivered nor recalled."),
    _counter("rocketmq_timer_dequeue_total", "{message}", "DELAY messages delivered at their time."),
    _gauge(
        "rocketmq_timer_dequeue_latency", "ms", "How long the first DELAY message that is due has not been delivered."
    ),
    _counter("rocketmq_timer_recalled_total", "{message}", "DELAY messages recalled before their time."),
    _counter("rocketmq_timer_rolled_total", "{message}", "DELAY messages stored again because their record grew old."),
    _histogram(
        "rocketmq_timer_lateness_seconds", "s", "From when a DELAY message was due to when it was stored in its topic."
    ),
)

_LITE: Final = (
    _gauge("rocketmq_broker_lite_topics", "{topic}", "Lite topics of all topics of the type LITE."),
    _gauge("rocketmq_broker_lite_subscriptions", "{subscription}", "Lite topics that clients subscribe to, by client."),
    _counter("rocketmq_broker_lite_topics_expired_total", "{topic}", "Lite topics that ended, as nobody used them."),
)

_DEDUPLICATION: Final = (
    _counter("rocketmq_broker_duplicates_total", "{message}", "Messages that were sent again and not stored again."),
    _gauge("rocketmq_broker_deduplication_ids", "{message}", "Message ids that deduplication windows remember."),
    _counter(
        "rocketmq_broker_deduplication_cut_short_total",
        "{slice}",
        "Eighths of a deduplication window that went before their time, because of `deduplicationIdsMax`.",
    ),
)

_RECEIVES: Final = (
    _counter("rocketmq_messages_out_total", "{message}", "Messages delivered.", *_OUT),
    _counter("rocketmq_throughput_out_total", "By", "Bytes of those messages as delivered.", *_OUT),
    _gauge(
        "rocketmq_consumer_lag_messages",
        "{message}",
        "Messages the group has not finished, in all queues; with is_retry those waiting for another attempt.",
        *_CONSUMER,
    ),
    _gauge(
        "rocketmq_consumer_lag_latency",
        "ms",
        "Age of the oldest message the group has not finished; 0 when there is none.",
        *_CONSUMER,
    ),
    _gauge(
        "rocketmq_consumer_inflight_messages", "{message}", "Messages delivered and not yet acknowledged.", *_CONSUMER
    ),
    _gauge(
        "rocketmq_consumer_ready_messages",
        "{message}",
        "Messages in nobody's hands: never found by a receive, or, with is_retry, to be delivered again, or found "
        "while their message group was held.",
        *_CONSUMER,
    ),
    _gauge(
        "rocketmq_consumer_blocked_message_groups",
        "{group}",
        "Message groups of ordered consumer groups with messages that wait for earlier ones to be finished.",
    ),
    _counter(
        "rocketmq_consumer_passed_over_messages_total",
        "{message}",
        "Messages that a receive in order found while somebody held their message group; they are given later.",
    ),
    _counter(
        "rocketmq_broker_forwarded_calls_total",
        "{call}",
        "Clients' calls passed on to the broker group that they are for.",
        "method",
    ),
    _counter(
        "rocketmq_broker_forwarded_calls_failed_total",
        "{call}",
        "Clients' calls for another broker group that it did not answer, or that could not be passed on.",
        "method",
    ),
    _gauge(
        "rocketmq_consumer_queueing_latency",
        "ms",
        "Age of the oldest message the group was never given; 0 when there is none.",
        *_CONSUMER,
    ),
    _counter(
        "rocketmq_send_to_dlq_messages_total",
        "{message}",
        "Messages given up: moved to the group's dead letter queue.",
        "topic",
        "consumer_group",
        "is_system",
    ),
)

_REPLICATION: Final = (
    _gauge(
        "rocketmq_store_ha_replication_lag_bytes",
        "By",
        "Bytes the slave is behind, as its master sees it; `slave` is its broker id, `unproven` before its log was "
        "compared.",
        "slave",
    ),
    _gauge(
        "rocketmq_store_ha_replication_lag_seconds",
        "s",
        "How long the oldest byte the slave lacks has been on its master, counted from the master's start at the "
        "earliest; 0 when it lacks none, or none older than a second.",
        "slave",
    ),
    _gauge("rocketmq_store_ha_slave_in_sync", "1", "1 when the master counts the slave, else 0.", "slave"),
    _histogram(
        "rocketmq_store_ha_ack_latency_seconds",
        "s",
        "From a message's append until as many slaves as needed have it, and with SYNC_FLUSH the master's disk too. "
        "Exemplars name the trace.",
    ),
    _gauge("rocketmq_store_ha_slaves_connected", "{slave}", "Slaves connected to the master."),
    _gauge("rocketmq_store_ha_slaves_in_sync", "{slave}", "Slaves in sync."),
    _gauge("rocketmq_store_ha_slaves_needed", "{slave}", "Slaves that must hold a message before it is acknowledged."),
    _gauge("rocketmq_store_ha_slave_following", "1", "1 when this slave follows its master, else 0. Told by slaves."),
    _gauge("rocketmq_store_ha_slave_behind_bytes", "By", "Bytes this slave knows it is behind. Told by slaves."),
    _gauge(
        "rocketmq_store_ha_slave_refusing",
        "1",
        "1 when this slave refuses to follow the master that is there, else 0. Told by slaves.",
    ),
    _gauge(
        "rocketmq_store_ha_slave_serving_reads",
        "1",
        "1 while this slave gives messages to consumers, since its group has no master, else 0. Told by slaves.",
    ),
    _gauge(
        "rocketmq_store_ha_epoch",
        "1",
        "Greatest epoch of the broker's history: it grows by one each time a master of the group begins to serve.",
    ),
    _gauge(
        "rocketmq_store_ha_failover_epoch",
        "1",
        "Epoch of the group's record: it grows by one with each master. It and the next seven are "
        "told where failoverAuthority is set.",
    ),
    _gauge(
        "rocketmq_store_ha_failover_acting",
        "1",
        "1 when this broker is the master by the record and its lease runs, else 0.",
    ),
    _gauge(
        "rocketmq_store_ha_failover_authority_away",
        "1",
        "1 when the authority did not answer this broker when it was asked last, else 0.",
    ),
    _gauge(
        "rocketmq_store_ha_in_sync_replicas",
        "{replica}",
        "Members that hold all that is acknowledged, the master included. Told by the master that acts.",
    ),
    _counter(
        "rocketmq_store_ha_failovers_total",
        "{change}",
        "How often this broker became master: `handed_over` by an operator or a master that stopped, `master_ended` "
        "when its process was gone, `lease_over` when nothing was heard of it, `heard_group` after a start.",
        "reason",
    ),
    _histogram(
        "rocketmq_store_ha_failover_duration_seconds",
        "s",
        "From the moment that this broker knew that it becomes master until it served.",
    ),
    _gauge(
        "rocketmq_broker_held_calls",
        "{call}",
        "Clients' calls that this member holds back now, while its group changes its master.",
    ),
    _counter(
        "rocketmq_broker_held_calls_ended_total",
        "{call}",
        "What became of such calls: `taken` by the next master, this broker or another; `no_master` came in time, so "
        "they were refused; `caller_gone` did not wait; `no_room`: too many waited, so they were refused at once.",
        "outcome",
    ),
    _gauge(
        "rocketmq_store_ha_start_waiting_seconds",
        "s",
        "For how long a master that starts has waited for a replica, or for an operator; 0 when it does not.",
    ),
    _counter(
        "rocketmq_store_ha_reports_refused_total",
        "{report}",
        "Reports of slaves that could not be true; each ends its connection.",
    ),
    _counter(
        "rocketmq_store_ha_connections_refused_total",
        "{connection}",
        "Replication connections refused or ended for what the slave did, by reason.",
        "reason",
    ),
)

_STORE: Final = (
    _gauge("rocketmq_storage_size", "By", "Bytes of CommitLog held."),
    _gauge("rocketmq_storage_flush_behind_bytes", "By", "Bytes not known to be on disk."),
    _gauge("rocketmq_storage_dispatch_behind_bytes", "By", "Bytes whose ConsumeQueue entries are missing."),
    _gauge("rocketmq_storage_message_reserve_time", "ms", "Age of the oldest message still held."),
    _gauge("rocketmq_store_commitlog_min_offset", "By", "First byte of the CommitLog still held."),
    _gauge("rocketmq_store_commitlog_end_offset", "By", "One past the last byte of the CommitLog."),
    _counter(
        "rocketmq_store_queue_entries_damaged_total",
        "{entry}",
        "ConsumeQueue entries that did not lead to their records when somebody read them.",
    ),
    _counter(
        "rocketmq_store_queue_entries_mended_total", "{entry}", "ConsumeQueue entries made again from the CommitLog."
    ),
    _counter(
        "rocketmq_store_far_read_bytes_total",
        "By",
        "Bytes of the log that consumers read far behind its end and that were not in memory: from `slave` or `disk`.",
        "source",
    ),
    _counter(
        "rocketmq_store_messages_unreadable_total",
        "{message}",
        "Places of queues that consumers pass over: no replica in reach holds a sound record.",
    ),
    _gauge("rocketmq_store_kept_tails", "{file}", "Cut-off CommitLog tails kept aside."),
    _gauge("rocketmq_store_kept_repairs_bytes", "By", "What repairs have overwritten and kept aside."),
    _gauge(
        "rocketmq_store_log_damaged",
        "1",
        "1 when the log's tail was damaged as the broker read it at its start, until ten minutes after another replica "
        "gave back what was lost.",
    ),
    _histogram(
        "rocketmq_store_flush_seconds", "s", "How long a flush took, by what is flushed: `log` or `queues`.", "file"
    ),
    _gauge(
        "rocketmq_store_recovery_progress_ratio",
        "1",
        "Share of what recovery has to read at most that it has read; 1 when the store is recovered.",
    ),
    _gauge("rocketmq_store_recovery_duration_seconds", "s", "How long recovery took, or runs by now."),
    _counter(
        "rocketmq_store_needed_bytes_deleted_total",
        "By",
        "Bytes deleted that a slave or a consumer group still needed: unreadReservedTime or "
        "unreplicatedReservedTime was over.",
    ),
    _gauge(
        "rocketmq_store_wall_clock_jump_seconds",
        "s",
        "How far the wall clock is ahead (below 0: behind) of the time the broker counted, while files do not grow old "
        "by it; else 0.",
    ),
    _gauge("rocketmq_disk_used_ratio", "1", "How full the store's file system is."),
    _gauge(
        "rocketmq_disk_warning_ratio",
        "1",
        "How full it may be before messages are refused (diskSpaceWarningLevelRatio).",
    ),
)

_BROKER: Final = (
    _gauge("rocketmq_broker_info", "1", "1; what the broker is.", "role", "flush_disk_type", "version"),
    _gauge("rocketmq_broker_uptime_seconds", "s", "Time since the process started."),
    _gauge("rocketmq_broker_permission", "1", "RocketMQ's permission bits: 4 is readable, 2 writable, 6 both."),
    _gauge("rocketmq_broker_problems", "1", "What the broker says is wrong with it; `tandemmq status` has the words."),
    _gauge("rocketmq_topic_number", "{topic}", "Topics, those of the system included."),
    _gauge("rocketmq_consumer_group_number", "{group}", "Consumer groups."),
    _gauge("rocketmq_producer_connections", "{client}", "Producers with a session."),
    _gauge("rocketmq_consumer_connections", "{client}", "Consumers with a session.", "consumer_group"),
    _gauge("rocketmq_broker_clients", "{client}", "Clients with a session."),
    _gauge("rocketmq_broker_client_connections", "{connection}", "Client connections open."),
    _counter(
        "rocketmq_broker_client_plane_events_total",
        "{event}",
        "Connections accepted, and what the client plane's limits and clients' quotas refused, by name.",
        "event",
    ),
    _counter(
        "rocketmq_broker_access_refused_total",
        "{call}",
        "Calls refused for who made them, by plane and reason: `client` (`unsigned`, `date`, `unknown_user`, "
        "`disabled_user`, `wrong_key`, `too_many_failures`, `not_allowed`, `too_many_clients`) and "
        "`service` (`no_certificate`, `unusable_certificate`, `not_permitted`). The log's `access_refused` and "
        "`call_refused` say who it was.",
        "plane",
        "reason",
    ),
    _gauge(
        "rocketmq_processor_watermark",
        "{request}",
        "Requests that wait, by kind: `send` for a slave or a flush, `receive` for a message.",
        "processor",
    ),
    _counter(
        "rocketmq_broker_event_loop_stalls_total",
        "{stall}",
        "Turns of the event loop above 20 ms, in which nothing else is done.",
    ),
    _counter("rocketmq_broker_event_loop_stalled_seconds_total", "s", "Their sum."),
    _gauge("rocketmq_broker_event_loop_longest_stall_seconds", "s", "The longest since the start."),
    _gauge(
        "rocketmq_route_age_seconds",
        "s",
        "Time since the NameServer last told something: routes, or the answer to a heartbeat.",
        "nameserver",
    ),
    _counter(
        "rocketmq_trace_spans_total",
        "{span}",
        "Spans by what became of them; `no_room`: sends that were to be traced and were too many.",
        "outcome",
    ),
)

BROKER_METRICS: Final = (
    *_SENDS,
    *_TRANSACTIONS,
    *_DELAYED,
    *_LITE,
    *_DEDUPLICATION,
    *_RECEIVES,
    *_REPLICATION,
    *_STORE,
    *_BROKER,
)
"""In the order in which they are told."""

"""A master and its slave tell of themselves: scraped by what Prometheus is told, and sent by OTLP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, wait_until
from support.otlp_receiver import OtlpReceiver
from support.running_time import PATIENCE_S
from support.scraped_metrics import ScrapedMetrics, scrape
from support.topic_admin import create_topic
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.service.metrics import PROCESS_METRICS, MetricKind

TOPIC = "orders"
PROM = {"metricsExporterType": "PROM"}
TRACED = {"traceEnable": "true", "traceSampleRate": "1.0"}
SLAVES_ONLY = {
    "rocketmq_store_ha_slave_following",
    "rocketmq_store_ha_slave_behind_bytes",
    "rocketmq_store_ha_slave_refusing",
    "rocketmq_store_ha_slave_serving_reads",
}
# There when there is something to tell: a client, a delivery, a refusal.
NOT_YET = {
    "rocketmq_broker_access_refused_total",
    "rocketmq_messages_out_total",
    "rocketmq_throughput_out_total",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_ready_messages",
    "rocketmq_consumer_queueing_latency",
    "rocketmq_consumer_connections",
    "rocketmq_store_ha_connections_refused_total",
    "rocketmq_broker_forwarded_calls_total",
    "rocketmq_broker_forwarded_calls_failed_total",
}
# Where the group fails over.
FAILOVER_ONLY = {name for metric in BROKER_METRICS if "failover" in (name := metric.name)} | {
    "rocketmq_store_ha_in_sync_replicas",
    "rocketmq_broker_held_calls",
    "rocketmq_broker_held_calls_ended_total",
}


def told_names(scraped: ScrapedMetrics) -> set[str]:
    return {
        metric.name
        for metric in (*BROKER_METRICS, *PROCESS_METRICS)
        if scraped.has(metric.name + ("_count" if metric.kind is MetricKind.HISTOGRAM else ""))
    }


def test_a_pair_tells_of_sends_and_of_replication(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=PROM | TRACED)
        slave = cluster.add_broker("broker-a", broker_id=1, settings=PROM)
        asyncio.run(create_topic(master, TOPIC))
        in_sync = "rocketmq_store_ha_slaves_in_sync"
        wait_until(lambda: scrape(master).value(in_sync) == 1, limit_s=PATIENCE_S, what="the slave is in sync")
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) >= 100, limit_s=PATIENCE_S, what="100 acknowledged sends")
            wait_until(
                lambda: bool(scrape(master).exemplars("rocketmq_send_to_ack_seconds_bucket")),
                limit_s=PATIENCE_S,
                what="a traced send is an exemplar",
            )
        flushed = "rocketmq_store_flush_seconds_count"
        wait_until(lambda: scrape(master).value(flushed, file="log") > 0, limit_s=PATIENCE_S, what="a flush is counted")
        size = "rocketmq_storage_size"
        wait_until(
            lambda: (
                scrape(slave).value(size) == scrape(master).value(size)
                and scrape(master).value("rocketmq_store_ha_replication_lag_bytes", slave="1") == 0
            ),
            limit_s=PATIENCE_S,
            what="the slave holds everything",
        )
        scraped, of_slave = scrape(master), scrape(slave)
        sent = len(sender.acknowledged)
        ok = {"preset": "SYNC_MASTER/ASYNC_FLUSH", "status": "PUT_OK"}
        assert scraped.value("rocketmq_messages_in_total", topic=TOPIC, node_id="broker-a", broker_id="0") >= sent
        assert scraped.value("rocketmq_throughput_in_total", topic=TOPIC) == scraped.value(size)
        assert scraped.value("rocketmq_send_to_ack_seconds_count", **ok) >= sent
        assert scraped.value("rocketmq_broker_messages_put_total", status="PUT_OK") >= sent
        assert scraped.value("rocketmq_store_ha_ack_latency_seconds_count") > 0
        assert scraped.value("rocketmq_broker_writable") == 1
        assert of_slave.value("rocketmq_store_ha_slave_following", broker_id="1") == 1
        everything = {metric.name for metric in (*BROKER_METRICS, *PROCESS_METRICS)}
        assert everything - told_names(scraped) <= SLAVES_ONLY | FAILOVER_ONLY | NOT_YET
        assert told_names(of_slave) >= SLAVES_ONLY
        assert slave.stop() == 0
        wait_until(
            lambda: scrape(master).value("rocketmq_store_ha_slaves_connected") == 0,
            limit_s=PATIENCE_S,
            what="a slave less",
        )
        assert master.stop() == 0


def test_a_broker_sends_its_metrics_to_a_receiver(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver, ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        settings = {
            "brokerRole": "ASYNC_MASTER",
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": receiver.target,
            "metricsGrpcExporterIntervalInMills": "60000",
        }
        master = cluster.add_broker("broker-a", settings=settings)
        asyncio.run(create_topic(master, TOPIC))
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) >= 10, limit_s=PATIENCE_S, what="10 acknowledged sends")
        # The last figures are sent before the store closes.
        assert master.stop() == 0
        (stored,) = receiver.metrics("rocketmq_messages_in_total")
        (point,) = stored.metric.sum.data_points
        assert point.as_int >= len(sender.acknowledged)
        attributes = {pair.key: pair.value.string_value for pair in point.attributes}
        assert (attributes["topic"], attributes["node_id"]) == (TOPIC, "broker-a")
        assert stored.resource["service.name"] == "tandemmq-broker"
        assert receiver.metrics("rocketmq_store_flush_seconds")

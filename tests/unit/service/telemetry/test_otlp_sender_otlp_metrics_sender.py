"""What a collector is sent."""

from __future__ import annotations

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tandemmq.core.histogram import Exemplar, Histogram
from tandemmq.service.metrics import MetricInfo, MetricKind, MetricSamples
from tandemmq.service.telemetry.otlp_sender import metrics_requests

GAUGE = MetricInfo("size", MetricKind.GAUGE, "By", "A size.", ("cluster",))
COUNTER = MetricInfo("messages_total", MetricKind.COUNTER, "{message}", "Messages.", ("cluster", "topic"))
HISTOGRAM = MetricInfo("ack_seconds", MetricKind.HISTOGRAM, "s", "Times.", ("cluster",))
START_NS, NOW_NS = 1_000, 2_000


def encoded(told: MetricSamples) -> list[Metric]:
    return [
        metric
        for request in metrics_requests(told.families(), resource=Resource(), start_ns=START_NS, now_ns=NOW_NS)
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
    ]


def samples() -> MetricSamples:
    return MetricSamples((GAUGE, COUNTER, HISTOGRAM), base=("c",))


def test_a_counter_is_a_cumulative_sum_since_the_start() -> None:
    told = samples()
    told.add("messages_total", 3, "orders")
    (metric,) = encoded(told)
    assert (metric.name, metric.description, metric.unit) == ("messages_total", "Messages.", "")
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = metric.sum.data_points
    assert (point.as_int, point.start_time_unix_nano, point.time_unix_nano) == (3, START_NS, NOW_NS)
    assert {pair.key: pair.value.string_value for pair in point.attributes} == {"cluster": "c", "topic": "orders"}


def test_a_gauge_keeps_whether_it_is_whole() -> None:
    told = samples()
    told.add("size", 1.5)
    told.add("size", True)
    (metric,) = encoded(told)
    assert [point.WhichOneof("value") for point in metric.gauge.data_points] == ["as_double", "as_int"]
    assert [point.start_time_unix_nano for point in metric.gauge.data_points] == [0, 0]


def test_a_histogram_has_its_buckets_and_exemplars() -> None:
    histogram = Histogram((0.001, 0.01))
    histogram.observe(0.002, 2)
    histogram.note_exemplar(Exemplar(0.002, 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 5))
    told = samples()
    told.add_histogram("ack_seconds", histogram.reading())
    (metric,) = encoded(told)
    (point,) = metric.histogram.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts), point.count) == ([0.001, 0.01], [0, 2, 0], 2)
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert exemplar.time_unix_nano == 5_000_000


def test_a_request_holds_a_bounded_number_of_points_and_none_is_lost() -> None:
    told = samples()
    for number in range(2_500):
        told.add("messages_total", number, f"topic-{number}")
    told.add("size", 1)
    metrics = encoded(told)
    counts = [len(metric.sum.data_points) or len(metric.gauge.data_points) for metric in metrics]
    assert max(counts) <= 500
    assert sum(counts) == 2_501
    values = [point.as_int for metric in metrics for point in metric.sum.data_points]
    assert values == list(range(2_500))


def test_nothing_is_sent_when_there_is_nothing() -> None:
    assert encoded(samples()) == []

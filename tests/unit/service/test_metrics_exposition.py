"""What Prometheus is given, read back by its own client library."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics

from tandemmq.core.histogram import Exemplar, Histogram
from tandemmq.service.metrics import (
    MetricFamily,
    MetricInfo,
    MetricKind,
    MetricSamples,
    exposition_pieces,
    process_families,
    text_exposition,
)

GAUGE = MetricInfo("size", MetricKind.GAUGE, "By", 'A "size"\\.', ("cluster", "topic"))
PLAIN = MetricInfo("plain", MetricKind.GAUGE, "1", "Without labels.")
COUNTER = MetricInfo("messages_total", MetricKind.COUNTER, "{message}", "Messages.", ("cluster", "topic"))
HISTOGRAM = MetricInfo("ack_seconds", MetricKind.HISTOGRAM, "s", "Times.", ("cluster",))
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def samples() -> MetricSamples:
    return MetricSamples((GAUGE, PLAIN, COUNTER, HISTOGRAM), base=())


def read_text(families: list[MetricFamily]) -> dict[str, Metric]:
    return {metric.name: metric for metric in parser.text_string_to_metric_families(text_exposition(families).decode())}


def read_open(families: list[MetricFamily]) -> dict[str, Metric]:
    text = "".join(exposition_pieces(families, open_metrics=True))
    return {metric.name: metric for metric in read_open_metrics(text)}  # type: ignore[no-untyped-call]


def test_gauges_and_counters_arrive_with_kind_meaning_labels_and_value() -> None:
    told = samples()
    told.add("size", 1.5, "c", "orders")
    told.add("plain", True)
    told.add("messages_total", 3, "c", "orders")
    for read in (read_text, read_open):
        metrics = read(told.families())
        assert metrics["size"].type == "gauge"
        assert metrics["size"].documentation == 'A "size"\\.'
        assert [(sample.labels, sample.value) for sample in metrics["size"].samples] == [
            ({"cluster": "c", "topic": "orders"}, 1.5)
        ]
        assert metrics["plain"].samples[0].value == 1
        assert metrics["messages"].type == "counter"
        assert metrics["messages"].samples[0].name == "messages_total"


def test_a_histogram_is_cumulative_and_ends_with_infinity() -> None:
    histogram = Histogram((0.001, 0.01))
    for seconds in (0.0005, 0.002, 0.003, 7.0):
        histogram.observe(seconds)
    told = samples()
    told.add_histogram("ack_seconds", histogram.reading(), "c")
    for read in (read_text, read_open):
        by_name: dict[str, list[tuple[str | None, float]]] = {}
        for sample in read(told.families())["ack_seconds"].samples:
            by_name.setdefault(sample.name, []).append((sample.labels.get("le"), sample.value))
        assert by_name["ack_seconds_bucket"] == [("0.001", 1), ("0.01", 3), ("+Inf", 4)]
        assert by_name["ack_seconds_count"] == [(None, 4)]
        assert by_name["ack_seconds_sum"] == [(None, 7.0055)]


def test_exemplars_are_told_to_who_reads_open_metrics_only() -> None:
    histogram = Histogram((0.001, 0.01))
    histogram.observe(0.002)
    histogram.note_exemplar(Exemplar(0.002, int(TRACE_ID, 16), int(SPAN_ID, 16), 1_700_000_000_123))
    told = samples()
    told.add_histogram("ack_seconds", histogram.reading(), "c")
    buckets = [sample for sample in read_open(told.families())["ack_seconds"].samples if sample.exemplar is not None]
    (bucket,) = buckets
    assert bucket.labels["le"] == "0.01"
    assert bucket.exemplar is not None
    assert bucket.exemplar.labels == {"trace_id": TRACE_ID, "span_id": SPAN_ID}
    assert (bucket.exemplar.value, float(bucket.exemplar.timestamp or 0)) == (0.002, 1_700_000_000.123)
    assert "trace_id" not in text_exposition(told.families()).decode()


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), include_characters='\n\\"'), max_size=30))
def test_any_label_value_comes_back_as_it_was(value: str) -> None:
    told = samples()
    told.add("size", 1, "c", value)
    assert read_text(told.families())["size"].samples[0].labels["topic"] == value


def test_many_samples_come_in_many_pieces() -> None:
    told = samples()
    for number in range(1_000):
        told.add("size", number, "c", f"topic-{number}")
    pieces = list(exposition_pieces(told.families()))
    assert len(pieces) > 4
    assert max(map(len, pieces)) < 20_000
    assert len(read_text(told.families())["size"].samples) == 1_000


def test_the_open_metrics_text_says_where_it_ends() -> None:
    assert "".join(exposition_pieces([], open_metrics=True)) == "# EOF\n"


# What is told of any process.


def test_this_process_is_told_of() -> None:
    values = {family.info.name: family.samples[0][1] for family in process_families()}
    assert 0 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]  # type: ignore[operator]
    assert time.time() - 3_600 < values["process_start_time_seconds"] < time.time() + 2  # type: ignore[operator]
    assert 0 < values["process_open_fds"] <= values["process_max_fds"]  # type: ignore[operator]
    assert values["process_cpu_seconds_total"] > 0  # type: ignore[operator]

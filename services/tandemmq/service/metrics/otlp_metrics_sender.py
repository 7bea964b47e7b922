"""Sends metrics over gRPC by the OpenTelemetry SDK's exporter, with an encoding of our own, as spans are sent.

Requests are made from our samples, without the SDK's objects in between. Names are those of the catalogue, and units
stay behind. A receiver that writes Prometheus' names would append them (`rocketmq_storage_size_bytes`); dashboards
would then find a metric under one name when it was scraped and under another when it was sent.

Imported only where metrics are sent: the SDK takes half a second to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.metrics.export import MetricExportResult

from tandemmq.core.histogram import Exemplar, HistogramReading
from tandemmq.service.metrics.exposition import MetricFamily, MetricKind
from tandemmq.service.telemetry.otlp_sender import EXPORTER_LINES, SCOPE, encoded_resource, endpoint_of

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

__all__ = ["OtlpMetricsSender", "metrics_requests"]


# The encoding.

_POINTS_MAX: Final = 500
"""Of a request: some 100 KiB, where receivers take 4 MiB; and its encoding keeps the event loop from the interpreter
for ten milliseconds only."""
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def metrics_requests(
    families: Iterable[MetricFamily], *, resource: Resource, start_ns: int, now_ns: int
) -> Iterator[ExportMetricsServiceRequest]:
    """All samples, in requests of bounded size. Times are wall clock; `start_ns` is where counting began."""
    attributes = _Attributes()
    request, metrics = _new_request(resource)
    room = _POINTS_MAX
    for family in families:
        names = family.info.labels
        position = 0
        while position < len(family.samples):
            if not room:
                yield request
                request, metrics = _new_request(resource)
                room = _POINTS_MAX
            samples = family.samples[position : position + room]
            metric = metrics.add(name=family.info.name, description=family.info.meaning)
            for labels, value in samples:
                point = _add_point(metric, family.info.kind, value)
                point.attributes.extend([attributes[label] for label in zip(names, labels, strict=True)])
                point.time_unix_nano = now_ns
                if family.info.kind is not MetricKind.GAUGE:
                    point.start_time_unix_nano = start_ns
            position += len(samples)
            room -= len(samples)
    if room < _POINTS_MAX:
        yield request


def _new_request(resource: Resource) -> tuple[ExportMetricsServiceRequest, RepeatedCompositeFieldContainer[Metric]]:
    request = ExportMetricsServiceRequest()
    scope_metrics = request.resource_metrics.add(resource=resource).scope_metrics.add(scope=SCOPE)
    return request, scope_metrics.metrics


def _add_point(
    metric: Metric, kind: MetricKind, value: float | HistogramReading
) -> NumberDataPoint | HistogramDataPoint:
    if isinstance(value, HistogramReading):
        metric.histogram.aggregation_temporality = _CUMULATIVE
        return _add_histogram_point(metric, value)
    if kind is MetricKind.COUNTER:
        metric.sum.aggregation_temporality = _CUMULATIVE
        metric.sum.is_monotonic = True
        points = metric.sum.data_points
    else:
        points = metric.gauge.data_points
    return points.add(as_int=int(value)) if isinstance(value, int) else points.add(as_double=value)


def _add_histogram_point(metric: Metric, reading: HistogramReading) -> HistogramDataPoint:
    point = metric.histogram.data_points.add(
        count=sum(reading.counts),
        sum=reading.total,
        bucket_counts=reading.counts,
        explicit_bounds=reading.bounds,
    )
    for exemplar in reading.exemplars:
        if exemplar is not None:
            _add_exemplar(point, exemplar)
    return point


def _add_exemplar(point: HistogramDataPoint, exemplar: Exemplar) -> None:
    point.exemplars.add(
        as_double=exemplar.value,
        time_unix_nano=exemplar.wall_ms * 1_000_000,
        trace_id=exemplar.trace_id.to_bytes(16),
        span_id=exemplar.span_id.to_bytes(8),
    )


class _Attributes(dict[tuple[str, str], KeyValue]):
    """Labels as attributes; one that was made is used again."""

    def __missing__(self, label: tuple[str, str]) -> KeyValue:
        made = self[label] = KeyValue(key=label[0], value=AnyValue(string_value=label[1]))
        return made


class OtlpMetricsSender:
    """A `MetricsSender`. Connects at the first export."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self.target = target
        self._resource = encoded_resource(resource)
        self._start_ns = time_ns()
        self._exporter = _Exporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, families: Sequence[MetricFamily]) -> str:
        requests = metrics_requests(families, resource=self._resource, start_ns=self._start_ns, now_ns=time_ns())
        with EXPORTER_LINES.of_this_thread() as causes:
            for request in requests:
                if self._exporter.export_request(request) is not MetricExportResult.SUCCESS:
                    return causes[-1] if causes else "refused"
        return ""

    def abort(self) -> None:
        self._exporter.shutdown()


class _Exporter(OTLPMetricExporter):
    """The SDK's exporter, given requests."""

    def export_request(self, request: ExportMetricsServiceRequest) -> MetricExportResult:
        """Sends, and tries again while the time limit lasts."""
        return self._export(request)  # type: ignore[arg-type]  # what the encoder below is given

    def _count_data(self, data: Any) -> int:
        return 0

    def _translate_data(self, data: Any) -> ExportMetricsServiceRequest:
        assert isinstance(data, ExportMetricsServiceRequest), "export_request is the way in"
        return data

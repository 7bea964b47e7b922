"""OTLP over gRPC by the OpenTelemetry SDK's exporters, with encodings of our own: spans (`span_encoding`), metrics, and
audit lines.

The exporter brings connecting, TLS, headers, compression, deadlines and retries, with OpenTelemetry's environment
variables. Its way from spans to protobuf does not fit a broker: 74 us a span. Imported only where something is
exported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk import resources

from tandemmq.core.histogram import Exemplar, HistogramReading
from tandemmq.core.tracing.send_spans import ResolvedSend
from tandemmq.core.tracing.span_data import AttributeValue
from tandemmq.service.metrics import MetricFamily, MetricKind
from tandemmq.service.settings import VERSION
from tandemmq.service.telemetry.span_encoding import encoded_request, encoded_send, encoded_span
from tandemmq.service.telemetry.span_export import Exported

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from tandemmq.service.telemetry.audit_export import AuditLine


# What all have in common on their way out by OTLP.

SCOPE: Final = InstrumentationScope(name="tandemmq", version=VERSION)


class ExporterLines(logging.Filter):
    """Keeps the exporter's own lines out of the log, one for each attempt, and gives them to who asked it to send."""

    def __init__(self) -> None:
        super().__init__()
        self._caught = threading.local()

    @contextmanager
    def of_this_thread(self) -> Iterator[list[str]]:
        """Catches what the exporter says on this thread inside the block; the list gets the causes of failures."""
        causes: list[str] = []
        self._caught.causes = causes
        try:
            yield causes
        finally:
            self._caught.causes = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes on into the log."""
        causes: list[str] | None = getattr(self._caught, "causes", None)
        if causes is None:
            return True
        if record.levelno >= logging.ERROR and isinstance(record.args, tuple) and len(record.args) == 4:
            # "Failed to export %s to %s, error code: %s, error details: %s"
            _, _, code, details = record.args
            causes.append(f"{getattr(code, 'name', code)}: {details}")
        return False


EXPORTER_LINES: Final = ExporterLines()
# Before the library's own filter, which lets no line through twice in 20 s.
logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").filters.insert(0, EXPORTER_LINES)


class _Requests:
    """Before one of the SDK's exporters: it is given whole requests, which nobody translates or counts."""

    _export: Callable[[Any], Any]

    def problem_of(self, request: Any) -> str:
        """Sends, and tries again while the time limit lasts; why it was not taken, or empty."""
        with EXPORTER_LINES.of_this_thread() as causes:
            result = self._export(request)
        return "" if result.name == "SUCCESS" else causes[-1] if causes else "refused"

    def _translate_data(self, data: Any) -> Any:
        return data

    def _count_data(self, data: Any) -> int:
        # For metrics of the library's own, which nobody has it make.
        return 1


def endpoint_of(target: str) -> str:
    """The exporters' URL of a receiver, which settings name as host:port (without TLS) or as an URL."""
    return target if "://" in target else f"http://{target}"


def encoded_resource(attributes: Mapping[str, str | int]) -> Resource:
    """`attributes`, what OTEL_RESOURCE_ATTRIBUTES says, and the SDK's own."""
    encoded = Resource()
    known = resources.Resource.create(dict(attributes)).attributes
    fill_attributes(
        encoded.attributes, {key: value for key, value in known.items() if isinstance(value, str | int | float)}
    )
    return encoded


def fill_attributes(into: Any, attributes: Mapping[str, AttributeValue]) -> None:
    """Adds key-value pairs to a repeated field."""
    for key, value in attributes.items():
        pair: KeyValue = into.add()
        pair.key = key
        if isinstance(value, str):
            pair.value.string_value = value
        elif isinstance(value, bool):
            # Before int: a bool is one.
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            values = pair.value.array_value.values
            for item in value:
                values.add().string_value = item


_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_REQUEST_BYTES: Final = 1 << 20
"""Some 300 bytes are usual for a span, but one of a batch may have 30 kB, and receivers take 4 MiB."""


class OtlpSpanSender:
    """Connects at the first batch."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource).SerializeToString()
        self._exporter = _SpanExporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, batch: Sequence[Exported]) -> str:
        return next(filter(None, map(self._exporter.problem_of, _requests(batch, self._resource))), "")

    def abort(self) -> None:
        self._exporter.shutdown()


class _RawStub:
    """The exporter's client, for requests that are bytes already; nobody reads the response."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Export: Any = channel.unary_unary(_EXPORT, request_serializer=None, response_deserializer=None)


class _SpanExporter(_Requests, OTLPSpanExporter):
    def _initialize_channel_and_stub(self) -> None:
        # Now, and whenever it reconnects.
        self._stub: Any = _RawStub
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]


def _requests(batch: Sequence[Exported], resource: bytes) -> Iterator[bytes]:
    """Mostly one. Encodes a send or a span at a time from here, where the interpreter may turn to another thread in
    between."""
    scope = SCOPE.SerializeToString()
    encoded: list[bytes] = []
    size_bytes = 0
    for item in batch:
        data = encoded_send(item) if isinstance(item, ResolvedSend) else encoded_span(item)
        encoded.append(data)
        size_bytes += len(data)
        if size_bytes > _REQUEST_BYTES:
            yield encoded_request(encoded, resource=resource, scope=scope)
            encoded, size_bytes = [], 0
    if encoded:
        yield encoded_request(encoded, resource=resource, scope=scope)


# Sends metrics over gRPC by the OpenTelemetry SDK's exporter, with an encoding of our own, as spans are sent.
#
# Requests are made from our samples, without the SDK's objects in between. Names are those of the catalogue, and units
# stay behind. A receiver that writes Prometheus' names would append them (`rocketmq_storage_size_bytes`); dashboards
# would then find a metric under one name when it was scraped and under another when it was sent.

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
    """Connects at the first export."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource)
        self._start_ns = time_ns()
        self._exporter = _MetricExporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, batch: Sequence[MetricFamily]) -> str:
        requests = metrics_requests(batch, resource=self._resource, start_ns=self._start_ns, now_ns=time_ns())
        return next(filter(None, map(self._exporter.problem_of, requests)), "")

    def abort(self) -> None:
        self._exporter.shutdown()


class _MetricExporter(_Requests, OTLPMetricExporter):
    pass


_SEVERITIES: Final = {
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warning": SeverityNumber.SEVERITY_NUMBER_WARN,
    "error": SeverityNumber.SEVERITY_NUMBER_ERROR,
}


class OtlpLogSender:
    """Connects at the first lines."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource)
        self._exporter = _LogExporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, batch: Sequence[AuditLine]) -> str:
        request = ExportLogsServiceRequest()
        records = request.resource_logs.add(resource=self._resource).scope_logs.add(scope=SCOPE).log_records
        for line in batch:
            record = records.add(
                time_unix_nano=line.wall_ns,
                severity_text=line.level,
                severity_number=_SEVERITIES.get(line.level, SeverityNumber.SEVERITY_NUMBER_UNSPECIFIED),
                event_name=line.event,
                body=AnyValue(string_value=line.event),
            )
            fill_attributes(record.attributes, line.fields)
        return self._exporter.problem_of(request)

    def abort(self) -> None:
        self._exporter.shutdown()


class _LogExporter(_Requests, OTLPLogExporter):
    pass

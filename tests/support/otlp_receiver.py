"""An OTLP receiver over gRPC: takes spans and metrics as a collector does, and shows what came.

It can also be as bad as a collector gets: hang, refuse, or go away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self, TypeAlias

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_service
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1 import trace_pb2

from support.running_time import PATIENCE_S

Value: TypeAlias = str | int | float | bool | tuple[object, ...]


class Manner(Enum):
    """How the receiver treats its callers."""

    TAKES = "takes"
    # Answers when it stops, not before.
    HANGS = "hangs"
    # UNAVAILABLE, which callers try again.
    REFUSES = "refuses"
    # PERMISSION_DENIED, which they do not.
    FORBIDS = "forbids"


@dataclass(frozen=True)
class ReceivedEvent:
    name: str
    at_ns: int
    attributes: dict[str, Value]


@dataclass(frozen=True)
class ReceivedLink:
    trace_id: int
    span_id: int
    attributes: dict[str, Value]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came over the wire."""

    name: str
    trace_id: int
    span_id: int
    # 0: a root.
    parent_span_id: int
    # SERVER, INTERNAL and so on.
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[ReceivedEvent, ...]
    links: tuple[ReceivedLink, ...]
    # True: status error.
    failed: bool
    status_message: str
    # Of the process that made it.
    resource: dict[str, Value]
    scope: str


@dataclass(frozen=True)
class ReceivedMetric:
    """A metric as it came over the wire, its points still protobuf."""

    name: str
    metric: Metric
    resource: dict[str, Value]


class ReceivedLine(NamedTuple):
    """A log record as it came over the wire."""

    time_ns: int
    level: str
    attributes: dict[str, Value]
    resource: dict[str, Value]


class OtlpReceiver:
    """A running receiver; `with OtlpReceiver() as receiver` stops it. Any thread may ask it.

    `port` 0 takes any free one; `target` is what exporters are given. Keeps everything: for tests.
    """

    def __init__(self, *, port: int = 0, manner: Manner = Manner.TAKES) -> None:
        self.manner = manner
        self._lock = threading.Condition()
        self._trace_requests: list[trace_service.ExportTraceServiceRequest] = []
        self._metrics_requests: list[metrics_service.ExportMetricsServiceRequest] = []
        self._logs_requests: list[logs_service.ExportLogsServiceRequest] = []
        self._call_count = 0
        self._stopping = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="otlp-receiver"))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(self), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def target(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def call_count(self) -> int:
        """Calls that began, answered or not."""
        with self._lock:
            return self._call_count

    @property
    def trace_requests(self) -> list[trace_service.ExportTraceServiceRequest]:
        """What was taken so far, as sent."""
        with self._lock:
            return list(self._trace_requests)

    def spans(self, name: str | None = None) -> list[ReceivedSpan]:
        """Spans taken so far, of one name if wanted."""
        return [span for span in _spans(self.trace_requests) if name is None or span.name == name]

    def lines(self, event: str) -> list[ReceivedLine]:
        """Log records taken so far, of one event."""
        with self._lock:
            requests = list(self._logs_requests)
        return [
            ReceivedLine(
                record.time_unix_nano,
                record.severity_text,
                _attributes(record.attributes),
                _attributes(of_resource.resource.attributes),
            )
            for request in requests
            for of_resource in request.resource_logs
            for of_scope in of_resource.scope_logs
            for record in of_scope.log_records
            if record.event_name == record.body.string_value == event
        ]

    def metrics(self, name: str | None = None) -> list[ReceivedMetric]:
        """Metrics taken so far, every export's own; of one name if wanted."""
        with self._lock:
            requests = list(self._metrics_requests)
        return [metric for metric in _metrics(requests) if name is None or metric.name == name]

    def wait_until(self, holds: Callable[[OtlpReceiver], bool], *, limit_s: float = PATIENCE_S) -> None:
        """Returns as soon as `holds` does; AssertionError with what is there after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not holds(self):
            with self._lock:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._lock.wait(min(left_s, 0.2))
        else:
            return
        names = sorted({span.name for span in self.spans()} | {metric.name for metric in self.metrics()})
        raise AssertionError(f"not within {limit_s} s; {self.call_count} calls brought {names}")

    def stop(self) -> None:
        """Closes the port at once; callers that hang are let go."""
        self._stopping.set()
        self._server.stop(grace=None).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def called(self, context: grpc.ServicerContext) -> bool:
        """Notes a call; True when its content is to be taken."""
        with self._lock:
            self._call_count += 1
            self._lock.notify_all()
        match self.manner:
            case Manner.TAKES:
                return True
            case Manner.HANGS:
                self._stopping.wait()
                return False
            case Manner.REFUSES:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            case Manner.FORBIDS:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        return False

    def took_spans(self, request: trace_service.ExportTraceServiceRequest) -> None:
        with self._lock:
            self._trace_requests.append(request)
            self._lock.notify_all()

    def took_logs(self, request: logs_service.ExportLogsServiceRequest) -> None:
        with self._lock:
            self._logs_requests.append(request)
            self._lock.notify_all()

    def took_metrics(self, request: metrics_service.ExportMetricsServiceRequest) -> None:
        with self._lock:
            self._metrics_requests.append(request)
            self._lock.notify_all()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: trace_service.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service.ExportTraceServiceResponse:
        if self._receiver.called(context):
            self._receiver.took_spans(request)
        return trace_service.ExportTraceServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: logs_service.ExportLogsServiceRequest, context: grpc.ServicerContext
    ) -> logs_service.ExportLogsServiceResponse:
        if self._receiver.called(context):
            self._receiver.took_logs(request)
        return logs_service.ExportLogsServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: metrics_service.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service.ExportMetricsServiceResponse:
        if self._receiver.called(context):
            self._receiver.took_metrics(request)
        return metrics_service.ExportMetricsServiceResponse()


def _spans(requests: Sequence[trace_service.ExportTraceServiceRequest]) -> Iterable[ReceivedSpan]:
    for request in requests:
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    yield _span(span, resource, of_scope.scope.name)


def _span(span: trace_pb2.Span, resource: dict[str, Value], scope: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=int.from_bytes(span.trace_id),
        span_id=int.from_bytes(span.span_id),
        parent_span_id=int.from_bytes(span.parent_span_id),
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=tuple(
            ReceivedEvent(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events
        ),
        links=tuple(
            ReceivedLink(int.from_bytes(link.trace_id), int.from_bytes(link.span_id), _attributes(link.attributes))
            for link in span.links
        ),
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        status_message=span.status.message,
        resource=resource,
        scope=scope,
    )


def _metrics(requests: Sequence[metrics_service.ExportMetricsServiceRequest]) -> Iterable[ReceivedMetric]:
    for request in requests:
        for of_resource in request.resource_metrics:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    yield ReceivedMetric(metric.name, metric, resource)


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    assert kind is not None, "an attribute without a value"
    plain = getattr(value, kind)
    assert isinstance(plain, str | int | float | bool), f"{kind} is nothing we send"
    return plain

"""OTLP over gRPC by the OpenTelemetry SDK's exporter, with an encoding of our own (`span_encoding`).

The exporter brings connecting, TLS, headers, compression, deadlines and retries, with OpenTelemetry's environment
variables. Its way from spans to protobuf does not fit a broker: 74 us a span. Imported only where spans are exported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk import resources
from opentelemetry.sdk.trace.export import SpanExportResult

from tandemmq.core.tracing.send_spans import ResolvedSend
from tandemmq.core.tracing.span_data import AttributeValue
from tandemmq.service.command_line import VERSION
from tandemmq.service.telemetry.send_encoding import encoded_send
from tandemmq.service.telemetry.span_encoding import encoded_request, encoded_span
from tandemmq.service.telemetry.span_export import Exported

__all__ = [
    "EXPORTER_LINES",
    "SCOPE",
    "ExporterLines",
    "OtlpSpanSender",
    "encoded_resource",
    "endpoint_of",
    "fill_attributes",
    "resource_attributes",
]


# What traces and metrics have in common on their way out by OTLP. Imported only where something is exported.

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
    """A `SpanSender`. Connects at the first batch."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource).SerializeToString()
        self._exporter = _Exporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, batch: Sequence[Exported]) -> str:
        for request in _requests(batch, self._resource):
            with EXPORTER_LINES.of_this_thread() as lines:
                result = self._exporter.export_request(request)
            if result is not SpanExportResult.SUCCESS:
                return lines[-1] if lines else "refused"
        return ""

    def abort(self) -> None:
        self._exporter.shutdown()


class _RawStub:
    """The exporter's client, for requests that are bytes already; nobody reads the response."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Export: Any = channel.unary_unary(_EXPORT, request_serializer=None, response_deserializer=None)


class _Exporter(OTLPSpanExporter):
    """The SDK's exporter, given whole requests."""

    def _initialize_channel_and_stub(self) -> None:
        # Now, and whenever it reconnects.
        self._stub: Any = _RawStub
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]

    def export_request(self, request: Any) -> SpanExportResult:
        """Sends, and tries again while the time limit lasts."""
        return self._export(request)

    def _translate_data(self, data: Any) -> Any:
        return data

    def _count_data(self, data: Any) -> int:
        # For metrics of the library's own, which nobody has it make.
        return 1


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


# Who a process is, to those who read its traces and metrics.


def resource_attributes(
    *, service: str, instance_id: str, attributes: Mapping[str, str | int] | None = None
) -> dict[str, str | int]:
    """Resource attributes by OpenTelemetry's names, with `attributes` of our own.

    `service` is broker, nameserver and so on; `instance_id` is one of its kind for ever, for example
    `DefaultCluster/broker-a/0`: a restarted process goes on under it.
    """
    return {
        "service.namespace": "tandemmq",
        "service.name": f"tandemmq-{service}",
        "service.instance.id": instance_id,
        "service.version": VERSION,
        **(attributes or {}),
    }

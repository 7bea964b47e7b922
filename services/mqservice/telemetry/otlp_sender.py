"""OTLP over gRPC by the OpenTelemetry SDK's exporter, with an encoding of our own (`span_encoding`).

The exporter brings connecting, TLS, headers, compression, deadlines and retries, with OpenTelemetry's environment
variables. Its way from spans to protobuf does not fit a broker: 74 us a span. Imported only where spans are exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from mqcore.tracing.send_spans import ResolvedSend
from mqservice.telemetry.otlp_library import EXPORTER_LINES, SCOPE, encoded_resource, endpoint_of
from mqservice.telemetry.send_encoding import encoded_send
from mqservice.telemetry.span_encoding import encoded_request, encoded_span
from mqservice.telemetry.span_export import Exported

__all__ = ["OtlpSpanSender"]

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_REQUEST_BYTES: Final = 1 << 20
"""Some 300 bytes are usual for a span, but one of a batch may have 30 kB, and receivers take 4 MiB."""


class OtlpSpanSender:
    """A `SpanSender`. Connects at the first batch."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource).SerializeToString()
        self._exporter = _Exporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, batch: Sequence[Exported]) -> str:
        """`SpanSender`'s."""
        for request in _requests(batch, self._resource):
            with EXPORTER_LINES.of_this_thread() as lines:
                result = self._exporter.export_request(request)
            if result is not SpanExportResult.SUCCESS:
                return lines[-1] if lines else "refused"
        return ""

    def abort(self) -> None:
        """`SpanSender`'s."""
        self._exporter.shutdown()


class _RawStub:
    """The exporter's client, for requests that are bytes already; nobody reads the response."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Export: Any = channel.unary_unary(_EXPORT, request_serializer=None, response_deserializer=None)


class _Exporter(OTLPSpanExporter):
    """The SDK's exporter, given whole requests."""

    def _initialize_channel_and_stub(self) -> None:
        # Now, and whenever it connects anew.
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

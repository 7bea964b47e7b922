"""OTLP over gRPC by the OpenTelemetry SDK's exporter, with an encoding of our own, as spans are sent.

Imported only where metrics are sent: the SDK takes half a second to load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult

from mqservice.metrics.metric_samples import MetricFamily
from mqservice.metrics.otlp_encoding import metrics_requests
from mqservice.telemetry.otlp_library import EXPORTER_LINES, encoded_resource, endpoint_of

__all__ = ["OtlpMetricsSender"]


class OtlpMetricsSender:
    """A `MetricsSender`. Connects at the first export."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self.target = target
        self._resource = encoded_resource(resource)
        self._start_ns = time_ns()
        self._exporter = _Exporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send(self, families: Sequence[MetricFamily]) -> str:
        """`MetricsSender`'s."""
        requests = metrics_requests(families, resource=self._resource, start_ns=self._start_ns, now_ns=time_ns())
        with EXPORTER_LINES.of_this_thread() as causes:
            for request in requests:
                if self._exporter.export_request(request) is not MetricExportResult.SUCCESS:
                    return causes[-1] if causes else "refused"
        return ""

    def abort(self) -> None:
        """`MetricsSender`'s."""
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

"""Sends audit lines over gRPC by the OpenTelemetry SDK's exporter for logs, with an encoding of our own, as spans and
metrics are sent. Imported only where lines are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from tandemmq.service.telemetry.otlp_sender import EXPORTER_LINES, SCOPE, encoded_resource, endpoint_of, fill_attributes

if TYPE_CHECKING:
    from tandemmq.service.telemetry.audit_export import AuditLine

_SEVERITIES: Final = {
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warning": SeverityNumber.SEVERITY_NUMBER_WARN,
    "error": SeverityNumber.SEVERITY_NUMBER_ERROR,
}


class OtlpLogSender:
    """An `AuditSender`. Connects at the first lines."""

    def __init__(self, target: str, *, resource: Mapping[str, str | int], timeout_s: float) -> None:
        self._resource = encoded_resource(resource)
        self._exporter = _LogExporter(endpoint=endpoint_of(target), timeout=timeout_s)

    def send_lines(self, lines: Sequence[AuditLine]) -> str:
        request = ExportLogsServiceRequest()
        records = request.resource_logs.add(resource=self._resource).scope_logs.add(scope=SCOPE).log_records
        for line in lines:
            record = records.add(
                time_unix_nano=line.wall_ns,
                severity_text=line.level,
                severity_number=_SEVERITIES.get(line.level, SeverityNumber.SEVERITY_NUMBER_UNSPECIFIED),
                event_name=line.event,
                body=AnyValue(string_value=line.event),
            )
            fill_attributes(record.attributes, line.fields)
        with EXPORTER_LINES.of_this_thread() as causes:
            if self._exporter.export_request(request).name != "SUCCESS":
                return causes[-1] if causes else "refused"
        return ""

    def abort(self) -> None:
        self._exporter.shutdown()


class _LogExporter(OTLPLogExporter):
    """The SDK's exporter, given requests."""

    def export_request(self, request: ExportLogsServiceRequest) -> Any:
        """Sends, and tries again while the time limit lasts."""
        return self._export(request)  # type: ignore[arg-type]  # what the encoder below is given

    def _count_data(self, data: Any) -> int:
        return 0

    def _translate_data(self, data: Any) -> ExportLogsServiceRequest:
        assert isinstance(data, ExportLogsServiceRequest), "export_request is the way in"
        return data

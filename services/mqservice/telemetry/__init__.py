"""Spans on their way out of a process: where they go, and their export by OTLP.

Light to import: the OpenTelemetry SDK is loaded by `open_span_export` alone, in processes that export.
"""

from mqservice.telemetry.resource import resource_attributes
from mqservice.telemetry.span_export import SpanExport, SpanSender, open_span_export
from mqservice.telemetry.span_sink import SpanFan, SpanSink

__all__ = [
    "SpanExport",
    "SpanFan",
    "SpanSender",
    "SpanSink",
    "open_span_export",
    "resource_attributes",
]

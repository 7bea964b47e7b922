"""Spans on their way out of a process: remembered for a while, and exported by OTLP."""

from mqservice.telemetry.span_sink import SpanFan, SpanSink

__all__ = ["SpanFan", "SpanSink"]

"""Spans on their way out of a process: where they go, and their export by OTLP.

Light to import: the OpenTelemetry SDK is loaded by `open_span_export` alone, in processes that export.
"""

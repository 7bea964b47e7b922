"""Metrics on their way out of a process: to Prometheus, which asks, and by OTLP.

Light to import: the OpenTelemetry SDK is loaded in processes that send.
"""

from mqservice.metrics.exposition import TEXT_CONTENT_TYPE, text_exposition
from mqservice.metrics.metric_exports import MetricExports
from mqservice.metrics.metric_info import MetricInfo, MetricKind
from mqservice.metrics.metric_samples import MetricFamily, MetricSamples
from mqservice.metrics.metrics_options import ExporterType, MetricsOptions, parse_exporter_types
from mqservice.metrics.process_metrics import PROCESS_METRICS, process_families
from mqservice.metrics.series_limit import OTHER, SeriesLimit

__all__ = [
    "OTHER",
    "PROCESS_METRICS",
    "TEXT_CONTENT_TYPE",
    "ExporterType",
    "MetricExports",
    "MetricFamily",
    "MetricInfo",
    "MetricKind",
    "MetricSamples",
    "MetricsOptions",
    "SeriesLimit",
    "parse_exporter_types",
    "process_families",
    "text_exposition",
]

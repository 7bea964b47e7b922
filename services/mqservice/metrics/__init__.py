"""Metrics on their way out of a process: to Prometheus, which asks, and by OTLP."""

from mqservice.metrics.metric_info import MetricInfo, MetricKind

__all__ = ["MetricInfo", "MetricKind"]

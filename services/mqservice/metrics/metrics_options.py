"""How a process gives its metrics away, by RocketMQ's settings metricsExporterType and metricsPromExporter…"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ExporterType", "MetricsOptions", "parse_exporter_types"]


class ExporterType(StrEnum):
    """One way out."""

    PROM = "PROM"
    """Prometheus asks at /metrics."""
    OTLP_GRPC = "OTLP_GRPC"
    """Sent by OTLP to a collector."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Of one process."""

    types: frozenset[ExporterType] = frozenset()
    # Of /metrics; port 0 takes any.
    host: str = "127.0.0.1"
    port: int = 0
    # host:port of the collector, or an URL.
    target: str = ""
    interval_ms: int = 60_000


def parse_exporter_types(text: str) -> frozenset[ExporterType]:
    """Of metricsExporterType: DISABLE, or types separated by ';'. ValueError says what else there is."""
    names = [name.strip() for name in text.split(";") if name.strip()]
    if names == ["DISABLE"]:
        return frozenset()
    try:
        types = frozenset(ExporterType(name) for name in names)
    except ValueError:
        types = frozenset()
    if not types:
        raise ValueError(f"'{text}' is no way to export; write DISABLE, or PROM and OTLP_GRPC separated by ';'")
    return types

"""All ways out of one process, as its settings ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from mqservice.metrics.loop_snapshot import Collect, LoopSnapshot
from mqservice.metrics.metric_samples import MetricFamily
from mqservice.metrics.metrics_options import ExporterType, MetricsOptions
from mqservice.metrics.otlp_export import OtlpExport, open_otlp_export
from mqservice.metrics.process_metrics import process_families
from mqservice.metrics.prometheus_endpoint import PrometheusEndpoint

__all__ = ["MetricExports"]

_SNAPSHOT_LIMIT_S: Final = 8.0
"""Prometheus gives up after 10 s."""


class MetricExports:
    """Gives away what `collect` reads on the event loop, and the process' own figures.

    `start` on the loop that `collect` belongs to; `close` while what it reads is still there.
    """

    def __init__(self, options: MetricsOptions, *, collect: Collect, resource: Mapping[str, str | int]) -> None:
        """`resource` says what process this is, to a collector."""
        self._options = options
        self._collect = collect
        self._resource = resource
        self._snapshot: LoopSnapshot | None = None
        self._endpoint: PrometheusEndpoint | None = None
        self._otlp: OtlpExport | None = None

    @property
    def port(self) -> int:
        """Of /metrics; 0 when nothing listens."""
        return self._endpoint.port if self._endpoint is not None else 0

    async def start(self) -> None:
        """Opens what the options name. Raises ListenError."""
        options = self._options
        self._snapshot = LoopSnapshot(self._collect, loop=asyncio.get_running_loop(), limit_s=_SNAPSHOT_LIMIT_S)
        if ExporterType.PROM in options.types:
            self._endpoint = PrometheusEndpoint(options.host, options.port, read=self._read)
        if ExporterType.OTLP_GRPC in options.types:
            # The SDK takes half a second to load, on a busy machine several.
            self._otlp = await asyncio.to_thread(
                open_otlp_export,
                options.target,
                resource=self._resource,
                interval_s=options.interval_ms / 1_000,
                read=self._read,
            )

    async def close(self) -> None:
        """Ends all of it, within two seconds; twice is fine."""
        endpoint, self._endpoint = self._endpoint, None
        otlp, self._otlp = self._otlp, None
        async with asyncio.TaskGroup() as ends:
            for way_out in (endpoint, otlp):
                if way_out is not None:
                    ends.create_task(asyncio.to_thread(way_out.close))
        if self._snapshot is not None:
            await self._snapshot.close()

    def _read(self) -> list[MetricFamily]:
        assert self._snapshot is not None, "start comes first"
        return [*self._snapshot.take(), *process_families()]

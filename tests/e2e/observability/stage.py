"""Everything at once: a traced cluster, an application on it, Prometheus with the chart's rules, a collector."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from e2e.live_cluster import METRICS_PORT, LiveCluster
from e2e.observability.alert_rules import chart_rules, hastened
from e2e.observability.otel_collector import OtelCollector
from e2e.observability.prometheus_server import PrometheusServer, ScrapeJob
from e2e.observability.traffic import GROUPS, TOPICS, Traffic
from e2e.observability.zipkin import Zipkin
from e2e.programs import ROOT

DASHBOARDS: Final = tuple(sorted((ROOT / "charts" / "tandemmq" / "dashboards").glob("*.json")))
# The labels that the chart's rules ask for: release mq in namespace ns.
_NAMESPACE: Final = "ns"
_RELEASE: Final = "mq"
# What alerts wait for here instead of minutes: two scrapes.
_ALERT_WAIT: Final = "2s"
_OTLP_METRICS_INTERVAL_MS: Final = 2_000


@dataclass
class Stage:
    """A context manager; its parts run while the block does. With `viewer` traces go on to a Zipkin."""

    folder: Path
    viewer: bool = False

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with contextlib.ExitStack() as parts:
            self.zipkin = Zipkin(self.folder / "zipkin") if self.viewer else None
            if self.zipkin is not None:
                parts.enter_context(self.zipkin.program)
            self.collector = OtelCollector(
                self.folder / "collector", zipkin_url=self.zipkin.url if self.zipkin is not None else ""
            )
            parts.enter_context(self.collector.program)
            self.cluster = LiveCluster(
                self.folder / "cluster",
                preset="2m-2s-sync",
                trace_target=self.collector.otlp_target,
                more=self._settings(),
            )
            parts.enter_context(self.cluster)
            for topic, message_type in TOPICS.items():
                self.cluster.run("topic", "create", topic, "--type", message_type, "--queues", "4")
            for group, options in GROUPS.items():
                self.cluster.run("group", "create", group, *options)
            server = PrometheusServer(
                self.folder / "prometheus", self._jobs(), hastened(chart_rules(), wait=_ALERT_WAIT)
            )
            parts.enter_context(server.program)
            self.prometheus = server.api
            self.traffic = Traffic(
                self.cluster.client_endpoints,
                otlp_target=self.collector.otlp_target,
                log=self.folder / "traffic.jsonl",
            )
            parts.enter_context(self.traffic)
            self.began_s = time.time()
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    @property
    def consistency_results(self) -> Path:
        """Where the admin service looks for runs of the consistency job."""
        return self.folder / "consistency"

    def scrape_addresses(self) -> set[str]:
        """Everything that Prometheus has to reach."""
        return {address for job in self._jobs() for address in job.targets}

    def _settings(self) -> list[str]:
        settings = [
            "metricsExporterType=PROM;OTLP_GRPC",
            f"metricsGrpcExporterTarget={self.collector.otlp_target}",
            f"metricsGrpcExporterIntervalInMills={_OTLP_METRICS_INTERVAL_MS}",
            f"admin:consistencyResults={self.consistency_results}",
            # A reading each second, as Prometheus asks each second.
            "admin:refreshInterval=1000",
        ]
        return [word for setting in settings for word in ("--set", setting)]

    def _jobs(self) -> list[ScrapeJob]:
        """The labels that the chart's ServiceMonitor and PodMonitors give."""
        jobs = []
        for kind in ("broker", "nameserver"):
            targets = {
                f"127.0.0.1:{member['ports'][METRICS_PORT]}": {"pod": f"{_RELEASE}-{member['name']}"}
                for member in self.cluster.members(kind)
            }
            jobs.append(ScrapeJob(f"{_NAMESPACE}/{_RELEASE}-{kind}", {"namespace": _NAMESPACE}, targets))
        admin = f"127.0.0.1:{self.cluster.member('admin')['ports']['httpPort']}"
        labels = {"namespace": _NAMESPACE, "service": f"{_RELEASE}-admin"}
        return [*jobs, ScrapeJob(f"{_RELEASE}-admin", labels, {admin: {}})]

"""Scrapes a process as Prometheus does, and reads the answer with Prometheus' own client library."""

from __future__ import annotations

import http.client
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from support.cluster_processes import ServiceProcess
from support.running_time import PATIENCE_S


class ScrapedMetrics:
    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: list[Any] = [
            sample
            for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with that name and those labels, 0 without any; a counter's name ends in _total."""
        return float(sum(sample.value for sample in self._matching(name, labels)))

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is such a sample."""
        return bool(self._matching(name, labels))

    def exemplars(self, name: str) -> list[dict[str, str]]:
        """Labels of a metric's exemplars."""
        return [sample.exemplar.labels for sample in self._matching(name, {}) if sample.exemplar is not None]

    def _matching(self, name: str, labels: dict[str, str]) -> list[Any]:
        return [sample for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()]


def scrape(process: ServiceProcess) -> ScrapedMetrics:
    """Asks a process of `metricsExporterType=PROM` once."""
    connection = http.client.HTTPConnection("127.0.0.1", process.ports["metricsPromExporterPort"], timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status == 200, body
        return ScrapedMetrics(body)
    finally:
        connection.close()

"""A Prometheus of our own that scrapes a cluster and judges its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.observability.prometheus_api import PrometheusApi
from e2e.programs import RunningProgram, free_port, tool

# A test sees what happens in a second, not in the 15 or 30 of an installation.
SCRAPE_INTERVAL_S: Final = 1


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """Targets (host:port) and their own labels, under the labels that a Kubernetes gives them."""

    name: str
    labels: Mapping[str, str]
    # Address to the labels of that target alone.
    targets: Mapping[str, Mapping[str, str]]


@dataclass
class PrometheusServer:
    """One server on a free port of loopback, its files in `folder`. `rules`: groups as a rule file has them."""

    folder: Path
    jobs: Sequence[ScrapeJob]
    rules: Mapping[str, Any] = field(default_factory=dict)
    api: PrometheusApi = field(init=False)
    program: RunningProgram = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rules = self.folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(dict(self.rules) or {"groups": []}, sort_keys=False), encoding="utf-8")
        configuration = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s", "evaluation_interval": f"{SCRAPE_INTERVAL_S}s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": job.name,
                    "scrape_timeout": f"{SCRAPE_INTERVAL_S}s",
                    "static_configs": [
                        {"targets": [address], "labels": {**job.labels, **labels}}
                        for address, labels in job.targets.items()
                    ],
                }
                for job in self.jobs
            ],
        }
        path = self.folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
        port = free_port()
        self.api = PrometheusApi(f"http://127.0.0.1:{port}")
        self.program = RunningProgram(
            "prometheus",
            [
                tool("prometheus.sh", "prometheus"),
                *(f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'tsdb'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"),
            ],
            folder=self.folder,
            ready_url=f"{self.api.url}/-/ready",
        )

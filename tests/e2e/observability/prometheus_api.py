"""Questions to a Prometheus: queries, targets, alerts."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.programs import fetch_json


class QueryRefused(Exception):
    """Prometheus understands the query not, or not on this data; its words."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of an instant query."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: (seconds since the epoch, value), NaN for what is not a number."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PrometheusApi:
    url: str

    def query(self, expression: str, *, at_s: float | None = None) -> list[Sample]:
        """The values at a moment, now by default. Raises QueryRefused."""
        parameters = {"query": expression} if at_s is None else {"query": expression, "time": f"{at_s:.3f}"}
        answer = self._ask("query", parameters)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def query_range(self, expression: str, *, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """The values over a time. Raises QueryRefused."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        answer = self._ask("query_range", {"query": expression, **times})
        return [
            Series(each["metric"], tuple((float(when), float(value)) for when, value in each["values"]))
            for each in answer["result"]
        ]

    def label_values(self, label: str, matching: str = "") -> list[str]:
        query = f"?{urllib.parse.urlencode({'match[]': matching})}" if matching else ""
        answer = fetch_json(f"{self.url}/api/v1/label/{label}/values{query}")
        return sorted(answer["data"])

    def exemplars(self, expression: str, *, minutes: float = 60) -> list[Mapping[str, str]]:
        """Labels of the exemplars of a query's series in the last minutes."""
        now = time.time()
        answer = self._ask("query_exemplars", {"query": expression, "start": now - 60 * minutes, "end": now})
        return [exemplar["labels"] for series in answer for exemplar in series["exemplars"]]

    def targets(self) -> dict[str, tuple[str, str]]:
        """Scrape address to health (`up`, `down`, `unknown`) and the last error."""
        answer = fetch_json(f"{self.url}/api/v1/targets?state=active")
        return {
            target["labels"]["instance"]: (target["health"], target["lastError"])
            for target in answer["data"]["activeTargets"]
        }

    def firing(self) -> dict[str, list[Mapping[str, str]]]:
        """Alerts that fire: name to the labels of each."""
        found: dict[str, list[Mapping[str, str]]] = {}
        for alert in fetch_json(f"{self.url}/api/v1/alerts")["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def broken_rules(self) -> dict[str, str]:
        """Rules that cannot be judged: name to Prometheus's words."""
        groups = fetch_json(f"{self.url}/api/v1/rules")["data"]["groups"]
        return {rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")}

    def _ask(self, endpoint: str, parameters: Mapping[str, Any]) -> Any:
        answer = fetch_json(f"{self.url}/api/v1/{endpoint}", data=urllib.parse.urlencode(parameters).encode())
        if answer["status"] != "success":
            raise QueryRefused(f"{parameters['query']}: {answer['error']}")
        return answer["data"]

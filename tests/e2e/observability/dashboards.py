"""Grafana's dashboards read as Grafana reads them: variables, panels, queries; and their figures from a Prometheus.

Only what a dashboard of ours uses is understood; anything else is refused by name, so that a dashboard which Grafana
would show differently does not pass here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.observability.prometheus_api import PrometheusApi, QueryRefused, Series

_KINDS: Final = frozenset(
    {"row", "text", "stat", "gauge", "bargauge", "timeseries", "table", "heatmap", "state-timeline"}
)
_METRIC: Final = re.compile(r"\b(?:rocketmq|tandemmq|process)_[a-z0-9_]+\b")
_LABEL_VALUES: Final = re.compile(r"^label_values\((?:(?P<metric>.+),\s*)?(?P<label>\w+)\)$", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)(?::\w+)?\}|(?P<plain>\w+))")
_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_HIDDEN_LABELS: Final = frozenset({"__name__", "instance", "job", "namespace", "service", "pod"})


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    expression: str
    legend: str
    is_instant: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel at its place in Grafana's grid of 24 columns."""

    title: str
    kind: str
    description: str
    x: int
    y: int
    width: int
    height: int
    unit: str
    targets: tuple[Target, ...]
    # fieldConfig.defaults and options as they are.
    defaults: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a panel, with its name in the legend."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float | None:
        """The last value that is a number: what Grafana's stat shows."""
        return next((value for _, value in reversed(self.points) if not math.isnan(value)), None)


@dataclass(frozen=True, slots=True)
class FilledPanel:
    """A panel with its figures, and what is wrong with its queries."""

    panel: Panel
    curves: tuple[Curve, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[Mapping[str, Any], ...] = field(repr=False)

    def fill(
        self, prometheus: PrometheusApi, *, start_s: float, end_s: float, choice: Mapping[str, str] | None = None
    ) -> list[FilledPanel]:
        """Every panel with its figures between the two times; `choice` sets variables, the others have their first."""
        step_s = max(1.0, round((end_s - start_s) / 240))
        # Grafana's: four scrapes at least.
        values = {"__rate_interval": f"{max(5, int(4 * step_s))}s", "__interval": f"{int(step_s)}s"}
        values["__range"] = f"{int(end_s - start_s)}s"
        for variable in self.variables:
            name = variable["name"]
            values[name] = (choice or {}).get(name) or _variable_value(variable, values, prometheus)
        return [
            _filled(panel, values, prometheus, start_s=start_s, end_s=end_s, step_s=step_s) for panel in self.panels
        ]


def read_dashboard(path: Path) -> Dashboard:
    """A dashboard's file. ValueError for what is not understood."""
    model = json.loads(path.read_text(encoding="utf-8"))
    known = {variable["name"] for variable in model["templating"]["list"]}
    panels = tuple(_panel(each) for each in _flat(model["panels"]))
    for panel in panels:
        if panel.kind not in _KINDS:
            raise ValueError(f"{path.name}: {panel.title}: a panel of kind {panel.kind}")
        if panel.kind not in ("row", "text") and not panel.targets:
            raise ValueError(f"{path.name}: {panel.title}: no query")
        for target in panel.targets:
            unknown = {name for name in _variables_in(target.expression) if not name.startswith("__")} - known
            if unknown:
                raise ValueError(f"{path.name}: {panel.title}: unknown variables {', '.join(sorted(unknown))}")
    return Dashboard(path.stem, model["title"], panels, tuple(model["templating"]["list"]))


def metric_names(expression: str) -> set[str]:
    """Names of our metrics in a query, histograms with their suffix."""
    # Not what stands in quotes: a label's value may look like a metric.
    return set(_METRIC.findall(re.sub(r'"[^"]*"', '""', expression)))


def _flat(panels: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for panel in panels:
        yield panel
        # A collapsed row holds its panels.
        yield from panel.get("panels", ())


def _panel(model: Mapping[str, Any]) -> Panel:
    place = model["gridPos"]
    defaults = model.get("fieldConfig", {}).get("defaults", {})
    return Panel(
        title=model.get("title", ""),
        kind=model["type"],
        description=model.get("description", ""),
        x=place["x"],
        y=place["y"],
        width=place["w"],
        height=place["h"],
        unit=defaults.get("unit", "short"),
        targets=tuple(
            Target(target["expr"], target.get("legendFormat", ""), bool(target.get("instant")))
            for target in model.get("targets", ())
        ),
        defaults=defaults,
        options=model.get("options", {}),
    )


def _variables_in(text: str) -> set[str]:
    return {found["braced"] or found["plain"] for found in _VARIABLE.finditer(text)}


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values[found["braced"] or found["plain"]], text)


def _variable_value(variable: Mapping[str, Any], values: Mapping[str, str], prometheus: PrometheusApi) -> str:
    kind = variable["type"]
    if kind == "datasource":
        return "prometheus"
    if kind in ("constant", "textbox"):
        return str(variable["query"])
    if kind in ("custom", "interval"):
        return str(variable["query"]).split(",")[0].strip()
    if kind != "query":
        raise ValueError(f"variable {variable['name']}: of type {kind}")
    query = variable["query"]
    found = _LABEL_VALUES.match((query["query"] if isinstance(query, Mapping) else query).strip())
    if found is None:
        raise ValueError(f"variable {variable['name']}: {query}")
    known = prometheus.label_values(found["label"], _expanded(found["metric"] or "", values))
    if variable.get("includeAll"):
        return str(variable.get("allValue") or "|".join(known) or ".*")
    return known[0] if known else ""


def _filled(
    panel: Panel,
    values: Mapping[str, str],
    prometheus: PrometheusApi,
    *,
    start_s: float,
    end_s: float,
    step_s: float,
) -> FilledPanel:
    curves: list[Curve] = []
    problems: list[str] = []
    for target in panel.targets:
        expression = _expanded(target.expression, values)
        try:
            if target.is_instant:
                samples = prometheus.query(expression, at_s=end_s)
                found = [Series(sample.labels, ((end_s, sample.value),)) for sample in samples]
            else:
                found = prometheus.query_range(expression, start_s=start_s, end_s=end_s, step_s=step_s)
        except QueryRefused as error:
            problems.append(str(error))
            continue
        if not found:
            problems.append(f"nothing answers {expression}")
        curves += [Curve(_legend(target.legend, each.labels), each.labels, each.points) for each in found]
    return FilledPanel(panel, tuple(curves), tuple(problems))


def _legend(template: str, labels: Mapping[str, str]) -> str:
    if template and template != "__auto":
        return _LEGEND.sub(lambda found: labels.get(found[1], ""), template)
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _HIDDEN_LABELS) or "value"

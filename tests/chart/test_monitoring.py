"""Alerts and dashboards ask for what is told, say what they mean, and lead to what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from chart.rendering import CHART, ROOT, render
from tandemmq.admin.metrics import METRICS
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.nameserver.name_server import NAME_SERVER_METRICS
from tandemmq.service.metrics import PROCESS_METRICS, MetricKind

Object = dict[str, Any]

# Of targets, by whoever scrapes them.
_TARGET_LABELS = {"namespace", "service", "pod", "instance", "job"}
_RUNBOOK = ROOT / "docs" / "operations" / "what-to-do-when.md"
_SELECTOR = re.compile(r"\b((?:rocketmq|tandemmq|process)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left) ?\(([^)]*)\)")

DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))}
each_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def _told() -> dict[str, set[str]]:
    """Labels of everything that can be asked for."""
    found: dict[str, set[str]] = {}
    for metric in (*METRICS, *BROKER_METRICS, *NAME_SERVER_METRICS, *PROCESS_METRICS):
        labels = {*metric.labels, *_TARGET_LABELS}
        if metric.kind is MetricKind.HISTOGRAM:
            found |= {f"{metric.name}_sum": labels, f"{metric.name}_count": labels}
            found[f"{metric.name}_bucket"] = {*labels, "le"}
        else:
            found[metric.name] = labels
    return found


TOLD = _told()


def _problems(query: str) -> Iterator[str]:
    """What a query asks for that nobody tells."""
    asked = set()
    for name, selector in _SELECTOR.findall(query):
        if name not in TOLD:
            yield f"there is no metric {name}"
            continue
        asked |= TOLD[name]
        strange = set(re.findall(r'(\w+)(?:=|!=|=~|!~)"', selector)) - TOLD[name]
        if strange:
            yield f"{name} has no label {', '.join(strange)}"
    for grouping in _GROUPING.findall(query):
        strange = {label.strip() for label in grouping.split(",")} - asked
        if strange:
            yield f"nothing here has a label {', '.join(strange)}"


def _alerts(*arguments: str) -> list[Object]:
    rendered = render("--set", "monitoring.prometheusRule.enabled=true,consistency.enabled=true", *arguments)
    (rule,) = rendered.kind("PrometheusRule").values()
    (group,) = rule["spec"]["groups"]
    alerts: list[Object] = group["rules"]
    return alerts


def _panels(name: str) -> list[Object]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def _anchors() -> set[str]:
    headings = re.findall(r"^## (.+)$", _RUNBOOK.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_alerts_and_dashboards_are_options() -> None:
    assert not render().kind("PrometheusRule")
    assert not [name for name in render().kind("ConfigMap") if "dashboard" in name]
    rendered = render("--set", "monitoring.dashboards.enabled=true,monitoring.runbookUrl=https://docs/what")
    for name in ("cluster", "replication", "consumers"):
        dashboard = rendered.one("ConfigMap", f"mq-dashboard-{name}")
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        text = dashboard["data"][f"tandemmq-{name}.json"]
        assert json.loads(text)["uid"] == f"tandemmq-{name}"
        assert '"query": "https://docs/what"' in text


def test_alerts_ask_for_this_release_and_what_is_told() -> None:
    alerts = _alerts()
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 20
    for alert in alerts:
        assert list(_problems(alert["expr"])) == [], alert["alert"]
        for _, selector in _SELECTOR.findall(alert["expr"]):
            assert 'namespace="ns",' in selector, alert["alert"]
            assert 'cluster="DefaultCluster"' in selector or 'service="mq-admin"' in selector, alert["alert"]


def test_what_an_alert_says_is_in_what_it_asks_for() -> None:
    for alert in _alerts():
        named = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
        (first, *_) = _SELECTOR.findall(alert["expr"])
        left = {label.strip() for label in "".join(_GROUPING.findall(alert["expr"])[:1]).split(",")} - {""}
        assert named <= (left or TOLD[first[0]]), alert["alert"]
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_alert_leads_to_a_section_of_the_runbook() -> None:
    anchors = _anchors()
    for alert in _alerts("--set", "monitoring.runbookUrl=https://docs/what"):
        address, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert address == "https://docs/what"
        assert anchor in anchors, alert["alert"]


def test_limits_of_alerts_are_values() -> None:
    limits = "lagBytesMax=1000000000,lagSecondsMax=5,sendSecondsMax=0.25,diskMarginRatio=0.1"
    arguments = [f"monitoring.prometheusRule.{limit}" for limit in limits.split(",")]
    asked = {alert["alert"]: alert["expr"] for alert in _alerts("--set", ",".join(arguments))}
    assert asked["TandemMQReplicationLag"].endswith("> 1000000000")
    assert asked["TandemMQReplicationLagGrows"].endswith("> 250000000")
    assert asked["TandemMQReplicationDelay"].endswith("> 5")
    assert asked["TandemMQSendsSlow"].endswith("> 0.25")
    assert asked["TandemMQDiskNearWatermark"].endswith("- 0.1")


def test_without_the_consistency_job_nobody_misses_it() -> None:
    names = {alert["alert"] for alert in _alerts("--set", "consistency.enabled=false")}
    assert not [name for name in names if "Diverged" in name or "NotProven" in name or "Consistency" in name]


@each_dashboard
def test_a_dashboard_asks_for_what_is_told(name: str) -> None:
    queries = [target["expr"] for panel in _panels(name) for target in panel["targets"]]
    queries += [each["expr"] for each in DASHBOARDS[name]["annotations"]["list"]]
    queries += [each["query"]["query"] for each in DASHBOARDS[name]["templating"]["list"] if each["type"] == "query"]
    assert len(queries) > 20
    assert [f"{problem} in {query}" for query in queries for problem in _problems(query)] == []


@each_dashboard
def test_a_panel_says_what_it_means_in_which_unit(name: str) -> None:
    for panel in _panels(name):
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


@each_dashboard
def test_a_legend_names_labels_that_are_left(name: str) -> None:
    for panel in _panels(name):
        for target in panel["targets"]:
            left = {label.strip() for each in _GROUPING.findall(target["expr"]) for label in each.split(",")}
            left = left or set().union(*(TOLD[metric] for metric, _ in _SELECTOR.findall(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, panel["title"]


@each_dashboard
def test_a_panel_leads_to_a_section_of_the_runbook(name: str) -> None:
    for panel in _panels(name):
        for link in panel["links"]:
            address, _, anchor = link["url"].partition("#")
            assert address == "${runbook}"
            assert anchor in _anchors(), panel["title"]


@each_dashboard
def test_every_variable_that_is_asked_for_is_there(name: str) -> None:
    dashboard = DASHBOARDS[name]
    known = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(dashboard["panels"])))
    assert used <= known
    # Grafana's own begin with two underscores.
    assert known <= used | set(re.findall(r"\$\{?([a-z]+)", json.dumps(dashboard["templating"])))


@each_dashboard
def test_panels_lie_beside_each_other(name: str) -> None:
    dashboard = DASHBOARDS[name]
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    taken: set[tuple[int, int]] = set()
    for place in places:
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(before["y"] <= after["y"] for before, after in pairwise(places))


def test_dashboards_find_each_other() -> None:
    assert (
        len({each["uid"] for each in DASHBOARDS.values()}) == len({each["title"] for each in DASHBOARDS.values()}) == 3
    )
    for dashboard in DASHBOARDS.values():
        assert dashboard["tags"] == ["tandemmq"]
        assert "tandemmq" in dashboard["links"][0]["tags"]

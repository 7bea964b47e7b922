"""Makes charts/tandemmq/dashboards/*.json for Grafana from deploy/dashboards/*.yaml.

    python tools/dashboards.py           # writes them
    python tools/dashboards.py --check   # exit code 1 if that would change one

A dashboard in YAML is what one decides about it: rows that are questions, and for each panel its title, what it means
(`means`), its unit, its queries by legend (`ask`), from which value on it is worth a look or bad (`yellow`, `red`), and
the section of docs/operations/what-to-do-when.md that helps (`runbook`). The rest is Grafana's and the same everywhere.
In queries `@brokers` selects the chosen brokers, `@cluster` all of the chosen cluster, `@admin` what the admin service
tells, `@consumers` what the chosen consumer groups do with the chosen topics.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "deploy" / "dashboards"
DASHBOARDS: Final = ROOT / "charts" / "tandemmq" / "dashboards"
# The chart puts monitoring.runbookUrl in its place.
RUNBOOK: Final = "docs/operations/what-to-do-when.md"
_CLUSTER: Final = 'namespace=~"$namespace",cluster=~"$cluster"'
_SELECTORS: Final = {
    "@brokers": f'{_CLUSTER},node_id=~"$group"',
    "@consumers": f'{_CLUSTER},consumer_group=~"$consumers",topic=~"$topic"',
    "@cluster": _CLUSTER,
    "@admin": 'namespace=~"$namespace"',
}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_SIZES: Final = {"stat": (4, 4), "timeseries": (8, 8), "state-timeline": (12, 8), "heatmap": (12, 8)}
_SIZES_ELSE: Final = (12, 8)

Object = dict[str, Any]


def dashboard(text: str) -> Object:
    source = yaml.safe_load(text)
    return {
        "title": source["title"],
        "uid": source["uid"],
        "description": source["question"],
        "tags": ["tandemmq"],
        "timezone": "browser",
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "links": _links(),
        "annotations": {"list": [_starts()]},
        "templating": {"list": list(_variables(source.get("variables", [])))},
        "panels": list(_panels(source["rows"])),
    }


def _links() -> list[Object]:
    others = {"type": "dashboards", "title": "TandemMQ", "tags": ["tandemmq"], "asDropdown": False}
    runbook = {"type": "link", "title": "What to do when", "url": "${runbook}", "icon": "doc", "targetBlank": True}
    return [{**others, "includeVars": True, "keepTime": True}, runbook]


def _starts() -> Object:
    """A mark where a broker started: most jumps are explained by one."""
    return {
        "name": "Starts of brokers",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": _expanded("rocketmq_broker_uptime_seconds{@cluster} < 20"),
        "titleFormat": "{{node_id}}:{{broker_id}} started",
        "step": "15s",
    }


def _variables(more: list[str]) -> Iterator[Object]:
    yield {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}
    # All of them also means: without such a label.
    yield _variable("namespace", "namespace", "rocketmq_broker_info", "namespace", every=".*")
    where = 'rocketmq_broker_info{namespace=~"$namespace"}'
    yield {**_variable("cluster", "cluster", where, "cluster"), "includeAll": False, "multi": False}
    if "group" in more:
        yield _variable("group", "broker group", f"rocketmq_broker_info{{{_CLUSTER}}}", "node_id", every=".*")
    if "consumers" in more:
        where = f"rocketmq_consumer_lag_messages{{{_CLUSTER}}}"
        yield _variable("consumers", "consumer group", where, "consumer_group", every=".*")
        yield _variable("topic", "topic", f"rocketmq_messages_in_total{{{_CLUSTER}}}", "topic", every=".*")
    yield {"name": "runbook", "type": "constant", "hide": 2, "query": RUNBOOK}


def _variable(name: str, label: str, metric: str, values: str, *, every: str = "") -> Object:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {values})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": every,
        "current": {"text": ["All"], "value": ["$__all"]} if every else {},
    }


def _panels(rows: list[Object]) -> Iterator[Object]:
    number = y = 0
    for row in rows:
        number += 1
        position = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
        yield {
            "id": number,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "panels": [],
            "gridPos": position,
        }
        y += 1
        x = line_height = 0
        for panel in row["panels"]:
            number += 1
            width, height = _SIZES.get(_kind(panel), _SIZES_ELSE)
            width, height = panel.get("width", width), panel.get("height", height)
            if x + width > _COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            yield _panel(panel, number, {"h": height, "w": width, "x": x, "y": y})
            x, line_height = x + width, max(line_height, height)
        y += line_height


def _kind(panel: Object) -> str:
    kind: str = panel.get("kind", "timeseries")
    return kind


def _panel(panel: Object, number: int, position: Object) -> Object:
    kind = _kind(panel)
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["means"],
        "datasource": _SOURCE,
        "gridPos": position,
        "targets": list(_targets(panel)),
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _OPTIONS[kind],
        "links": [{"title": "What to do", "url": f"${{runbook}}#{panel['runbook']}", "targetBlank": True}]
        if "runbook" in panel
        else [],
    }


def _targets(panel: Object) -> Iterator[Object]:
    now = _kind(panel) in ("stat", "bargauge", "table")
    for place, (legend, query) in enumerate(panel["ask"].items()):
        target = {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": _expanded(query),
            "legendFormat": legend,
            "editorMode": "code",
            "instant": now,
            "range": not now,
        }
        if _kind(panel) == "heatmap":
            target["format"] = "heatmap"
        if panel.get("exemplars"):
            target["exemplar"] = True
        yield target


def _expanded(query: str) -> str:
    for name, selector in _SELECTORS.items():
        query = query.replace(name, selector)
    return " ".join(query.split())


def _field(panel: Object) -> Object:
    field: Object = {"unit": panel["unit"], "custom": {}}
    for key in ("min", "max", "decimals"):
        if key in panel:
            field[key] = panel[key]
    steps = [{"color": panel.get("calm", "green"), "value": None}]
    steps += [{"color": color, "value": panel[color]} for color in ("yellow", "red") if color in panel]
    # Where less is worse, the colours are given from the lowest value on.
    steps += [{"color": color, "value": value} for color, value in panel.get("above", {}).items()]
    field["thresholds"] = {"mode": "absolute", "steps": steps}
    if "states" in panel:
        options = {str(value): {"text": text, "color": color} for value, (text, color) in panel["states"].items()}
        field["mappings"] = [{"type": "value", "options": options}]
    if _kind(panel) == "timeseries":
        field["color"] = {"mode": "palette-classic"}
        field["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 25 if panel.get("stacked") else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.get("stacked") else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        }
    else:
        field["color"] = {"mode": "thresholds"}
    return field


_LEGEND: Final = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True}
_NEWEST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[str, Object]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"colorMode": "background", "graphMode": "none", "textMode": "auto", "reduceOptions": _NEWEST},
    "bargauge": {
        "displayMode": "basic",
        "orientation": "horizontal",
        "valueMode": "color",
        "reduceOptions": _NEWEST,
    },
    "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}},
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "exponent": 0.5, "reverse": True},
        "yAxis": {"unit": "s"},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
        "cellGap": 1,
    },
}


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = []
    for source in sorted(SOURCES.glob("*.yaml")):
        path = DASHBOARDS / f"{source.stem}.json"
        fresh = json.dumps(dashboard(source.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"
        if check and (not path.exists() or path.read_text(encoding="utf-8") != fresh):
            stale.append(path.name)
        if not check:
            path.write_text(fresh, encoding="utf-8")
    for name in stale:
        print(f"charts/tandemmq/dashboards/{name} is not of today's source; run python tools/dashboards.py")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())

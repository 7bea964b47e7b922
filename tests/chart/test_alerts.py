"""Every alert fires when it should, is quiet before, and ends: judged by Prometheus's own promtool on made-up series.

The series are in alerts.yaml. An alert without a case fails the first test, so none is added untested.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from chart.promtool import run_promtool
from chart.rendering import render

_CASES: Final = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text(encoding="utf-8"))
# Who tells a series, and with which labels it reaches Prometheus.
_LABELS: Final = {
    "broker": {
        "namespace": "ns",
        "job": "ns/mq-broker",
        "pod": "mq-broker-a-0",
        "cluster": "DefaultCluster",
        "node_type": "broker",
        "node_id": "broker-a",
        "broker_id": "0",
    },
    "admin": {"namespace": "ns", "job": "mq-admin", "service": "mq-admin"},
}


@functools.cache
def _rules() -> dict[str, Any]:
    """Every alert the chart knows, of release `mq` in namespace `ns`."""
    options = ("--set", "monitoring.prometheusRule.enabled=true", "--set", "consistency.enabled=true")
    (rule,) = render(*options, preset="2m-2s-sync").kind("PrometheusRule").values()
    spec: dict[str, Any] = rule["spec"]
    return spec


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in _rules()["groups"] for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_a_case() -> None:
    names = [rule["alert"] for rule in _alerts()]
    assert sorted(names) == sorted({case["alert"] for case in _CASES})


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(_rules()), encoding="utf-8")
    code, words = run_promtool("check", "rules", "--lint=all", str(path))
    assert code == 0, words


@pytest.mark.parametrize("case", _CASES, ids=[f"{case['alert']}-{case['when'].replace(' ', '-')}" for case in _CASES])
def test_alert(case: dict[str, Any], tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(_judged(case["alert"])), encoding="utf-8")
    moments: list[tuple[str, list[dict[str, Any]]]] = [(at, []) for at in case.get("quiet", ())]
    moments += [(fires["at"], _expected(case, fires["each"])) for fires in case.get("fires", ())]
    unit = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": _labelled(series, _LABELS[case["of"]]), "values": values}
                    for series, values in case["series"].items()
                ],
                "alert_rule_test": [
                    {"alertname": case["alert"], "eval_time": at, "exp_alerts": expected} for at, expected in moments
                ],
            }
        ],
    }
    path = tmp_path / "unit.yaml"
    path.write_text(yaml.safe_dump(unit), encoding="utf-8")
    code, words = run_promtool("test", "rules", str(path))
    assert code == 0, words


def _judged(alert: str) -> dict[str, Any]:
    """The rules with the one alert, its summary the only annotation: promtool compares them all word by word."""
    groups = []
    for group in _rules()["groups"]:
        rules: list[dict[str, Any]] = []
        for rule in group["rules"]:
            if rule.get("alert") == alert:
                rules.append({**rule, "annotations": {"summary": rule["annotations"]["summary"]}})
            elif "alert" not in rule:
                rules.append(rule)
        groups.append({**group, "rules": rules})
    return {"groups": groups}


def _expected(case: dict[str, Any], each: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    (rule,) = (rule for rule in _alerts() if rule["alert"] == case["alert"])
    return [
        {
            "exp_labels": {**rule["labels"], **(one.get("labels") or {**_LABELS[case["of"]], **one.get("more", {})})},
            "exp_annotations": {"summary": one["summary"]},
        }
        for one in each
    ]


def _labelled(series: str, labels: dict[str, str]) -> str:
    name, _, more = series.rstrip("}").partition("{")
    every = [*(f"{key}={json.dumps(value)}" for key, value in labels.items()), *filter(None, [more])]
    return f"{name}{{{','.join(every)}}}"

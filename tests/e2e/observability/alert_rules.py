"""The chart's alert rules, as it renders them, for a Prometheus without an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chart.rendering import render

_OPTIONS: Final = (
    *("--set", "monitoring.prometheusRule.enabled=true"),
    *("--set", "consistency.enabled=true"),
)


def chart_rules() -> dict[str, Any]:
    """The rule groups of release `mq` in namespace `ns`, with every alert that the chart knows."""
    rendered = render(*_OPTIONS, preset="2m-2s-sync")
    (rule,) = rendered.kind("PrometheusRule").values()
    spec: dict[str, Any] = rule["spec"]
    return spec


def hastened(rules: Mapping[str, Any], *, wait: str) -> dict[str, Any]:
    """The same rules, but each alert fires after `wait` instead of its own `for`."""
    groups = [
        {
            **{key: value for key, value in group.items() if key != "interval"},
            "rules": [{**rule, "for": wait} if "alert" in rule else rule for rule in group["rules"]],
        }
        for group in rules["groups"]
    ]
    return {"groups": groups}

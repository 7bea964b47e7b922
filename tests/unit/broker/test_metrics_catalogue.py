"""The list of metrics keeps its own rules, and the documentation has it whole."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tandemmq.broker.metrics_catalogue import BASE_LABELS, BROKER_METRICS
from tandemmq.nameserver.name_server import NAME_SERVER_METRICS
from tandemmq.service.metrics import MetricInfo, MetricKind

ROOT = Path(__file__).resolve().parents[3]
ALL = (*BROKER_METRICS, *NAME_SERVER_METRICS)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_metric_has_a_good_name_and_says_what_it_is(metric: MetricInfo) -> None:
    assert re.fullmatch(r"rocketmq_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.meaning.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)


def test_each_metric_of_a_broker_says_whose_it_is() -> None:
    assert all(tuple(metric.labels[:4]) == BASE_LABELS for metric in BROKER_METRICS)


def test_no_name_is_given_twice() -> None:
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names)


def test_the_documentation_has_the_metrics_of_today() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "metrics_table.py"))
    document = tool["DOCUMENT"].read_text(encoding="utf-8")
    assert tool["renewed"](document) == document, "run python tools/metrics_table.py"

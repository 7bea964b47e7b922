"""The stage, once for all tests, and the tools before any test's limit of time runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.observability.dashboard_pages import plotly_script
from e2e.observability.stage import Stage
from e2e.programs import ROOT, tool

FOLDER = ROOT / "build" / "e2e-observability"
FIGURES = ROOT / "build" / "e2e-observability-figures.json"

Note = Callable[[str, float, str], None]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prometheus, the collector and Plotly; on a new machine this fetches and builds them."""
    tool("prometheus.sh", "prometheus")
    tool("otel_collector.sh")
    plotly_script()


@pytest.fixture(scope="session")
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Where pictures go, if any are wanted."""
    folder = request.config.getoption("--pictures")
    return Path(folder).resolve() if folder else None


@pytest.fixture(scope="session")
def stage(pictures: Path | None) -> Iterator[Stage]:
    """The whole stage, running."""
    with Stage(FOLDER, viewer=pictures is not None) as running:
        yield running


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    """Takes a figure for the report: its name, value and unit."""
    figures: list[dict[str, object]] = []
    yield lambda name, value, unit: figures.append({"name": name, "value": value, "unit": unit})
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

"""The stage and the browser, once for all tests; the order of the tests; the figures for the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

from e2e.admin.console import Console, open_console
from e2e.admin.stage import Stage
from e2e.chromium import chromium
from e2e.programs import ROOT

FOLDER: Final = ROOT / "build" / "e2e-admin"
FIGURES: Final = ROOT / "build" / "e2e-admin-figures.json"
# What kills brokers comes after what looks at a whole cluster; the many topics stay until the end.
_ORDER: Final = (
    "test_twenty_tasks",
    "test_pages",
    "test_who_may",
    "test_behind_a_proxy",
    "test_half_a_cluster",
    "test_many_topics",
)

Note = Callable[[str, float, str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules in that order, tests in that of their module."""
    items.sort(key=lambda item: _ORDER.index(item.path.stem))


@pytest.fixture(scope="session")
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Where pictures go, if any are wanted."""
    folder = request.config.getoption("--pictures")
    return Path(folder).resolve() if folder else None


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The cluster, running and busy."""
    with Stage(FOLDER) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def console(stage: Stage, browser: Browser) -> Iterator[Console]:
    """The console at its usual width."""
    with open_console(browser, stage.cluster.admin_url) as opened:
        yield opened
        assert opened.faults == []


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    """Takes a figure for the report: its name, value and unit."""
    figures: list[dict[str, object]] = []
    yield lambda name, value, unit: figures.append({"name": name, "value": value, "unit": unit})
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

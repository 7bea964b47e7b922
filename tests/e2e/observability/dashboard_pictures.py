"""Pictures of the chart's dashboards from a Prometheus, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.observability.browser import picture
from e2e.observability.dashboard_pages import dashboard_page
from e2e.observability.dashboards import read_dashboard
from e2e.observability.prometheus_api import PrometheusApi

_WIDTH_PX = 1400


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of the dashboards."""

    panel_count: int
    # Each names the dashboard, the panel and the query.
    problems: tuple[str, ...]


def draw_dashboards(
    paths: Sequence[Path],
    prometheus: PrometheusApi,
    *,
    start_s: float,
    end_s: float,
    subtitle: str,
    pages: Path,
    pictures: Path | None,
) -> Drawn:
    """Fills every panel; pages go into one folder, and pictures into another if they are wanted.

    A query that Prometheus refuses or answers with nothing is a problem, as Grafana's "No data" is to who looks at it.
    """
    problems: list[str] = []
    panel_count = 0
    for path in paths:
        dashboard = read_dashboard(path)
        filled = dashboard.fill(prometheus, start_s=start_s, end_s=end_s)
        panel_count += sum(1 for each in filled if each.panel.kind != "row")
        problems += [f"{path.name}: {each.panel.title}: {problem}" for each in filled for problem in each.problems]
        text, height = dashboard_page(dashboard.title, subtitle, filled)
        page = pages / f"{path.stem}.html"
        page.write_text(text, encoding="utf-8")
        if pictures is not None:
            picture(page.as_uri(), pictures / f"dashboard-{path.stem}.png", width=_WIDTH_PX, height=height)
    return Drawn(panel_count, tuple(problems))

"""Pictures of the chart's dashboards with the figures of a Prometheus, much as Grafana shows them.

    python tools/dashboard_pictures.py --prometheus http://127.0.0.1:9090 --minutes 30 --out build/pictures

For whoever changes a dashboard and has no Grafana at hand: the same queries, laid out on the same grid. Exit code 1
when a query is refused or answered with nothing, by name. `tandemmq up --tracing` writes a configuration for it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from e2e.observability.dashboard_pictures import draw_dashboards
from e2e.observability.prometheus_api import PrometheusApi

DASHBOARDS: Final = ROOT / "charts" / "tandemmq" / "dashboards"


def main() -> int:
    """Draws what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dashboards", nargs="*", type=Path, help=f"default: all of {DASHBOARDS.relative_to(ROOT)}")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--minutes", type=float, default=30, help="how far back the panels reach")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dashboards", metavar="DIR")
    arguments = parser.parse_args()
    folder: Path = arguments.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    drawn = draw_dashboards(
        arguments.dashboards or sorted(DASHBOARDS.glob("*.json")),
        PrometheusApi(arguments.prometheus.rstrip("/")),
        start_s=now_s - 60 * arguments.minutes,
        end_s=now_s,
        subtitle=arguments.prometheus,
        pages=folder,
        pictures=folder,
    )
    for problem in drawn.problems:
        print(problem, file=sys.stderr)
    print(f"{drawn.panel_count} panels in {folder}, {len(drawn.problems)} problems")
    return 1 if drawn.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

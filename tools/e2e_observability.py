"""Traces, metrics, alerts and dashboards of a live cluster, seen by Prometheus and an OpenTelemetry Collector.

    make e2e-observability                # build/e2e-observability.json
    make e2e-observability PICTURES=1     # pictures of the dashboards and of one send's trace, into docs/pictures

Gets what it needs (Prometheus, the collector, for pictures also Zipkin and Chromium) below build/tools. The tests are
in tests/e2e/observability; their figures and one row for each test go into the report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"
JUNIT: Final = BUILD / "test-e2e-observability.xml"
FIGURES: Final = BUILD / "e2e-observability-figures.json"
PICTURES: Final = ROOT / "docs" / "pictures"


def main() -> int:
    """Runs the tests and writes the report; exit code 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true", help=f"make the pictures of {PICTURES.relative_to(ROOT)}")
    arguments = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    for old in (JUNIT, FIGURES):
        old.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "tests/e2e/observability", f"--junitxml={JUNIT}"]
    code = subprocess.call([*command, *([f"--pictures={PICTURES}"] if arguments.pictures else [])], cwd=ROOT)
    rows = [*_tests(), *_figures()]
    rows.append(_row("e2e_observability_time", round(time.monotonic() - started, 1), "s"))
    report = BUILD / "e2e-observability.json"
    report.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    passed = sum(row["target"] == "passes" and row["holds"] is True for row in rows)
    failed = sum(row["holds"] is False for row in rows)
    print(f"written: {report.relative_to(ROOT)}\n{passed} passed, {failed} failed")
    return 0 if code == 0 and passed and not failed else 1


def _tests() -> list[dict[str, object]]:
    if not JUNIT.exists():
        return [_row("tests", "broke off", "", target="passes", holds=False)]
    rows = []
    for case in ElementTree.parse(JUNIT).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        value = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        target = None if value == "skipped" else "passes"
        rows.append(_row(case.get("name", ""), value, "", target=target, holds=not failed))
    return rows


def _figures() -> list[dict[str, object]]:
    if not FIGURES.exists():
        return []
    return [_row(each["name"], each["value"], each["unit"]) for each in json.loads(FIGURES.read_text())]


def _row(name: str, value: object, unit: str, *, target: str | None = None, holds: bool = True) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


if __name__ == "__main__":
    raise SystemExit(main())

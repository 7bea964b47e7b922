"""Runs one suite of end-to-end tests that needs more than CI has, and writes what came of each test and its figures.

    make e2e-observability                # traces, metrics, alerts, dashboards: build/e2e-observability.json
    make e2e-admin                        # the console in a browser and the command line: build/e2e-admin.json
    make e2e-admin PICTURES=1             # pictures of what is seen, too, into docs/pictures

The tests are in tests/e2e/<suite>, which gets what it needs (Prometheus, a browser) itself.
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
SUITES: Final = ("admin", "observability")
PICTURES: Final = ROOT / "docs" / "pictures"


def main() -> int:
    """Runs the tests and writes the report; exit code 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--pictures", action="store_true", help=f"make the pictures of {PICTURES.relative_to(ROOT)}")
    arguments = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    suite: str = arguments.suite
    junit, figures = BUILD / f"test-e2e-{suite}.xml", BUILD / f"e2e-{suite}-figures.json"
    for old in (junit, figures):
        old.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", f"tests/e2e/{suite}", f"--junitxml={junit}"]
    code = subprocess.call([*command, *([f"--pictures={PICTURES}"] if arguments.pictures else [])], cwd=ROOT)
    rows = [*_tests(junit), *_figures(figures)]
    rows.append(_row(f"e2e_{suite}_time", round(time.monotonic() - started, 1), "s"))
    report = BUILD / f"e2e-{suite}.json"
    report.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    passed = sum(row["target"] == "passes" and row["holds"] is True for row in rows)
    failed = sum(row["holds"] is False for row in rows)
    print(f"written: {report.relative_to(ROOT)}\n{passed} passed, {failed} failed")
    return 0 if code == 0 and passed and not failed else 1


def _tests(junit: Path) -> list[dict[str, object]]:
    if not junit.exists():
        return [_row("tests", "broke off", "", target="passes", holds=False)]
    rows = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        value = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        target = None if value == "skipped" else "passes"
        rows.append(_row(case.get("name", ""), value, "", target=target, holds=not failed))
    return rows


def _figures(figures: Path) -> list[dict[str, object]]:
    if not figures.exists():
        return []
    return [_row(each["name"], each["value"], each["unit"]) for each in json.loads(figures.read_text())]


def _row(name: str, value: object, unit: str, *, target: str | None = None, holds: bool = True) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


if __name__ == "__main__":
    raise SystemExit(main())

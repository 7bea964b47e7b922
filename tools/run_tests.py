"""Runs test folders in order of cost, stops at the first that fails, and writes build/<report>.json.

    python tools/run_tests.py                                            # everything CI runs: build/test.json
    python tools/run_tests.py --report conformance contract/client_api   # some folders: build/conformance.json

Each folder is one pytest run of its own: unit tests use all cores, tests with real processes run one by one so that
they do not starve each other. The last line is the sum in the form `N passed, N failed`.
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

# Folder and the extra arguments of its run.
SUITES: Final = (
    ("unit", ("-n", "2")),
    ("contract", ("-n", "2")),
    ("attack", ("-n", "2")),
    ("simulation", ()),
    ("integration", ()),
    ("e2e/official_python", ()),
)


def run_suite(folder: str, arguments: tuple[str, ...]) -> tuple[dict[str, int], float, int]:
    """Runs one folder; returns its counts, seconds and pytest's exit code."""
    report = BUILD / f"test-{folder.replace('/', '-')}.xml"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    print(f"== tests/{folder}", flush=True)
    code = subprocess.call(
        [sys.executable, "-m", "pytest", "-q", f"tests/{folder}", f"--junitxml={report}", *arguments], cwd=ROOT
    )
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            counts["passed"] += total - failed - skipped
            counts["failed"] += failed
            counts["skipped"] += skipped
    if code not in (0, 5) and counts["failed"] == 0:
        counts["failed"] = 1  # pytest itself broke: a crash or a collection error is no pass
    return counts, time.monotonic() - started, code


def main() -> int:
    """Runs the suites that exist; exit code 1 when anything failed or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders below tests/; default: all")
    parser.add_argument("--report", default="test", help="name of the report in build/")
    arguments = parser.parse_args()
    known = dict(SUITES)
    suites = [(folder, known.get(folder, ())) for folder in arguments.folders] or list(SUITES)
    BUILD.mkdir(exist_ok=True)
    rows: list[dict[str, object]] = []
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for folder, options in suites:
        if not (ROOT / "tests" / folder).is_dir():
            continue
        counts, seconds, _ = run_suite(folder, options)
        for key, value in counts.items():
            total[key] += value
        name = folder.replace("/", "_")
        rows.append(
            {
                "name": f"{name}_passed",
                "value": counts["passed"],
                "unit": "tests",
                "target": ">= 1",
                "holds": counts["passed"] >= 1,
            }
        )
        rows.append(
            {
                "name": f"{name}_failed",
                "value": counts["failed"],
                "unit": "tests",
                "target": "0",
                "holds": counts["failed"] == 0,
            }
        )
        rows.append({"name": f"{name}_time", "value": round(seconds, 1), "unit": "s", "target": None, "holds": True})
        if counts["failed"]:
            break
    (BUILD / f"{arguments.report}.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())

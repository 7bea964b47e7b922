"""Runs test folders in order of cost, stops at the first that fails, and writes build/<report>.json.

    python tools/run_tests.py                                            # everything CI runs: build/test.json
    python tools/run_tests.py --report contract contract/client_api   # some folders: build/contract.json
    python tools/run_tests.py --compiled                                 # only against the C extensions of images

Each folder is one pytest run of its own. Unit tests of compiled modules run both ways; contract, attack and simulation
run once, compiled, and plain when they are named. Integration tests mostly wait, so three files run at a time. The last
line is the sum in the form `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import json
import os
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
    # The rest of it runs compiled; a bug cannot be planted in an extension.
    ("simulation", ("-k", "planted_bugs")),
    ("integration", ("-n", "3", "--dist", "loadfile")),
    ("chart", ("-n", "2")),
)
# Everything that the extensions have a part in, less what exchanges a method to count its calls or to plant a bug.
COMPILED_SUITES: Final = (
    ("unit/http2", ("-n", "2")),
    ("unit/core", ("-n", "2")),
    ("unit/service", ("-n", "2")),
    (
        "unit/broker",
        (
            "-n",
            "2",
            "--deselect=tests/unit/broker/client_api/test_receive.py::test_of_many_waiting_receives_only_those_needed_look",
            "--deselect=tests/unit/broker/client_api/test_receive.py::test_filters_that_let_nothing_pass_take_a_bounded_part_of_each_turn",
            "--deselect=tests/unit/broker/client_api/test_transactions.py::test_a_half_that_cannot_be_read_at_the_start_is_not_forgotten",
            "--deselect=tests/unit/broker/tracing/test_send_tracer.py::test_nothing_raises_into_the_write_path",
        ),
    ),
    ("contract", ("-n", "2")),
    ("attack", ("-n", "2")),
    ("simulation", ("--ignore=tests/simulation/test_planted_bugs.py",)),
    ("e2e/official_python", ()),
)


def run_suite(folder: str, arguments: tuple[str, ...], *, compiled: bool) -> tuple[dict[str, int], float]:
    """Runs one folder; returns its counts and seconds."""
    report = BUILD / f"test-{folder.replace('/', '-')}.xml"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    print(f"== tests/{folder}{' (compiled)' if compiled else ''}", flush=True)
    code = subprocess.call(
        [sys.executable, "-m", "pytest", "-q", f"tests/{folder}", f"--junitxml={report}", *arguments],
        cwd=ROOT,
        # Before the editable install's own entry, so that the extensions win; inherited by every process of a test.
        env=os.environ | {"PYTHONPATH": str(BUILD / "compiled")} if compiled else None,
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
    return counts, time.monotonic() - started


def main() -> int:
    """Runs the suites that exist; exit code 1 when anything failed or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders below tests/; default: all")
    parser.add_argument("--report", default="test", help="name of the report in build/")
    parser.add_argument("--compiled", action="store_true", help="only what is run against build/compiled")
    parser.add_argument("--front", help="broker setting clientFront, for folders of tests/e2e alone")
    arguments = parser.parse_args()
    if arguments.folders:
        # Named, a folder runs whole; compiled, less what cannot.
        whole = {folder: options for folder, options in (*COMPILED_SUITES, *SUITES) if options[:1] == ("-n",)}
        known = dict(COMPILED_SUITES) if arguments.compiled else whole
        suites = [(folder, known.get(folder, ()), arguments.compiled) for folder in arguments.folders]
    else:
        suites = [] if arguments.compiled else [(folder, options, False) for folder, options in SUITES]
        suites += [(folder, options, True) for folder, options in COMPILED_SUITES]
    if arguments.front:
        suites = [
            (folder, (*options, "--front", arguments.front), is_compiled) for folder, options, is_compiled in suites
        ]
    if any(is_compiled for _, _, is_compiled in suites) and not (BUILD / "compiled").is_dir():
        parser.error("there is no build/compiled; make it with `make compiled`")
    BUILD.mkdir(exist_ok=True)
    rows: list[dict[str, object]] = []
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for folder, options, is_compiled in suites:
        if not (ROOT / "tests" / folder).is_dir():
            continue
        counts, seconds = run_suite(folder, options, compiled=is_compiled)
        for key, value in counts.items():
            total[key] += value
        name = f"{folder.replace('/', '_')}{'_compiled' if is_compiled else ''}"
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

"""A group of real processes changes its master, again and again; nothing acknowledged may be missing.

    make failover-rounds                              # 50 changes of each kind: build/failover-rounds.json
    make failover-rounds ROUNDS=5 ONLY="kill"         # kinds whose name contains it

Each kind plays in one group that lives on from change to change. Times are those without any acknowledgement, in ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.cluster_processes import wait_until
from support.failover_group import KINDS, LEASE_MS, FailoverGroup
from support.process_template import share_imports

REPORT: Final = ROOT / "build" / "failover-rounds.json"
GOALS_MS: Final = {
    "hand over": 1_000,
    "stop": 1_000,
    "kill, started again": 4_000,
    "kill, left dead": 10_000,
    "authority away": 1_000,
}
"""Of the 99th percentile, with a lease of 6 s."""


def play(kind: str, rounds: int, folder: Path, *, lease_ms: int) -> list[dict[str, Any]]:
    """The rows of one kind."""
    silent_ms: list[int] = []
    with FailoverGroup(folder, settings={"failoverLease": str(lease_ms)}) as group:
        for number in range(rounds):
            change = group.change(kind)
            silent_ms.append(round(1_000 * change.silent_s))
            print(f"  {kind}: {number + 1}/{rounds}, {silent_ms[-1]} ms", file=sys.stderr, flush=True)
        group.stop_senders()
        wait_until(group.are_equal, limit_s=60, what="the replicas are equal")
        acknowledged, lost = len(group.acknowledged()), len(group.lost())
    silent_ms.sort()
    rows: list[dict[str, Any]] = [
        {"name": f"{kind}: acknowledged", "value": acknowledged, "unit": "messages", "target": None, "holds": True},
        {"name": f"{kind}: lost", "value": lost, "unit": "messages", "target": 0, "holds": lost == 0},
    ]
    for label, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        value = silent_ms[min(len(silent_ms) - 1, int(part * len(silent_ms)))]
        target = GOALS_MS.get(kind) if label == "p99" else None
        rows.append(
            {
                "name": f"{kind}: without acknowledgement, {label}",
                "value": value,
                "unit": "ms",
                "target": target,
                "holds": target is None or value <= target,
            }
        )
    return rows


def main() -> int:
    """Prints a row a kind; the exit code is 1 if something was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default="")
    parser.add_argument("--lease-ms", type=int, default=2 * LEASE_MS)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "failover-rounds")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with share_imports():
        for number, kind in enumerate(kind for kind in KINDS if arguments.only in kind):
            folder = arguments.folder / str(number)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            began_s = time.monotonic()
            rows += play(kind, arguments.rounds, folder, lease_ms=arguments.lease_ms)
            REPORT.write_text(json.dumps(rows, indent=1) + "\n")
            told = ", ".join(f"{row['name'].removeprefix(kind + ': ')} {row['value']}" for row in rows[-5:])
            print(f"{kind}: {told}; {time.monotonic() - began_s:.0f} s", flush=True)
            shutil.rmtree(folder)
    return 0 if all(row["value"] == 0 for row in rows if row["name"].endswith("lost")) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A group of real processes changes its master, again and again, under official clients; nothing may be missing.

    make failover-rounds                              # 50 changes of each kind: build/failover-rounds.json
    make failover-rounds ROUNDS=5 ONLY="kill"         # kinds whose name contains it

Each kind plays in one group that lives on from change to change. Times are those without any acknowledgement, in ms:
of senders that know every member and never pause, and of the official clients in Python and Go, which have a route and
a way to repeat of their own. Partitions need root: the group gets a network of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from official_clients import build

from demo.official_client import install_official_client
from e2e.official_load import FIFO_GROUP, FIFO_TOPIC, PLAIN_GROUP, PLAIN_TOPIC, Felt, OfficialLoad, longest_gap_s
from support.cluster_processes import wait_until
from support.failover_group import KINDS, LEASE_MS, PARTITIONS, FailoverGroup
from support.own_network import own_network
from support.process_template import share_imports
from support.topic_admin import create_group, create_topic

REPORT: Final = ROOT / "build" / "failover-rounds.json"
GOALS_MS: Final = {
    "hand over": 1_000,
    "stop": 1_000,
    "kill, started again": 4_000,
    "kill, left dead": 10_000,
    "authority away": 1_000,
    "master off the authority": 1_000,
    "master cut off": 10_000,
    "pause longer than the lease": 10_000,
}
"""Of the 99th percentile, with a lease of 6 s."""


def play(kind: str, rounds: int, folder: Path, *, lease_ms: int) -> list[dict[str, Any]]:
    silent_ms: list[int] = []
    windows: list[tuple[float, float]] = []
    with ExitStack() as stack:
        network = stack.enter_context(own_network(2)) if kind in PARTITIONS else None
        settings = {"failoverLease": str(lease_ms)}
        group = stack.enter_context(FailoverGroup(folder / "group", settings=settings, network=network, pause_s=0))
        load = stack.enter_context(_load_on(group, folder / "clients"))
        load.wait_busy()
        for number in range(rounds):
            began_s = time.time()
            change = group.change(kind)
            # The clients may need longer than the senders that never pause.
            time.sleep(1)
            windows.append((began_s, time.time()))
            silent_ms.append(round(1_000 * change.silent_s))
            print(f"  {kind}: {number + 1}/{rounds}, {silent_ms[-1]} ms", file=sys.stderr, flush=True)
        felt = load.finish()
        group.stop_senders()
        wait_until(group.are_equal, limit_s=60, what="the replicas are equal")
        acknowledged, lost = len(group.acknowledged()), len(group.lost())
    rows = [_row(f"{kind}: acknowledged", acknowledged, "messages"), _row(f"{kind}: lost", lost, "messages", 0)]
    rows += _times(f"{kind}: without acknowledgement", silent_ms, GOALS_MS.get(kind))
    for each in felt:
        rows += _felt_rows(kind, each, windows)
    return rows


def _load_on(group: FailoverGroup, folder: Path) -> OfficialLoad:
    master = group.brokers[group.master() or 0]
    asyncio.run(create_topic(master, PLAIN_TOPIC))
    asyncio.run(create_topic(master, FIFO_TOPIC, message_type="FIFO"))
    asyncio.run(create_group(master, PLAIN_GROUP))
    asyncio.run(create_group(master, FIFO_GROUP, ordered=True))
    endpoints = [f"{broker.host}:{broker.ports['grpcServerPort']}" for broker in group.brokers]
    python = install_official_client() / "bin" / "python"
    return OfficialLoad(folder, endpoints=endpoints, python=python, go=build("go"))


def _felt_rows(kind: str, felt: Felt, windows: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    name = f"{kind}: official {felt.language}"
    return [
        _row(f"{name}: acknowledged", felt.acknowledged, "messages"),
        _row(f"{name}: lost", len(felt.missing), "messages", 0),
        _row(f"{name}: out of order", felt.out_of_order, "deliveries", 0),
        _row(f"{name}: delivered again", felt.repeated, "deliveries"),
        *_times(f"{name}: without acknowledgement", _gaps_ms(felt.acknowledged_at, windows)),
        *_times(f"{name}: without delivery", _gaps_ms(felt.delivered_at, windows)),
    ]


def _gaps_ms(moments: Sequence[float], windows: Sequence[tuple[float, float]]) -> list[int]:
    return [round(1_000 * longest_gap_s(moments, *window)) for window in windows]


def _times(name: str, values_ms: Sequence[int], goal_ms: int | None = None) -> list[dict[str, Any]]:
    ordered = sorted(values_ms)
    parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    at = {label: ordered[min(len(ordered) - 1, int(part * len(ordered)))] for label, part in parts.items()}
    return [_row(f"{name}, {label}", at[label], "ms", goal_ms if label == "p99" else None) for label in parts]


def _row(name: str, value: int, unit: str, target: int | None = None) -> dict[str, Any]:
    holds = target is None or value <= target
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def main() -> int:
    """Prints a line a kind; the exit code is 1 if something was lost or came out of order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default="")
    parser.add_argument("--lease-ms", type=int, default=2 * LEASE_MS)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "failover-rounds")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with share_imports():
        for number, kind in enumerate(kind for kind in (*KINDS, *PARTITIONS) if arguments.only in kind):
            folder = arguments.folder / str(number)
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "group").mkdir(parents=True)
            began_s = time.monotonic()
            played = play(kind, arguments.rounds, folder, lease_ms=arguments.lease_ms)
            rows += played
            arguments.report.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"{kind} ({time.monotonic() - began_s:.0f} s)")
            for row in played:
                print(f"    {row['name'].removeprefix(f'{kind}: ')}: {row['value']} {row['unit']}")
            sys.stdout.flush()
            if _is_whole(played):
                shutil.rmtree(folder)
    return 0 if _is_whole(rows) else 1


def _is_whole(rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["value"] == 0 for row in rows if row["name"].endswith((": lost", ": out of order")))


if __name__ == "__main__":
    sys.exit(main())

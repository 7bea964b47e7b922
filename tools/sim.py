"""Runs simulated clusters: `make sim SEEDS=2000`, or one of them again: `make sim SEED=1234`.

Prints progress and, for each failure, the seed, the checker's sentence, what happened last and the command that
replays it. Writes build/sim.json. Exit code 0 when every seed held; with `--plant` when the planted bug was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"
sys.path[:0] = [str(ROOT / "tests")]

from simulation.plants import Plant
from simulation.pool import SeedResult, Totals, run_one, run_seeds, seed_processes

PROGRESS_EVERY: Final = 50


def main() -> int:
    """See the module's docstring."""
    arguments = _parser().parse_args()
    plant = Plant(arguments.plant) if arguments.plant else None
    variant = {"failover": arguments.failover, "few_faults": arguments.few_faults}
    started = time.monotonic()
    totals = Totals()
    first_failure: SeedResult | None = None
    with ExitStack() as stack:
        if arguments.seed is not None:
            outcomes = iter([run_one(arguments.seed, plant, **variant)])
        else:
            seeds = range(arguments.first, arguments.first + arguments.seeds)
            processes = stack.enter_context(seed_processes())
            outcomes = run_seeds(seeds, processes, plant=plant, **variant)
        for result in outcomes:
            totals.add(result)
            if result.failure is not None:
                first_failure = first_failure or result
                _print_failure(result, plant, variant)
                if plant is not None:
                    break
            if totals.seeds % PROGRESS_EVERY == 0:
                _print_progress(totals, time.monotonic() - started)
    _print_progress(totals, time.monotonic() - started)
    _write_report(totals, time.monotonic() - started, plant)
    if plant is not None:
        print(f"plant {plant.value}: " + ("found" if totals.failed else "NOT found"))
        return 0 if totals.failed else 1
    return 1 if totals.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--failover", action="store_true", help="every group fails over; else some have fixed roles")
    parser.add_argument(
        "--few-faults", action="store_true", help="each seed plays some kinds of faults alone, and often"
    )
    parser.add_argument("--plant", choices=[plant.value for plant in Plant], help="plant a bug that must be found")
    return parser


def _print_failure(result: SeedResult, plant: Plant | None, variant: Mapping[str, bool]) -> None:
    assert result.failure is not None
    print(f"\nseed {result.seed} FAILED: {result.failure.sentence}")
    print(f"  settings: {result.failure.settings}")
    print("  what happened last:")
    for line in result.failure.events:
        print(f"    {line}")
    if result.failure.details:
        print(result.failure.details)
    options = "".join(f" {name.upper()}=1" for name, is_on in variant.items() if is_on)
    options += f" PLANT={plant.value}" if plant is not None else ""
    print(f"  replay: make sim SEED={result.seed}{options}\n", flush=True)


def _print_progress(totals: Totals, seconds: float) -> None:
    print(
        f"{totals.seeds} seeds, {totals.failed} failed, {totals.acknowledged} messages acknowledged, "
        f"{sum(totals.faults.values())} faults, {totals.virtual_ms / 3_600_000:.1f} virtual hours in {seconds:.0f} s",
        flush=True,
    )


def _write_report(totals: Totals, seconds: float, plant: Plant | None) -> None:
    rows: list[dict[str, object]] = [
        _row("seeds", totals.seeds, "seeds", ">= 1", holds=totals.seeds >= 1),
        _row("failed_seeds", totals.failed, "seeds", "0", holds=totals.failed == 0),
        _row("acknowledged_messages", totals.acknowledged, "messages", ">= 1", holds=totals.acknowledged >= 1),
        _row("lost_where_settings_allow", totals.lost_as_expected, "messages", None, holds=True),
        _row("delivered_messages", totals.delivered, "messages", None, holds=True),
        _row("faults", sum(totals.faults.values()), "faults", ">= 1", holds=bool(totals.faults)),
        *(_row(f"fault_{name}", count, "faults", None, holds=True) for name, count in sorted(totals.faults.items())),
        *(_row(f"status_{name}", count, "sends", None, holds=True) for name, count in sorted(totals.statuses.items())),
        _row("virtual_time", round(totals.virtual_ms / 1000), "s", None, holds=True),
        _row("events", totals.events, "events", None, holds=True),
        _row("time", round(seconds, 1), "s", None, holds=True),
    ]
    if plant is not None:
        rows = [_row(f"plant_{plant.value}_found", totals.failed, "seeds", ">= 1", holds=totals.failed >= 1)]
    BUILD.mkdir(exist_ok=True)
    (BUILD / "sim.json").write_text(json.dumps(rows, indent=2) + "\n")


def _row(name: str, value: int | float, unit: str, target: str | None, *, holds: bool) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


if __name__ == "__main__":
    raise SystemExit(main())

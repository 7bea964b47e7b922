"""What may befall a broker group, again and again, with real processes: nothing that was acknowledged may be missing.

    make loss-rounds                                  # 20 rounds of each fault: build/loss-rounds.json
    make loss-rounds ROUNDS=3 ONLY="sync: slave"      # faults whose name contains it; several: split at ";"
    python tools/loss_rounds.py --list

A round: a producer records what is acknowledged, a consumer group has read a part of it; the fault; everything runs and
is in sync again. Then every message is in both CommitLogs and comes to the group, topics, groups and offsets are there,
and the replicas are the same bytes. A group that came through goes on into its next round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.group_faults import FAULTS, play_round
from support.group_under_fault import BrokerGroup, Verdict
from support.process_template import share_imports

REPORT: Final = ROOT / "build" / "loss-rounds.json"


@dataclass
class Played:
    name: str
    rounds: int = 0
    failed: int = 0
    acknowledged: int = 0
    lost: int = 0
    worst: Verdict | None = None
    seconds: float = 0.0

    def add(self, verdict: Verdict, *, new_messages: int) -> None:
        """Counts a round."""
        self.rounds += 1
        self.acknowledged += new_messages
        self.lost += verdict.lost
        self.failed += not verdict.holds
        if not verdict.holds:
            self.worst = verdict


def play(number_in_table: int, root: Path, *, rounds: int, messages: int, seed: int) -> Played:
    """Rounds of one fault; a group that lost something is put aside for whoever looks into it, and a new one begins."""
    with share_imports():
        return _play(number_in_table, root, rounds=rounds, messages=messages, seed=seed)


def _play(number_in_table: int, root: Path, *, rounds: int, messages: int, seed: int) -> Played:
    fault, folder = FAULTS[number_in_table], root / f"{number_in_table:02d}"
    played = Played(fault.name)
    group: BrokerGroup | None = None
    counted = 0
    started = time.monotonic()
    try:
        for number in range(rounds):
            if group is None:
                shutil.rmtree(folder, ignore_errors=True)
                group, counted = fault.group(folder), 0
                group.__enter__()
            try:
                verdict = play_round(fault, group, seed=seed + number, messages=messages)
            except AssertionError as error:
                # The traffic before the fault did not come about: the round before has left something broken.
                verdict = Verdict(len(group.acknowledged), 0, 0, 0, 0, 0, problems=(str(error),))
            played.add(verdict, new_messages=verdict.acknowledged - counted)
            counted = verdict.acknowledged
            print(f"{'holds' if verdict.holds else 'FAILS'}  {fault.name} [{number}]  {_short(verdict)}", flush=True)
            if not verdict.holds or fault.wears_out:
                group.__exit__(None, None, None)
                group = None
                if not verdict.holds:
                    shutil.rmtree(kept := folder.with_name(f"{folder.name}-failed"), ignore_errors=True)
                    folder.rename(kept)
    finally:
        if group is not None:
            group.__exit__(None, None, None)
    played.seconds = time.monotonic() - started
    return played


def _short(verdict: Verdict) -> str:
    shown = {name: value for name, value in asdict(verdict).items() if value}
    return ", ".join(f"{name}={_cut(value)}" for name, value in shown.items())


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) < 1_500 else f"{text[:1_500]}..."


def rows_of(played: Played) -> Iterator[dict[str, Any]]:
    """As other reports have them."""
    name = played.name
    yield {"name": f"{name}: rounds", "value": played.rounds, "unit": "rounds", "target": ">= 1", "holds": True}
    yield {
        "name": f"{name}: acknowledged",
        "value": played.acknowledged,
        "unit": "messages",
        "target": None,
        "holds": True,
    }
    yield {
        "name": f"{name}: acknowledged and lost",
        "value": played.lost,
        "unit": "messages",
        "target": "0",
        "holds": played.lost == 0,
    }
    yield {
        "name": f"{name}: rounds in which anything was wrong",
        "value": played.failed,
        "unit": "rounds",
        "target": "0",
        "holds": played.failed == 0,
        **({"last": asdict(played.worst)} if played.worst is not None else {}),
    }


def write_report(path: Path, done: Iterable[Played]) -> None:
    """Rows of what was played so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for played in done for row in rows_of(played)]
    path.write_text(json.dumps(rows, indent=2) + "\n")


def main() -> int:
    """Plays all rounds; exit code 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each fault")
    parser.add_argument("--only", default="", help="faults whose name contains one of these, split at ';'")
    parser.add_argument("--messages", type=int, default=200, help="acknowledged before a fault, at least")
    parser.add_argument("--seed", type=int, default=1, help="of what is left to chance")
    parser.add_argument("--parallel", type=int, default=2, help="groups at a time")
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    arguments = parser.parse_args()
    words = [word.strip() for word in arguments.only.split(";") if word.strip()]
    # From the beginning of a word on: `sync` is not `async`.
    faults = [fault for fault in FAULTS if not words or any(f" {word}" in f" {fault.name}" for word in words)]
    if arguments.list or not faults:
        print("\n".join(fault.name for fault in FAULTS))
        return 0 if faults else 2
    root = ROOT / "build" / "loss-rounds" / arguments.report.stem
    shutil.rmtree(root, ignore_errors=True)

    play_one = partial(play, root=root, rounds=arguments.rounds, messages=arguments.messages, seed=arguments.seed)
    done: dict[int, Played] = {}
    # Processes and not threads: grpc.aio, which the producers stand on, serves one event loop a process well.
    with ProcessPoolExecutor(arguments.parallel) as pool:
        under_way = {pool.submit(play_one, place): place for place in map(FAULTS.index, faults)}
        for future in as_completed(under_way):
            done[under_way[future]] = future.result()
            # After each fault: a run of hours leaves what it has shown, however it ends.
            write_report(arguments.report, [done[place] for place in sorted(done)])
    print(f"\n{'fault':<74} {'rounds':>6} {'acked':>7} {'lost':>6} {'wrong':>6} {'s/round':>8}")
    for played in done.values():
        print(
            f"{played.name:<74} {played.rounds:>6} {played.acknowledged:>7} {played.lost:>6} {played.failed:>6} "
            f"{played.seconds / max(1, played.rounds):>8.1f}"
        )
    return 0 if all(played.failed == 0 for played in done.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())

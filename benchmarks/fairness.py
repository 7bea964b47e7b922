"""What one client that sends as fast as it can does to another: the latency of an orderly client, alone and beside it.

The orderly client has one send in the air at a time, on one connection. The greedy one comes from another address and
keeps thousands in the air, once on one connection and once on fifty, sends batches, or receives all there is. Both are
the Go generator; the broker is a SYNC_MASTER that waits for its slave, as images have it (`make compiled`). Alone,
beside, and beside without a bound of what is in the log (`unacknowledgedSendsMax`) take turns, so that whatever else
the machine does falls on all of them.

    make bench-fairness                               # a line for each row, and build/bench-fairness.json
    python benchmarks/fairness.py --rounds 1 --only one_connection --modules build/compiled
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from processes import MeasurementFailed
from system_under_test import ROOT, TandemPair

RAWLOAD: Final = str(ROOT / "build" / "load" / "rawload")
REPORT: Final = ROOT / "build" / "bench-fairness.json"
GREEDY: Final[Mapping[str, Sequence[str]]] = {
    "one_connection": ("send", "--connections=1", "--inflight=2000", "--size=256"),
    "fifty_connections": ("send", "--connections=50", "--inflight=2000", "--size=256"),
    "batches": ("send", "--connections=4", "--inflight=200", "--size=1024", "--batch=32"),
    "receives": ("drain", "--connections=4", "--receivers=64", "--ack-batch", "--windows=1"),
}
"""By row: what the greedy client does."""
GREEDY_ADDRESS: Final = "127.0.0.2"
GREEDY_WARM_UP_S: Final = 2.0
SLACK_S: Final = 60.0
BOUND: Final = "unacknowledgedSendsMax"
NO_BOUND: Final = "1000000"
RATIO_AIM: Final = 2.0
LOAD_QUIET: Final = 3.0
"""Processes to run for each CPU; this one has about two itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of all rounds; times in milliseconds."""

    greedy: str
    alone_p50_ms: float
    alone_p99_ms: float
    beside_p50_ms: float
    beside_p99_ms: float
    p99_ratio: float
    greedy_msg_s: float
    unbounded_p50_ms: float
    unbounded_p99_ms: float
    unbounded_p99_ratio: float
    unbounded_greedy_msg_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--only", choices=list(GREEDY), action="append", help="these rows")
    parser.add_argument("--bound", default="64", help=f"{BOUND} of the bounded windows")
    parser.add_argument("--modules", type=Path, default=ROOT / "build" / "compiled", help="packages the brokers run")
    arguments = parser.parse_args()
    if not arguments.modules.is_dir():
        parser.error(f"there is no {arguments.modules}; make it with `make compiled`")
    os.environ["PYTHONPATH"] = str(arguments.modules.resolve())
    subprocess.run([sys.executable, ROOT / "benchmarks" / "load" / "build.py", "rawload"], check=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        pair = TandemPair(Path(folder))
        try:
            pair.start()
            for topic in ("orderly", "greedy"):
                pair.create_topic(topic)
            _orderly(pair.endpoint, 3.0)
            with _greedy(pair.endpoint, GREEDY["batches"], seconds=arguments.seconds):
                pass  # There is something to receive.
            for name in arguments.only or GREEDY:
                rows.append(_row(pair, name, arguments.bound, rounds=arguments.rounds, seconds=arguments.seconds))
                print(_line_of(rows[-1], arguments.bound), flush=True)
        except MeasurementFailed as error:
            print(f"fairness: {error}", file=sys.stderr)
            return 1
        finally:
            pair.stop_all()
    load, processors = os.getloadavg(), os.cpu_count() or 1
    REPORT.write_text(json.dumps({"rows": [asdict(row) for row in rows], "load": load}, indent=2) + "\n")
    print(_judgement(rows, load[0] / processors), f"All figures: {REPORT}", sep="\n")
    return 0


def _line_of(row: Row, bound: str) -> str:
    """What an orderly client notices, in words."""
    return (
        f"{row.greedy}: the orderly client's p99 is {row.alone_p99_ms:.1f} ms alone, "
        f"{row.beside_p99_ms:.1f} ms beside the greedy one ({row.p99_ratio:.1f} x), "
        f"{row.unbounded_p99_ms:.1f} ms without a bound ({row.unbounded_p99_ratio:.1f} x); "
        f"its p50 {row.alone_p50_ms:.1f}, {row.beside_p50_ms:.1f}, {row.unbounded_p50_ms:.1f} ms. "
        f"Greedy with {BOUND}={bound}: {row.greedy_msg_s:,.0f} messages/s, "
        f"without {row.unbounded_greedy_msg_s:,.0f}."
    )


def _judgement(rows: Sequence[Row], load: float) -> str:
    """Whether the aim holds: nobody makes another's p99 double."""
    over = [row.greedy for row in rows if row.p99_ratio > RATIO_AIM]
    if load > LOAD_QUIET:
        return (
            f"The machine has {load:.0f} processes to run for each CPU: most of these times is waiting for one. "
            "They tell which way is the better, and nothing of the aim; measure on a quiet machine."
        )
    aim = f"nobody makes another's p99 {RATIO_AIM:g} times as long"
    return f"The aim, {aim}, is missed by {', '.join(over)}." if over else f"The aim holds: {aim}."


def _row(pair: TandemPair, name: str, bound: str, *, rounds: int, seconds: float) -> Row:
    alone: list[dict[str, Any]] = []
    beside: dict[str, list[dict[str, Any]]] = {bound: [], NO_BOUND: []}
    rates: dict[str, list[float]] = {bound: [], NO_BOUND: []}
    for number in range(rounds):
        alone.append(_orderly(pair.endpoint, seconds))
        # In turn first: who reads what the other has just read finds it in memory.
        for limit in list(beside) if number % 2 == 0 else list(reversed(beside)):
            pair.change_settings({BOUND: limit})
            # A group of its own finds all that was sent so far.
            group = f"greedy-{number}-{limit}-{name}"
            with _greedy(pair.endpoint, (*GREEDY[name], f"--group={group}"), seconds=seconds) as found:
                beside[limit].append(_orderly(pair.endpoint, seconds))
            rates[limit].append(found[0])

    def median(windows: list[dict[str, Any]], key: str) -> float:
        return statistics.median(float(window[key]) for window in windows)

    alone_p99 = median(alone, "p99_ms")
    p99 = {limit: median(windows, "p99_ms") for limit, windows in beside.items()}
    return Row(
        greedy=name,
        alone_p50_ms=median(alone, "p50_ms"),
        alone_p99_ms=alone_p99,
        beside_p50_ms=median(beside[bound], "p50_ms"),
        beside_p99_ms=p99[bound],
        p99_ratio=round(p99[bound] / alone_p99, 2),
        greedy_msg_s=statistics.median(rates[bound]),
        unbounded_p50_ms=median(beside[NO_BOUND], "p50_ms"),
        unbounded_p99_ms=p99[NO_BOUND],
        unbounded_p99_ratio=round(p99[NO_BOUND] / alone_p99, 2),
        unbounded_greedy_msg_s=statistics.median(rates[NO_BOUND]),
    )


def _orderly(endpoint: str, seconds: float) -> dict[str, Any]:
    command = [RAWLOAD, "send", f"--endpoint={endpoint}", "--topic=orderly", "--inflight=1", "--warmup=0.5"]
    done = subprocess.run(
        [*command, f"--seconds={seconds}"], capture_output=True, text=True, timeout=seconds + SLACK_S, check=False
    )
    return _total(done.stdout, done.stderr)


@contextmanager
def _greedy(endpoint: str, options: Sequence[str], *, seconds: float) -> Iterator[list[float]]:
    """Sends from before the block until after it; then the list holds its messages a second."""
    operation, *more = options
    command = [RAWLOAD, operation, f"--endpoint={endpoint}", "--topic=greedy", f"--source={GREEDY_ADDRESS}", *more]
    found: list[float] = []
    with subprocess.Popen(
        [*command, f"--warmup={GREEDY_WARM_UP_S}", f"--seconds={seconds + 1}"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            # Its load has begun when it is a third through its warm-up; the orderly client warms up in the rest.
            process.wait(GREEDY_WARM_UP_S / 3)
        except subprocess.TimeoutExpired:
            pass
        yield found
        try:
            output, _ = process.communicate(timeout=SLACK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise MeasurementFailed("the greedy client did not end") from None
    found.append(float(_total(output, "")["msg_s"]))
    if not found[0]:
        raise MeasurementFailed(f"the greedy client did nothing: {' '.join(options)}")


def _total(output: str, said: str) -> dict[str, Any]:
    for line in output.splitlines():
        if line.startswith("{") and (found := json.loads(line))["op"] == "total":
            return dict(found)
    raise MeasurementFailed(f"the generator counted nothing: {output[-500:]}{said[-500:]}")


if __name__ == "__main__":
    sys.exit(main())

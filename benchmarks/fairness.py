"""What one client that sends as fast as it can does to another: the latency of an orderly client, alone and beside it.

The orderly client has one send in the air at a time, on one connection. The greedy one comes from another address and
keeps thousands in the air, once on one connection and once on fifty, sends batches, or receives all there is. Both are
the Go generator; the broker is a SYNC_MASTER that waits for its slave, as images have it (`make compiled`). Alone,
beside, and beside while the greedy client's address has a quota (`clientQuotas`) take turns, so that whatever else the
machine does falls on all of them. The aim is that nobody makes another's p99 twice as long. The greedy client gets what
processors are idle, as one on a machine of its own takes none from the brokers.

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
from dataclasses import dataclass
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
SETTING: Final = "clientQuotas"
QUOTA: Final = 2_000
"""Messages a second, sent and received: a twentieth of what the greedy client takes without."""
RATIO_AIM: Final = 2.0
LOAD_QUIET: Final = 3.0
"""Processes to run for each CPU; this one has about two itself."""


@dataclass(frozen=True, slots=True)
class Window:
    """Medians of all rounds: the orderly client's times in milliseconds, and the greedy one's messages a second."""

    p50_ms: float
    p99_ms: float
    greedy_msg_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    greedy: str
    alone: Window
    beside: Window
    limited: Window
    """Beside a greedy client with a quota."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--only", choices=list(GREEDY), action="append", help="these rows")
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
                rows.append(_row(pair, name, rounds=arguments.rounds, seconds=arguments.seconds))
                print(_line_of(rows[-1]), flush=True)
        except MeasurementFailed as error:
            print(f"fairness: {error}", file=sys.stderr)
            return 1
        finally:
            pair.stop_all()
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    found = [reported for row in rows for reported in _reported(row)]
    REPORT.write_text(json.dumps(found, indent=2) + "\n")
    missed = [f"{each['name']} {each['value']}" for each in found if each["holds"] is False]
    print(f"Over {RATIO_AIM:g} x: {', '.join(missed)}." if missed else f"No p99 is over {RATIO_AIM:g} x.")
    if load > LOAD_QUIET:
        print(f"The machine has {load:.0f} processes to run for each CPU: most of these times is waiting for one.")
    print(f"All figures: {REPORT}")
    return 0


def _line_of(row: Row) -> str:
    """What an orderly client notices, in words."""
    alone, beside, limited = row.alone, row.beside, row.limited
    return (
        f"{row.greedy}: the orderly client's p99 is {alone.p99_ms:.1f} ms alone, "
        f"{beside.p99_ms:.1f} ms beside the greedy one ({beside.p99_ms / alone.p99_ms:.1f} x), "
        f"{limited.p99_ms:.1f} ms ({limited.p99_ms / alone.p99_ms:.1f} x) where that has a quota of {QUOTA:,} "
        f"messages/s; its p50 {alone.p50_ms:.1f}, {beside.p50_ms:.1f}, {limited.p50_ms:.1f} ms. "
        f"The greedy one: {beside.greedy_msg_s:,.0f} and {limited.greedy_msg_s:,.0f} messages/s."
    )


def _reported(row: Row) -> Iterator[dict[str, Any]]:
    """Its rows of the report."""
    for beside, window in (("beside", row.beside), ("beside_with_quota", row.limited)):
        ratio = round(window.p99_ms / row.alone.p99_ms, 2)
        name = f"{row.greedy}_{beside}_p99_ratio"
        yield {"name": name, "value": ratio, "unit": "x", "target": f"<= {RATIO_AIM:g}", "holds": ratio <= RATIO_AIM}
    for part, window in (("alone", row.alone), ("beside", row.beside), ("beside_with_quota", row.limited)):
        for figure, unit in (("p50_ms", "ms"), ("p99_ms", "ms"), ("greedy_msg_s", "1/s")):
            if value := getattr(window, figure):
                name = f"{row.greedy}_{part}_{figure}"
                yield {"name": name, "value": round(value, 3), "unit": unit, "target": None, "holds": None}


def _row(pair: TandemPair, name: str, *, rounds: int, seconds: float) -> Row:
    quota = f"address:{GREEDY_ADDRESS} sentMessages={QUOTA} receivedMessages={QUOTA}"
    alone: list[dict[str, Any]] = []
    beside: dict[str, list[dict[str, Any]]] = {"": [], quota: []}
    rates: dict[str, list[float]] = {"": [], quota: []}
    for number in range(rounds):
        alone.append(_orderly(pair.endpoint, seconds))
        # In turn first: who reads what the other has just read finds it in memory.
        for rule in list(beside) if number % 2 == 0 else list(reversed(beside)):
            pair.change_settings({SETTING: rule})
            # A group of its own finds all that was sent so far.
            group = f"greedy-{number}-{bool(rule)}-{name}"
            with _greedy(pair.endpoint, (*GREEDY[name], f"--group={group}"), seconds=seconds) as found:
                beside[rule].append(_orderly(pair.endpoint, seconds))
            rates[rule].append(found[0])
        pair.change_settings({SETTING: ""})

    def window(measured: list[dict[str, Any]], greedy: Sequence[float] = (0.0,)) -> Window:
        p50, p99 = (statistics.median(float(each[key]) for each in measured) for key in ("p50_ms", "p99_ms"))
        return Window(p50, p99, statistics.median(greedy))

    return Row(name, window(alone), window(beside[""], rates[""]), window(beside[quota], rates[quota]))


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
    command = [
        "chrt",
        "--idle",
        "0",
        RAWLOAD,
        operation,
        f"--endpoint={endpoint}",
        "--topic=greedy",
        f"--source={GREEDY_ADDRESS}",
        *more,
    ]
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

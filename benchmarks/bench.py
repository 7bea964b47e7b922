"""TandemMQ and Apache RocketMQ side by side: one run, one machine, the same load generators, in turn.

    make bench                                # everything, 3 rounds: about 45 minutes
    make bench ROUNDS=5                       # more rounds
    make bench ONLY=send,drain                # some of it: send clients batch tls signed drain kinds memory start
                                              # catch-up topics connections log
    make bench LOG_GB=4                       # the growth measurement fills 20 GB a broker otherwise
    make bench QUICK=1                        # one short round and small stores: does it run?
    make bench PLAIN=1                        # ours without the compiled modules that images have

It installs RocketMQ by Maven and builds the generators; needed are Linux, a JDK 17, Maven and Go. Everything it writes
is below build/. Rows go to build/bench.json, every window to build/bench-windows.jsonl, a table to build/bench.md;
`python benchmarks/report.py --write-results` puts that into RESULTS.md, which says what each row means.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final

from rich.console import Console

from load_generators import Generators
from measurements import catch_up, drain, kinds, memory, send, signed, start
from measurements.growth import Growth
from measurements.rounds import Case, Rounds
from measurements.side_by_side import SideBySide
from peer.installation import Installation, install
from plan import FULL, QUICK, Plan
from processes import MeasurementFailed
from report import JSON_PATH, MARKDOWN_PATH, Row, print_rows, write
from system_under_test import ROOT

BUILD: Final = ROOT / "build"
FOLDER: Final = BUILD / "bench"
WINDOWS_PATH: Final = BUILD / "bench-windows.jsonl"
COMPILED: Final = BUILD / "compiled"


@dataclass(frozen=True, slots=True)
class Alternating:
    """A measurement whose cases take turns on the groups that stand side by side."""

    cases: Callable[[SideBySide], list[Case]]
    rows: Callable[[Rounds], list[Row]]


ALTERNATING: Final = {
    "send": Alternating(send.cases, send.rows),
    "batch": Alternating(send.batch_cases, send.batch_rows),
    "tls": Alternating(send.tls_cases, send.tls_rows),
    "drain": Alternating(drain.cases, drain.rows),
    "clients": Alternating(send.client_cases, send.client_rows),
    "kinds": Alternating(kinds.cases, kinds.rows),
}
ONLY_RAW: Final = {"kinds", "drain", "tls", "signed"}
NEEDS_REMOTING: Final = {"send", "batch", "clients"}
ALONE: Final = ("signed", "start", "catch-up", "topics", "connections", "log")
NAMES: Final = (*ALTERNATING, "memory", *ALONE)
# Rows that are there even when their measurement fails.
JUDGED: Final = {
    "send": (
        *("sync_send_cpu_32", "sync_send_cpu_32_vs_remoting", "sync_send_cpu_256", "sync_send_cpu_256_vs_remoting"),
        *("sync_send_rate_32", "sync_send_rate_256", "sync_send_p99_32", "sync_send_p50_1"),
    ),
    "batch": ("batch_send_cpu", "batch_send_rate"),
    "tls": ("send_cpu_tls_32", "send_cpu_tls_256"),
    "signed": signed.JUDGED,
    "drain": ("drain_rate", "drain_cpu"),
    "clients": ("official_send_cpu_32", "official_send_rate_32"),
    "kinds": kinds.JUDGED,
    "memory": ("broker_memory",),
    "start": ("start_time",),
    "catch-up": ("ha_catchup_rate", "ha_catchup_vs_loopback"),
    "topics": ("growth_topics_100", "growth_topics_10000"),
    "connections": ("growth_connections_50", "growth_connections_200"),
    "log": ("growth_log_20gb",),
}


class Bench:
    """One run: what was chosen, what was found so far."""

    def __init__(self, chosen: Sequence[str], plan: Plan, console: Console) -> None:
        self._chosen = chosen
        self._plan = plan
        self._console = console
        self._began = time.monotonic()
        self._rows: list[Row] = []
        self._rounds = Rounds(self.say, WINDOWS_PATH)
        self.failed: list[str] = []

    def say(self, text: str) -> None:
        """One line of progress, with the time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"[dim]{minutes:02d}:{seconds:02d}[/] {text}", highlight=False)

    def run(self) -> list[Row]:
        """Installs, measures, writes; a measurement that fails leaves a row that says so, and the others go on."""
        BUILD.mkdir(exist_ok=True)
        WINDOWS_PATH.unlink(missing_ok=True)
        self.say("building the load generators, installing RocketMQ")
        generators = Generators(say=self.say, only_raw=ONLY_RAW.issuperset(self._chosen))
        installation = install(BUILD / "peer")
        self._side_by_side(installation, generators)
        growth = Growth(FOLDER / "growth", generators, self._plan, self._rounds, self.say)
        alone: dict[str, Callable[[], list[Row]]] = {
            "signed": lambda: signed.measure(
                FOLDER / "signed", installation, generators, self._plan, self._rounds, self.say
            ),
            "start": lambda: start.measure(FOLDER / "start", installation, self._plan, self.say),
            "catch-up": lambda: catch_up.measure(FOLDER / "catch-up", installation, generators, self._plan, self.say),
            "topics": growth.topics,
            "connections": growth.connections,
            "log": growth.log,
        }
        for name in ALONE:
            if name in self._chosen:
                self._attempt(name, alone[name])
        self._rows += self._rounds.noise_rows()
        self._write()
        return self._rows

    def _side_by_side(self, installation: Installation, generators: Generators) -> None:
        chosen = {name: part for name, part in ALTERNATING.items() if name in self._chosen}
        if "memory" in self._chosen:
            chosen.setdefault("send", ALTERNATING["send"])  # memory is looked at while sends run
        if not chosen:
            return
        with SideBySide(FOLDER / "side-by-side", installation, generators, self._plan) as side:
            try:
                side.start(self.say)
                side.warm_up(
                    self.say,
                    remoting=bool(NEEDS_REMOTING & chosen.keys()),
                    drains="drain" in chosen,
                    kinds="kinds" in chosen,
                )
                cases = [case for part in chosen.values() for case in part.cases(side)]
                self._rounds.play(cases, side.systems, rounds=self._plan.rounds)
            except MeasurementFailed as error:
                self.say(f"[red]failed[/]: {error}")
        for name, part in chosen.items():
            self._attempt(name, lambda part=part: part.rows(self._rounds))  # type: ignore[misc]
        if "memory" in self._chosen:
            self._attempt("memory", lambda: memory.rows(self._rounds))

    def _attempt(self, name: str, measure: Callable[[], list[Row]]) -> None:
        try:
            self._rows += measure()
        except (MeasurementFailed, LookupError, OSError) as error:
            self.say(f"[red]{name} failed[/]: {error}")
            self._rows += map(Row.missing, JUDGED[name])
            self.failed.append(name)
        self._write()

    def _write(self) -> None:
        write(self._rows, self._rounds.tables())


def _stop(number: int, frame: FrameType | None) -> None:
    """Ends the run once, through the blocks that end every process we started; a second signal must not cut those."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 1 when a measurement could not be made; a missed target is a result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="times each case is measured; the median counts")
    parser.add_argument("--only", default=",".join(NAMES), help="names of measurements, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one short round, small stores")
    parser.add_argument("--plain", action="store_true", help="ours as plain Python, without build/compiled")
    parser.add_argument("--log-gb", type=float, help="size of the large log in GB (20)")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name]
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"no measurement is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    plan = QUICK if arguments.quick else FULL
    plan = replace(plan, rounds=arguments.rounds or plan.rounds)
    if arguments.log_gb:
        plan = replace(plan, growth_log_bytes=(plan.growth_log_bytes[0], int(arguments.log_gb * 10**9)))
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _stop)
    console = Console(soft_wrap=True)
    if not arguments.plain:
        if not COMPILED.is_dir():
            parser.error("there is no build/compiled; make it with `make compiled`, or say --plain")
        # Before the editable install's own entry; every process of ours inherits it.
        os.environ["PYTHONPATH"] = str(COMPILED)
    bench = Bench(chosen, plan, console)
    try:
        rows = bench.run()
    except MeasurementFailed as error:
        console.print(f"[red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("stopped; every process it started has ended")
        return 130
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    print_rows(console, rows)
    console.print(f"All rows: {JSON_PATH}; tables: {MARKDOWN_PATH}; windows: {WINDOWS_PATH}")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())

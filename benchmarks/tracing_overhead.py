"""What tracing costs a sync-replicated send: off, at 1 %, and with every message traced, beside code that has none.

    make bench-tracing
    python benchmarks/tracing_overhead.py --write-results     # puts the last run's table into benchmarks/RESULTS.md

The chain is that of `send_path.py`: HTTP/2 bytes in and out, the broker's own handler, write path and replication, a
played slave. All kinds of broker run in one process and take turns of some milliseconds in a rotating order, so that
the machine's moods meet them all alike; a figure compares neighbours and is the median of all such pairs. The time is
CPU of the event loop's thread. To it comes what the loop looks up of the kept sends, every quarter of a second as in a
broker, and the CPU of the thread that encodes their spans and sends them by OTLP to a receiver in another process.

*bare* is the same source with every statement about a tracer cut out before it is compiled: what is left when tracing
is off is measured against that, not against a memory. `overhead_1pct` is that of the broker as images have it, with
the busiest modules as C extensions (`make compiled`); `…_plain` is that of the source. Rows are in
build/bench-tracing.json.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, process_time_ns, thread_time_ns
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import structlog
from rich.console import Console
from rich.table import Table

import tandemmq.broker.write_path
from report import Row
from send_path import TOPIC, ReplicatingBroker, connection_of, reads
from tandemmq.broker.put import PutMeter
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendTracer
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.recent_spans import RecentSpans
from tandemmq.core.tracing.send_spans import AckPolicy
from tandemmq.core.tracing.span_data import HeadSampler, TraceOptions
from tandemmq.http2 import frames
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.telemetry.span_export import SpanExport, SpanFan, open_span_export, resource_attributes

REPORT: Final = ROOT / "build" / "bench-tracing.json"
RESULTS: Final = ROOT / "benchmarks" / "RESULTS.md"
COMPILED: Final = ROOT / "build" / "compiled"
BEGIN_MARK: Final = "<!-- figures of make bench-tracing: begin -->"
END_MARK: Final = "<!-- figures of make bench-tracing: end -->"
PATH: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
OVERHEAD_PERCENT_MAX: Final = 5.0
"""Of a send's CPU, at 1 %."""
UNMEASURABLE_PERCENT: Final = 1.0
"""What off may cost: two runs of the same code differ by as much."""
SLOW_MS: Final = 200
RECENT_BYTES: Final = 10 << 20
BUILD_PAUSE_S: Final = 0.25
"""As the broker's."""
READS_A_TURN: Final = 10
SHIPPED_CONTESTS: Final = 5
WARM_UP_TURNS: Final = 20
ALL_TURNS: Final = 4
"""1,280 sends of five spans: less than the export's queue holds."""
RECEIVER: Final = """
import sys, time
sys.path[:0] = [sys.argv[1]]
from support.otlp_receiver import OtlpReceiver
with OtlpReceiver() as receiver:
    print(receiver.target, flush=True)
    sys.stdin.read()
    print(len(receiver.spans()), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A broker that is compared with others."""

    name: str
    # None: tracing is off.
    sample_rate: float | None = None
    # Names of attributes whose statements are cut out of the source.
    without: frozenset[str] = frozenset()


BARE: Final = Kind("bare", without=frozenset({"_tracer"}))
UNMETERED: Final = Kind("unmetered", without=frozenset({"_tracer", "_meter"}))
OFF: Final = Kind("off")
OFF_AGAIN: Final = Kind("off_again")
ONE_PERCENT: Final = Kind("1pct", sample_rate=0.01)
ALL: Final = Kind("all", sample_rate=1.0)


class _Cut(ast.NodeTransformer):
    """Takes out what is done only if there is a tracer or a meter, and what is done with one."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        is_cut = self._mentions(node.test)
        self.generic_visit(node)
        if is_cut:
            return node.orelse
        node.body = node.body or [ast.Pass()]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if not self._mentions(node.test):
            return node
        assert isinstance(node.test, ast.Compare)
        is_none = isinstance(node.test.ops[0], ast.Is)
        return node.body if is_none else node.orelse

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if self._mentions(node) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def _mentions(self, node: ast.AST) -> bool:
        return any(isinstance(part, ast.Attribute) and part.attr in self._names for part in ast.walk(node))


def without(module: ModuleType, names: frozenset[str]) -> ModuleType:
    """The module as it would be had nobody thought of these attributes."""
    assert module.__file__ is not None
    tree = _Cut(names).visit(ast.parse(Path(module.__file__).read_text()))
    cut = ModuleType(f"{module.__name__}_without_{'_'.join(sorted(names))}")
    sys.modules[cut.__name__] = cut
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), cut.__dict__)
    return cut


class Contestant:
    """One kind of broker with one client."""

    def __init__(self, kind: Kind, folder: Path, target: str) -> None:
        self.kind = kind
        clock = SystemClock()
        meter = PutMeter()
        self._recent = RecentSpans(limit_bytes=RECENT_BYTES)
        self._export: SpanExport | None = None
        tracing: BrokerTracing | None = None
        self._tracer: SendTracer | None = None
        if kind.sample_rate is not None:
            self._export = open_span_export(target, resource_attributes(service="broker", instance_id=kind.name))
            chance = random.Random(1)
            tracing = BrokerTracing(
                identity=BrokerIdentity("DefaultCluster", "broker-a", 0),
                clock=clock,
                options=TraceOptions(sample_rate=kind.sample_rate, slow_ms=SLOW_MS),
                sampler=HeadSampler(kind.sample_rate, chance=chance.random, bits=chance.getrandbits),
                sink=SpanFan([self._recent, self._export]),
            )
            policy = AckPolicy(needed_slaves=1, sync_flush=False, waits_for_slaves=True)
            self._tracer = SendTracer(tracing, meter, policy=policy)
        write_path = without(tandemmq.broker.write_path, kind.without) if kind.without else tandemmq.broker.write_path
        self._broker = ReplicatingBroker(
            folder,
            meter=meter,
            tracing=tracing,
            tracer=self._tracer,
            write_path=write_path.WritePath,
        )
        self._broker.add_topic(TOPIC, queue_count=8)
        front = Http2Front("127.0.0.1", 0, clock=clock)
        front.add(self._broker.api.method_table())
        self._connection = connection_of(front)
        self._connection.receive(frames.PREFACE + frames.settings({}) + frames.window_update(0, 1 << 30), monotonic())
        self._connection.take_output()
        self.turns_ns: list[int] = []
        self.building_ns = 0
        # Where all are kept, that is more than a broker keeps in a quarter of a second.
        self._build_pause_s = 0.0 if kind.sample_rate == 1.0 else BUILD_PAUSE_S
        self._build_at = monotonic() + self._build_pause_s

    async def turn(self, data: list[bytes]) -> None:
        """Some reads; when it is time, what was kept is looked up besides."""
        connection = self._connection
        began_ns = thread_time_ns()
        for read in data:
            connection.receive(read, monotonic())
            while connection.open_streams:
                await asyncio.sleep(0)  # the end of the turn ships to the slave
            connection.take_output()
        self.turns_ns.append(thread_time_ns() - began_ns)
        if monotonic() >= self._build_at:
            self._build()

    def _build(self) -> None:
        """Looks up the kept sends, and gives them to those who remember and export them."""
        if self._tracer is not None:
            began_ns = thread_time_ns()
            self._tracer.build_all()
            self.building_ns += thread_time_ns() - began_ns
            self._build_at = monotonic() + self._build_pause_s

    async def exported(self) -> dict[str, int]:
        """What became of the spans, when something has become of all of them."""
        if self._export is None:
            return {}
        self._build()
        while sum(self._export.counts.values()) < self._recent.kept_count:
            await asyncio.sleep(0.05)
        return self._export.counts

    async def close(self) -> None:
        if self._export is not None:
            await self._export.close()
        self._broker.close()


@contextmanager
def receiver() -> Iterator[str]:
    """An OTLP receiver in a process of its own; gives its address, and tells at the end what came."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVER, str(ROOT / "tests")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one contest, in us by message: of the loop's thread for every turn, of its looking up kept sends by kind, and
    of all other threads together."""

    by_kind: dict[str, list[float]]
    building_us: dict[str, float]
    elsewhere_us: float
    span_counts: dict[str, int]

    def dearer_percent(self, kind: Kind, than: Kind, *, elsewhere: bool = False) -> float:
        """How much more a message costs, by the loop's thread or by all threads."""
        mine, theirs = self.by_kind[kind.name], self.by_kind[than.name]
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        besides_us = self.building_us[kind.name] + (self.elsewhere_us if elsewhere else 0.0)
        ratio += besides_us / statistics.median(theirs)
        return 100 * (ratio - 1)


async def contest(kinds: Sequence[Kind], data: list[bytes], requests: int, target: str, console: Console) -> Figures:
    """Lets the kinds take turns until the data is used up. No more than one of them may trace."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        contestants = [Contestant(kind, Path(folder) / kind.name, target) for kind in kinds]
        gc.collect()
        gc.freeze()
        turns = [data[start : start + READS_A_TURN] for start in range(0, len(data), READS_A_TURN)]
        before_ns = process_time_ns() - thread_time_ns()
        for number, turn in enumerate(turns):
            if number == WARM_UP_TURNS:
                for contestant in contestants:
                    await contestant.exported()
                    contestant.building_ns = 0
                before_ns = process_time_ns() - thread_time_ns()
            first = number % len(contestants)
            for contestant in contestants[first:] + contestants[:first]:
                await contestant.turn(turn)
        span_counts: dict[str, int] = {}
        for contestant in contestants:
            span_counts |= await contestant.exported()
        elsewhere_ns = process_time_ns() - thread_time_ns() - before_ns
        for contestant in contestants:
            await contestant.close()
    messages = READS_A_TURN * requests
    all_messages = messages * (len(turns) - WARM_UP_TURNS)
    console.print(f"{', '.join(kind.name for kind in kinds)}: {len(data) * requests:,} messages each; {span_counts}")
    return Figures(
        {one.kind.name: [ns / 1_000 / messages for ns in one.turns_ns[WARM_UP_TURNS:]] for one in contestants},
        {one.kind.name: one.building_ns / 1_000 / all_messages for one in contestants},
        elsewhere_ns / 1_000 / all_messages,
        span_counts,
    )


async def measured(options: argparse.Namespace, console: Console) -> list[Row]:
    """How much dearer one kind is than another."""
    data = _data(options)
    # Few enough for the last one that the export keeps up: what it drops costs nothing.
    few = data[: READS_A_TURN * (WARM_UP_TURNS + ALL_TURNS)]
    with receiver() as target:
        # Two or three at a time: more push each other's code and data out of the processor's caches.
        metered = await contest((UNMETERED, BARE), data, options.requests, target, console)
        off = await contest((BARE, OFF, OFF_AGAIN), data, options.requests, target, console)
        traced = await contest((OFF, ONE_PERCENT), data, options.requests, target, console)
        whole = await contest((OFF, ALL), few, options.requests, target, console)
    plain_percent = traced.dearer_percent(ONE_PERCENT, OFF, elsewhere=True)
    return [
        Row.at_most("overhead_off", off.dearer_percent(OFF, BARE), UNMEASURABLE_PERCENT, "%"),
        # What the same code differs from itself by: no figure here is truer than that.
        Row.absolute("noise_off_again", off.dearer_percent(OFF_AGAIN, OFF), "%"),
        Row.absolute("overhead_1pct_plain", plain_percent, "%"),
        Row.absolute("overhead_all_plain", whole.dearer_percent(ALL, OFF, elsewhere=True), "%"),
        Row.absolute("metrics_always_on_plain", metered.dearer_percent(BARE, UNMETERED), "%"),
        Row.absolute("send_off_plain", statistics.median(traced.by_kind[OFF.name]), "us/msg"),
        Row.absolute("send_1pct_plain", statistics.median(traced.by_kind[ONE_PERCENT.name]), "us/msg"),
        Row.absolute("send_all_plain", statistics.median(whole.by_kind[ALL.name]), "us/msg"),
        Row.absolute("spans_dropped", traced.span_counts["dropped"] + whole.span_counts["dropped"], "spans"),
    ]


async def measured_as_shipped(options: argparse.Namespace, console: Console) -> list[Row]:
    """The same of 1 %, of whatever modules this process imports: medians of several contests, each of which sees no
    more than some ten calls of the export."""
    with receiver() as target:
        contests = [
            await contest((OFF, ONE_PERCENT), _data(options), options.requests, target, console)
            for _ in range(SHIPPED_CONTESTS)
        ]

    def median(figure: Callable[[Figures], float]) -> float:
        return statistics.median(map(figure, contests))

    percents = [one.dearer_percent(ONE_PERCENT, OFF, elsewhere=True) for one in contests]
    return [
        Row.at_most("overhead_1pct", statistics.median(percents), OVERHEAD_PERCENT_MAX, "%"),
        Row.absolute("overhead_1pct_least", min(percents), "%"),
        Row.absolute("overhead_1pct_most", max(percents), "%"),
        Row.absolute("overhead_1pct_loop", median(lambda one: one.dearer_percent(ONE_PERCENT, OFF)), "%"),
        Row.absolute("send_off", median(lambda one: statistics.median(one.by_kind[OFF.name])), "us/msg"),
        Row.absolute("send_1pct", median(lambda one: statistics.median(one.by_kind[ONE_PERCENT.name])), "us/msg"),
        Row.absolute("build_1pct", median(lambda one: one.building_us[ONE_PERCENT.name]), "us/msg"),
        Row.absolute("export_1pct", median(lambda one: one.elsewhere_us), "us/msg"),
    ]


def as_shipped(arguments: Sequence[str]) -> list[Row]:
    """`measured_as_shipped` in a process that imports the extensions."""
    done = subprocess.run(
        [sys.executable, __file__, "--as-shipped", *arguments],
        env=os.environ | {"PYTHONPATH": str(COMPILED)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Row(**row) for row in json.loads(done.stdout)]


def _data(options: argparse.Namespace) -> list[bytes]:
    return reads(count=options.reads, requests=options.requests, batch=1, body_bytes=1_024, path=PATH)


def markdown(rows: list[dict[str, object]]) -> str:
    """The table of RESULTS.md."""
    lines = ["| row | value | target | holds |", "|---|---|---|---|"]
    for row in rows:
        held = "" if row["target"] is None else "yes" if row["holds"] else "**no**"
        lines.append(f"| `{row['name']}` | {row['value']} {row['unit']} | {row['target'] or ''} | {held} |")
    return "\n".join(lines)


def write_results() -> None:
    """Puts the table of the last run between the markers."""
    before, _, rest = RESULTS.read_text().partition(BEGIN_MARK)
    _, _, after = rest.partition(END_MARK)
    table = markdown(json.loads(REPORT.read_text()))
    RESULTS.write_text(f"{before}{BEGIN_MARK}\n{table}\n{END_MARK}{after}")


def main() -> None:
    """Measures, prints the table and writes build/bench-tracing.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=3_000, help="of each connection (default %(default)s)")
    parser.add_argument("--requests", type=int, default=32, help="in each read (default %(default)s)")
    parser.add_argument("--as-shipped", action="store_true", help="only what `overhead_1pct` needs, as JSON")
    parser.add_argument("--write-results", action="store_true", help="only write the last run into RESULTS.md")
    options = parser.parse_args()
    if options.write_results:
        write_results()
        return
    console = Console(stderr=options.as_shipped)
    (ROOT / "build").mkdir(exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    gc.set_threshold(20_000, 20, 20)  # as a broker has it
    if options.as_shipped:
        print(json.dumps([asdict(row) for row in asyncio.run(measured_as_shipped(options, console))]))
        return
    if not COMPILED.is_dir():
        parser.error("there is no build/compiled; make it with `make compiled`")
    rows = as_shipped(sys.argv[1:]) + asyncio.run(measured(options, console))
    table = Table("row", "value", "unit", "target", "holds")
    for row in rows:
        table.add_row(
            row.name, str(row.value), row.unit, row.target or "", "" if row.target is None else str(row.holds)
        )
    console.print(table)
    REPORT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What it costs to prove replicas equal: the consistency job beside other ways, on the same files.

    make bench-consistency                                    # some ten minutes, 23 GB of disk for that time
    python benchmarks/consistency_cost.py --gib 2             # does it run here?
    python benchmarks/consistency_cost.py --gib 2.2 --broker  # only the broker's rows, put in place of the last run's
    python benchmarks/consistency_cost.py --write-results     # puts the last run's table into benchmarks/RESULTS.md

Makes two replicas of 9.4 GiB (segments of 1 GiB, messages of 256 bytes to 8 KiB, ConsumeQueues and index) with the
storage engine itself, and reads them with md5sum, with xxhsum where it is installed (apt: xxhash), with cmp, with plain
multiprocessing, message by message on one thread, and with the job in both tiers; then adds 0.5 GiB to each and lets
the job look again; asks the log of one of them five of the questions that docs/protocol/log-as-tables.md documents, by
Spark; then serves one of them with a broker and asks that for
digests. MB/s per core is bytes by CPU seconds of the whole process tree, JVM and start included.
Before all that, not measured: an archive of Java's classes is made, as the image has one, and the job's runs use it
(setting classArchive); that is done once for a Java and a Spark, not once a run.
Rows are in build/bench-consistency.json. Nothing is found, as nothing is wrong: a finding is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import blake3
import psutil
import xxhash
from isal import isal_zlib
from rich.console import Console
from rich.table import Table

from large_log import TOPICS, append_messages, copy_store
from process_tree import Cost, measure_command
from replica_readers import log_files
from report import Row
from tandemmq.core.audit.run_summary import RunSummary

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

FOLDER: Final = ROOT / "build" / "bench-consistency"
REPORT: Final = ROOT / "build" / "bench-consistency.json"
RESULTS: Final = ROOT / "benchmarks" / "RESULTS.md"
CLASS_ARCHIVE: Final = FOLDER / "classes.jsa"
BEGIN_MARK: Final = "<!-- figures of make bench-consistency: begin -->"
END_MARK: Final = "<!-- figures of make bench-consistency: end -->"
GROUP: Final = "broker-a"
TABLES_DOCUMENT: Final = ROOT / "docs" / "protocol" / "log-as-tables.md"
QUERIES: Final = {
    "topic_and_minute": "date_trunc",
    "largest": "ORDER BY body_bytes DESC",
    "slow_stores": "waited_ms DESC",
    "duplicates": "copies > 1",
    "missing": "AS first_missing",
}
"""What tells each of the documented queries that are timed."""
LOG_GIB: Final = 9.4
GROWTH_GIB: Final = 0.5
DISK_RESERVE_BYTES: Final = 3 << 30
"""Left free for everybody else."""
SLICE_FILES: Final = 2
"""What is read message by message: enough for a figure."""
KERNEL_MB_PER_CORE: Final = 2_000
JOB_MB_PER_CORE: Final = 1_500
BROKER_CORE_PERCENT: Final = 2
PIECE_BYTES: Final = 4 << 20
KERNEL_SECONDS: Final = 0.5
KERNEL_ROUNDS: Final = 3
DIGEST_SECONDS: Final = 15
DIGEST_ROUNDS: Final = 3
"""Some tenths of a second of CPU each, on a machine that others share: the median counts."""
SETTLE_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the replicas, measured."""

    name: str
    read_bytes: int
    cost: Cost
    noise_cores: float
    """CPUs that strangers kept busy meanwhile."""

    @property
    def mb_per_core(self) -> float:
        """Megabytes a second of CPU."""
        return self.cost.mb_per_core(self.read_bytes)


def kernels() -> Iterator[Row]:
    """Hash functions alone, over 4 MiB that are in memory: no reading can be faster."""
    piece = os.urandom(PIECE_BYTES)
    functions: dict[str, Callable[[bytes], object]] = {
        "xxh3_128": xxhash.xxh3_128_digest,
        "isal_crc32": isal_zlib.crc32,
        "blake3": lambda data: blake3.blake3(data).digest(),
        "zlib_crc32": zlib.crc32,
        "md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    }
    for name, function in functions.items():
        yield Row.absolute(f"kernel_{name}", _kernel_rate(function, piece), "MB/s per core")


def _kernel_rate(function: Callable[[bytes], object], piece: bytes) -> float:
    rates = []
    for _ in range(KERNEL_ROUNDS):
        count, started_s = 0, time.process_time()
        while time.process_time() < started_s + KERNEL_SECONDS:
            function(piece)
            count += 1
        rates.append(count * len(piece) / 1e6 / (time.process_time() - started_s))
    return statistics.median(rates)


def worker_digest(store: Path) -> float:
    """MB/s per core of what a worker does with a store: reads extents past the page cache and digests them."""
    from tandemmq.consistency.source_files.posix_files import PosixFiles
    from tandemmq.core.audit.replica_store import ReplicaStore, digest_extents, hash_maker, inspect_replica
    from tandemmq.core.replication.log_history import LogRange

    files = PosixFiles(str(store))
    facts = inspect_replica(files, group=GROUP, broker_id=0)
    log_range = LogRange(facts.min_offset, min(facts.end_offset, facts.min_offset + SLICE_FILES * facts.segment_bytes))
    started_s = time.process_time()
    found = list(
        digest_extents(ReplicaStore(files, facts), log_range, extent_bytes=PIECE_BYTES, new_hash=hash_maker("xxh3_128"))
    )
    used_s = time.process_time() - started_s
    assert all(extent.digest for extent in found)
    return (log_range.end_offset - log_range.start_offset) / 1e6 / used_s


class Contest:
    """The same files, read one way after the other."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.stores = [folder / "stores" / GROUP / str(broker_id) for broker_id in range(2)]
        self._folder = folder
        self._console = console
        self.readings: dict[str, Reading] = {}

    def grow(self, end_gib: float, *, seed: int) -> None:
        """Appends to the first replica and copies what changed to the second."""
        started_s = time.monotonic()
        end_offset = int(end_gib * 2**30)
        count = append_messages(self.stores[0], end_offset, seed=seed)
        copied = copy_store(self.stores[0], self.stores[1])
        os.sync()
        self._console.print(
            f"{count:,} messages to {end_gib:g} GiB, {copied / 1e9:.1f} GB copied, {time.monotonic() - started_s:.0f} s"
        )

    @property
    def log_bytes(self) -> int:
        """Of both replicas: whole files, as others read them."""
        return sum(path.stat().st_size for store in self.stores for path in log_files(store))

    def read_with(self, name: str, command: list[str | Path], read_bytes: int) -> Reading:
        """Measures a command that must say: equal."""
        busy_s, started_s = _busy_cpu_s(), time.monotonic()
        cost = measure_command(command, log=self._folder / f"{name}.log")
        strangers = (_busy_cpu_s() - busy_s - cost.cpu_s) / (time.monotonic() - started_s)
        if cost.exit_code != 0:
            raise SystemExit(f"{name} ended with {cost.exit_code}; see {self._folder / f'{name}.log'}")
        reading = Reading(name, read_bytes, cost, max(0.0, strangers))
        self.readings[name] = reading
        self._console.print(
            f"{name}: {read_bytes / 1e9:.2f} GB, {cost.wall_s:.1f} s, CPU {cost.cpu_s:.1f} s, "
            f"{reading.mb_per_core:,.0f} MB/s per core, from disk {cost.disk_bytes / 1e9:.1f} GB, "
            f"strangers {reading.noise_cores:.2f} CPUs",
            highlight=False,
        )
        return reading

    def run_job(self, name: str, results: Path, *settings: str) -> tuple[Reading, RunSummary]:
        """One run of the job; what counts is the log it verified, over both replicas."""
        command: list[str | Path] = [sys.executable, "-m", "tandemmq.consistency"]
        places = (f"path={self._folder / 'stores'}", f"results={results}", f"classArchive={CLASS_ARCHIVE}")
        for setting in (*places, *settings):
            command += ["--set", setting]
        reading = self.read_with(name, command, 0)
        summary = RunSummary.from_json(json.loads((results / "latest.json").read_text()))
        verified = sum((group.new_bytes + group.scrubbed_bytes) * len(group.replicas) for group in summary.groups)
        reading = Reading(name, verified, reading.cost, reading.noise_cores)
        self.readings[name] = reading
        self._console.print(f"{name}: {reading.read_bytes / 1e9:.2f} GB, {reading.mb_per_core:,.0f} MB/s per core")
        return reading, summary

    def slice_of(self, store: Path) -> Path:
        """A folder with the first files of a store's log."""
        part = self._folder / "slices" / store.name / "commitlog"
        part.mkdir(parents=True, exist_ok=True)
        for path in log_files(store)[:SLICE_FILES]:
            if not (part / path.name).exists():
                os.link(path, part / path.name)
        return part.parent


def _busy_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq + getattr(times, "steal", 0.0))


COMPARE_PAIRS: Final = 'while [ $# -gt 0 ]; do cmp -- "$1" "$2" || exit 1; shift 2; done'


def baselines(contest: Contest) -> Iterator[Row]:
    """Other ways, whole files."""
    readers = Path(__file__).parent / "replica_readers.py"
    files = [path for store in contest.stores for path in log_files(store)]
    slices = [contest.slice_of(store) for store in contest.stores]
    slice_bytes = sum(path.stat().st_size for part in slices for path in log_files(part))
    pairs = [path for pair in zip(*(log_files(store) for store in contest.stores), strict=True) for path in pair]
    xxhsum = shutil.which("xxhsum")
    ways: tuple[tuple[str, list[str | Path], int], ...] = (
        ("md5sum", ["md5sum", *files], contest.log_bytes),
        *((("xxhsum", [xxhsum, "-H2", *files], contest.log_bytes),) if xxhsum else ()),
        ("cmp", ["bash", "-c", COMPARE_PAIRS, "cmp", *pairs], contest.log_bytes),
        ("multiprocessing", [sys.executable, readers, "digest", *contest.stores], contest.log_bytes),
        ("single_reader", [sys.executable, readers, "messages", *slices], slice_bytes),
    )
    for name, command, read_bytes in ways:
        reading = contest.read_with(name, command, read_bytes)
        yield Row.absolute(name, reading.mb_per_core, "MB/s per core")
        yield Row.absolute(f"{name}_wall", read_bytes / 1e6 / reading.cost.wall_s, "MB/s")


def job(contest: Contest, *, end_gib: float) -> Iterator[Row]:
    """Both tiers over everything, then the quick one again: over nothing new, and over what was added."""
    remembered = FOLDER / "results"
    quick, first = contest.run_job("job_quick", remembered, "tier=quick")
    yield Row.absolute("job_bytes", quick.read_bytes, "bytes")
    yield Row.at_least("job_quick", quick.mb_per_core, JOB_MB_PER_CORE, "MB/s per core")
    yield Row.absolute("job_quick_wall", quick.read_bytes / 1e6 / quick.cost.wall_s, "MB/s")
    yield Row.absolute("job_quick_vs_md5sum", quick.mb_per_core / contest.readings["md5sum"].mb_per_core, "ratio")
    yield Row.absolute(
        "job_quick_vs_single_reader", quick.mb_per_core / contest.readings["single_reader"].mb_per_core, "ratio"
    )
    deep, whole = contest.run_job("job_deep", FOLDER / "results-deep", "tier=deep")
    yield Row.absolute("job_deep", deep.mb_per_core, "MB/s per core")
    yield Row.absolute("job_deep_wall", deep.read_bytes / 1e6 / deep.cost.wall_s, "MB/s")
    blake, strong = contest.run_job("job_blake3", FOLDER / "results-blake3", "tier=quick", "digestAlgorithm=blake3")
    yield Row.absolute("job_blake3", blake.mb_per_core, "MB/s per core")
    idle, nothing = contest.run_job("job_nothing_new", remembered, "tier=quick", "scrubBudgetBytes=0")
    yield Row.at_most("job_nothing_new_bytes", nothing.bytes_read, 64 << 20, "bytes")
    yield Row.absolute("job_nothing_new_cpu", idle.cost.cpu_s, "s")
    yield Row.absolute("job_nothing_new_time", idle.cost.wall_s, "s")
    contest.grow(end_gib, seed=2)
    grown, second = contest.run_job("job_grown", remembered, "tier=quick", "scrubBudgetBytes=0")
    new_bytes = grown.read_bytes
    yield Row.absolute("job_grown_new_bytes", new_bytes, "bytes")
    yield Row.at_most("job_grown_read_per_new_byte", second.bytes_read / new_bytes, 1.05)
    yield Row.absolute("job_grown_cpu_per_gb", (grown.cost.cpu_s - idle.cost.cpu_s) / (new_bytes / 1e9), "s/GB")
    summaries = (first, whole, strong, nothing, second)
    found = sum(summary.findings_total for summary in summaries)
    yield Row.at_most("clean_findings", found, 0, "findings")
    yield Row.absolute(
        "clean_bytes", sum(contest.readings[name].read_bytes for name in contest.readings if name in JOBS), "bytes"
    )


JOBS: Final = ("job_quick", "job_deep", "job_blake3", "job_nothing_new", "job_grown")


def queries(store: Path) -> Iterator[Row]:
    """The documented SQL over one replica's log, from a Spark that runs; each reads the whole log."""
    from pyspark.sql import SparkSession

    from tandemmq.consistency.data_sources import register
    from tandemmq.consistency.settings import ConsistencySettings
    from tandemmq.consistency.spark_session import running_spark
    from tandemmq.service.settings import load_settings

    examples = re.findall(r"```sql\n(.*?)```", TABLES_DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    settings = load_settings(
        ConsistencySettings, environ={}, overrides=[f"path={store}", f"classArchive={CLASS_ARCHIVE}"]
    )
    read_bytes = sum(path.stat().st_size for path in log_files(store))
    yield Row.absolute("query_log_bytes", read_bytes, "bytes")
    with running_spark(settings, os.environ) as context:
        session = SparkSession(context)
        register(session)
        for name, mark in QUERIES.items():
            (sql,) = (example for example in examples if mark in example)
            reader = session.read.format("commitlog")
            known = reader.load(str(store)).columns
            used = ",".join(column for column in known if re.search(rf"\b{column}\b", sql))
            reader.option("columns", used).load(str(store)).createOrReplaceTempView("log")
            started_s = time.monotonic()
            session.sql(sql.replace("'orders'", f"'{TOPICS[0]}'")).collect()
            yield Row.absolute(f"query_{name}_time", time.monotonic() - started_s, "s")


def broker_digest(store: Path, folder: Path) -> Iterator[Row]:
    """A broker with default settings digests its own log at the default pace; CPU of it and its helper process."""
    from support.cluster_processes import ProcessCluster

    sizes = {
        "mappedFileSizeCommitLog": str(1 << 30),
        "mappedFileSizeConsumeQueue": "6000000",
        "maxHashSlotNum": "5000000",
        "maxIndexNum": "20000000",
        # A disk as full as this one is meanwhile would have it remove its oldest files.
        "diskMaxUsedSpaceRatio": "0.999",
        "diskSpaceCleanForciblyRatio": "0.9991",
        "diskSpaceWarningLevelRatio": "0.9992",
    }
    with ProcessCluster(folder / "broker") as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(
            GROUP, settings=sizes | {"brokerRole": "ASYNC_MASTER", "storePathRootDir": str(store)}
        )
        process = psutil.Process(broker.pid)
        time.sleep(SETTLE_SECONDS)
        started_s, idle_s = time.monotonic(), _tree_cpu_s(process)
        time.sleep(DIGEST_SECONDS)
        idle_share = (_tree_cpu_s(process) - idle_s) / (time.monotonic() - started_s)
        # The first call starts the helper process: that cost is one of a run, not of a byte.
        asyncio.run(_digest(broker.ports["listenPort"], start_offset=0, seconds=1.0))
        cold, warm = log_files(store)[:2]
        warm.read_bytes()
        rates: dict[str, list[float]] = {"disk": [], "cache": []}
        shares: dict[str, list[float]] = {"disk": [], "cache": []}
        for _ in range(DIGEST_ROUNDS):
            _evict(cold)
            for place, path in (("disk", cold), ("cache", warm)):
                started_s, before_s = time.monotonic(), _tree_cpu_s(process)
                digested = asyncio.run(
                    _digest(broker.ports["listenPort"], start_offset=int(path.name), seconds=DIGEST_SECONDS)
                )
                wall_s = time.monotonic() - started_s
                rates[place].append(digested / wall_s / 1e6)
                shares[place].append((_tree_cpu_s(process) - before_s) / wall_s - idle_share)
        for place in rates:
            yield Row.absolute(f"broker_digest_rate_from_{place}", statistics.median(rates[place]), "MB/s")
            share = statistics.median(shares[place])
            yield Row.at_most(f"broker_digest_cpu_from_{place}", share * 100, BROKER_CORE_PERCENT, "% of a core")
    yield Row.absolute("broker_idle_cpu", idle_share * 100, "% of a core")


def _evict(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _digest(port: int, *, start_offset: int, seconds: float) -> int:
    """Bytes digested by the broker in about so many seconds."""
    import grpc

    from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as pb
    from tandemmq.proto.broker.v1 import replica_reader_service_pb2_grpc, replica_service_pb2

    digested = 0
    deadline_s = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        reader = replica_reader_service_pb2_grpc.ReplicaReaderServiceStub(channel)
        facts = await reader.DescribeReplica(pb.DescribeReplicaRequest(), timeout=10)
        call = reader.DigestExtents(
            pb.DigestExtentsRequest(
                range=replica_service_pb2.LogRange(start_offset=start_offset, end_offset=facts.end_offset),
                extent_bytes=PIECE_BYTES,
                algorithm=pb.DIGEST_ALGORITHM_XXH3_128,
            )
        )
        async for answer in call:
            digested += sum(extent.range.end_offset - extent.range.start_offset for extent in answer.extents)
            if time.monotonic() > deadline_s:
                call.cancel()
                break
    return digested


def _tree_cpu_s(process: psutil.Process) -> float:
    """Of a process and its children, those that ended included."""
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return float(total)


def check_disk(folder: Path, needed_bytes: int) -> None:
    """Refuses when the disk would get too full for others."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + DISK_RESERVE_BYTES:
        raise SystemExit(
            f"{folder} has {free / 1e9:.0f} GB free; {needed_bytes / 1e9:.0f} GB are needed and "
            f"{DISK_RESERVE_BYTES / 1e9:.0f} GB stay free: choose a smaller --gib"
        )


def measure(console: Console, *, gib: float, growth_gib: float) -> Iterator[Row]:
    """Everything, in order of the docstring."""
    subprocess.run([sys.executable, "-m", "tandemmq.consistency.spark_session", CLASS_ARCHIVE], check=True)
    yield from kernels()
    contest = Contest(FOLDER, console)
    contest.grow(gib, seed=1)
    yield Row.at_least("worker_digest", worker_digest(contest.stores[0]), KERNEL_MB_PER_CORE, "MB/s per core")
    yield from baselines(contest)
    yield from job(contest, end_gib=gib + growth_gib)
    yield from queries(contest.stores[0])
    yield from broker_digest(contest.stores[0], FOLDER)
    yield Row.absolute("noise_cores_max", max(each.noise_cores for each in contest.readings.values()), "CPUs")


def measure_broker(gib: float) -> Iterator[Row]:
    """The rows of the last run, if there was one, the broker's measured again, with a log of its own."""
    store = FOLDER / "stores" / GROUP / "0"
    append_messages(store, int(gib * 2**30), seed=1)
    os.sync()
    again = {row.name: row for row in broker_digest(store, FOLDER)}
    before = [Row(**row) for row in json.loads(REPORT.read_text())] if REPORT.exists() else []
    yield from (again.pop(row.name, row) for row in before)
    yield from again.values()


def table(rows: list[Row]) -> Table:
    found = Table(title="What it costs to prove two replicas equal", title_justify="left")
    for heading in ("row", "value", "unit", "target", ""):
        found.add_column(heading, justify="right" if heading == "value" else "left", no_wrap=True)
    for row in rows:
        verdict = "" if row.target is None else "[green]holds[/]" if row.holds else "[red]missed[/]"
        found.add_row(row.name, _text(row.value), row.unit, row.target or "", verdict)
    return found


def _text(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def write_results(rows: list[Row]) -> None:
    """Puts the table between the markers of RESULTS.md."""
    lines = ["| row of `build/bench-consistency.json` | value | target | holds |", "|---|---|---|---|"]
    for row in rows:
        holds = "" if row.target is None else "yes" if row.holds else "**no**"
        lines.append(f"| `{row.name}` | {_text(row.value)} {row.unit} | {row.target or ''} | {holds} |")
    head, begin, rest = RESULTS.read_text().partition(BEGIN_MARK)
    _, end, tail = rest.partition(END_MARK)
    if not begin or not end:
        raise SystemExit(f"{RESULTS} lacks the marks {BEGIN_MARK} and {END_MARK}")
    RESULTS.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


def main() -> int:
    """Measures and reports; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=LOG_GIB, help="log of each of the two replicas")
    parser.add_argument("--growth-gib", type=float, default=GROWTH_GIB, help="what is added later")
    parser.add_argument("--broker", action="store_true", help="only the broker's rows; the others stay as they were")
    parser.add_argument("--write-results", action="store_true", help="put the last run into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    if arguments.write_results:
        write_results([Row(**row) for row in json.loads(REPORT.read_text())])
        return 0
    console = Console(width=None if sys.stdout.isatty() else 140)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    # Two logs of whole files, and ConsumeQueues and index.
    check_disk(FOLDER, int(2 * (math.ceil(arguments.gib + arguments.growth_gib) + 0.06 * arguments.gib) * 2**30))
    rows: list[Row] = []
    found = (
        measure_broker(arguments.gib)
        if arguments.broker
        else measure(console, gib=arguments.gib, growth_gib=arguments.growth_gib)
    )
    try:
        for row in found:
            rows.append(row)
            # What was measured is kept when something fails later.
            REPORT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    finally:
        CLASS_ARCHIVE.unlink(missing_ok=True)
        for part in ("stores", "slices"):
            shutil.rmtree(FOLDER / part, ignore_errors=True)
    console.print(table(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

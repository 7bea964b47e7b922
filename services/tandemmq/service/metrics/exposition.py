"""Metrics as Prometheus reads them: its text format 0.0.4, and OpenMetrics 1.0, which has exemplars beside it.

We do not use prometheus_client: it takes 25 us a sample, and a broker with 2,000 topics has 30,000 of them. Here a
sample takes 1.5 us. The text is made on a thread, and the event loop waits for the interpreter meanwhile; so it comes
in pieces, between which the caller can let go.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from math import isinf, isnan
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from tandemmq.core.histogram import Exemplar, HistogramReading

__all__ = [
    "OPEN_METRICS_CONTENT_TYPE",
    "OTHER",
    "PROCESS_METRICS",
    "TEXT_CONTENT_TYPE",
    "Collect",
    "LabelValues",
    "LoopSnapshot",
    "MetricFamily",
    "MetricInfo",
    "MetricKind",
    "MetricSamples",
    "SeriesLimit",
    "SnapshotUnavailable",
    "exposition_pieces",
    "process_families",
    "text_exposition",
]


# What a metric is, said once: scrapes, exports and the table in the documentation are made from it.


class MetricKind(StrEnum):
    """How a metric moves."""

    GAUGE = "gauge"
    """Up and down."""
    COUNTER = "counter"
    """Up only, from zero at the start of the process. The name ends in `_total`."""
    HISTOGRAM = "histogram"
    """Observations by size, from zero at the start of the process."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    # As in a query: a counter's with `_total`.
    name: str
    kind: MetricKind
    # UCUM, as OpenTelemetry writes it: By, s, ms, 1 for ratios and flags, {message} for things counted.
    unit: str
    # A sentence.
    meaning: str
    # All of them, in the order in which samples give their values.
    labels: Sequence[str] = ()


# What a process tells when it is asked for its metrics, in no format yet.

LabelValues: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class MetricFamily:
    """All samples of one metric: by their label values a number, or a reading if it is a histogram."""

    info: MetricInfo
    samples: list[tuple[LabelValues, float | HistogramReading]] = field(default_factory=list)


class MetricSamples:
    """Collects samples of the metrics in a catalogue. Of one thread at a time."""

    def __init__(self, catalogue: Iterable[MetricInfo], *, base: Sequence[str] = ()) -> None:
        """`base` are the values of each metric's first labels, which samples then leave out."""
        self._families = {info.name: MetricFamily(info) for info in catalogue}
        self._base = tuple(base)

    def add(self, name: str, value: float, *labels: str) -> None:
        """One sample of a gauge or a counter."""
        family = self._families[name]
        assert len(self._base) + len(labels) == len(family.info.labels), f"{name} has labels {family.info.labels}"
        family.samples.append((self._base + labels, value))

    def add_counts(self, name: str, counts: Mapping[str, int], *labels: str) -> None:
        """A sample for each key, which is the last label."""
        for key, count in sorted(counts.items()):
            self.add(name, count, *labels, key)

    def add_histogram(self, name: str, reading: HistogramReading, *labels: str) -> None:
        """One sample of a histogram."""
        family = self._families[name]
        assert family.info.kind is MetricKind.HISTOGRAM, f"{name} is a {family.info.kind}"
        assert len(self._base) + len(labels) == len(family.info.labels), f"{name} has labels {family.info.labels}"
        family.samples.append((self._base + labels, reading))

    def families(self) -> list[MetricFamily]:
        """Those with samples, in the catalogue's order."""
        return [family for family in self._families.values() if family.samples]


TEXT_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_PIECE_SAMPLES: Final = 250
"""Some 0.4 ms."""
_TOTAL: Final = "_total"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def text_exposition(families: Iterable[MetricFamily]) -> bytes:
    """Everything in the text format, at once."""
    return "".join(exposition_pieces(families)).encode(errors="replace")


def exposition_pieces(families: Iterable[MetricFamily], *, open_metrics: bool = False) -> Iterator[str]:
    """The text piece by piece, each of some tenths of a millisecond."""
    for family in families:
        info = family.info
        is_counter = info.kind is MetricKind.COUNTER
        title = info.name.removesuffix(_TOTAL) if open_metrics and is_counter else info.name
        meaning = info.meaning.translate(_ESCAPES) if open_metrics else info.meaning.replace("\\", r"\\")
        yield f"# HELP {title} {meaning}\n# TYPE {title} {info.kind}\n"
        # One formatting for all labels: three times as fast as one for each.
        labels_format = ",".join([f'{name}="%s"' for name in info.labels])
        name, end = (f"{info.name}{{", "} ") if info.labels else (info.name, " ")
        for start in range(0, len(family.samples), _PIECE_SAMPLES):
            lines: list[str] = []
            for labels, value in family.samples[start : start + _PIECE_SAMPLES]:
                text = labels_format % _escaped(labels)
                if isinstance(value, HistogramReading):
                    lines += _histogram_lines(info.name, text, value, with_exemplars=open_metrics)
                else:
                    lines.append(f"{name}{text}{end}{_number(value)}\n")
            yield "".join(lines)
    if open_metrics:
        yield "# EOF\n"


def _escaped(values: LabelValues) -> LabelValues:
    """As they may stand between quotes; nearly always as they are."""
    joined = "".join(values)
    if '"' in joined or "\\" in joined or "\n" in joined:
        return tuple([value.translate(_ESCAPES) for value in values])
    return values


def _histogram_lines(name: str, labels: str, reading: HistogramReading, *, with_exemplars: bool) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    bounds = (*reading.bounds, float("inf"))
    count = 0
    for bound, count, exemplar in zip(bounds, accumulate(reading.counts), reading.exemplars, strict=True):
        note = _exemplar_text(exemplar) if exemplar is not None and with_exemplars else ""
        yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {count}{note}\n'
    own = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{own} {_number(reading.total)}\n{name}_count{own} {count}\n"


def _exemplar_text(exemplar: Exemplar) -> str:
    ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
    return f" # {{{ids}}} {_number(exemplar.value)} {exemplar.wall_ms / 1_000:.3f}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return "%d" % value  # noqa: UP031  # a flag is a number here, which str() would not make it
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(value)


# Bounds how many series a label with names of clients' choosing may have.

OTHER: Final = "_other"
"""Label value for the sum of all that have no series of their own. No topic may be called so by chance: names begin
with a letter or %, by RocketMQ's custom."""

KeyT = TypeVar("KeyT", bound=Hashable)


class SeriesLimit(Generic[KeyT]):
    """The first keys get series of their own and keep them until the process ends.

    Not the largest ones: a counter that moved between its own series and `OTHER` would seem to fall, and a rate over
    it would be nonsense.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._admitted: set[KeyT] = set()

    def admits(self, key: KeyT) -> bool:
        """Whether the key has a series of its own."""
        if key in self._admitted:
            return True
        if len(self._admitted) >= self._series_max:
            return False
        self._admitted.add(key)
        return True


# What the kernel says of this process, under the names every Prometheus client library gives it.

PROCESS_METRICS: Final = (
    MetricInfo(
        "process_cpu_seconds_total", MetricKind.COUNTER, "s", "Processor time of the process, in user and kernel mode."
    ),
    MetricInfo(
        "process_resident_memory_bytes",
        MetricKind.GAUGE,
        "By",
        "Resident memory; pages of mapped files count while they are in memory.",
    ),
    MetricInfo("process_virtual_memory_bytes", MetricKind.GAUGE, "By", "Address space; mapped files count in whole."),
    MetricInfo(
        "process_start_time_seconds", MetricKind.GAUGE, "s", "When the process started, in seconds since the epoch."
    ),
    MetricInfo("process_open_fds", MetricKind.GAUGE, "{file}", "Open file descriptors."),
    MetricInfo("process_max_fds", MetricKind.GAUGE, "{file}", "How many there may be."),
)

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat as counted from the one after the command, which may hold spaces; see proc(5).
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21


def process_families() -> list[MetricFamily]:
    """As of now; nothing where /proc is missing. Any thread."""
    samples = MetricSamples(PROCESS_METRICS)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        machine = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        open_files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return []
    booted_s = next(int(line.split()[1]) for line in machine if line.startswith("btime "))
    samples.add("process_cpu_seconds_total", (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS)
    samples.add("process_resident_memory_bytes", int(fields[_RSS]) * _PAGE_BYTES)
    samples.add("process_virtual_memory_bytes", int(fields[_VSIZE]))
    samples.add("process_start_time_seconds", booted_s + int(fields[_STARTTIME]) / _TICKS)
    samples.add("process_open_fds", open_files)
    samples.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return samples.families()


# Metrics belong to the event loop, and who asks for them is on a thread. Between them: one snapshot at a time, in time.

Collect: TypeAlias = Callable[[], Awaitable[list[MetricFamily]]]
"""Reads all metrics, on the event loop; lets it go on meanwhile where that takes long."""


class SnapshotUnavailable(Exception):
    """The loop did not answer in time, or has ended. Nobody's fault who asks: try again later."""


class LoopSnapshot:
    """Takes snapshots of what `collect` reads, from any thread but the loop's."""

    def __init__(self, collect: Collect, *, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self._collect = collect
        self._loop = loop
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._collecting: asyncio.Task[list[MetricFamily]] | None = None
        self._is_closed = False

    def take(self) -> list[MetricFamily]:
        """As of now. Waits for others who ask at the same time. Raises SnapshotUnavailable."""
        if not self._turn.acquire(timeout=self._limit_s):
            raise SnapshotUnavailable("others are being answered")
        try:
            return self._take()
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Ends a snapshot in progress and refuses further ones: what is read may go away after that. On the loop."""
        self._is_closed = True
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait((self._collecting,))

    def _take(self) -> list[MetricFamily]:
        collecting = self._collected()
        try:
            future = asyncio.run_coroutine_threadsafe(collecting, self._loop)
        except RuntimeError as error:
            collecting.close()
            raise SnapshotUnavailable("the process is ending") from error
        try:
            return future.result(self._limit_s)
        except TimeoutError as error:
            future.cancel()
            raise SnapshotUnavailable(f"the event loop did not answer within {self._limit_s:g} s") from error
        except CancelledError as error:
            raise SnapshotUnavailable("the process is ending") from error

    async def _collected(self) -> list[MetricFamily]:
        if self._is_closed:
            raise SnapshotUnavailable("the process is ending")
        self._collecting = asyncio.current_task()
        try:
            return await self._collect()
        finally:
            self._collecting = None

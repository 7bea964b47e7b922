"""Metrics on their way out of a process: as the text that Prometheus reads, and by the ways its settings ask for.

The text is Prometheus' format 0.0.4, or OpenMetrics 1.0, which has exemplars beside it. The OpenTelemetry SDK is loaded
only in processes that send by OTLP.

We do not use prometheus_client: it takes 25 us a sample, and a broker with 2,000 topics has 30,000 of them. Here a
sample takes 1.5 us. The text is made on a thread, and the event loop waits for the interpreter meanwhile; so it comes
in pieces, between which the caller can let go.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from math import inf, isinf, isnan
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import structlog

from tandemmq.core.histogram import Exemplar, HistogramReading
from tandemmq.core.quotas import counted_host
from tandemmq.service.rpc import ListenError
from tandemmq.service.telemetry.export import CALL_LIMIT_S, ExportThread, Sender

# What a metric is, said once: scrapes, exports and the table in the documentation are made from it.


class MetricKind(StrEnum):
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
        family = self._families[name]
        assert len(self._base) + len(labels) == len(family.info.labels), f"{name} has labels {family.info.labels}"
        family.samples.append((self._base + labels, value))

    def add_counts(self, name: str, counts: Mapping[str, int], *labels: str) -> None:
        """A sample for each key, which is the last label."""
        for key, count in sorted(counts.items()):
            self.add(name, count, *labels, key)

    def add_histogram(self, name: str, reading: HistogramReading, *labels: str) -> None:
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


# How a process gives its metrics away, by RocketMQ's settings metricsExporterType and metricsPromExporter…


class ExporterType(StrEnum):
    PROM = "PROM"
    """Prometheus asks at /metrics."""
    OTLP_GRPC = "OTLP_GRPC"
    """Sent by OTLP to a collector."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    types: frozenset[ExporterType] = frozenset()
    # Of /metrics; port 0 takes any.
    host: str = "127.0.0.1"
    port: int = 0
    # host:port of the collector, or an URL.
    target: str = ""
    interval_ms: int = 60_000


def parse_exporter_types(text: str) -> frozenset[ExporterType]:
    """Reads metricsExporterType: DISABLE, or types separated by ';'. ValueError says what else there is."""
    names = [name.strip() for name in text.split(";") if name.strip()]
    if names == ["DISABLE"]:
        return frozenset()
    try:
        types = frozenset(ExporterType(name) for name in names)
    except ValueError:
        types = frozenset()
    if not types:
        raise ValueError(f"'{text}' is no way to export; write DISABLE, or PROM and OTLP_GRPC separated by ';'")
    return types


# /metrics over HTTP, on threads of its own: a scrape is answered, if only by 503, while the event loop is held up.

log = structlog.get_logger(__name__)

_PATH: Final = "/metrics"
_CONNECTIONS_MAX: Final = 8
"""Two Prometheus servers and a curious operator; each is a thread."""
_SILENCE_LIMIT_S: Final = 5.0
_CONNECTION_LIMIT_S: Final = 30.0
"""Within which a scrape is over, however it comes and is read: Prometheus gives up after 10 s."""
_ROOM_LIMIT_S: Final = 1.0
_STOP_LOOK_S: Final = 0.2
"""How often the thread looks whether it is to end."""
_PAUSE_S: Final = 0.000_2
"""Between pieces of text: without it the event loop would wait 5 ms for the interpreter, at each of its turns."""
_GZIP_LEVEL: Final = 1
_REST_FACTOR: Final = 10
"""Making texts takes at most a tenth of the time in the long run: whoever asks without a pause gets the latest one."""
_AHEAD_S: Final = 15.0
"""So far before its time one is made: a second and a half of making at once. Nor is anybody given an older one: whoever
asks for one form must not leave old figures to who asks for the other. Prometheus asks every 15 s."""
_COST_S_MAX: Final = 1.0
"""What lasts longer waited for the event loop, and an operator wants to see how it is."""


class PrometheusEndpoint:
    """Serves what `read` gives. `read` is called on threads and may raise SnapshotUnavailable."""

    def __init__(self, host: str, port: int, *, read: Callable[[], list[MetricFamily]]) -> None:
        """Listens; `port` 0 takes any. Raises ListenError."""
        try:
            self._server = _Server(host, port, read)
        except OSError as error:
            raise ListenError(host, port, error.strerror or str(error)) from error
        self.port: Final[int] = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_LOOK_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Takes no more requests. Blocks for some tenths of a second at most."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A reader that hangs must not keep the process.
    block_on_close = False

    def __init__(self, host: str, port: int, read: Callable[[], list[MetricFamily]]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.read_families = read
        self._places = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        # Connections that are served: whose, and since when; the oldest first.
        self._served: dict[socket.socket, tuple[str, float]] = {}
        self._lock = threading.Lock()
        # The latest in either form, with the time of its making, and until when making them is paid for.
        self._texts: dict[bool, tuple[float, bytes]] = {}
        self._paid_until_s = 0.0
        self._making = threading.Lock()
        super().__init__((str(address[0]), port), _Handler)

    def text(self, *, open_metrics: bool) -> bytes:
        """Of now, or the latest that was made. Raises SnapshotUnavailable."""
        if not self._making.acquire(timeout=_SNAPSHOT_LIMIT_S):
            raise SnapshotUnavailable("others are being answered")
        try:
            began_s = time.monotonic()
            made_s, latest = self._texts.get(open_metrics, (-inf, b""))
            if self._paid_until_s - began_s > _AHEAD_S > began_s - made_s:
                return latest
            made = _text(self.read_families(), open_metrics=open_metrics)
            self._texts[open_metrics] = began_s, made
            cost_s = min(time.monotonic() - began_s, _COST_S_MAX)
            # What was made for its age is no debt for ever.
            paid_until_s = min(max(began_s, self._paid_until_s), began_s + _AHEAD_S)
            self._paid_until_s = paid_until_s + cost_s * _REST_FACTOR
            return made
        finally:
            self._making.release()

    def server_bind(self) -> None:
        """Without a look-up of this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> Any:
        """Rests where no connection can be taken, as without a file descriptor: it would be tried again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_STOP_LOOK_S)
            raise

    def service_actions(self) -> None:
        """Several times a second: whoever is slow for ever is in others' way."""
        oldest = time.monotonic() - _CONNECTION_LIMIT_S
        with self._lock:
            for request in [request for request, (_, began) in self._served.items() if began <= oldest]:
                _hang_up(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        host = counted_host(str(client_address[0]))
        if not self._places.acquire(blocking=False) and not self._makes_room(host):
            self.shutdown_request(request)
            return
        with self._lock:
            self._served[request] = host, time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # No thread can be made; the base class closes the connection.
            self._gone(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._gone(request)

    def _makes_room(self, host: str) -> bool:
        """Hangs up on the oldest connection of the host that has most of them, if it has more than the newcomer."""
        with self._lock:
            counts = Counter(each for each, _ in self._served.values())
            most = max(counts, key=counts.__getitem__, default=host)
            if counts[most] <= counts[host] + 1:
                return False
            _hang_up(next(request for request, (each, _) in self._served.items() if each == most))
        return self._places.acquire(timeout=_ROOM_LIMIT_S)

    def _gone(self, request: socket.socket) -> None:
        with self._lock:
            self._served.pop(request, None)
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away in the middle is no event."""


def _hang_up(request: socket.socket) -> None:
    """Its thread finds an end, and closes it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "TandemMQ"
    sys_version = ""
    # The connection's socket has it.
    timeout = _SILENCE_LIMIT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != _PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"metrics are at {_PATH}\n".encode(), "text/plain")
            return
        open_metrics = "application/openmetrics-text" in self.headers.get("Accept", "")
        try:
            body = self.server.text(open_metrics=open_metrics)
        except SnapshotUnavailable as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), "text/plain")
            return
        except Exception as error:  # The thread's root: metrics that cannot be read must not end anything else.
            log.error("metrics_unreadable", exc_info=error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log\n", "text/plain")
            return
        content_type = OPEN_METRICS_CONTENT_TYPE if open_metrics else TEXT_CONTENT_TYPE
        self._answer(HTTPStatus.OK, body, content_type)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, _GZIP_LEVEL)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Not a line for each scrape."""


def _text(families: list[MetricFamily], *, open_metrics: bool) -> bytes:
    parts = []
    for piece in exposition_pieces(families, open_metrics=open_metrics):
        parts.append(piece.encode(errors="replace"))
        time.sleep(_PAUSE_S)
    return b"".join(parts)


_SNAPSHOT_LIMIT_S: Final = 8.0
"""Prometheus gives up after 10 s."""


class MetricExports:
    """Gives away what `collect` reads on the event loop, and the process' own figures.

    `start` on the loop that `collect` belongs to; `close` while what it reads is still there.
    """

    def __init__(self, options: MetricsOptions, *, collect: Collect, resource: Mapping[str, str | int]) -> None:
        """`resource` says what process this is, to a collector."""
        self._options = options
        self._collect = collect
        self._resource = resource
        self._snapshot: LoopSnapshot | None = None
        self._endpoint: PrometheusEndpoint | None = None
        self._otlp: OtlpExport | None = None

    @property
    def port(self) -> int:
        """Of /metrics; 0 when nothing listens."""
        return self._endpoint.port if self._endpoint is not None else 0

    async def start(self) -> None:
        """Opens what the options name. Raises ListenError."""
        options = self._options
        self._snapshot = LoopSnapshot(self._collect, loop=asyncio.get_running_loop(), limit_s=_SNAPSHOT_LIMIT_S)
        if ExporterType.PROM in options.types:
            self._endpoint = PrometheusEndpoint(options.host, options.port, read=self._read)
        if ExporterType.OTLP_GRPC in options.types:
            # The SDK takes half a second to load, on a busy machine several.
            self._otlp = await asyncio.to_thread(
                open_otlp_export,
                options.target,
                resource=self._resource,
                interval_s=options.interval_ms / 1_000,
                read=self._read,
            )

    async def close(self) -> None:
        """Ends all of it, within two seconds; twice is fine."""
        endpoint, self._endpoint = self._endpoint, None
        otlp, self._otlp = self._otlp, None
        async with asyncio.TaskGroup() as ends:
            for way_out in (endpoint, otlp):
                if way_out is not None:
                    ends.create_task(asyncio.to_thread(way_out.close))
        if self._snapshot is not None:
            await self._snapshot.close()

    def _read(self) -> list[MetricFamily]:
        assert self._snapshot is not None, "start comes first"
        return [*self._snapshot.take(), *process_families()]


# Sends metrics to a receiver again and again, from a thread of its own. What a receiver does not take is not sent
# again: counters go on.


def open_otlp_export(
    target: str,
    *,
    resource: Mapping[str, str | int],
    interval_s: float,
    read: Callable[[], list[MetricFamily]],
) -> OtlpExport:
    """An export to `target`, host:port or an URL (https:// asks for TLS), of what `read` gives. Loads the SDK."""
    from tandemmq.service.telemetry.otlp_sender import OtlpMetricsSender

    def connect() -> Sender[MetricFamily]:
        return OtlpMetricsSender(target, resource=resource, timeout_s=CALL_LIMIT_S)

    return OtlpExport(connect, target=target, interval_s=interval_s, read=read)


class OtlpExport(ExportThread[MetricFamily]):
    """Reads, on the thread, and sends every `interval_s`, and once more at the end."""

    def __init__(
        self,
        connect: Callable[[], Sender[MetricFamily]],
        *,
        target: str,
        interval_s: float,
        read: Callable[[], list[MetricFamily]],
    ) -> None:
        super().__init__(connect, name="metrics-export")
        self._target = target
        self._interval_s = interval_s
        self._read = read
        self._closing = threading.Event()
        self._thread.start()

    def close(self) -> None:
        """Sends the last figures if the receiver takes them quickly. Blocks for two seconds at most."""
        self._closing.set()
        self._end()

    # On the export thread

    def _work(self) -> None:
        # Counting begins now, for the receiver; if it cannot be had, the first export tells why.
        self._attempt(())
        while not self._closing.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        try:
            problem = self._attempt(self._read())
        except SnapshotUnavailable:
            return  # The loop meter tells of a loop that hangs.
        except Exception as error:  # The thread's root, as in `_attempt`: metrics that cannot be read.
            problem = f"{type(error).__name__}: {error}"
        if not self._has_turned(problem):
            return
        if problem:
            log.warning("metrics_export_failing", receiver=self._target, problem=problem)
        else:
            log.info("metrics_export_recovered", receiver=self._target)

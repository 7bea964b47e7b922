"""All ways of metrics out of one process, as its settings ask for them: an address to scrape, and OTLP."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

import structlog

from tandemmq.service.metrics.exposition import (
    OPEN_METRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    Collect,
    LoopSnapshot,
    MetricFamily,
    SnapshotUnavailable,
    exposition_pieces,
    process_families,
)
from tandemmq.service.rpc import ListenError

__all__ = [
    "ExporterType",
    "MetricExports",
    "MetricsOptions",
    "MetricsSender",
    "OtlpExport",
    "PrometheusEndpoint",
    "open_otlp_export",
    "parse_exporter_types",
]


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
_STOP_LOOK_S: Final = 0.2
"""How often the thread looks whether it is to end."""
_PAUSE_S: Final = 0.000_2
"""Between pieces of text: without it the event loop would wait 5 ms for the interpreter, at each of its turns."""
_GZIP_LEVEL: Final = 1


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
        super().__init__((str(address[0]), port), _Handler)

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

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # No thread can be made; the base class closes the connection.
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away in the middle is no event."""


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
            body = _text(self.server.read_families(), open_metrics=open_metrics)
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


# Sends metrics to a receiver again and again, from a thread of its own.
#
# A receiver that is away, refuses or hangs costs nothing but the figures of that time, and two lines in the log, one
# when it begins and one when it ends: counters go on, so nothing has to be sent again.

_CALL_LIMIT_S: Final = 5.0
"""A request and its retries may take so long; then the rest of the export is given up."""
_LAST_EXPORT_LIMIT_S: Final = 1.5
_ABORT_LIMIT_S: Final = 0.5


class MetricsSender(Protocol):
    """The connection to a receiver."""

    def send(self, families: Sequence[MetricFamily]) -> str:
        """Sends one snapshot; "" when it was taken, else why not. Blocks, but not for ever. On the export thread."""

    def abort(self) -> None:
        """Ends a `send` in progress, and all that come later, at once. From any thread."""


def open_otlp_export(
    target: str,
    *,
    resource: Mapping[str, str | int],
    interval_s: float,
    read: Callable[[], list[MetricFamily]],
) -> OtlpExport:
    """An export to `target`, host:port or an URL (https:// asks for TLS), of what `read` gives. Loads the SDK."""
    from tandemmq.service.telemetry.otlp_sender import OtlpMetricsSender

    def connect() -> MetricsSender:
        return OtlpMetricsSender(target, resource=resource, timeout_s=_CALL_LIMIT_S)

    return OtlpExport(connect, target=target, interval_s=interval_s, read=read)


class OtlpExport:
    """Reads and sends every `interval_s`, and once more at the end.

    `connect` and `read` are called on the thread; a `connect` that raises, as a wrong variable of OpenTelemetry's makes
    it, is tried again at the next interval.
    """

    def __init__(
        self,
        connect: Callable[[], MetricsSender],
        *,
        target: str,
        interval_s: float,
        read: Callable[[], list[MetricFamily]],
    ) -> None:
        self._connect = connect
        self._target = target
        self._sender: MetricsSender | None = None
        self._interval_s = interval_s
        self._read = read
        self._closing = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="metrics-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends the last figures if the receiver takes them quickly. Blocks for two seconds at most."""
        self._closing.set()
        self._thread.join(_LAST_EXPORT_LIMIT_S)
        if self._sender is not None:
            self._sender.abort()
        self._thread.join(_ABORT_LIMIT_S)

    # On the export thread

    def _work(self) -> None:
        # Counting begins now, for the receiver; if it cannot be had, the first export tells why.
        with suppress(Exception):
            self._sender = self._connect()
        while not self._closing.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        try:
            if self._sender is None:
                self._sender = self._connect()
            problem = self._sender.send(self._read())
        except SnapshotUnavailable:
            return  # The loop meter tells of a loop that hangs.
        except Exception as error:  # The thread's root: metrics that cannot be told must not end the export.
            problem = f"{type(error).__name__}: {error}"
        self._judge(problem)

    def _judge(self, problem: str) -> None:
        if bool(problem) == self._is_failing:
            return
        self._is_failing = bool(problem)
        if problem:
            log.warning("metrics_export_failing", receiver=self._target, problem=problem)
        else:
            log.info("metrics_export_recovered", receiver=self._target)

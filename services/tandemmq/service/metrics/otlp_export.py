"""Sends metrics to a receiver again and again, from a thread of its own.

A receiver that is away, refuses or hangs costs nothing but the figures of that time, and two lines in the log, one when
it begins and one when it ends: counters go on, so nothing has to be sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from tandemmq.service.metrics.exposition import MetricFamily
from tandemmq.service.metrics.process_metrics import SnapshotUnavailable

__all__ = ["MetricsSender", "OtlpExport", "open_otlp_export"]

log = structlog.get_logger(__name__)

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
    from tandemmq.service.metrics.otlp_metrics_sender import OtlpMetricsSender

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

"""Sends finished spans to a receiver, from a thread of its own.

Export is the least important thing a broker does: it waits for nobody. `add` puts spans into a bounded queue and
returns; the thread sends them in batches. What the receiver does not take is counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import structlog

from tandemmq.core.tracing.send_spans import ResolvedSend
from tandemmq.core.tracing.span_data import SpanData
from tandemmq.service.settings import VERSION
from tandemmq.service.telemetry.export import CALL_LIMIT_S, ExportThread, Sender

Exported: TypeAlias = SpanData | ResolvedSend
"""A span, or a send with all of its spans."""

_QUEUE_SPANS: Final = 8_192
"""At most 10 MB, and at 1,000 spans a second the eight seconds in which a collector restarts."""
_BATCH_SPANS: Final = 2_048
"""A quarter of the queue, and some 700 kB. In a busy process a call costs 1 to 3 ms of CPU, which is the encoding of
1,000 to 3,000 spans: the library finds nothing of its own in the caches, waits for the interpreter several times, and
its threads look for further work for two seconds."""
_PAUSE_S: Final = 2.0
"""How late a receiver hears of a span; of one that a full batch had no room for, up to twice as late. The SDK's own
exporters leave it at 5 s."""

log = structlog.get_logger(__name__)


def resource_attributes(
    *, service: str, instance_id: str, attributes: Mapping[str, str | int] | None = None
) -> dict[str, str | int]:
    """Who a process is, to those who read its traces and metrics: OpenTelemetry's names, with `attributes` of our own.

    `service` is broker, nameserver and so on; `instance_id` is one of its kind for ever, for example
    `DefaultCluster/broker-a/0`: a restarted process goes on under it.
    """
    return {
        "service.namespace": "tandemmq",
        "service.name": f"tandemmq-{service}",
        "service.instance.id": instance_id,
        "service.version": VERSION,
        **(attributes or {}),
    }


def open_span_export(target: str, resource: Mapping[str, str | int]) -> SpanExport:
    """An export by OTLP/gRPC, with `resource` as what the process is. Returns at once: the thread loads the SDK, which
    takes half a second.

    `target` is host:port, or an URL: https:// asks for TLS. OpenTelemetry's variables (OTEL_EXPORTER_OTLP_HEADERS,
    _CERTIFICATE, _COMPRESSION, OTEL_RESOURCE_ATTRIBUTES) add to it.
    """

    def connect() -> Sender[Exported]:
        from tandemmq.service.telemetry.otlp_sender import OtlpSpanSender

        return OtlpSpanSender(target, resource=resource, timeout_s=CALL_LIMIT_S)

    return SpanExport(connect, target=target)


class SpanExport(ExportThread[Exported]):
    """A `SpanSink` that exports. `close` flushes for a moment, and returns within two seconds whatever happens."""

    def __init__(
        self,
        connect: Callable[[], Sender[Exported]],
        *,
        target: str,
        queue_spans: int = _QUEUE_SPANS,
        pause_s: float = _PAUSE_S,
    ) -> None:
        super().__init__(connect, name="span-export")
        self._target = target
        self._queue_spans = queue_spans
        self._pause_s = pause_s
        # Filled on the event loop, emptied on the thread; both ends of a deque are safe without a lock.
        self._queue: deque[Exported] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._aborted = False
        # In spans, since the start. One thread writes each.
        self._queued_count = 0
        self._taken_count = 0
        self._exported_count = 0
        self._failed_count = 0
        self._dropped_count = 0
        self._thread.start()

    @property
    def counts(self) -> dict[str, int]:
        """Spans since the start by what became of them: exported, failed (the receiver took them not), dropped (the
        queue was full)."""
        return {"exported": self._exported_count, "failed": self._failed_count, "dropped": self._dropped_count}

    @property
    def waiting_count(self) -> int:
        return self._queued_count - self._taken_count

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s. What comes together is taken or dropped together: half a trace misleads."""
        if len(spans) > self._room():
            self._dropped_count += len(spans)
            return
        # Counted first: the thread counts what it takes.
        self._queued_count += len(spans)
        self._queue.extend(spans)
        self._wake_if_full()

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        room = self._room()
        taken: list[ResolvedSend] = []
        taken_count = 0
        for send in sends:
            span_count = send.span_count
            if taken_count + span_count > room:
                self._dropped_count += span_count
            else:
                taken_count += span_count
                taken.append(send)
        self._queued_count += taken_count
        self._queue.extend(taken)
        self._wake_if_full()

    def _room(self) -> int:
        return 0 if self._closing else self._queue_spans - self.waiting_count

    def _wake_if_full(self) -> None:
        if self.waiting_count >= _BATCH_SPANS and not self._wake.is_set():
            self._wake.set()

    async def close(self) -> None:
        """Sends what waits if the receiver takes it quickly, else gives it up. Twice is fine."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._end)

    def _abort(self) -> None:
        self._aborted = True
        super()._abort()

    # On the export thread

    def _work(self) -> None:
        # Before the first spans come: loading what it needs takes its time.
        self._attempt(())
        while not self._closing:
            is_full = self._wake.wait(self._pause_s)
            self._wake.clear()
            # What does not fill a batch waits for others: a call costs more than the encoding of its spans.
            self._send_all(batch_spans_min=_BATCH_SPANS if is_full else 1)
        # What was added between the last look and the close.
        self._send_all(batch_spans_min=1)

    def _send_all(self, *, batch_spans_min: int) -> None:
        while self._queue and self.waiting_count >= batch_spans_min and not self._aborted:
            batch, span_count = self._next_batch()
            self._judge(self._attempt(batch), span_count)

    def _next_batch(self) -> tuple[list[Exported], int]:
        """What waits longest, and how many spans it is."""
        batch: list[Exported] = []
        span_count = 0
        while self._queue and span_count < _BATCH_SPANS:
            item = self._queue.popleft()
            batch.append(item)
            span_count += item.span_count if isinstance(item, ResolvedSend) else 1
        self._taken_count += span_count
        return batch, span_count

    def _judge(self, problem: str, span_count: int) -> None:
        if problem:
            self._failed_count += span_count
        else:
            self._exported_count += span_count
        if not self._has_turned(problem) or self._aborted:
            return
        if problem:
            log.warning("span_export_failing", receiver=self._target, problem=problem)
        else:
            log.info("span_export_recovered", receiver=self._target, **self.counts)


# Where finished spans go.


class SpanSink(Protocol):
    """Takes finished spans. Event loop only."""

    def add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans, those of one trace together if they are there together. Never blocks, never raises: what finds
        no room is dropped and counted.
        """

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """The same for sends whose spans have not been made yet."""


class SpanFan:
    """Gives every span to several sinks."""

    def __init__(self, sinks: Sequence[SpanSink]) -> None:
        self._sinks = tuple(sinks)

    def add(self, spans: Sequence[SpanData]) -> None:
        for sink in self._sinks:
            sink.add(spans)

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        for sink in self._sinks:
            sink.add_sends(sends)

"""Where finished spans go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqcore.tracing.send_spans import ResolvedSend
from mqcore.tracing.span_data import SpanData

__all__ = ["SpanFan", "SpanSink"]


class SpanSink(Protocol):
    """Takes finished spans. Event loop only."""

    def add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans, those of one trace together if they are there together. Never blocks, never raises: what finds
        no room is dropped and counted.
        """

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """The same of sends, of whose spans nobody has made any yet."""


class SpanFan:
    """Gives every span to several sinks."""

    def __init__(self, sinks: Sequence[SpanSink]) -> None:
        self._sinks = tuple(sinks)

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s."""
        for sink in self._sinks:
            sink.add(spans)

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """`SpanSink`'s."""
        for sink in self._sinks:
            sink.add_sends(sends)

"""The spans that a process kept lately, found by trace and by message: what `tandemmq trace` looks into.

Sends stay notes (`ResolvedSend`) until somebody looks. The memory is bounded and has two shares: what was slow or
failed is worth more than what chance picked, and must not be driven out by it when every send is traced. Each share
forgets whole traces, the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tandemmq.core.tracing.send_spans import ResolvedSend, send_spans
from tandemmq.core.tracing.span_data import (
    MESSAGE_IDS,
    MESSAGING_MESSAGE_ID,
    RETAINED_FOR,
    AttributeValue,
    RetainedFor,
    SpanData,
    message_ids_of,
)

_SPANS_PER_TRACE_MAX: Final = 512
"""A caller that uses one trace id for everything does not get the whole memory."""

# What CPython 3.11 takes, measured with `tracemalloc`: tests hold the estimate to be neither below nor twice it.
_SPAN_BYTES: Final = 640
_PART_BYTES: Final = 330
_ATTRIBUTE_BYTES: Final = 60
_MESSAGE_ID_BYTES: Final = 260
_SEND_BYTES: Final = 1_500
_LINKED_BYTES: Final = 150
_MARK_BYTES: Final = 200

_NOTABLE: Final = ("slow", "failed")
_SAMPLED: Final = RetainedFor.SAMPLED

_Part: TypeAlias = SpanData | ResolvedSend


class KeptTrace:
    """The spans of one trace that this process made. Read only, but for `RecentSpans`."""

    __slots__ = ("_parts", "_span_count", "dropped_count", "is_notable", "message_ids", "size_bytes", "trace_id")

    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id
        # In the order they came.
        self._parts: list[_Part] = []
        self._span_count = 0
        # Ids of the messages it has to do with, in the order they came up.
        self.message_ids: dict[str, None] = {}
        # True once a span was slow or failed.
        self.is_notable = False
        # Spans beyond the limit of a trace.
        self.dropped_count = 0
        self.size_bytes = 0

    @property
    def spans(self) -> list[SpanData]:
        """In the order they came; those of sends are made now."""
        made: list[SpanData] = []
        for part in self._parts:
            if isinstance(part, ResolvedSend):
                made += send_spans(part)
            else:
                made.append(part)
        return made

    @property
    def start_ns(self) -> int:
        """When its first span began, on the wall clock."""
        first = self._parts[0]
        if isinstance(first, ResolvedSend):
            return first.send.received_ns + first.wall_offset_ns
        return first.start_ns

    def add_send(self, send: ResolvedSend) -> list[str]:
        """Takes a send and returns the message ids that are new with it."""
        if not self._takes(send, send.span_count):
            return []
        note = send.send
        if note.failure or note.retained_for is not _SAMPLED:
            self.is_notable = True
        size_bytes = _SEND_BYTES + _MARK_BYTES * len(send.marks) + _LINKED_BYTES * len(note.linked)
        size_bytes += len(note.topic) + len(note.client_id) + len(note.peer) + len(note.tag)
        self.size_bytes += size_bytes
        new: list[str] = []
        for message_id in note.message_ids:
            self.size_bytes += len(message_id)
            self._add_message(message_id, new)
        return new

    def add(self, span: SpanData) -> list[str]:
        """Takes a span and returns the message ids that are new with it."""
        if not self._takes(span, 1):
            return []
        if span.failure or span.attributes.get(RETAINED_FOR) in _NOTABLE:
            self.is_notable = True
        self.size_bytes += _SPAN_BYTES - _PART_BYTES
        new: list[str] = []
        self._add_part(span.attributes, new)
        for link in span.links:
            self._add_part(link.attributes, new)
        for event in span.events:
            self._add_part(event.attributes, new)
        return new

    def _takes(self, part: _Part, span_count: int) -> bool:
        if self._span_count + span_count > _SPANS_PER_TRACE_MAX:
            self.dropped_count += span_count
            return False
        self._span_count += span_count
        self._parts.append(part)
        return True

    def _add_message(self, message_id: str, new: list[str]) -> None:
        if message_id not in self.message_ids:
            self.message_ids[message_id] = None
            self.size_bytes += _MESSAGE_ID_BYTES
            new.append(message_id)

    def _add_part(self, attributes: Mapping[str, AttributeValue], new: list[str]) -> None:
        self.size_bytes += _PART_BYTES
        if not attributes:
            return
        # For the compiler, which knows a dict's ways.
        facts = attributes if isinstance(attributes, dict) else dict(attributes)
        size_bytes = _ATTRIBUTE_BYTES * len(facts)
        for value in facts.values():  # A plain loop: this runs on the event loop for every span that is kept.
            if isinstance(value, str):
                size_bytes += len(value)
            elif isinstance(value, tuple):
                size_bytes += sum(map(len, value))
        if MESSAGING_MESSAGE_ID in facts or MESSAGE_IDS in facts:
            for message_id in message_ids_of(facts):
                self._add_message(message_id, new)
        self.size_bytes += size_bytes


class RecentSpans:
    """A bounded memory of spans: about `limit_bytes`, half of it for traces that were slow or failed. A `SpanSink`."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._ordinary = _Share(limit_bytes // 2)
        self._notable = _Share(limit_bytes // 2)
        # Message id to the traces that mention it.
        self._by_message: dict[str, list[KeptTrace]] = {}
        # Spans taken since the start.
        self.kept_count = 0

    def add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans of any traces, and forgets old ones for them."""
        self.kept_count += len(spans)
        if not spans:
            return
        # Mostly they are all of one trace.
        trace_id, start = spans[0].context.trace_id, 0
        for index, span in enumerate(spans):
            if span.context.trace_id != trace_id:
                self._add(spans[start:index])
                trace_id, start = span.context.trace_id, index
        self._add(spans[start:] if start else spans)

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """The same of sends."""
        for send in sends:
            self.kept_count += send.span_count
            trace = self._taken_out(send.send.context.trace_id)
            for message_id in trace.add_send(send):
                self._by_message.setdefault(message_id, []).append(trace)
            self._put_back(trace)

    def by_trace(self, trace_id: int) -> KeptTrace | None:
        return self._notable.traces.get(trace_id) or self._ordinary.traces.get(trace_id)

    def by_message(self, message_id: str) -> Sequence[KeptTrace]:
        """Traces that have to do with a message, the oldest first: its send, and what delivered and settled it."""
        return self._by_message.get(message_id, ())

    def newest(self, *, notable_only: bool = False) -> Iterator[KeptTrace]:
        """Newest first: those that were slow or failed, then the others."""
        yield from reversed(self._notable.traces.values())
        if not notable_only:
            yield from reversed(self._ordinary.traces.values())

    @property
    def trace_count(self) -> int:
        return len(self._notable.traces) + len(self._ordinary.traces)

    @property
    def oldest_ns(self) -> int | None:
        """When what is remembered begins: the first span of the ordinary trace that is forgotten next."""
        oldest = next(iter((self._ordinary.traces or self._notable.traces).values()), None)
        return oldest.start_ns if oldest is not None else None

    @property
    def size_bytes(self) -> int:
        """Memory taken, by estimate."""
        return self._notable.size_bytes + self._ordinary.size_bytes

    def _add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans of one trace."""
        trace = self._taken_out(spans[0].context.trace_id)
        for span in spans:
            for message_id in trace.add(span):
                self._by_message.setdefault(message_id, []).append(trace)
        self._put_back(trace)

    def _taken_out(self, trace_id: int) -> KeptTrace:
        """The trace with that id, or a new one, for as long as something is added to it."""
        trace = self.by_trace(trace_id)
        if trace is None:
            return KeptTrace(trace_id)
        (self._notable if trace.is_notable else self._ordinary).remove(trace)
        return trace

    def _put_back(self, trace: KeptTrace) -> None:
        """As the newest of its share, which forgets its oldest for it."""
        share = self._notable if trace.is_notable else self._ordinary
        share.put(trace)
        while share.is_above_limit:
            self._forget(share.remove_oldest())

    def _forget(self, trace: KeptTrace) -> None:
        for message_id in trace.message_ids:
            mentions = self._by_message[message_id]
            mentions.remove(trace)
            if not mentions:
                del self._by_message[message_id]


class _Share:
    """Traces in the order of their newest span, and what they take."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # A plain dict looks for its oldest entry where all were that it has already forgotten.
        self.traces: OrderedDict[int, KeptTrace] = OrderedDict()
        self.size_bytes = 0

    def put(self, trace: KeptTrace) -> None:
        self.traces[trace.trace_id] = trace
        self.size_bytes += trace.size_bytes

    def remove(self, trace: KeptTrace) -> None:
        if self.traces.pop(trace.trace_id, None) is not None:
            self.size_bytes -= trace.size_bytes

    @property
    def is_above_limit(self) -> bool:
        """Whether the oldest has to go; the newest stays, however big."""
        return self.size_bytes > self._limit_bytes and len(self.traces) > 1

    def remove_oldest(self) -> KeptTrace:
        _, oldest = self.traces.popitem(last=False)
        self.size_bytes -= oldest.size_bytes
        return oldest

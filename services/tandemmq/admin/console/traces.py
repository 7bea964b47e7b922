"""Renders the page of traces: the newest in a list, or one message as waterfalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.console.answers import Pages
from tandemmq.admin.trace_reader import TraceFindings, TraceLine, TraceList, TracingState
from tandemmq.admin.trace_trees import (
    TraceNode,
    TraceTree,
    advice,
    copy_facts,
    event_text,
    facts,
    messages_text,
    missing,
    operation,
    operation_name,
    outcome,
    parts_text,
    reason_text,
    shift_text,
    short_name,
    trace_trees,
    unanswered,
)
from tandemmq.core.tracing.span_data import RetainedFor
from tandemmq.service.texts import nanoseconds_text, sentence, wall_text

BAR_UNITS: Final = 1_000
"""Width of a bar's drawing; the browser stretches it."""
_BAR_MIN: Final = 3
_DEPTH_MAX: Final = 8
_EVENTS_SHOWN: Final = 24
_TICKS: Final = 4


@dataclass(frozen=True, slots=True)
class _Mark:
    """An event in a bar."""

    x: int
    label: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A span of a waterfall."""

    depth: int
    name: str
    broker: str
    # Of another broker than the row above it belongs to.
    is_linked: bool
    said: str
    at: str
    took: str
    x: int
    width: int
    # master, replica or bad.
    tone: str
    marks: tuple[_Mark, ...]
    # When and what, in the order of time.
    events: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Waterfall:
    title: str
    took: str
    outcome: str
    tone: str
    about: str
    trace_id: str
    notes: tuple[str, ...]
    # Where the time went.
    parts: str
    ticks: tuple[str, ...]
    rows: tuple[_Row, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    key: str
    label: str
    name: str
    topic: str
    broker: str
    began: str
    took: str
    kept: str
    tone: str


@dataclass(frozen=True, slots=True)
class TraceView:
    """What `trace.html` shows."""

    key: str
    # Empty: not that of one message.
    message_id: str
    # Where each copy lies: label and line.
    stored: Sequence[Sequence[tuple[str, str]]]
    waterfalls: Sequence[_Waterfall]
    notes: Sequence[str]
    advice: Sequence[str]


@dataclass(frozen=True, slots=True)
class TracesView:
    """What `traces.html` shows."""

    key: str
    notable_only: bool
    lines: Sequence[_Line]
    notes: Sequence[str]
    memories: Sequence[str]
    is_tracing: bool


def trace_view(key: str, findings: TraceFindings) -> TraceView:
    """Everything about what was asked for as `key`. A hundred spans take some milliseconds."""
    trees = trace_trees(findings.spans)
    return TraceView(
        key=key,
        message_id=findings.message_id,
        stored=copy_facts(findings.copies),
        waterfalls=[_waterfall(tree) for tree in trees],
        notes=missing(findings, trees),
        advice=advice(findings),
    )


def traces_view(found: TraceList, *, notable_only: bool) -> TracesView:
    return TracesView(
        key="",
        notable_only=notable_only,
        lines=[_line(line) for line in found.lines],
        notes=unanswered(found.brokers),
        memories=[_memory(state) for state in found.brokers if not state.error],
        is_tracing=any(state.tracing for state in found.brokers),
    )


def _waterfall(tree: TraceTree) -> _Waterfall:
    root, whole_ns = tree.root, tree.end_ns - tree.start_ns
    result, is_good = outcome(tree)
    about = [wall_text(root.start_ns // 1_000_000), root.broker]
    if reason := reason_text(tree):
        about.append(reason)
    if root.span.parent_span_id:
        about.append(f"below the caller's span {root.span.parent_span_id:016x}")
    parts = parts_text(tree)
    return _Waterfall(
        title=operation(tree),
        took=nanoseconds_text(root.duration_ns),
        outcome=result,
        tone="ok" if is_good else "bad",
        about=", ".join(about),
        trace_id=f"{root.span.context.trace_id:032x}",
        notes=tuple(shift_text(shift) for shift in tree.shifts),
        parts=sentence(parts) if parts else "",
        ticks=tuple(nanoseconds_text(whole_ns * number // _TICKS) if number else "0" for number in range(_TICKS + 1)),
        rows=tuple(_rows(root, tree.start_ns, max(1, whole_ns), depth=0)),
    )


def _rows(node: TraceNode, origin_ns: int, whole_ns: int, *, depth: int, in_replica: bool = False) -> Iterator[_Row]:
    span, in_replica = node.span, in_replica or node.is_linked
    x = min(BAR_UNITS - _BAR_MIN, (node.start_ns - origin_ns) * BAR_UNITS // whole_ns)
    events = node.events[:_EVENTS_SHOWN]
    yield _Row(
        depth=min(depth, _DEPTH_MAX),
        name=short_name(span.name),
        broker=node.broker,
        is_linked=node.is_linked,
        said=", ".join(facts(node)),
        at=nanoseconds_text(node.start_ns - origin_ns),
        took=nanoseconds_text(node.duration_ns),
        x=x,
        width=min(BAR_UNITS - x, max(_BAR_MIN, node.duration_ns * BAR_UNITS // whole_ns)),
        tone="bad" if span.failure else "replica" if in_replica else "master",
        marks=tuple(
            _Mark((event.at_ns - origin_ns) * BAR_UNITS // whole_ns, event_text(event))
            for event in events
            if 0 <= event.at_ns - origin_ns <= whole_ns
        ),
        events=tuple((nanoseconds_text(event.at_ns - origin_ns), event_text(event)) for event in events),
        attributes=tuple((name, _attribute(value)) for name, value in sorted(span.attributes.items())),
    )
    for child in node.children:
        yield from _rows(child, origin_ns, whole_ns, depth=depth + 1, in_replica=in_replica)


def _attribute(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(line: TraceLine) -> _Line:
    key = line.message_ids[0] if line.message_count == 1 else f"{line.trace_id:032x}"
    return _Line(
        key=key,
        label=messages_text(line) or key,
        name=operation_name(line.name),
        topic=line.topic,
        broker=line.broker,
        # Without the year and the zone, which the column's head names.
        began=wall_text(line.start_ms)[5:-4],
        took=nanoseconds_text(int(line.duration_ms * 1e6)),
        kept=line.failure or line.retained_for,
        tone="bad" if line.failure else "warning" if line.retained_for == RetainedFor.SLOW else "ok",
    )


def _memory(state: TracingState) -> str:
    if not state.tracing:
        return f"{state.broker} keeps no traces (traceEnable is off)"
    reach = f", back to {wall_text(state.oldest_ms)}" if state.oldest_ms is not None else ""
    return f"{state.broker} remembers {state.trace_count:,}{reach}"


# `/traces`: the newest traces, and where the time of one message went.

_LISTED: Final = 50
_KEY_MAX: Final = 256


def add_trace_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/traces", include_in_schema=False)
    async def traces(
        request: Request,
        id: Annotated[str, Query(max_length=_KEY_MAX)] = "",  # noqa: A002 - the name in the address
        notable: bool = False,
    ) -> Response:
        key = id.strip()
        if key:
            view = trace_view(key, await pages.traces.find(key))
            return pages.html(request, "trace.html", view=view)
        found = await pages.traces.newest(count=_LISTED, notable_only=notable)
        return pages.html(request, "traces.html", view=traces_view(found, notable_only=notable))

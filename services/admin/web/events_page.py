"""The page of events: lines of all brokers and what operators did here, newest first, filtered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from admin.operations.values import EventLine, Page

__all__ = ["LEVELS", "EventFilter", "EventRow", "events_page", "sources_of"]

# From the least; a filter shows its level and those after it.
LEVELS: Final = ("info", "warning", "error", "critical")
_PAGE_SIZE: Final = 100
_TONES: Final = {"warning": "warning", "error": "bad", "critical": "bad"}
_VALUE_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are shown. Empty fields: all."""

    search: str = ""
    # This and what is worse.
    level: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event."""

    # The same in every reading, so that an open page keeps its place.
    key: str
    time_ms: int
    source: str
    # Source's page; empty if it has none.
    href: str
    level: str
    tone: str
    event: str
    # Name and value.
    fields: Sequence[tuple[str, str]]


def events_page(lines: Sequence[EventLine], wanted: EventFilter, *, number: int) -> Page[EventRow]:
    """Part of what passes the filter; `lines` newest first."""
    found = list(_matching(lines, wanted))
    last = max(1, -(-len(found) // _PAGE_SIZE))
    number = min(max(1, number), last)
    shown = found[(number - 1) * _PAGE_SIZE : number * _PAGE_SIZE]
    return Page(tuple(_row(line) for line in shown), number, _PAGE_SIZE, len(found))


def sources_of(lines: Sequence[EventLine]) -> list[str]:
    """Who is among them, by name."""
    return sorted({line.source for line in lines})


def _matching(lines: Sequence[EventLine], wanted: EventFilter) -> Iterator[EventLine]:
    search = wanted.search.strip().lower()
    levels = LEVELS[LEVELS.index(wanted.level) :] if wanted.level in LEVELS else ()
    for line in lines:
        if wanted.source and line.source != wanted.source:
            continue
        if levels and line.level not in levels:
            continue
        if search and search not in _text(line):
            continue
        yield line


def _text(line: EventLine) -> str:
    return " ".join((line.event, line.source, *(f"{name}={value}" for name, value in line.fields.items()))).lower()


def _row(line: EventLine) -> EventRow:
    return EventRow(
        key=f"{line.time_ms}-{line.source}-{line.event}-{abs(hash(tuple(line.fields.items()))):x}",
        time_ms=line.time_ms,
        source=line.source,
        href=f"/brokers/{line.source}" if ":" in line.source else "",
        level=line.level,
        tone=_TONES.get(line.level, ""),
        event=line.event,
        fields=tuple((name, _short(value)) for name, value in line.fields.items()),
    )


def _short(value: str) -> str:
    return value if len(value) <= _VALUE_MAX else f"{value[:_VALUE_MAX]}… ({len(value):,} characters)"

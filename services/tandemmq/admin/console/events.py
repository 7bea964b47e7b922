"""The page of events: lines of all brokers and what operators did here, newest first, filtered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.console.answers import Pages, form_status, page_html
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.values import EventLine, Page, Unseen

__all__ = ["LEVELS", "EventFilter", "EventRow", "add_event_pages", "events_page", "sources_of"]

# From the least; a filter shows its level and those after it.
LEVELS: Final = ("info", "warning", "error", "critical")
_PAGE_SIZE: Final = 100
_TONES: Final = {"warning": "warning", "error": "bad", "critical": "bad"}
_VALUE_MAX: Final = 500
# What operators did: each of them counts.
_ADMIN: Final = "admin"


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
    # In words.
    event: str
    # As the log has it.
    name: str
    # Name and value; of a row that stands for several, the newest's.
    fields: Sequence[tuple[str, str]]
    # How many it stands for, and when the first of them was.
    count: int = 1
    since_ms: int = -1


def events_page(lines: Sequence[EventLine], wanted: EventFilter, *, number: int) -> Page[EventRow]:
    """Part of what passes the filter; `lines` newest first.

    What a source tells again and again, with nothing else of its own between, is one row: a busy machine that stalls a
    hundred times shall not hide the one line that matters.
    """
    found = _folded(_matching(lines, wanted))
    last = max(1, -(-len(found) // _PAGE_SIZE))
    number = min(max(1, number), last)
    shown = found[(number - 1) * _PAGE_SIZE : number * _PAGE_SIZE]
    return Page(tuple(_row(*each) for each in shown), number, _PAGE_SIZE, len(found))


def _folded(lines: Iterator[EventLine]) -> list[tuple[EventLine, int, int]]:
    """Each row's newest line, how many lines it stands for, and the time of the oldest."""
    found: list[tuple[EventLine, int, int]] = []
    # By source: the row its last line went to.
    last: dict[str, int] = {}
    for line in lines:
        index = last.get(line.source)
        if index is not None:
            newest, count, _ = found[index]
            if (newest.event, newest.level) == (line.event, line.level) and line.source != _ADMIN:
                found[index] = (newest, count + 1, line.time_ms)
                continue
        last[line.source] = len(found)
        found.append((line, 1, line.time_ms))
    return found


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
    fields = (f"{name}={value}" for name, value in line.fields.items())
    return " ".join((line.event, line.event.replace("_", " "), line.source, *fields)).lower()


def _row(line: EventLine, count: int, since_ms: int) -> EventRow:
    return EventRow(
        key=f"{line.time_ms}-{line.source}-{line.event}-{abs(hash(tuple(line.fields.items()))):x}",
        time_ms=line.time_ms,
        source=line.source,
        href=f"/brokers/{line.source}" if ":" in line.source else "",
        level=line.level,
        tone=_TONES.get(line.level, ""),
        event=line.event.replace("_", " "),
        name=line.event,
        count=count,
        since_ms=since_ms,
        fields=tuple((name, _short(value)) for name, value in line.fields.items()),
    )


def _short(value: str) -> str:
    return value if len(value) <= _VALUE_MAX else f"{value[:_VALUE_MAX]}… ({len(value):,} characters)"


# `/events`: what happened lately, of all brokers and of the admin service together.

_ASKED: Final = 2_000
# Every renewal asks the brokers.
_LIVE_MS: Final = 5_000
_Text = Annotated[str, Query(max_length=255)]


def add_event_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the route."""

    @app.get("/events", include_in_schema=False)
    async def events(
        request: Request,
        search: _Text = "",
        level: _Text = "",
        source: _Text = "",
        page: Annotated[int, Query(ge=1)] = 1,
    ) -> Response:
        wanted = EventFilter(search, level, source)
        failed: OperationFailed | None = None
        lines: Sequence[EventLine] = ()
        unseen: Sequence[Unseen] = ()
        try:
            lines, unseen = await pages.operations(request).events(limit=_ASKED)
        except OperationFailed as failure:
            failed = failure
        # A source that is chosen stays in the list though it has no event now.
        sources = sorted({*sources_of(lines), *([source] if source else [])})
        return page_html(
            pages,
            request,
            "events.html",
            active="events",
            status=form_status(failed, is_wrong=False),
            live_ms=_LIVE_MS,
            page=events_page(lines, wanted, number=page),
            filter=wanted,
            sources=[(name, name) for name in sources],
            unseen=unseen,
            failed=failed,
        )

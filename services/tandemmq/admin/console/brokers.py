"""The pages of brokers: all members with what a process tells of itself, and one of them whole.
And the page of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.cluster_state import BrokerState, BrokerStatus, ClusterState, DiskState
from tandemmq.admin.console.answers import (
    ChangePage,
    Pages,
    attempt,
    change_flash,
    form_of,
    part_of,
)
from tandemmq.admin.console.frame import Flash, segment
from tandemmq.admin.console.plots import RANGES, FigureView, Plot, Scale, plot, time_range
from tandemmq.admin.history import ClusterHistory, Figure
from tandemmq.admin.operations.questions import FailureKind, OperationFailed, not_found, refused, unavailable
from tandemmq.admin.operations.values import (
    EVENT_LEVELS,
    BrokerSettings,
    ConfigChange,
    EventLine,
    HandOver,
    Page,
    Setting,
    Unseen,
)
from tandemmq.service.texts import bytes_text, count_text, counted, duration_text, rate_text, seconds_text, wall_text

_PAGE_SIZE: Final = 50
_UNKNOWN: Final = "not known"
# Longer pauses than this are felt by clients.
_LONG_STALL_MS: Final = 500
_LEAST_LATENCY_S: Final = 0.01
_LEAST_RATE: Final = 10.0


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker: BrokerState
    # ok, warning or bad, and the same in words.
    tone: str
    state: str
    messages_in: str
    disk: str
    disk_tone: str
    stalls: str


@dataclass(frozen=True, slots=True)
class BrokerView:
    figures: Sequence[FigureView]
    plots: Sequence[Plot]
    # Label and value.
    log_facts: Sequence[tuple[str, str]]
    delayed_facts: Sequence[tuple[str, str]]
    addresses: Sequence[tuple[str, str]]
    # What was counted since the start: what, and how often.
    counts: Sequence[tuple[str, str]]


def brokers_page(state: ClusterState, history: ClusterHistory, *, search: str, number: int) -> Page[BrokerRow]:
    """Part of all members, those that do not answer first, then by name. `search` is a part of `name:id` or a role."""
    wanted = search.lower()
    found = [
        broker
        for broker in state.brokers
        if wanted in broker.key.lower() or (broker.status is not None and wanted in broker.status.role.lower())
    ]
    found.sort(key=lambda broker: (_is_well(broker, state.registrations_known), broker.broker_name, broker.broker_id))
    page = part_of(found, number, _PAGE_SIZE)
    rows = tuple(_row(broker, history, state.registrations_known) for broker in page.items)
    return Page(rows, page.number, page.size, page.total)


def broker_view(broker: BrokerState, history: ClusterHistory, *, now_wall_ms: int, range_ms: int) -> BrokerView:
    """One member; `now_wall_ms` is the plots' right end, `range_ms` how far they go back."""
    status = broker.status
    return BrokerView(
        figures=tuple(_figures(broker, status, history)) if status is not None else (),
        plots=tuple(_plots(broker, history, from_ms=now_wall_ms - range_ms, to_ms=now_wall_ms)),
        log_facts=tuple(_log_facts(status)) if status is not None else (),
        delayed_facts=tuple(_delayed_facts(status)) if status is not None else (),
        addresses=(
            ("clients", broker.client_endpoint or _UNKNOWN),
            ("metadata and admin", broker.metadata_endpoint or _UNKNOWN),
            ("replication", broker.ha_endpoint or "slaves dial their master"),
        ),
        counts=tuple(_counts(status)) if status is not None else (),
    )


def _row(broker: BrokerState, history: ClusterHistory, registrations_known: bool) -> BrokerRow:
    status = broker.status
    tone, state = _state(broker, registrations_known)
    disk = status.disk if status is not None else None
    rate = history.figure(broker.key, Figure.MESSAGES_IN).newest
    return BrokerRow(
        broker=broker,
        tone=tone,
        state=state,
        messages_in=rate_text(rate) if rate is not None else _UNKNOWN,
        disk=f"{disk.used_ratio:.0%}, {bytes_text(disk.free_bytes)} free" if disk is not None else _UNKNOWN,
        disk_tone=_disk_tone(disk),
        stalls=_stalls(status) if status is not None else _UNKNOWN,
    )


def _is_well(broker: BrokerState, registrations_known: bool) -> bool:
    return broker.status is not None and (broker.registered or not registrations_known)


def _state(broker: BrokerState, registrations_known: bool) -> tuple[str, str]:
    status = broker.status
    if status is None:
        return "bad", f"does not answer: {broker.error}"
    if not broker.registered and registrations_known:
        return "bad", "registered with no NameServer"
    if broker.is_master and status.write_refusal:
        return "bad", f"refuses writes: {status.write_refusal}"
    if status.master_link is not None and status.master_link.state != "transfer":
        return "warning", f"does not follow its master: {status.master_link.state}"
    return "ok", "serves" if broker.is_master else "follows its master"


def _disk_tone(disk: DiskState | None) -> str:
    if disk is None:
        return ""
    return "bad" if disk.is_full else "warning" if disk.is_nearly_full else ""


def _stalls(status: BrokerStatus) -> str:
    if not status.loop_stall_count:
        return "none"
    return f"{status.loop_stall_count:,}, longest {seconds_text(status.longest_loop_stall_ms / 1_000)}"


def _figures(broker: BrokerState, status: BrokerStatus, history: ClusterHistory) -> list[FigureView]:
    disk = status.disk
    rate = history.figure(broker.key, Figure.MESSAGES_IN).newest
    p99 = history.figure(broker.key, Figure.SEND_P99).newest
    out = history.figure(broker.key, Figure.MESSAGES_OUT).newest
    return [
        FigureView(
            "Messages in",
            rate_text(rate) if rate is not None else _UNKNOWN,
            f"sends take {seconds_text(p99)} (p99)" if p99 is not None else "no send lately",
        ),
        FigureView("Messages out", rate_text(out) if out is not None else _UNKNOWN),
        FigureView(
            "Disk",
            f"{disk.used_ratio:.0%}" if disk is not None else _UNKNOWN,
            f"{bytes_text(disk.free_bytes)} of {bytes_text(disk.total_bytes)} free; sends are refused at "
            f"{disk.warning_ratio:.0%}"
            if disk is not None
            else "",
            tone=_disk_tone(disk),
        ),
        FigureView("Memory", bytes_text(status.resident_bytes), "resident"),
        FigureView("Clients", count_text(status.client_count), f"{status.client_connection_count:,} connections"),
        FigureView(
            "Pauses of its loop",
            count_text(status.loop_stall_count),
            f"above 20 ms; longest {seconds_text(status.longest_loop_stall_ms / 1_000)}"
            if status.loop_stall_count
            else "above 20 ms since the start",
            tone="warning" if status.longest_loop_stall_ms >= _LONG_STALL_MS else "",
        ),
        FigureView("Topics and groups", f"{status.topic_count:,} and {status.group_count:,}"),
        FigureView("Up for", duration_text(status.uptime_seconds), f"version {status.version}"),
    ]


def _log_facts(status: BrokerStatus) -> Iterator[tuple[str, str]]:
    held = status.end_offset - status.min_offset
    yield "CommitLog from", count_text(status.min_offset)
    yield "end", f"{count_text(status.end_offset)}, {bytes_text(held)} held"
    yield "on disk up to", _up_to(status.flushed_offset, status.end_offset)
    yield "in ConsumeQueues up to", _up_to(status.dispatched_offset, status.end_offset)
    yield "flush", status.flush_disk_type
    if status.master_link is not None:
        yield "follows", status.master_link.address or "nobody"
    if (record := status.failover) is not None:
        yield "epoch of its group", count_text(record.epoch)
        yield "in-sync set", ", ".join(f"broker {broker_id}" for broker_id in record.in_sync_ids) or "nobody"
        yield "may be elected", "is the master" if record.acts else "yes" if record.is_electable else "no"
    if status.disk is not None:
        yield "store", status.disk.path
        if count := status.disk.kept_repairs_count:
            yield "overwritten by repairs", f"{counted(count, 'file')}, {bytes_text(status.disk.kept_repairs_bytes)}"
    if status.kept_tails:
        yield "cut-off tails", ", ".join(status.kept_tails)


def _up_to(offset: int, end_offset: int) -> str:
    return (
        count_text(offset) if offset >= end_offset else f"{count_text(offset)}, {bytes_text(end_offset - offset)} to go"
    )


def _delayed_facts(status: BrokerStatus) -> Iterator[tuple[str, str]]:
    delayed = status.delayed
    if not (delayed.waiting_count or delayed.delivered_count or delayed.recalled_count):
        return
    yield "waiting", count_text(delayed.waiting_count)
    if delayed.overdue_ms:
        yield "the first is overdue by", duration_text(delayed.overdue_ms // 1_000)
    elif delayed.next_due_ms:
        yield "none is due before", wall_text(delayed.next_due_ms)
    yield "delivered and recalled since the start", f"{delayed.delivered_count:,} and {delayed.recalled_count:,}"


def _counts(status: BrokerStatus) -> Iterator[tuple[str, str]]:
    for prefix, counts in (
        ("message put: ", status.put_counts),
        ("replication connection refused: ", status.refused_counts),
        ("client plane: ", status.client_plane_counts),
    ):
        for name, count in sorted(counts.items()):
            yield f"{prefix}{name}", count_text(count)


def _plots(broker: BrokerState, history: ClusterHistory, *, from_ms: float, to_ms: float) -> list[Plot]:
    draw = partial(plot, from_ms=from_ms, to_ms=to_ms)
    key = broker.key
    disk = broker.status.disk if broker.status is not None else None
    return [
        draw(
            "Messages",
            [("in", history.figure(key, Figure.MESSAGES_IN)), ("out", history.figure(key, Figure.MESSAGES_OUT))],
            unit=rate_text,
            least_top=_LEAST_RATE,
        ),
        draw(
            "Latency of sends",
            [("p50", history.figure(key, Figure.SEND_P50)), ("p99", history.figure(key, Figure.SEND_P99))],
            unit=seconds_text,
            scale=Scale.TIME,
            least_top=_LEAST_LATENCY_S,
            unknown="nothing sent" if broker.status is not None else "not known",
        ),
        draw("Memory", [("resident", history.figure(key, Figure.MEMORY))], unit=bytes_text, scale=Scale.BINARY),
        draw(
            "Disk used",
            [("of the store's disk", history.figure(key, Figure.DISK_USED))],
            unit=lambda value: f"{value:.0%}",
            least_top=1.0,
            limit=disk.warning_ratio if disk is not None else None,
        ),
    ]


# `/brokers`: all members, one of them, its settings, and its group's write permission.

_Text = Annotated[str, Query(max_length=255)]


def add_broker_pages(app: FastAPI, pages: Pages) -> None:
    _add_state(app, pages)
    _add_settings(app, pages)
    _add_setting(app, pages)
    _add_write_permission(app, pages)
    _add_failover(app, pages)


def _add_state(app: FastAPI, pages: Pages) -> None:
    @app.get("/brokers", include_in_schema=False)
    async def brokers(request: Request, search: _Text = "", page: Annotated[int, Query(ge=1)] = 1) -> Response:
        reading = pages.cluster.latest
        state = reading.state if reading is not None else ClusterState(name_servers=(), brokers=())
        return pages.html(
            request,
            "brokers.html",
            live_ms=pages.refresh_ms,
            is_read=reading is not None,
            page=brokers_page(state, pages.history, search=search.strip(), number=page),
            search=search,
        )

    @app.get("/brokers/{key}", include_in_schema=False)
    async def broker(request: Request, key: str, range: _Text = "") -> Response:  # noqa: A002 - the name in the address
        found = _broker(pages, key)
        chosen = time_range(range)
        findings = pages.cluster.latest.findings if pages.cluster.latest is not None else ()
        return pages.html(
            request,
            "broker.html",
            live_ms=pages.refresh_ms,
            tab="state",
            broker=found,
            findings=[finding for finding in findings if finding.subject == found.key],
            view=broker_view(found, pages.history, now_wall_ms=pages.clock.wall_ms(), range_ms=chosen.duration_ms),
            range=chosen,
            ranges=RANGES,
        )


def _add_settings(app: FastAPI, pages: Pages) -> None:
    @app.get("/brokers/{key}/settings", include_in_schema=False)
    async def settings(request: Request, key: str, search: _Text = "") -> Response:
        found = _broker(pages, key)
        nothing = BrokerSettings(found.key, ())
        answer, failure = await attempt(pages.operations(request).broker_settings(found.key), nothing)
        known = answer.settings
        wanted = search.strip().lower()
        shown = [each for each in known if wanted in each.key.lower() or wanted in each.description.lower()]
        return pages.html(
            request,
            "broker_settings.html",
            tab="settings",
            broker=found,
            failure=failure,
            search=search,
            total=len(known),
            # What somebody changed while it runs belongs to the top even if it is the default again.
            differing=[each for each in shown if each.differs or each.origin == "changed"],
            others=[each for each in shown if not each.differs and each.origin != "changed"],
        )


def _add_setting(app: FastAPI, pages: Pages) -> None:
    def form(
        request: Request,
        broker: BrokerState,
        setting: Setting,
        *,
        value: str,
        failed: OperationFailed | None = None,
        changes: list[ConfigChange] | None = None,
    ) -> Response:
        is_wrong = failed is not None and failed.kind is FailureKind.INVALID
        return pages.html(
            request,
            "broker_setting.html",
            is_wrong=is_wrong,
            tab="settings",
            broker=broker,
            setting=setting,
            value=value,
            changes=changes,
            failure=None if is_wrong else failed,
            error=_sentence(failed) if failed is not None and is_wrong else "",
        )

    @app.get("/brokers/{key}/settings/{name}", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def setting(request: Request, key: str, name: str) -> Response:
        broker = _broker(pages, key)
        found = await _setting(pages, request, broker, name)
        return form(request, broker, found, value=found.value)

    @app.post("/brokers/{key}/settings/{name}", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_setting(request: Request, key: str, name: str) -> Response:
        broker = _broker(pages, key)
        fields = await form_of(request)
        value, is_confirmed = fields.text("value"), fields.is_checked("confirm")
        found = await _setting(pages, request, broker, name)
        try:
            changes = await pages.operations(request).update_settings(
                broker.key, {name: value}, dry_run=not is_confirmed
            )
        except OperationFailed as failure:
            return form(request, broker, found, value=value, failed=failure)
        if not is_confirmed:
            return form(request, broker, found, value=value, changes=list(changes))
        lines = [f"{change.key}: {change.from_value} → {change.to_value}" for change in changes]
        flash = Flash("ok", f"{broker.key} works with the new value until its next start.", lines)
        return pages.go_to(f"/brokers/{segment(broker.key)}/settings", flash)


@dataclass(frozen=True, slots=True)
class _BrokerForm:
    """A broker whose group is to be changed; nothing in it can be wrong."""

    broker: BrokerState
    errors: Mapping[str, str] = field(default_factory=dict)
    # Whether producers are to be sent there.
    writable: bool = True


def _add_write_permission(app: FastAPI, pages: Pages) -> None:
    permitting = ChangePage[_BrokerForm](
        pages, "broker_permission.html", lambda form: {"tab": "state", "broker": form.broker}
    )

    @app.post("/brokers/{key}/write-permission", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def write_permission(request: Request, key: str) -> Response:
        posted = await form_of(request)
        form = _BrokerForm(_broker(pages, key), writable=posted.text("writable") == "true")
        name = form.broker.broker_name
        text = f"{name} {'has its write permission back' if form.writable else 'takes no new messages'}."
        return await permitting.carry_out(
            request,
            form,
            lambda dry_run: pages.operations(request).set_write_permission(
                name, writable=form.writable, dry_run=dry_run
            ),
            lambda result: pages.go_to(f"/brokers/{segment(form.broker.key)}", change_flash(text, result)),
            is_confirmed=posted.is_checked("confirm"),
        )


def _add_failover(app: FastAPI, pages: Pages) -> None:
    electing = ChangePage[_BrokerForm](
        pages, "broker_failover.html", lambda form: {"tab": "state", "broker": form.broker}
    )

    @app.post("/brokers/{key}/failover", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def failover(request: Request, key: str) -> Response:
        posted = await form_of(request)
        broker = _broker(pages, key)
        return await electing.carry_out(
            request,
            _BrokerForm(broker),
            lambda dry_run: pages.operations(request).failover(
                broker.broker_name, to=broker.broker_id, dry_run=dry_run
            ),
            lambda result: pages.go_to(f"/brokers/{segment(broker.key)}", _handed_over(result)),
            is_confirmed=posted.is_checked("confirm"),
        )


def _handed_over(result: HandOver) -> Flash:
    if not result.changed:
        return Flash("ok", f"{result.to_broker} is the master already.")
    took = f"The group took no sends for {seconds_text(result.no_sends_ms / 1_000)} at most."
    return Flash("ok", f"{result.from_broker} handed over to {result.to_broker}.", (took,))


def _broker(pages: Pages, key: str) -> BrokerState:
    reading = pages.cluster.latest
    if reading is None:
        raise unavailable("the cluster has not been read yet", remedy="try again in a second")
    found = next((broker for broker in reading.state.brokers if broker.key == key), None)
    if found is None:
        raise not_found(
            f"no broker {key} is known",
            cause="no NameServer knows it, and it has not been seen lately",
            remedy="see the list on the page Brokers",
        )
    return found


async def _setting(pages: Pages, request: Request, broker: BrokerState, name: str) -> Setting:
    settings = (await pages.operations(request).broker_settings(broker.key)).settings
    found = next((setting for setting in settings if setting.key == name), None)
    if found is None:
        raise not_found(f"{broker.key} has no setting {name}")
    if not found.changeable:
        raise refused(
            f"{name} cannot be changed while {broker.key} runs",
            remedy="change it in the broker's configuration and restart the broker",
        )
    return found


def _sentence(failure: OperationFailed) -> str:
    return "; ".join(part for part in (failure.problem, failure.cause, failure.remedy) if part)


# The page of events: lines of all brokers and what operators did here, newest first, filtered.

_EVENTS_PAGE_SIZE: Final = 100
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
    page = part_of(found, number, _EVENTS_PAGE_SIZE)
    return Page(tuple(_event_row(*each) for each in page.items), page.number, page.size, page.total)


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
    # A level is shown with those after it.
    levels = EVENT_LEVELS[EVENT_LEVELS.index(wanted.level) :] if wanted.level in EVENT_LEVELS else ()
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


def _event_row(line: EventLine, count: int, since_ms: int) -> EventRow:
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


def add_event_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/events", include_in_schema=False)
    async def events(
        request: Request,
        search: _Text = "",
        level: _Text = "",
        source: _Text = "",
        page: Annotated[int, Query(ge=1)] = 1,
    ) -> Response:
        wanted = EventFilter(search, level, source)
        nothing: tuple[Sequence[EventLine], Sequence[Unseen]] = (), ()
        (lines, unseen), failure = await attempt(pages.operations(request).events(limit=_ASKED), nothing)
        # All that may have events stay in the list though they have none now.
        reading = pages.cluster.latest
        members = {broker.key for broker in reading.state.brokers} if reading is not None else {source}
        sources = {*sources_of(lines), *members, _ADMIN}
        return pages.html(
            request,
            "events.html",
            live_ms=_LIVE_MS,
            page=events_page(lines, wanted, number=page),
            filter=wanted,
            sources=[(name, name) for name in sorted({*sources, *([source] if source else [])})],
            is_no_source=bool(source) and source not in sources,
            unseen=unseen,
            failure=failure,
        )

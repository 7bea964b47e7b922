"""The overview: the cluster at a glance. Everything is from the newest reading and its history; nobody is asked.
And the page about the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.cluster_state import BrokerState, ClusterState, NameServerState
from tandemmq.admin.console.answers import Pages
from tandemmq.admin.console.consistency import consistency_section
from tandemmq.admin.console.plots import RANGES, FigureView, Plot, Scale, plot, time_range
from tandemmq.admin.console.replication import GroupStanding, group_standings
from tandemmq.admin.history import ClusterHistory, Figure, Samples
from tandemmq.service.texts import bytes_rate_text, bytes_text, count_text, rate_text, seconds_text

_GROUPS_MAX: Final = 20
_NAME_SERVERS_MAX: Final = 20
_UNKNOWN: Final = "not known"
_LEAST_RATE: Final = 10.0
_LEAST_BYTES: Final = 16 << 10
_LEAST_LATENCY_S: Final = 0.01
_LEAST_LAG_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class GroupRow:
    standing: GroupStanding
    messages_in: str
    messages_out: str
    disk: str


@dataclass(frozen=True, slots=True)
class Overview:
    """All but the findings."""

    figures: Sequence[FigureView]
    groups: Sequence[GroupRow]
    # Beyond those.
    more_groups: int
    name_servers: Sequence[NameServerState]
    more_name_servers: int
    # Whether they agree, in a sentence.
    agreement: str
    agreement_tone: str
    plots: Sequence[Plot]


def overview(state: ClusterState, history: ClusterHistory, *, now_wall_ms: int, range_ms: int) -> Overview:
    """`now_wall_ms` is the plots' right end, `range_ms` how far they go back."""
    standings = group_standings(state)
    tone, agreement = _agreement(state.name_servers)
    # Those that do not answer first.
    servers = sorted(state.name_servers, key=lambda server: server.error is None)
    return Overview(
        figures=tuple(_figures(state, standings, history)),
        groups=tuple(_group_row(standing, history) for standing in standings[:_GROUPS_MAX]),
        more_groups=max(0, len(standings) - _GROUPS_MAX),
        name_servers=tuple(servers[:_NAME_SERVERS_MAX]),
        more_name_servers=max(0, len(servers) - _NAME_SERVERS_MAX),
        agreement=agreement,
        agreement_tone=tone,
        plots=tuple(_plots(standings, history, from_ms=now_wall_ms - range_ms, to_ms=now_wall_ms)),
    )


def _agreement(servers: Sequence[NameServerState]) -> tuple[str, str]:
    answering = [server for server in servers if server.error is None]
    if not answering:
        return "bad", "No NameServer answers: clients that start now find no broker."
    same = len({frozenset(server.brokers) for server in answering}) == 1
    if not same:
        return "bad", "They do not know the same brokers."
    if len(answering) < len(servers):
        count = len(answering)
        return "bad", f"Only {count} of {len(servers)} {'answers' if count == 1 else 'answer, and agree'}."
    return "ok", "They know the same brokers." if len(servers) > 1 else "There is one."


def _figures(state: ClusterState, standings: Sequence[GroupStanding], history: ClusterHistory) -> list[FigureView]:
    masters = [standing.master for standing in standings if standing.master is not None]
    answering = [broker for broker in state.brokers if broker.status is not None]
    statuses = [master.status for master in masters if master.status is not None]
    lost = len(state.brokers) - len(answering)
    return [
        FigureView("Messages in", _rate(history.total(Figure.MESSAGES_IN)), _bytes_rate(history)),
        FigureView("Messages out", _rate(history.total(Figure.MESSAGES_OUT))),
        FigureView(
            "Brokers",
            f"{len(answering):,} of {len(state.brokers):,}",
            "answer" if not lost else _silent_text(lost),
            tone="bad" if lost else "",
            href="/brokers",
        ),
        _lag_figure(standings),
        _disk_figure(answering),
        FigureView(
            "Topics",
            count_text(max((status.topic_count for status in statuses), default=0)),
            "with those of the system",
            href="/topics",
        ),
        FigureView(
            "Groups",
            count_text(max((status.group_count for status in statuses), default=0)),
            "with those of the system",
            href="/groups",
        ),
        FigureView("Clients", count_text(sum(status.client_count for status in statuses)), "at masters"),
    ]


def _silent_text(count: int) -> str:
    return f"{count:,} {'does' if count == 1 else 'do'} not answer"


def _rate(samples: Samples) -> str:
    newest = samples.newest
    return rate_text(newest) if newest is not None else _UNKNOWN


def _bytes_rate(history: ClusterHistory) -> str:
    newest = history.total(Figure.BYTES_IN).newest
    return bytes_rate_text(newest) if newest is not None else ""


# As the table of groups says it.
_SLOWEST: Final = "Slowest slave lacks"


def _lag_figure(standings: Sequence[GroupStanding]) -> FigureView:
    lags = [(standing.lag_bytes, standing) for standing in standings if standing.lag_bytes is not None]
    lacking = next((standing for standing in standings if standing.lacks_slave), None)
    if lacking is not None:
        return FigureView(_SLOWEST, _UNKNOWN, f"a slave of {lacking.name}", tone="bad", href="/replication")
    if not lags:
        return FigureView("Slaves", "none", "is connected", href="/replication")
    lag, standing = max(lags, key=lambda pair: pair[0])
    age = f"{seconds_text(standing.lag_seconds)}, " if standing.lag_seconds else ""
    tone = "warning" if any(standing.tone == "bad" for standing in standings) else ""
    if not lag:
        return FigureView(_SLOWEST, "nothing", tone=tone, href="/replication")
    return FigureView(_SLOWEST, bytes_text(lag), f"{age}{standing.name}", tone=tone, href="/replication")


def _disk_figure(brokers: Sequence[BrokerState]) -> FigureView:
    disks = [
        (broker.status.disk, broker)
        for broker in brokers
        if broker.status is not None and broker.status.disk is not None
    ]
    if not disks:
        return FigureView("Fullest disk", _UNKNOWN)
    disk, broker = max(disks, key=lambda pair: pair[0].used_ratio)
    tone = "bad" if disk.is_full else "warning" if disk.is_nearly_full else ""
    return FigureView(
        "Fullest disk",
        f"{disk.used_ratio:.0%}",
        f"{bytes_text(disk.free_bytes)} free, {broker.key}",
        tone=tone,
        href=f"/brokers/{broker.key}",
    )


def _group_row(standing: GroupStanding, history: ClusterHistory) -> GroupRow:
    master = standing.master
    key = master.key if master is not None else ""
    disk = master.status.disk if master is not None and master.status is not None else None
    return GroupRow(
        standing,
        messages_in=_rate(history.figure(key, Figure.MESSAGES_IN)),
        messages_out=_rate(history.figure(key, Figure.MESSAGES_OUT)),
        disk=f"{disk.used_ratio:.0%}, {bytes_text(disk.free_bytes)} free" if disk is not None else _UNKNOWN,
    )


# Plots


def _plots(standings: Sequence[GroupStanding], history: ClusterHistory, *, from_ms: float, to_ms: float) -> list[Plot]:
    draw = partial(plot, from_ms=from_ms, to_ms=to_ms)
    keys = [standing.master.key for standing in standings if standing.master is not None]
    slowest = _by_newest([(key, history.figure(key, Figure.SEND_P99)) for key in keys])
    lags = _by_newest(
        [
            (slave.key, history.lag(standing.master.key, str(slave.broker_id)))
            for standing in standings
            if standing.master is not None
            for slave in standing.slaves
        ]
    )
    return [
        draw(
            "Messages",
            [
                ("in", history.total(Figure.MESSAGES_IN)),
                ("out", history.total(Figure.MESSAGES_OUT)),
            ],
            unit=rate_text,
            least_top=_LEAST_RATE,
        ),
        draw(
            "Bytes in",
            [("all brokers", history.total(Figure.BYTES_IN))],
            unit=bytes_rate_text,
            scale=Scale.BINARY,
            least_top=_LEAST_BYTES,
        ),
        draw(
            "Latency of sends, p99",
            slowest,
            unit=seconds_text,
            scale=Scale.TIME,
            least_top=_LEAST_LATENCY_S,
            unknown="nothing sent",
        ),
        draw("Lag of slaves", lags, unit=bytes_text, scale=Scale.BINARY, least_top=_LEAST_LAG_BYTES),
    ]


def _by_newest(series: Sequence[tuple[str, Samples]]) -> list[tuple[str, Samples]]:
    """Those with the highest newest values first: a plot shows the first four."""
    return sorted(series, key=lambda pair: -(pair[1].newest or 0.0))[:4]


# `/`: the cluster at a glance; and `/api/docs`.


def add_overview_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/", include_in_schema=False)
    async def overview_page(
        request: Request,
        range: Annotated[str, Query(max_length=8)] = "",  # noqa: A002 - the name in the address
    ) -> Response:
        reading = pages.cluster.latest
        chosen = time_range(range)
        now_wall_ms = pages.clock.wall_ms()
        state = reading.state if reading is not None else ClusterState(name_servers=(), brokers=())
        runs = pages.consistency.latest
        return pages.html(
            request,
            "overview.html",
            live_ms=pages.refresh_ms,
            reading=reading,
            view=overview(state, pages.history, now_wall_ms=now_wall_ms, range_ms=chosen.duration_ms),
            consistency=consistency_section(runs, now_wall_ms=now_wall_ms) if runs is not None else None,
            range=chosen,
            ranges=RANGES,
        )

    @app.get("/api/docs", include_in_schema=False)
    async def api_docs(request: Request) -> Response:
        return pages.html(request, "api_docs.html", sections=api_sections(app.openapi()))


# What the page about the API lists, from the API's own description.

_METHODS: Final = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One method of one path."""

    method: str
    path: str
    summary: str

    @property
    def is_link(self) -> bool:
        """True when a browser can just go there."""
        return self.method == "GET" and "{" not in self.path


@dataclass(frozen=True, slots=True)
class ApiSection:
    tag: str
    operations: Sequence[ApiOperation]


def api_sections(openapi: Mapping[str, Any]) -> list[ApiSection]:
    """By tag in the order they come."""
    found: dict[str, list[ApiOperation]] = {}
    for path, methods in openapi["paths"].items():
        for method in _METHODS:
            operation = methods.get(method)
            if operation is not None:
                text = operation.get("description") or operation.get("summary", "")
                tag = (operation.get("tags") or ["others"])[0]
                found.setdefault(tag, []).append(ApiOperation(method.upper(), path, text))
    return [ApiSection(tag, operations) for tag, operations in found.items()]

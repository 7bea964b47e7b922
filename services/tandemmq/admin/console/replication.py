"""The replication page: of each broker group how far its copies are, since when, and when they will hold everything.
And how groups stand, in a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.cluster_state import (
    BrokerState,
    BrokerStatus,
    ClusterState,
    MasterChange,
    SlaveState,
    failover_of,
)
from tandemmq.admin.console.answers import Pages, part_of
from tandemmq.admin.console.plots import RANGES, Plot, Scale, plot, time_range
from tandemmq.admin.history import ClusterHistory, Figure, quantile_s, slave_key
from tandemmq.admin.operations.questions import not_found
from tandemmq.admin.operations.values import Page
from tandemmq.service.texts import bytes_rate_text, bytes_text, count_text, counted, duration_text, seconds_text

_PAGE_SIZE: Final = 20
# So many groups are shown whole below the list; with more of them the list links to each.
WHOLE_MAX: Final = 3
_DEPARTURES_MAX: Final = 8
_CHANGES_MAX: Final = 3
_PLOTTED_SLAVES_MAX: Final = 4
_KEEPS_UP_S: Final = 1.0
_LEAST_LAG_BYTES: Final = 64 << 10
_LEAST_LATENCY_S: Final = 0.01
_LEAST_GROWTH_BYTES: Final = 16 << 10
_UNKNOWN: Final = "not known"
_LINK_STATES: Final = {
    "transfer": "receives the master's log",
    "connecting": "tries to reach its master",
    "verifying": "compares its log with the master's",
    "resynchronising": "copies what it lacks",
    "refusing": "refuses its master",
    "waiting": "waits before it tries its master again",
}


@dataclass(frozen=True, slots=True)
class SlaveRow:
    """A slave: as its master sees it, and as it sees itself."""

    key: str
    # ok, warning or bad.
    tone: str
    state: str
    acked: str
    lag_bytes: str
    lag_time: str
    # When it will hold everything.
    catch_up: str
    # For how long, and what was sent meanwhile.
    connected: str
    own_view: str


@dataclass(frozen=True, slots=True)
class DepartureRow:
    """A connection that ended."""

    key: str
    wall_ms: int
    slave: str
    peer: str
    reason: str
    behind: str


@dataclass(frozen=True, slots=True)
class GroupReplication:
    standing: GroupStanding
    # What to know of its master: label and value.
    facts: Sequence[tuple[str, str]]
    slaves: Sequence[SlaveRow]
    # Newest first.
    departures: Sequence[DepartureRow]
    # Why the above lacks something.
    notes: Sequence[str]
    plots: Sequence[Plot]


def group_replication(
    standing: GroupStanding, history: ClusterHistory, *, now_wall_ms: int, range_ms: int
) -> GroupReplication:
    """One group; `now_wall_ms` is the plots' right end, `range_ms` how far they go back."""
    status = standing.master_status
    return GroupReplication(
        standing=standing,
        facts=tuple(_facts(standing, history)),
        slaves=tuple(_slave_rows(standing, history)),
        departures=tuple(_departure_rows(standing, status)) if status is not None else (),
        notes=tuple(_notes(standing)),
        plots=tuple(_plots(standing, history, from_ms=now_wall_ms - range_ms, to_ms=now_wall_ms)),
    )


def _facts(standing: GroupStanding, history: ClusterHistory) -> list[tuple[str, str]]:
    master, status = standing.master, standing.master_status
    if master is None or status is None:
        return _failover_facts(standing)
    latency = history.ack_latency(master.key)
    median = quantile_s(latency, 0.5) if latency is not None else None
    high = quantile_s(latency, 0.99) if latency is not None else None
    if median is not None and high is not None:
        acknowledgement = f"{seconds_text(median)} (p50), {seconds_text(high)} (p99)"
    else:
        acknowledgement = "nothing sent in the last minute" if latency is not None else _UNKNOWN
    needed = status.needed_slave_count
    in_sync = sum(slave.in_sync for slave in status.slaves)
    return [
        ("master", f"{master.key}, {status.role_in_words}, {status.flush_disk_type}"),
        *([("epoch", count_text(status.epoch))] if status.epoch else []),
        *_failover_facts(standing),
        ("master's end", f"{count_text(status.end_offset)} ({bytes_text(status.end_offset)})"),
        (
            "on its disk up to",
            f"{count_text(status.flushed_offset)}{_behind(status.end_offset - status.flushed_offset)}",
        ),
        ("sends wait for", _needed_text(needed, in_sync)),
        ("acknowledgement, last minute", acknowledgement),
        ("waiting sends", count_text(status.waiting_send_count)),
        *([("refuses writes", status.write_refusal)] if status.write_refusal else []),
        *([("connections refused", _refusals(status))] if status.refused_counts else []),
    ]


def _failover_facts(standing: GroupStanding) -> list[tuple[str, str]]:
    """Of a group that fails over: its record, and who changed it last."""
    group = failover_of(standing.members)
    if group is None:
        return []
    away = f", away for {', '.join(group.authority_away)}" if group.authority_away else ""
    electable = [member.broker for member in group.members if member.electable]
    return [
        ("fails over", f"{group.authority}{away}"),
        (
            "master by the record",
            f"{group.master or 'nobody'} in epoch {group.epoch}: {group.reason or 'not said why'}",
        ),
        ("in-sync set", ", ".join(group.in_sync) or "nobody"),
        ("could take over", ", ".join(electable) or "nobody"),
        *((f"epoch {change.epoch}", _change_text(change)) for change in group.changes[:_CHANGES_MAX]),
    ]


def _change_text(change: MasterChange) -> str:
    return f"{change.broker}, served after {seconds_text(change.took_ms / 1_000)}: {change.reason}"


def _needed_text(needed: int, in_sync: int) -> str:
    if not needed:
        return "no slave"
    return f"{counted(needed, 'slave')} in sync (now {in_sync})"


def _refusals(status: BrokerStatus) -> str:
    return ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in sorted(status.refused_counts.items()))


def _behind(lag_bytes: int) -> str:
    return f", {bytes_text(lag_bytes)} to go" if lag_bytes > 0 else ""


def _notes(standing: GroupStanding) -> list[str]:
    notes = []
    if standing.master is None:
        notes.append("No NameServer knows a master of this group: what slaves say of themselves is all there is.")
    elif standing.master_status is None:
        notes.append(
            f"The master {standing.master.key} does not answer ({standing.master.error}): lags are as its slaves "
            "last heard of its end."
        )
    elif (wait := standing.master_status.start_wait) is not None:
        notes.append(f"The master waits and serves nobody: {wait.reason}.")
        if wait.acceptable:
            notes.append(
                "Start what is missing with its disk. If it is gone for good: "
                f"tandemmq broker accept-loss {standing.name} says in numbers what that gives up, and asks."
            )
    elif not standing.slaves and not standing.master_status.slaves:
        notes.append("This group has no slave: what its disk loses is lost.")
    return notes


# Slaves


def _slave_rows(standing: GroupStanding, history: ClusterHistory) -> list[SlaveRow]:
    master, status = standing.master, standing.master_status
    seen = {slave_key(slave): slave for slave in status.slaves} if status is not None else {}
    members = {str(broker.broker_id): broker for broker in standing.slaves}
    rows = []
    for name in sorted(seen.keys() | members.keys()):
        slave, member = seen.get(name), members.get(name)
        key = f"{standing.name}:{name}" if name.isdecimal() else name
        if slave is not None and master is not None:
            rows.append(_connected_row(key, slave, member, master.key, history))
        elif member is not None:
            rows.append(_unconnected_row(key, member, status))
    return rows


def _connected_row(
    key: str, slave: SlaveState, member: BrokerState | None, master_key: str, history: ClusterHistory
) -> SlaveRow:
    rate = history.closing_rate(master_key, slave_key(slave))
    return SlaveRow(
        key=key,
        tone="ok" if slave.in_sync else "warning",
        state=_state(slave, member, rate),
        acked=count_text(slave.acked_offset),
        lag_bytes=bytes_text(slave.lag_bytes),
        lag_time=seconds_text(slave.lag_seconds) if slave.lag_bytes else "0 s",
        catch_up=_catch_up(slave, history.catch_up_seconds(master_key, slave), rate),
        connected=f"for {duration_text(slave.connected_seconds)}, {bytes_text(slave.sent_bytes)} sent",
        own_view=_own_view(member),
    )


def _state(slave: SlaveState, member: BrokerState | None, rate: float | None) -> str:
    link = member.status.master_link if member is not None and member.status is not None else None
    if slave.in_sync:
        state = "in sync"
    elif link is not None and link.state == "resynchronising":
        state = "copies what it lacks"
    elif rate is not None and rate != 0:
        state = "catching up" if rate > 0 else "falling behind"
    else:
        state = "behind"
    return state if slave.verified else f"{state}; its log was not compared yet"


def _catch_up(slave: SlaveState, seconds: float | None, rate: float | None) -> str:
    if not slave.lag_bytes:
        return "holds everything"
    if slave.in_sync and slave.lag_seconds < _KEEPS_UP_S:
        return "keeps up"
    if seconds is not None:
        return f"in about {duration_text(max(1.0, seconds))}"
    if rate is None:
        return "not known yet"
    return f"never at this rate: the lag grows by {bytes_text(round(-rate))}/s" if rate < 0 else "not at this rate"


def _unconnected_row(key: str, member: BrokerState, master: BrokerStatus | None) -> SlaveRow:
    status = member.status
    link = status.master_link if status is not None else None
    end_offset = status.end_offset if status is not None else None
    lag: int | None = None
    if end_offset is not None and master is not None:
        lag = max(0, master.end_offset - end_offset)
    elif link is not None:
        lag = link.lag_bytes
    return SlaveRow(
        key=key,
        tone="bad",
        state="not connected" if master is not None else "the master cannot be asked",
        acked=f"{count_text(end_offset)} (its own end)" if end_offset is not None else _UNKNOWN,
        lag_bytes=bytes_text(lag) if lag is not None else _lag_when_it_went(member, master),
        lag_time=_UNKNOWN,
        catch_up="not while it is away" if master is not None else _UNKNOWN,
        connected="no" if master is not None else _UNKNOWN,
        own_view=_own_view(member),
    )


def _lag_when_it_went(member: BrokerState, master: BrokerStatus | None) -> str:
    """The least it can be: the master has only grown since."""
    departures = reversed(master.slave_departures) if master is not None else ()
    departure = next((each for each in departures if each.broker_id == member.broker_id), None)
    return f"{bytes_text(departure.lag_bytes)} when it went" if departure is not None else _UNKNOWN


def _own_view(member: BrokerState | None) -> str:
    if member is None:
        return "not registered"
    if member.status is None:
        return f"does not answer: {member.error}"
    link = member.status.master_link
    if link is None:
        return f"says it is {member.status.role}"
    state = _LINK_STATES.get(link.state, link.state)
    if link.problem:
        return f"{state}: {link.problem}; {link.remedy}"
    return state if link.address else f"{state}; knows no master"


def _departure_rows(standing: GroupStanding, status: BrokerStatus) -> list[DepartureRow]:
    return [
        DepartureRow(
            key=f"{departure.wall_clock_ms}-{departure.peer}",
            wall_ms=departure.wall_clock_ms,
            slave=f"{standing.name}:{departure.broker_id}" if departure.broker_id >= 0 else "never proved who it is",
            peer=departure.peer,
            reason=departure.reason,
            behind=bytes_text(departure.lag_bytes),
        )
        for departure in list(reversed(status.slave_departures))[:_DEPARTURES_MAX]
    ]


# Plots


def _plots(standing: GroupStanding, history: ClusterHistory, *, from_ms: float, to_ms: float) -> list[Plot]:
    draw = partial(plot, from_ms=from_ms, to_ms=to_ms)
    master, status = standing.master, standing.master_status
    if master is None:
        return []
    names = sorted({slave_key(slave) for slave in status.slaves} if status is not None else ())
    # Slaves that are gone have left their lag behind in the history.
    names = sorted({*names, *(str(broker.broker_id) for broker in standing.slaves)})[:_PLOTTED_SLAVES_MAX]
    lags = [(_slave_label(standing, name), history.lag(master.key, name)) for name in names]
    ages = [(_slave_label(standing, name), history.lag(master.key, name, Figure.LAG_SECONDS)) for name in names]
    growth = [(broker.key, history.figure(broker.key, Figure.LOG_GROWTH)) for broker in standing.members]
    acknowledgement = [
        ("p50", history.figure(master.key, Figure.ACK_P50)),
        ("p99", history.figure(master.key, Figure.ACK_P99)),
    ]
    plots = [
        draw(
            "Acknowledgement",
            acknowledgement,
            unit=seconds_text,
            least_top=_LEAST_LATENCY_S,
            unknown="nothing sent" if status is not None else "not known",
        ),
        draw(
            "Growth of the CommitLog", growth, unit=bytes_rate_text, scale=Scale.BINARY, least_top=_LEAST_GROWTH_BYTES
        ),
    ]
    if not names:
        return plots
    return [
        draw("Lag", lags, unit=bytes_text, scale=Scale.BINARY, least_top=_LEAST_LAG_BYTES),
        draw("Lag in time", ages, unit=seconds_text, scale=Scale.TIME, least_top=1.0),
        *plots,
    ]


def _slave_label(standing: GroupStanding, name: str) -> str:
    return f"{standing.name}:{name}" if name.isdecimal() else name


# `/replication`: all broker groups, and each by itself.

_NAME_MAX: Final = 255
_Text = Annotated[str, Query(max_length=_NAME_MAX)]


def add_replication_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/replication", include_in_schema=False)
    async def replication(
        request: Request,
        search: _Text = "",
        page: Annotated[int, Query(ge=1)] = 1,
        range: _Text = "",  # noqa: A002 - the name in the address
    ) -> Response:
        state = _cluster_state(pages)
        found = part_of(group_standings(state, search=search), page, _PAGE_SIZE)
        whole = found.items if found.total <= WHOLE_MAX else ()
        summary = groups_text(group_standings(state)) if state.brokers else ""
        return _answer(pages, request, whole, found, search=search, range_name=range, summary=summary)

    @app.get("/replication/{group}", include_in_schema=False)
    async def replication_of_group(request: Request, group: str, range: _Text = "") -> Response:  # noqa: A002
        found = [standing for standing in group_standings(_cluster_state(pages)) if standing.name == group]
        if not found:
            raise not_found(
                f"no broker group {group} is known",
                cause="no NameServer knows a broker of that name, and none has been seen lately",
                remedy="see the list of groups on the page Replication",
            )
        page = Page(found, 1, 1, 1)
        return _answer(pages, request, found, page, only=group, range_name=range)


def _answer(
    pages: Pages,
    request: Request,
    whole: Sequence[GroupStanding],
    page: Page[GroupStanding],
    *,
    only: str = "",
    search: str = "",
    range_name: str,
    summary: str = "",
) -> Response:
    chosen = time_range(range_name)
    now_wall_ms = pages.clock.wall_ms()
    groups = [
        group_replication(standing, pages.history, now_wall_ms=now_wall_ms, range_ms=chosen.duration_ms)
        for standing in whole
    ]
    return pages.html(
        request,
        "replication.html",
        live_ms=pages.refresh_ms,
        is_read=pages.cluster.latest is not None,
        groups=groups,
        page=page,
        only=only,
        search=search,
        summary=summary,
        range=chosen,
        ranges=RANGES,
        path=request.url.path,
    )


def _cluster_state(pages: Pages) -> ClusterState:
    reading = pages.cluster.latest
    return reading.state if reading is not None else ClusterState(name_servers=(), brokers=())


# How broker groups stand, in a word: the same on the overview, the replication page and the page of brokers.

_WORST_FIRST: Final = {"bad": 0, "warning": 1, "ok": 2}


@dataclass(frozen=True, slots=True)
class GroupStanding:
    name: str
    # By broker id.
    members: tuple[BrokerState, ...]
    # ok, warning or bad, and the same in words.
    tone: str
    verdict: str

    @property
    def master(self) -> BrokerState | None:
        """The master, if anybody knows of one."""
        return next((broker for broker in self.members if broker.is_master), None)

    @property
    def master_status(self) -> BrokerStatus | None:
        """What the master says, if it answers."""
        return self.master.status if self.master is not None else None

    @property
    def slaves(self) -> tuple[BrokerState, ...]:
        """The other members."""
        return tuple(broker for broker in self.members if not broker.is_master)

    @property
    def lag_bytes(self) -> int | None:
        """Of the slave that is furthest behind; None if nobody can tell, or there is none."""
        slaves = self.master_status.slaves if self.master_status is not None else ()
        return max((slave.lag_bytes for slave in slaves), default=None)

    @property
    def lag_seconds(self) -> float | None:
        """The same as a time."""
        slaves = self.master_status.slaves if self.master_status is not None else ()
        return max((slave.lag_seconds for slave in slaves), default=None)

    @property
    def lacks_slave(self) -> bool:
        """True when a slave that is known of is not connected to the master, so that nobody can tell its lag."""
        connected = len(self.master_status.slaves) if self.master_status is not None else 0
        return len(self.slaves) > connected

    @property
    def in_sync_text(self) -> str:
        """1 of 2."""
        status = self.master_status
        if status is None:
            return "not known"
        count = max(len(status.slaves), len(self.slaves))
        return f"{sum(slave.in_sync for slave in status.slaves)} of {count}" if count else "no slave"


def group_standings(state: ClusterState, *, search: str = "") -> list[GroupStanding]:
    """All groups whose name has `search` in it, worst first and then by name."""
    members: dict[str, list[BrokerState]] = {}
    for broker in state.brokers:
        if search.lower() in broker.broker_name.lower():
            members.setdefault(broker.broker_name, []).append(broker)
    standings = [
        GroupStanding(name, tuple(found), *_verdict(found, state.registrations_known))
        for name, found in members.items()
    ]
    return sorted(standings, key=lambda standing: (_WORST_FIRST[standing.tone], standing.name))


def groups_text(standings: Sequence[GroupStanding]) -> str:
    """All of them in a sentence."""
    bad, warned = (sum(standing.tone == tone for standing in standings) for tone in ("bad", "warning"))
    if not standings:
        return "No broker group is known."
    if not bad and not warned:
        return "Every group holds what it should." if len(standings) > 1 else "The group holds what it should."
    parts = [f"{bad} in trouble"] if bad else []
    parts += [f"{warned} not complete"] if warned else []
    return f"{len(standings):,} groups: {', '.join(parts)}." if len(standings) > 1 else f"{standings[0].verdict}."


def _verdict(members: Sequence[BrokerState], registrations_known: bool) -> tuple[str, str]:
    reached = (broker for broker in members if broker.registered or not registrations_known)
    master = next((broker.status for broker in reached if broker.is_master), None)
    if master is None:
        return "bad", "no working master"
    if master.start_wait is not None:
        return "bad", "its master waits"
    if any(broker.status and broker.status.master_link and broker.status.master_link.problem for broker in members):
        return "bad", "a slave refuses its master"
    in_sync = sum(slave.in_sync for slave in master.slaves)
    if master.write_refusal:
        return "bad", "refuses writes"
    if in_sync < master.needed_slave_count:
        return "bad", f"{in_sync} of {master.needed_slave_count} needed slaves in sync"
    if any(broker.status is None for broker in members) or in_sync < len(master.slaves):
        return "warning", "not all copies are there"
    if not master.slaves:
        known = len(members) - 1
        return ("warning", "no slave is connected") if known else ("ok", "serving, no slave")
    return "ok", f"serving, {in_sync} of {len(master.slaves)} slaves in sync"

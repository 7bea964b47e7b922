"""Renders the status page and the page about the API. Everything they load is served by this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from admin.cluster_cache import ClusterReading
from admin.cluster_state import BrokerState, ClusterState, SlaveState
from admin.consistency_state import ConsistencyReading
from admin.quantities import bytes_text, count_text
from admin.web.api_docs_page import api_sections
from admin.web.consistency_section import consistency_section
from admin.web.frame import frame_of
from admin.web.page_templates import PageTemplates

__all__ = ["StatusPage"]


@dataclass(frozen=True, slots=True)
class _Group:
    """A broker group as the page shows it."""

    name: str
    members: tuple[BrokerState, ...]
    # ok, warning or bad, and the same in words.
    tone: str
    verdict: str


@dataclass(frozen=True, slots=True)
class _Replication:
    """One direction of one replication connection."""

    from_key: str
    to_key: str
    acknowledged: str
    lag: str
    # ok, warning or bad.
    tone: str
    state: str
    seen_by: str


class StatusPage:
    """Both pages. Templates are compiled once; `status` takes about a millisecond."""

    def __init__(self, *, refresh_ms: int) -> None:
        self._refresh_ms = max(1_000, refresh_ms)
        self.templates = PageTemplates()
        self._status = self.templates.get("status.html")
        self._api_docs = self.templates.get("api_docs.html")

    def status(
        self,
        reading: ClusterReading | None,
        consistency: ConsistencyReading | None = None,
        *,
        now_ms: int,
        now_wall_ms: int = 0,
    ) -> str:
        """The status page; it says so when there is no reading yet. Of `consistency` it is silent when that is None."""
        state = reading.state if reading is not None else ClusterState(name_servers=(), brokers=())
        return self._status.render(
            reading=reading,
            frame=frame_of(reading, active="overview", actor=None, flash=None, now_ms=now_ms, now_wall_ms=now_wall_ms),
            live_ms=self._refresh_ms,
            clusters=sorted({broker.cluster for broker in state.brokers}),
            name_servers=state.name_servers,
            brokers=state.brokers,
            groups=_groups(state),
            replication=_replication(state),
            consistency=consistency_section(consistency, now_wall_ms=now_wall_ms) if consistency is not None else None,
        )

    def api_docs(self, openapi: Mapping[str, Any]) -> str:
        """What the API offers, from its own description."""
        return self._api_docs.render(sections=api_sections(openapi))


def _groups(state: ClusterState) -> list[_Group]:
    names = sorted({broker.broker_name for broker in state.brokers})
    return [_group(name, tuple(broker for broker in state.brokers if broker.broker_name == name)) for name in names]


def _group(name: str, members: tuple[BrokerState, ...]) -> _Group:
    master = next((broker.status for broker in members if broker.is_master and broker.registered), None)
    if master is None:
        return _Group(name, members, "bad", "no working master")
    in_sync = sum(slave.in_sync for slave in master.slaves)
    if master.write_refusal:
        return _Group(name, members, "bad", "refuses writes")
    if in_sync < master.needed_slave_count:
        return _Group(name, members, "bad", f"{in_sync} of {master.needed_slave_count} needed slaves in sync")
    if any(broker.status is None for broker in members) or in_sync < len(master.slaves):
        return _Group(name, members, "warning", "not all copies are there")
    if not master.slaves:
        return _Group(name, members, "ok", "serving, no slave")
    return _Group(name, members, "ok", f"serving, {in_sync} of {len(master.slaves)} slaves in sync")


def _replication(state: ClusterState) -> list[_Replication]:
    masters = {broker.ha_endpoint: broker.key for broker in state.brokers if broker.ha_endpoint}
    return [row for broker in state.brokers for row in _replication_of(broker, masters)]


def _replication_of(broker: BrokerState, masters: Mapping[str, str]) -> list[_Replication]:
    if broker.status is None:
        return []
    rows = [
        _Replication(
            from_key=broker.key,
            to_key=f"{broker.broker_name}:{slave.broker_id}" if slave.broker_id >= 0 else slave.peer,
            acknowledged=count_text(slave.acked_offset),
            lag=bytes_text(slave.lag_bytes),
            tone="ok" if slave.in_sync else "warning",
            state=_slave_state(slave),
            seen_by=f"master, from {slave.peer}",
        )
        for slave in broker.status.slaves
    ]
    if (link := broker.status.master_link) is not None:
        rows.append(
            _Replication(
                from_key=masters.get(link.address, link.address) or "no master",
                to_key=broker.key,
                acknowledged=count_text(broker.status.end_offset),
                lag=bytes_text(link.lag_bytes),
                tone="ok" if link.state == "transfer" else "warning",
                state=link.state,
                seen_by="slave",
            )
        )
    return rows


def _slave_state(slave: SlaveState) -> str:
    in_sync = "in sync" if slave.in_sync else "behind"
    return in_sync if slave.verified else f"{in_sync}, not verified"

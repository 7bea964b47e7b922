"""Renders the status page and the page about the API. Everything they load is served by this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from admin.cluster_cache import ClusterReading
from admin.cluster_state import BrokerState, ClusterState, SlaveState
from admin.consistency_state import ConsistencyReading
from admin.web.consistency_section import consistency_section
from mqservice.version import VERSION

__all__ = ["StaticFile", "StatusPage"]

_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load."""

    content: bytes
    media_type: str


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
        self.static_files: Mapping[str, StaticFile] = MappingProxyType(_static_files())
        environment = Environment(
            loader=PackageLoader("admin.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"duration": _duration, "bytes": _bytes, "count": _count}
        environment.globals |= {"version": VERSION, "static": self._static_path}
        self._status = environment.get_template("status.html")
        self._api_docs = environment.get_template("api_docs.html")

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
            age_ms=reading.age_ms(now_ms) if reading is not None else 0,
            refresh_ms=self._refresh_ms,
            clusters=sorted({broker.cluster for broker in state.brokers}),
            name_servers=state.name_servers,
            brokers=state.brokers,
            groups=_groups(state),
            replication=_replication(state),
            consistency=consistency_section(consistency, now_wall_ms=now_wall_ms) if consistency is not None else None,
        )

    def api_docs(self, openapi: Mapping[str, Any]) -> str:
        """What the API offers, from its own description."""
        operations = [
            {
                "path": path,
                "summary": operation.get("description") or operation.get("summary", ""),
            }
            for path, methods in openapi["paths"].items()
            for method, operation in methods.items()
            if method == "get"
        ]
        return self._api_docs.render(operations=operations)

    def _static_path(self, name: str) -> str:
        # The digest makes a new file a new address, so that browsers may keep the old one for as long as they like.
        return f"/static/{name}?{hashlib.sha256(self.static_files[name].content).hexdigest()[:12]}"


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for entry in files("admin.web").joinpath("static").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            found[entry.name] = StaticFile(entry.read_bytes(), media_type)
    return found


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
            acknowledged=_count(slave.acked_offset),
            lag=_bytes(slave.lag_bytes),
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
                acknowledged=_count(broker.status.end_offset),
                lag=_bytes(link.lag_bytes),
                tone="ok" if link.state == "transfer" else "warning",
                state=link.state,
                seen_by="slave",
            )
        )
    return rows


def _slave_state(slave: SlaveState) -> str:
    in_sync = "in sync" if slave.in_sync else "behind"
    return in_sync if slave.verified else f"{in_sync}, not verified"


def _count(value: int) -> str:
    return f"{value:,}"


def _bytes(value: int) -> str:
    """Short and readable: 0 B, 67 B, 1.2 MiB."""
    if value < 1_024:
        return f"{value} B"
    size = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1_024
        if size < 1_024:
            return f"{size:.1f} {unit}"
    return f"{size / 1_024:.1f} TiB"


def _duration(seconds: float) -> str:
    """The two leading units: 4 s, 3 min 5 s, 2 d 7 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"

"""The live picture of `tandemmq up`: members, replication, and how to connect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.cli.cluster_folder import ClusterRecord
from admin.cli.status_view import new_table
from admin.cluster_state import BrokerState, BrokerStatus, ClusterState

__all__ = ["MemberLine", "PutRates", "connect_lines", "up_picture"]

_STATE_STYLES = {
    "serving": "green",
    "starting": "yellow",
    "unready": "yellow",
    "held": "bold red",
    "died": "bold red",
    "stopping": "yellow",
}


@dataclass(frozen=True, slots=True)
class MemberLine:
    """What the supervisor knows of a member."""

    name: str
    role: str
    pid: int
    state: str
    ports: Mapping[str, int]
    restart_count: int
    last_exit: str
    # `name:id` of a broker; empty for others.
    broker_key: str


class PutRates:
    """Messages per second of each broker, from one reading of the cluster to the next."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self.per_second: dict[str, float] = {}

    def update(self, state: ClusterState, *, now_s: float) -> None:
        """Takes a reading made at `now_s` of any monotonic clock. A broker that began anew starts at 0."""
        for broker in state.brokers:
            if broker.status is None:
                self.per_second.pop(broker.key, None)
                self._last.pop(broker.key, None)
                continue
            count = broker.status.put_count
            last_s, last_count = self._last.get(broker.key, (now_s, count))
            if now_s > last_s:
                self.per_second[broker.key] = max(0.0, (count - last_count) / (now_s - last_s))
            self._last[broker.key] = (now_s, count)


def up_picture(
    record: ClusterRecord,
    lines: Iterable[MemberLine],
    state: ClusterState | None,
    rates: Mapping[str, float],
    events: Sequence[str],
    folder: str,
) -> RenderableType:
    """One frame of the live view; `state` is None until the first reading."""
    brokers = {broker.key: broker for broker in state.brokers} if state else {}
    parts: list[RenderableType] = [
        Text.assemble(("TandemMQ ", "bold"), f"{record.preset}, {record.state}"),
        _members(lines, brokers, rates),
    ]
    parts += _waiting(brokers.values())
    if events:
        parts += ["", Text("\n".join(events), style="dim", no_wrap=True, overflow="ellipsis")]
    if record.state == "ready":
        parts += ["", Text("\n".join(connect_lines(record, folder)))]
    return Group(*parts)


def connect_lines(record: ClusterRecord, folder: str) -> list[str]:
    """How to use the running cluster."""
    endpoints = ";".join(record.client_endpoints)
    seen = (
        [
            f"console              {record.admin_url}",
            f"metrics              prometheus --config.file={folder}/prometheus.yml",
        ]
        if record.admin_url
        else []
    )
    return [
        f"endpoints for SDKs   {endpoints}   (gRPC, TLS off)",
        f'Python               Producer(ClientConfiguration("{endpoints}", Credentials()), ("greetings",))',
        f"NameServers          {';'.join(record.name_servers)}",
        f"data, logs           {folder}/store, {folder}/logs",
        *seen,
        "try                  seq 100 | tandemmq produce greetings; tandemmq consume greetings --group readers",
        "stop                 Ctrl-C, or tandemmq down",
    ]


def _members(lines: Iterable[MemberLine], brokers: Mapping[str, BrokerState], rates: Mapping[str, float]) -> Table:
    table = new_table("member", "role", "pid", "state", "ports", "end offset", "lag bytes", "put/s", "restarts")
    for line in lines:
        broker = brokers.get(line.broker_key)
        status = broker.status if broker else None
        table.add_row(
            line.name,
            f"{line.role}, waiting" if status and status.start_wait else line.role,
            str(line.pid or "-"),
            Text(
                line.state + (f" ({line.last_exit})" if line.state == "died" else ""), _STATE_STYLES.get(line.state, "")
            ),
            " ".join(str(port) for port in line.ports.values()),
            f"{status.end_offset:,}" if status else "-",
            _lag(status),
            f"{rates[line.broker_key]:,.0f}" if line.broker_key in rates and status and not status.master_link else "-",
            str(line.restart_count),
        )
    return table


def _waiting(brokers: Iterable[BrokerState]) -> list[RenderableType]:
    """Of each master that waits: for what, and what ends it."""
    parts: list[RenderableType] = []
    for broker in brokers:
        wait = broker.status.start_wait if broker.status is not None else None
        if wait is None or not wait.needs_operator:
            continue
        parts += ["", Text(f"{broker.key} waits: {wait.reason}", "bold red")]
        if wait.acceptable:
            parts.append(Text(f"  gone for good? tandemmq broker accept-loss {broker.broker_name}"))
    return parts


def _lag(status: BrokerStatus | None) -> str:
    if status is None:
        return "-"
    if status.master_link is not None:
        link = status.master_link
        return f"{link.lag_bytes:,}" if link.state == "transfer" else link.state
    return f"{max(slave.lag_bytes for slave in status.slaves):,}" if status.slaves else "-"

"""Replication of each broker group: what `ha status` tells, as values and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from admin.cli.rates import BrokerRates
from admin.cli.status_view import new_table, plain_row
from admin.cli.time_option import aged_text
from admin.cluster_state import BrokerState, ClusterState, SlaveDeparture, SlaveState
from admin.latency import quantile_s
from admin.quantities import bytes_text, duration_text, seconds_text

__all__ = ["GroupReplication", "SlaveReplication", "ha_tables", "replication_of"]


@dataclass(frozen=True, slots=True)
class SlaveReplication:
    """A slave, as its master sees it."""

    # name:id, or the address it comes from until it has proved one.
    slave: str
    peer: str
    acked_offset: int
    lag_bytes: int
    lag_seconds: float
    in_sync: bool
    verified: bool
    connected_seconds: int
    # None: not known.
    bytes_per_second: float | None
    # Until it holds all, at this speed; None: it holds all, or does not come nearer.
    catch_up_seconds: float | None


@dataclass(frozen=True, slots=True)
class GroupReplication:
    """A broker group."""

    broker_name: str
    # SYNC_MASTER or ASYNC_MASTER; empty when the master does not answer.
    role: str
    # Why nothing is known; empty when the master answers.
    problem: str
    # The CommitLog's end.
    end_offset: int
    needed_slave_count: int
    slaves: Sequence[SlaveReplication]
    # From append to acknowledgement by enough slaves, in seconds; None without any.
    ack_p50_seconds: float | None
    ack_p99_seconds: float | None
    # Newest first.
    departures: Sequence[SlaveDeparture]
    # Members that do not answer, as name:id.
    silent: Sequence[str]

    @property
    def in_sync_count(self) -> int:
        """Slaves that hold what they must."""
        return sum(slave.in_sync for slave in self.slaves)


def replication_of(state: ClusterState, rates: Mapping[str, BrokerRates]) -> list[GroupReplication]:
    """Every broker group, by name."""
    by_name: dict[str, list[BrokerState]] = {}
    for broker in state.brokers:
        by_name.setdefault(broker.broker_name, []).append(broker)
    return [_group(name, members, rates) for name, members in sorted(by_name.items())]


def ha_tables(groups: Sequence[GroupReplication], *, now_ms: int) -> RenderableType:
    """The groups, their slaves, and who went away lately."""
    masters = new_table("group", "role", "end offset", "slaves in sync", "needed", "ack p50", "ack p99", "")
    slaves = new_table(
        "slave", "acknowledged", "lag", "lag time", "in sync", "speed", "catches up in", "connected for", "from"
    )
    gone = new_table("left", "slave", "from", "behind by", "why")
    for group in groups:
        short = group.in_sync_count < group.needed_slave_count
        plain_row(
            masters,
            group.broker_name,
            group.role or "-",
            f"{group.end_offset:,}" if group.role else "-",
            Text(f"{group.in_sync_count} of {len(group.slaves)}", style="bold red" if short else ""),
            str(group.needed_slave_count),
            _latency(group.ack_p50_seconds),
            _latency(group.ack_p99_seconds),
            Text("; ".join([group.problem, *(f"{key} does not answer" for key in group.silent)]).strip("; ")),
        )
        for slave in group.slaves:
            plain_row(slaves, *_slave_row(slave))
        for departure in group.departures:
            plain_row(
                gone,
                aged_text(departure.wall_ms, now_ms=now_ms),
                f"{group.broker_name}:{departure.broker_id}" if departure.broker_id >= 0 else group.broker_name,
                departure.peer,
                bytes_text(departure.lag_bytes),
                departure.reason,
            )
    parts: list[RenderableType] = [masters]
    if slaves.row_count:
        parts += ["", slaves]
    if gone.row_count:
        parts += ["", gone]
    return Group(*parts)


def _group(name: str, members: Iterable[BrokerState], rates: Mapping[str, BrokerRates]) -> GroupReplication:
    members = list(members)
    master = next((broker for broker in members if broker.is_master), None)
    status = master.status if master is not None else None
    silent = [broker.key for broker in members if broker.status is None and not broker.is_master]
    if master is None or status is None:
        problem = f"its master does not answer: {master.error}" if master is not None else "no master is known"
        return GroupReplication(name, "", problem, 0, 0, (), None, None, (), silent)
    rate = rates.get(master.key)
    latency = rate.ack_latency if rate is not None and any(rate.ack_latency.counts) else status.ack_latency
    return GroupReplication(
        broker_name=name,
        role=status.role,
        problem=status.write_refusal and f"refuses writes: {status.write_refusal}",
        end_offset=status.end_offset,
        needed_slave_count=status.needed_slave_count,
        slaves=[_slave(name, slave, rate) for slave in status.slaves],
        ack_p50_seconds=quantile_s(latency, 0.5),
        ack_p99_seconds=quantile_s(latency, 0.99),
        departures=tuple(reversed(status.slave_departures)),
        silent=silent,
    )


def _slave(name: str, slave: SlaveState, rate: BrokerRates | None) -> SlaveReplication:
    speed = rate.sent_bytes.get(slave.peer) if rate is not None else None
    nearing = speed - rate.log_growth if rate is not None and speed is not None else 0.0
    return SlaveReplication(
        slave=f"{name}:{slave.broker_id}" if slave.broker_id >= 0 else slave.peer,
        peer=slave.peer,
        acked_offset=slave.acked_offset,
        lag_bytes=slave.lag_bytes,
        lag_seconds=slave.lag_seconds,
        in_sync=slave.in_sync,
        verified=slave.verified,
        connected_seconds=slave.connected_seconds,
        bytes_per_second=speed,
        catch_up_seconds=slave.lag_bytes / nearing if slave.lag_bytes and nearing > 0 else None,
    )


def _slave_row(slave: SlaveReplication) -> tuple[str | Text, ...]:
    eta = "holds all" if not slave.lag_bytes else "not at this speed"
    return (
        slave.slave,
        f"{slave.acked_offset:,}",
        bytes_text(slave.lag_bytes),
        seconds_text(slave.lag_seconds),
        "yes" if slave.in_sync else Text("no", style="bold red"),
        f"{bytes_text(round(slave.bytes_per_second))}/s" if slave.bytes_per_second is not None else "-",
        duration_text(slave.catch_up_seconds) if slave.catch_up_seconds is not None else eta,
        duration_text(slave.connected_seconds),
        slave.peer,
    )


def _latency(seconds: float | None) -> str:
    return seconds_text(seconds) if seconds is not None else "-"

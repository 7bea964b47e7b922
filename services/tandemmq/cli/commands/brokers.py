"""`tandemmq status`, `tandemmq broker …`, `tandemmq ha …`, `tandemmq failover` and `tandemmq events`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import (
    BrokerRates,
    ClusterChoice,
    ClusterConnection,
    read_with_rates,
    refuse_blindness,
    with_cluster,
)
from tandemmq.cli.ending import EXIT_FAILED, CommandError, Refused
from tandemmq.cli.lazy_group import QuickGroup
from tandemmq.cli.listing import ask, carry_out, confirmed
from tandemmq.cli.options import (
    DryRunOption,
    JsonOption,
    OutputOption,
    YesOption,
    aged_text,
    complete_broker,
    complete_broker_group,
)
from tandemmq.cli.output import (
    OutputFormat,
    Shown,
    bad,
    emit,
    new_table,
    or_text,
    plain_row,
    status_document,
    status_tables,
    tell_unseen,
)
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.texts import bytes_text, duration_text, rate_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from tandemmq.admin.cluster_state import (
        BrokerState,
        BrokerStatus,
        ClusterState,
        GroupFailover,
        SlaveDeparture,
        SlaveState,
    )
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import AcceptedLoss, ConfigChange, EventLine, HandOver, Setting, Unseen


# Replication of each broker group: what `ha status` tells, as values and as tables.


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
    # None: it does not fail over.
    failover: GroupFailover | None = None

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


def ha_tables(groups: Sequence[GroupReplication], *, now_ms: int) -> Shown:
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
            bad(f"{group.in_sync_count} of {len(group.slaves)}", short),
            str(group.needed_slave_count),
            _latency(group.ack_p50_seconds),
            _latency(group.ack_p99_seconds),
            "; ".join([group.problem, *(f"{key} does not answer" for key in group.silent)]).strip("; "),
        )
        for slave in group.slaves:
            plain_row(slaves, *_slave_row(slave))
        for departure in group.departures:
            plain_row(
                gone,
                aged_text(departure.wall_clock_ms, now_ms=now_ms),
                f"{group.broker_name}:{departure.broker_id}" if departure.broker_id >= 0 else group.broker_name,
                departure.peer,
                bytes_text(departure.lag_bytes),
                departure.reason,
            )
    parts: list[Shown] = [masters]
    if slaves.row_count:
        parts += ["", slaves]
    if gone.row_count:
        parts += ["", gone]
    fail_over = [(group.broker_name, group.failover) for group in groups if group.failover is not None]
    return [*parts, *failover_tables(fail_over, now_ms=now_ms)]


def _group(name: str, members: Iterable[BrokerState], rates: Mapping[str, BrokerRates]) -> GroupReplication:
    from tandemmq.admin.cluster_state import failover_of
    from tandemmq.admin.history import quantile_s

    members = list(members)
    master = next((broker for broker in members if broker.is_master), None)
    status = master.status if master is not None else None
    silent = [broker.key for broker in members if broker.status is None and not broker.is_master]
    if master is None or status is None:
        problem = f"its master does not answer: {master.error}" if master is not None else "no master is known"
        return GroupReplication(name, "", problem, 0, 0, (), None, None, (), silent, failover_of(members))
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
        failover=failover_of(members),
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
        "yes" if slave.in_sync else bad("no"),
        f"{bytes_text(round(slave.bytes_per_second))}/s" if slave.bytes_per_second is not None else "-",
        duration_text(slave.catch_up_seconds) if slave.catch_up_seconds is not None else eta,
        duration_text(slave.connected_seconds),
        slave.peer,
    )


def _latency(seconds: float | None) -> str:
    return seconds_text(seconds) if seconds is not None else "-"


# Which broker a text names: its key, its group's name, or one of its addresses.


def find_broker(state: ClusterState, text: str) -> BrokerState:
    """`name:id`, `name` for the group's master, or an endpoint as host:port. CommandError when there is none."""
    refuse_blindness(state)
    for broker in state.brokers:
        if text in (broker.key, broker.metadata_endpoint, broker.client_endpoint):
            return broker
    for broker in state.brokers:
        if broker.is_master and broker.broker_name == text:
            return broker
    raise Refused(
        f"there is no broker {text}",
        cause=f"there are {', '.join(broker.key for broker in state.brokers)}"
        if state.brokers
        else "no broker is registered",
        remedy="name one as name:id or host:port; `tandemmq broker list` shows both",
    )


def check_cluster_name(state: ClusterState, name: str | None) -> None:
    """CommandError when a cluster is named and no broker is of it."""
    refuse_blindness(state)
    clusters = sorted({broker.cluster for broker in state.brokers})
    if name and name not in clusters:
        raise Refused(
            f"there is no cluster {name} here",
            cause=f"there is {', '.join(clusters)}" if clusters else "no broker is registered",
            remedy="leave the name out, or ask the NameServers of that cluster",
        )


async def operations_in(connection: ClusterConnection, cluster_name: str | None) -> Operations:
    """CommandError when another cluster than this one is named."""
    if cluster_name:
        check_cluster_name(await connection.read_state(), cluster_name)
    return await connection.operations()


broker_app = typer.Typer(no_args_is_help=True, help="Brokers: list them, read and change their settings.")
config_app = typer.Typer(no_args_is_help=True, help="Settings of a running broker.")
broker_app.add_typer(config_app, name="config", cls=QuickGroup)
ha_app = typer.Typer(no_args_is_help=True, help="Replication.")

_EVENTS_MAX: Final = 5_000

_BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="BROKER", help="name:id, its group's name for the master, or host:port.", autocompletion=complete_broker
    ),
]
_BrokerGroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of a broker group.", autocompletion=complete_broker_group)
]


class _Permission(StrEnum):
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class _BrokerLine:
    broker: str
    cluster: str
    role: str
    version: str
    client_endpoint: str
    metadata_endpoint: str
    registered: bool
    uptime_seconds: int
    messages_in_per_second: float
    messages_out_per_second: float
    disk_used_ratio: float | None
    resident_bytes: int
    client_count: int
    # Why nothing else is known; empty when it answers.
    error: str


@broker_app.command("list")
@with_cluster
def broker_list(
    cluster: ClusterChoice,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds over which rates are measured.")] = 1.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List brokers with their versions, rates, disks and memory.

    Example: tandemmq broker list -o json
    """
    state, rates = cluster.run(lambda connection: read_with_rates(connection, SystemClock(), interval_s=interval))
    lines = [_broker_line(broker, rates.get(broker.key)) for broker in state.brokers]
    table = new_table(
        "broker", "role", "version", "up", "in", "out", "disk", "memory", "clients", "client API", "metadata, admin"
    )
    for line in lines:
        addresses = (line.client_endpoint, line.metadata_endpoint)
        if line.error:
            plain_row(table, line.broker, "does not answer", *["-"] * 7, *addresses)
            continue
        plain_row(
            table,
            line.broker,
            line.role,
            line.version,
            duration_text(line.uptime_seconds),
            rate_text(line.messages_in_per_second),
            rate_text(line.messages_out_per_second),
            f"{line.disk_used_ratio:.0%}" if line.disk_used_ratio is not None else "-",
            bytes_text(line.resident_bytes),
            str(line.client_count),
            *addresses,
        )
    emit(output, lines, or_text(table, "no broker is registered"))


@config_app.command("get")
@with_cluster
def config_get(
    cluster: ClusterChoice,
    broker: _BrokerArgument,
    key: Annotated[str, typer.Option("--key", "-k", help="Only settings with this in their name.")] = "",
    differs: Annotated[bool, typer.Option("--differs", help="Only those that are not the default.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a broker's settings as they work now, those that are not the default first. Secrets are masked.

    Examples:

      tandemmq broker config get broker-a

      tandemmq broker config get broker-a:1 --differs -o yaml
    """

    async def read(connection: ClusterConnection) -> tuple[str, Sequence[Setting]]:
        found = find_broker(await connection.read_state(), broker)
        return found.key, (await (await connection.operations()).broker_settings(found.key)).settings

    _, settings = cluster.run(read)
    shown = [
        setting
        for setting in sorted(settings, key=lambda each: (not each.differs, each.key.lower()))
        if key.lower() in setting.key.lower() and (setting.differs or not differs)
    ]
    table = new_table("setting", "value", "default", "origin", "while running", "meaning")
    for setting in shown:
        plain_row(
            table,
            setting.key,
            setting.value,
            setting.default_value if setting.differs else "",
            setting.origin,
            "changeable" if setting.changeable else "",
            setting.description,
        )
    emit(output, shown, or_text(table, "no such setting"))


@config_app.command("set")
@with_cluster
def config_set(
    cluster: ClusterChoice,
    broker: Annotated[
        str,
        typer.Argument(
            metavar="BROKER", help="name:id, its group's name, host:port, or `all`.", autocompletion=complete_broker
        ),
    ],
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="Settings.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change settings of a running broker, until its next start. All of them or none.

    For good, change its configuration file, or the chart's values.

    Examples:

      tandemmq broker config set broker-a fileReservedTime=24 --dry-run

      tandemmq broker config set all fileReservedTime=48 --yes
    """
    wanted = dict(_key_value(each) for each in values)

    async def change(connection: ClusterConnection, dry: bool) -> list[ConfigChange]:
        state = await connection.read_state()
        targets = state.brokers if broker == "all" else (find_broker(state, broker),)
        return await changes_of(connection, targets, wanted, dry_run=dry)

    changed = confirmed(
        cluster,
        lambda dry: cluster.run(lambda connection: change(connection, dry)),
        lambda planned: _tell_config(planned, OutputFormat.TABLE if not dry_run else output),
        lambda planned: "Change that until the next start?" if planned else "",
        dry_run=dry_run,
        yes=yes,
    )
    if changed is not None:
        _tell_config(changed, output)


async def changes_of(
    connection: ClusterConnection, brokers: Sequence[BrokerState], values: dict[str, str], *, dry_run: bool
) -> list[ConfigChange]:
    """Changes all these brokers, after each has agreed to it. CommandError when one does not answer."""
    silent = [each.key for each in brokers if each.status is None]
    if silent:
        raise CommandError(
            f"{', '.join(silent)} does not answer; nothing was changed",
            remedy="wait until it is back, or name the others one by one",
        )
    operations = await connection.operations()
    planned = [
        change for each in brokers for change in await operations.update_settings(each.key, values, dry_run=True)
    ]
    if dry_run:
        return planned
    return [change for each in brokers for change in await operations.update_settings(each.key, values)]


@broker_app.command("write-permission")
@with_cluster
def write_permission(
    cluster: ClusterChoice,
    broker_group: _BrokerGroupArgument,
    permission: Annotated[_Permission, typer.Argument(help="off: producers are sent elsewhere; on: also here.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Take a broker group out of producers' routes at every NameServer, or put it back. What it holds is consumed on.

    Producers learn of it when they renew their routes, within 30 s. A broker that registers anew is writable again.

    Examples:

      tandemmq broker write-permission broker-a off --dry-run

      tandemmq broker write-permission broker-a on --yes
    """
    writable = permission is _Permission.ON
    carry_out(
        cluster,
        f"Let producers {'use' if writable else 'no longer use'} {broker_group}?",
        lambda operations, dry: operations.set_write_permission(broker_group, writable=writable, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )


@broker_app.command("accept-loss")
@with_cluster
def accept_loss(
    cluster: ClusterChoice,
    broker_group: _BrokerGroupArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have a master that waits at its start serve without the disks, or the damaged tables, that it waits for.

    A master that serves waits for nothing, and gives nothing up: it forgets slaves that are away, and keeps its log for
    them no more.

    Only when they are gone for good: what they alone hold is lost. It says in numbers what is known of that, and asks.
    A replica that comes back later keeps what it held beyond as a tail: see `tandemmq restore-kept-tail`.

    Examples:

      tandemmq broker accept-loss broker-a --dry-run

      tandemmq broker accept-loss broker-a --yes
    """
    planned = cluster.ask(lambda operations: operations.accept_loss(broker_group, dry_run=True))
    if dry_run or not yes:
        emit(output if dry_run else OutputFormat.TABLE, planned, _loss_view(planned))
        if dry_run:
            return
        ask(f"{'Forget them' if planned.serving else 'Give that up'} for good? ({cluster.target().title})")
    done = cluster.ask(lambda operations: operations.accept_loss(broker_group, names=planned.names))
    told = (
        f"{done.broker} forgot them, and serves as before"
        if done.serving
        else f"{done.broker} gave that up; `tandemmq status` shows how it goes on"
    )
    emit(output, done, [_loss_view(done), "", told] if yes else told)


@ha_app.command("status")
@with_cluster
def ha_status(
    cluster: ClusterChoice,
    broker_group: Annotated[
        str, typer.Argument(metavar="[GROUP]", help="Only this broker group.", autocompletion=complete_broker_group)
    ] = "",
    group: Annotated[
        str,
        typer.Option("--group", metavar="NAME", help="The same, as an option.", autocompletion=complete_broker_group),
    ] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds over which speeds are measured.")] = 1.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show replication: each master's end, how far each slave is behind in bytes and seconds, how long acknowledgements
    take, when a slave will have caught up, and who went away lately and why. Of groups that fail over also the epoch,
    the in-sync set, who could be elected, and the last changes of master.

    Examples:

      tandemmq ha status

      tandemmq ha status broker-a --interval 10 -o json
    """
    if group and broker_group not in ("", group):
        raise Refused(f"{broker_group} and --group {group} are two groups", remedy="name one")
    group = broker_group or group
    state, rates = cluster.run(lambda connection: read_with_rates(connection, SystemClock(), interval_s=interval))
    groups = [each for each in replication_of(state, rates) if group in ("", each.broker_name)]
    if group and not groups:
        raise _no_group(state, group)
    emit(output, groups, ha_tables(groups, now_ms=SystemClock().wall_ms()))


@with_cluster
def events(
    cluster: ClusterChoice,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_EVENTS_MAX, help="At most so many.")] = 50,
    level: Annotated[str, typer.Option(help="Only this level: info, warning, error or critical.")] = "",
    source: Annotated[str, typer.Option(metavar="BROKER", help="Only of this broker, as name:id.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what happened lately on all brokers, newest first.

    Examples:

      tandemmq events

      tandemmq events --level error -o json
    """
    from tandemmq.admin.operations.values import EVENT_LEVELS

    if level and level not in EVENT_LEVELS:
        raise Refused(f"there is no level {level}", remedy=f"choose one of {', '.join(EVENT_LEVELS)}")
    wanted_of_all = limit if not (level or source) else _EVENTS_MAX
    source, (found, unseen) = cluster.run(lambda connection: _events(connection, source, limit=wanted_of_all))
    shown = [each for each in found if level in ("", each.level) and source in ("", each.source)][:limit]
    emit(output, {"events": shown, "unseen": unseen}, or_text(_events_table(shown), "nothing happened"))
    tell_unseen(unseen)


async def _events(
    connection: ClusterConnection, source: str, *, limit: int
) -> tuple[str, tuple[Sequence[EventLine], Sequence[Unseen]]]:
    """Of all brokers, and the key of the one meant. CommandError when it is none."""
    key = find_broker(await connection.read_state(), source).key if source else ""
    return key, await (await connection.operations()).events(limit=limit)


def _loss_view(loss: AcceptedLoss) -> Shown:
    """What is given up, in numbers."""
    heading = (
        "serves, and waits for nothing. It keeps its log for members that are away:"
        if loss.serving
        else f"waits: {loss.waits_for}"
    )
    parts: list[Shown] = [f"{loss.broker} {heading}", ""]
    if loss.missing:
        table = new_table(
            "missing", "disk", "starts", "epoch", "last known end", "more than in reach", "last seen", "at"
        )
        now_ms = SystemClock().wall_ms()
        for one in loss.missing:
            plain_row(
                table,
                one.broker,
                one.disk_id,
                str(one.run),
                str(one.epoch),
                f"{one.end_offset:,}",
                f"{max(0, one.end_offset - loss.end_offset):,}",
                aged_text(one.last_seen_ms, now_ms=now_ms) if one.last_seen_ms else "not known",
                one.metadata_endpoint or "not known",
            )
        parts += [
            table,
            "",
            f"Its log ends at {loss.end_offset:,}, and nothing of it is given up: it forgets these members, and keeps "
            "nothing for them any more."
            if loss.serving
            else _lost_view(loss),
        ]
    if loss.damaged_tables:
        table = new_table("damaged table", "what is wrong")
        for damaged in loss.damaged_tables:
            plain_row(table, damaged.file, damaged.problem)
        parts += [table, "", "What they held is forgotten; the files are kept beside the new ones, as .damaged."]
    return parts


def _lost_view(loss: AcceptedLoss) -> Shown:
    """How much is known to be lost, and by whom."""
    reach = f"The best log in reach ends at {loss.end_offset:,}. "
    if not loss.witnesses:
        return f"{reach}Nobody remembers more than that; what is missing may hold more than is known."
    table = new_table("who remembers it", "of broker", "disk", "epoch", "end", "lost")
    for one in loss.witnesses:
        lost = f"{one.lost_bytes:,}" if one.lost_bytes else "not known how much"
        group = loss.broker.rpartition(":")[0]
        plain_row(
            table, one.source, f"{group}:{one.broker_id}", one.disk_id, str(one.epoch), f"{one.end_offset:,}", lost
        )
    known = (
        f"Known to be lost: {loss.lost_bytes:,} bytes, and there may have been more:"
        if loss.lost_bytes
        else f"Lost is what was written in epoch {max(one.epoch for one in loss.witnesses)}, which nobody in reach has "
        "heard of; how much that is, nobody remembers:"
    )
    return [reach + known, "", table]


def _events_table(lines: Sequence[EventLine]) -> Table:
    now_ms = SystemClock().wall_ms()
    table = new_table("when", "who", "level", "what", "")
    for line in lines:
        details = " ".join(f"{name}={value}" for name, value in line.fields.items())
        plain_row(table, aged_text(line.time_ms, now_ms=now_ms), line.source, line.level, line.event, details)
    return table


def _broker_line(broker: BrokerState, rate: BrokerRates | None) -> _BrokerLine:
    status: BrokerStatus | None = broker.status
    return _BrokerLine(
        broker=broker.key,
        cluster=broker.cluster,
        role=status.role_in_words if status else "",
        version=status.version if status else "",
        client_endpoint=broker.client_endpoint,
        metadata_endpoint=broker.metadata_endpoint,
        registered=broker.registered,
        uptime_seconds=status.uptime_seconds if status else 0,
        messages_in_per_second=rate.messages_in if rate else 0.0,
        messages_out_per_second=rate.messages_out if rate else 0.0,
        disk_used_ratio=status.disk.used_ratio if status and status.disk else None,
        resident_bytes=status.resident_bytes if status else 0,
        client_count=status.client_count if status else 0,
        error="" if status else broker.error or "does not answer",
    )


def _tell_config(changes: Sequence[ConfigChange], output: OutputFormat) -> None:
    table = new_table("broker", "setting", "from", "to")
    for change in changes:
        plain_row(table, change.broker, change.key, change.from_value, change.to_value)
    emit(output, changes, table if changes else "nothing changes")


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Refused(
            f"{text!r} is no setting with its value",
            remedy=f"write {text if text.isidentifier() else 'KEY'}=VALUE, in one word",
        )
    return key, value


def _no_group(state: ClusterState, group: str) -> CommandError:
    names = sorted({broker.broker_name for broker in state.brokers})
    return Refused(
        f"there is no broker group {group}",
        cause=f"there are {', '.join(names)}" if names else "no broker is registered",
        remedy="see `tandemmq broker list`",
    )


# `tandemmq status`.


@with_cluster
def status(cluster: ClusterChoice, output: OutputOption = OutputFormat.TABLE, json: JsonOption = False) -> None:
    """Show NameServers, brokers, offsets, replication lag, and what is wrong and how to mend it.

    Exit code 0: healthy. 1: degraded, with a line saying why and the remedy. 2: wrong arguments.

    Examples:

      tandemmq status

      tandemmq status --namesrv "10.0.0.1:9876;10.0.0.2:9876" --json
    """
    from tandemmq.admin.cluster_state import diagnose, is_healthy

    state = cluster.read_state()
    output = OutputFormat.JSON if json else output
    if output is OutputFormat.TABLE:
        # Programs get the document: it says the same.
        refuse_blindness(state)
    findings = diagnose(state)
    emit(output, status_document(state, findings), status_tables(state, findings))
    if not is_healthy(findings):
        raise typer.Exit(EXIT_FAILED)


# `tandemmq failover`, and how groups that fail over stand: the second half of `tandemmq ha status`.


def failover_tables(groups: Sequence[tuple[str, GroupFailover]], *, now_ms: int) -> list[Shown]:
    """Groups by name: their records, members, and last changes. Nothing without a group that fails over."""
    if not groups:
        return []
    records = new_table("fails over", "epoch", "master", "since", "why", "in-sync set", "authority")
    members = new_table("member", "role", "in-sync set", "lag", "electable", "")
    changes = new_table("became master", "broker", "epoch", "served after", "why")
    for name, group in groups:
        away = f", away for {' '.join(group.authority_away)}" if group.authority_away else ""
        plain_row(
            records,
            name,
            str(group.epoch),
            bad(group.master or "nobody", not group.acts),
            aged_text(group.since_ms, now_ms=now_ms),
            group.reason or "-",
            " ".join(group.in_sync) or "-",
            bad(group.authority + away, away),
        )
        for one in group.members:
            plain_row(
                members,
                one.broker,
                one.role or bad("does not answer"),
                "in" if one.in_sync else "out",
                bytes_text(one.lag_bytes) if one.lag_bytes is not None else "-",
                "yes" if one.electable else "is master" if group.acts and one.broker == group.master else "no",
                bad(one.problem),
            )
        for change in group.changes:
            plain_row(
                changes,
                aged_text(change.time_ms, now_ms=now_ms),
                change.broker,
                str(change.epoch),
                seconds_text(change.took_ms / 1_000),
                change.reason,
            )
    parts: list[Shown] = ["", records, "", members]
    return [*parts, "", changes] if changes.row_count else parts


@with_cluster
def failover(
    cluster: ClusterChoice,
    broker_group: _BrokerGroupArgument,
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="N", help="brokerId of the new master. Default: the nearest that may."),
    ] = None,
    home: Annotated[
        bool, typer.Option("--home", help="To the broker that is master by its settings: brokerId 0.")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Without a master: broker N becomes it although it may lack acknowledged messages. The others of the "
            "in-sync set are given up.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make another member of a group its master, without losing a message. The master stops to take sends, the other
    one reaches its end and takes over, and the old one follows it. Sends of that moment wait or are tried again.

    Only a member of the in-sync set can take over; `tandemmq ha status` shows it. Waits until the new master serves.

    Examples:

      tandemmq failover broker-a --dry-run

      tandemmq failover broker-a --to 1 --yes

      tandemmq failover broker-a --home --yes

      tandemmq failover broker-a --to 1 --unclean
    """
    if home and to is not None:
        raise Refused("--home and --to exclude each other", remedy="leave one out")
    if unclean and to is None:
        raise Refused("--unclean needs --to", remedy="say which broker is to be the master")
    wanted = MASTER_ID if home else to

    def hand_over(dry: bool) -> HandOver:
        return cluster.ask(
            lambda operations: operations.failover(broker_group, to=wanted, unclean=unclean, dry_run=dry)
        )

    done = confirmed(
        cluster,
        hand_over,
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, _told(planned, unclean=unclean)),
        lambda planned: _question(planned, unclean=unclean),
        dry_run=dry_run,
        yes=yes,
    )
    if done is not None:
        emit(output, done, _told(done, unclean=unclean))


def _question(planned: HandOver, *, unclean: bool) -> str:
    if unclean:
        return "Give up what they have, and go on without?" if planned.given_up else "Make it the master?"
    return "" if planned.from_broker == planned.to_broker else "Hand over?"


def _told(done: HandOver, *, unclean: bool) -> str:
    if unclean and not done.given_up:
        return (
            f"{'planned: ' if done.dry_run else ''}{done.to_broker} becomes the master; nobody is given up: who may "
            "have more answers, and is asked first" + ("" if done.dry_run else f"; it serves in epoch {done.epoch}")
        )
    if done.given_up:
        return (
            f"{'planned: ' if done.dry_run else ''}{done.to_broker} becomes the master in place of {done.from_broker}, "
            f"and {', '.join(done.given_up)} given up: {bytes_text(done.lost_bytes)} more than it has are known to be "
            f"there, and there may be more" + ("" if done.dry_run else f"; it serves in epoch {done.epoch}")
        )
    if done.from_broker == done.to_broker:
        return f"{done.to_broker} is the master already, in epoch {done.epoch}; nothing is to be done"
    if done.dry_run:
        return f"planned: {done.from_broker}, master in epoch {done.epoch}, hands over to {done.to_broker}"
    return (
        f"{done.from_broker} handed over to {done.to_broker}, master in epoch {done.epoch}; the group took no sends "
        f"for {seconds_text(done.no_sends_ms / 1_000)} at most"
    )

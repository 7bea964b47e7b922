"""`tandemmq broker …`, `tandemmq ha …` and `tandemmq events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.cli.broker_choice import find_broker
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.completion import complete_broker, complete_broker_group
from admin.cli.confirmation import ask, carry_out
from admin.cli.connection import ClusterConnection
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.ha_view import ha_tables, replication_of
from admin.cli.options import DryRunOption, OutputOption, YesOption
from admin.cli.output import OutputFormat, emit, tell_unseen
from admin.cli.rates import BrokerRates, read_with_rates
from admin.cli.status_view import new_table, or_text, plain_row
from admin.cli.time_option import aged_text
from admin.cluster_state import BrokerState, BrokerStatus, ClusterState
from admin.operations.values import AcceptedLoss, ConfigChange, EventLine, Setting
from admin.quantities import bytes_text, duration_text, rate_text
from mqservice.loop_meter import SystemClock

__all__ = ["broker_app", "changes_of", "events", "ha_app"]

broker_app = typer.Typer(no_args_is_help=True, help="Brokers: list them, read and change their settings.")
config_app = typer.Typer(no_args_is_help=True, help="Settings of a running broker.")
broker_app.add_typer(config_app, name="config")
ha_app = typer.Typer(no_args_is_help=True, help="Replication.")

_EVENTS_MAX: Final = 5_000

_BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="BROKER", help="name:id, its group's name for the master, or host:port.", autocompletion=complete_broker
    ),
]


class _Permission(StrEnum):
    """Whether producers are sent there."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class _BrokerLine:
    """A broker as `list` tells it."""

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

    if dry_run or not yes:
        planned = cluster.run(lambda connection: change(connection, True))
        _tell_config(planned, OutputFormat.TABLE if not dry_run else output)
        if dry_run or not planned:
            return
        ask(f"Change that until the next start? ({cluster.target().title})")
    _tell_config(cluster.run(lambda connection: change(connection, False)), output)


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
    broker_group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Name of a broker group.", autocompletion=complete_broker_group)
    ],
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
    broker_group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Name of a broker group.", autocompletion=complete_broker_group)
    ],
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
    told = Text(
        f"{done.broker} forgot them, and serves as before"
        if done.serving
        else f"{done.broker} gave that up; `tandemmq status` shows how it goes on"
    )
    emit(output, done, Group(_loss_view(done), "", told) if yes else told)


@ha_app.command("status")
@with_cluster
def ha_status(
    cluster: ClusterChoice,
    group: Annotated[
        str,
        typer.Option("--group", metavar="NAME", help="Only this broker group.", autocompletion=complete_broker_group),
    ] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds over which speeds are measured.")] = 1.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show replication: each master's end, how far each slave is behind in bytes and seconds, how long acknowledgements
    take, when a slave will have caught up, and who went away lately and why.

    Examples:

      tandemmq ha status

      tandemmq ha status --group broker-a --interval 10 -o json
    """
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
    wanted_of_all = limit if not (level or source) else _EVENTS_MAX
    found, unseen = cluster.ask(lambda operations: operations.events(limit=wanted_of_all))
    shown = [each for each in found if level in ("", each.level) and source in ("", each.source)][:limit]
    emit(output, {"events": shown, "unseen": unseen}, or_text(_events_table(shown), "nothing happened"))
    tell_unseen(unseen)


def _loss_view(loss: AcceptedLoss) -> RenderableType:
    """What is given up, in numbers."""
    heading = (
        "serves, and waits for nothing. It keeps its log for members that are away:"
        if loss.serving
        else f"waits: {loss.waits_for}"
    )
    parts: list[RenderableType] = [Text(f"{loss.broker} {heading}"), ""]
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
            Text(
                f"Its log ends at {loss.end_offset:,}, and nothing of it is given up: it forgets these members, and "
                "keeps nothing for them any more."
                if loss.serving
                else f"The best log in reach ends at {loss.end_offset:,}. Known to be lost: {loss.lost_bytes:,} bytes; "
                "the missing may hold more than is known."
            ),
        ]
    if loss.damaged_tables:
        table = new_table("damaged table", "what is wrong")
        for damaged in loss.damaged_tables:
            plain_row(table, damaged.file, damaged.problem)
        parts += [table, "", Text("What they held is forgotten; the files are kept beside the new ones, as .damaged.")]
    return Group(*parts)


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
        raise CommandError(f"{text!r} is no setting", remedy="write KEY=VALUE", exit_code=EXIT_REFUSED)
    return key, value


def _no_group(state: ClusterState, group: str) -> CommandError:
    names = sorted({broker.broker_name for broker in state.brokers})
    return CommandError(
        f"there is no broker group {group}",
        cause=f"there are {', '.join(names)}" if names else "no broker is registered",
        remedy="see `tandemmq broker list`",
        exit_code=EXIT_REFUSED,
    )

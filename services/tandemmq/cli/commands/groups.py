"""`tandemmq group …` and `tandemmq clients`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import Refused
from tandemmq.cli.listing import carry_out, collect, confirmed, tell_changes, tell_rest
from tandemmq.cli.options import (
    MOMENT_HELP,
    DryRunOption,
    GroupArgument,
    LimitOption,
    OutputOption,
    SearchOption,
    TopicArgument,
    YesOption,
    complete_group,
    complete_topic,
    parse_moment_ms,
)
from tandemmq.cli.output import OutputFormat, Shown, emit, new_table, or_text, plain_row, tell_unseen
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.texts import age_text, counted, duration_text

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.values import (
        Client,
        GroupDetail,
        GroupSummary,
        OffsetReset,
        Progress,
        ResetTarget,
    )


# Consumer groups and connected clients as tables.


def groups_table(groups: Iterable[GroupSummary]) -> Table:
    table = new_table("group", "members", "lag", "in flight", "order", "retries", "consumes", "topics")
    for group in groups:
        plain_row(
            table,
            group.name,
            str(group.member_count),
            _count(group.lag),
            _count(group.inflight),
            "FIFO" if group.ordered else "any",
            str(group.retry_max_times),
            "yes" if group.enabled else "no",
            " ".join(group.topics) or "-",
        )
    return table


def group_tables(detail: GroupDetail) -> Shown:
    """The group, its progress queue by queue, its members, and its dead letters."""
    from tandemmq.admin.operations.topics import attributes_text

    letters = (
        f"{counted(detail.dead_letters, 'dead letter')}; see `tandemmq dlq show {quote(detail.summary.name)}`"
        if detail.dead_letters
        else "no dead letters"
    )
    members = clients_table(detail.members) if detail.members else "no member is connected"
    table = groups_table([detail.summary])
    attributes = attributes_text(detail.summary.attributes)
    named = [f"attributes: {attributes}"] if attributes else []
    return [table, *named, "", progress_table(detail.progress), "", members, "", letters]


def progress_table(progress: Sequence[Progress]) -> Shown:
    """One line a queue the group has read."""
    if not progress:
        return "it has read nothing yet"
    table = new_table(
        "topic", "broker", "queue", "acknowledged below", "queue's end", "lag", "in flight", "oldest waits for"
    )
    for each in progress:
        plain_row(
            table,
            each.topic,
            each.broker_name,
            str(each.queue_id),
            f"{each.committed_offset:,}",
            f"{each.max_offset:,}",
            f"{each.lag:,}",
            f"{each.inflight:,}",
            duration_text(each.oldest_age_ms / 1_000) if each.oldest_age_ms else "-",
        )
    return table


def clients_table(clients: Iterable[Client]) -> Table:
    """One line a connected client."""
    table = new_table("client", "type", "group", "library", "address", "heard", "connected to", "topics")
    for client in clients:
        plain_row(
            table,
            client.client_id,
            client.client_type or "?",
            client.group or "-",
            f"{client.language} {client.version}".strip() or "?",
            client.address,
            age_text(client.silent_ms),
            " ".join(client.brokers),
            " ".join(f"{topic}:{rule}" if rule else topic for topic, rule in sorted(client.subscriptions.items())),
        )
    return table


def reset_table(moves: Sequence[OffsetReset]) -> Table:
    """One line a queue: from where to where, and what comes of it."""
    table = new_table("broker", "queue", "from", "to", "queue's end", "effect")
    for move in moves:
        before = f"{move.from_offset:,}" if move.from_offset >= 0 else "not read yet"
        plain_row(
            table,
            move.broker_name,
            str(move.queue_id),
            before,
            f"{move.to_offset:,}",
            f"{move.max_offset:,}",
            _effect(move),
        )
    return table


def _effect(move: OffsetReset) -> str:
    twice = f"; {move.inflight:,} in clients' hands may come twice" if move.inflight else ""
    if move.from_offset < 0:
        return f"{move.max_offset - move.to_offset:,} to come{twice}"
    if move.to_offset < move.from_offset:
        return f"{move.from_offset - move.to_offset:,} come again{twice}"
    if move.to_offset > move.from_offset:
        return f"{move.to_offset - move.from_offset:,} are skipped{twice}"
    return f"stays{twice}"


def _count(value: int) -> str:
    return f"{value:,}" if value >= 0 else "?"


def _delays(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write seconds joined by commas, such as 1,5,30") from None


group_app = typer.Typer(no_args_is_help=True, help="Consumer groups: create, list, describe, reset and delete them.")

_LIMIT: Final = 1_000


@group_app.command("create")
@with_cluster
def group_create(
    cluster: ClusterChoice,
    group: GroupArgument,
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--unordered", help="Deliver each message group in order, for FIFO. Default: as it is."),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Redeliveries after the first delivery, before the dead letter queue; 0: none. "
            "Default: as it is, of a new group 16.",
        ),
    ] = None,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether its members are given messages. Default: as it is."),
    ] = None,
    priority_factor: Annotated[
        int | None,
        typer.Option(
            min=0, max=100, help="Of PRIORITY topics: how many of a hundred receives go by priority. Default: as it is."
        ),
    ] = None,
    slow_broker_id: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The slave that reads what lies far behind, with slaveReadEnable; 0: the master. Default: as it is.",
        ),
    ] = None,
    retry_delays: Annotated[
        str,
        typer.Option(
            help="Seconds until a message that failed comes again, such as 1,5,30; the last stays. Default: as it is."
        ),
    ] = "",
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="Repeatable, such as lite.bind.topic=sessions; a wrong one is told which there are. NAME= removes it. "
            "Default: as they are.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a consumer group, or change it.

    Examples:

      tandemmq group create billing --retries 5

      tandemmq group create devices --attribute lite.bind.topic=sessions --attribute lite.sub.model=Exclusive

      tandemmq group create billing --retries 5 --retry-delays 1,5,30

      tandemmq group create billing --disable
    """
    from tandemmq.admin.operations.topics import read_attributes
    from tandemmq.admin.operations.values import GroupChange

    try:
        named = read_attributes(attributes or ())
    except ValueError as error:
        raise Refused(str(error), remedy="see --help") from error
    change = GroupChange(
        group,
        ordered=ordered,
        retry_max_times=retries,
        enabled=enabled,
        priority_factor=priority_factor,
        slow_broker_id=slow_broker_id,
        retry_delays_seconds=_delays(retry_delays),
        attributes=named,
    )
    tell_changes(cluster.ask(lambda operations: operations.put_group(change, dry_run=dry_run)))


@group_app.command("list")
@with_cluster
def group_list(
    cluster: ClusterChoice,
    search: SearchOption = "",
    group: Annotated[
        str | None, typer.Option("--group", help="Only this group, a line per queue.", autocompletion=complete_group)
    ] = None,
    limit: LimitOption = _LIMIT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List consumer groups and how far they are behind.

    Examples:

      tandemmq group list

      tandemmq group list --group billing -o json
    """
    if group is not None:
        detail = cluster.ask(lambda operations: operations.group(group))
        emit(output, detail.progress, progress_table(detail.progress))
        tell_unseen(detail.unseen)
        return
    found = cluster.ask(
        lambda operations: collect(lambda page: operations.groups(search=search, page=page), limit=limit)
    )
    emit(output, found, or_text(groups_table(found.items), "no such group" if search else "there is no group yet"))
    tell_rest(found)


@group_app.command("describe")
@with_cluster
def group_describe(cluster: ClusterChoice, group: GroupArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one group: its progress in every queue, its members, and how many dead letters it has.

    Example: tandemmq group describe billing
    """
    detail = cluster.ask(lambda operations: operations.group(group))
    emit(output, detail, group_tables(detail))
    tell_unseen(detail.unseen)


@group_app.command("reset")
@with_cluster
def group_reset(
    cluster: ClusterChoice,
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[
        str, typer.Option(metavar="MOMENT", help=f"earliest, latest, or the first message stored at {MOMENT_HELP}.")
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Set where a group goes on in a topic: further back, to have messages again, or further on, to skip some.

    Members need not be stopped. What is in their hands at that moment may be consumed twice.

    Examples:

      tandemmq group reset billing orders --to 2h --dry-run

      tandemmq group reset billing orders --to 2026-11-22T04:00 --yes

      tandemmq group reset billing orders --to latest
    """
    target = _target(to)
    moves = confirmed(
        cluster,
        lambda dry: cluster.ask(lambda operations: operations.reset_offsets(group, topic, target, dry_run=dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, reset_table(planned)),
        f"Have group {group} go on there in topic {topic}?",
        dry_run=dry_run,
        yes=yes,
    )
    if moves is not None:
        emit(output, moves, reset_table(moves))


@group_app.command("delete")
@with_cluster
def group_delete(
    cluster: ClusterChoice,
    group: GroupArgument,
    with_members: Annotated[
        bool, typer.Option("--with-members", help="Although consumers of it are connected.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove a group with its progress from all masters.

    Examples:

      tandemmq group delete billing --dry-run

      tandemmq group delete billing --yes
    """
    carry_out(
        cluster,
        f"Delete group {group} with its progress?",
        lambda operations, dry: operations.delete_group(group, even_with_members=with_members, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )


@with_cluster
def clients(
    cluster: ClusterChoice,
    group: Annotated[
        str, typer.Option("--group", "-g", help="Only consumers of this group.", autocompletion=complete_group)
    ] = "",
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Only clients that use this topic.", autocompletion=complete_topic)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 200,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List connected clients: producers and consumers, of all brokers together.

    Examples:

      tandemmq clients

      tandemmq clients --group billing -o yaml
    """
    found = cluster.ask(lambda operations: operations.clients(group=group, topic=topic, limit=limit))
    emit(
        output, found, or_text(clients_table(found.items), f"no {'such ' if group or topic else ''}client is connected")
    )
    tell_rest(found)


def _target(text: str) -> ResetTarget:
    from tandemmq.admin.operations.values import ResetTarget

    if text == "earliest":
        return ResetTarget(earliest=True)
    if text == "latest":
        return ResetTarget(latest=True)
    return ResetTarget(time_ms=parse_moment_ms(text, now_ms=SystemClock().wall_ms()))

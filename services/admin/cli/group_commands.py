"""`tandemmq group …` and `tandemmq clients`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.completion import complete_group, complete_topic
from admin.cli.confirmation import ask, carry_out, tell_changes
from admin.cli.group_view import clients_table, group_tables, groups_table, progress_table, reset_table
from admin.cli.listing import collect, tell_rest
from admin.cli.options import (
    DryRunOption,
    GroupArgument,
    LimitOption,
    OutputOption,
    SearchOption,
    TopicArgument,
    YesOption,
)
from admin.cli.output import OutputFormat, emit, tell_unseen
from admin.cli.status_view import or_text
from admin.cli.time_option import MOMENT_HELP, parse_moment_ms
from admin.operations.values import GroupChange, ResetTarget
from mqservice.loop_meter import SystemClock

__all__ = ["clients", "group_app"]

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
        int, typer.Option(min=0, help="Redeliveries before the dead letter queue; 0: 16, or as it is.")
    ] = 0,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether its members are given messages. Default: as it is."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a consumer group, or change it.

    Examples:

      tandemmq group create billing --retries 5

      tandemmq group create billing --disable
    """
    change = GroupChange(group, ordered=ordered, retry_max_times=retries, enabled=enabled)
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
    emit(output, found, or_text(groups_table(found.items), "no such group"))
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
    if dry_run or not yes:
        moves = cluster.ask(lambda operations: operations.reset_offsets(group, topic, target, dry_run=True))
        if dry_run:
            emit(output, moves, reset_table(moves))
            return
        emit(OutputFormat.TABLE, moves, reset_table(moves))
        ask(f"Have group {group} go on there in topic {topic}? ({cluster.target().title})")
    moves = cluster.ask(lambda operations: operations.reset_offsets(group, topic, target))
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
    emit(output, found, or_text(clients_table(found.items), "no such client is connected"))
    tell_rest(found)


def _target(text: str) -> ResetTarget:
    if text == "earliest":
        return ResetTarget(earliest=True)
    if text == "latest":
        return ResetTarget(latest=True)
    return ResetTarget(time_ms=parse_moment_ms(text, now_ms=SystemClock().wall_ms()))

"""updateSubGroup, deleteSubGroup, consumerProgress and resetOffsetByTime."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.commands.brokers import check_cluster_name, find_broker, operations_in
from tandemmq.cli.commands.groups import reset_table
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, with_cluster
from tandemmq.cli.ending import Refused
from tandemmq.cli.listing import collect, confirmed, read_groups, tell_changes, tell_warnings
from tandemmq.cli.mqadmin.options import (
    BrokerAddrOption,
    ClusterNameOption,
    Columns,
    GroupOption,
    TopicOption,
    TrueFalse,
    changed_attributes,
    emit_lines,
    note_ignored,
)
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption, parse_moment_ms
from tandemmq.cli.output import OutputFormat, emit, tell_unseen
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import (
        ChangeResult,
        GroupDetail,
        GroupSummary,
        OffsetReset,
        Progress,
        ResetTarget,
    )

_OFFSETS: Final = (
    ("#Topic", 64),
    ("#Broker Name", 32),
    ("#QID", 4),
    ("#Broker Offset", 20),
    ("#Consumer Offset", 20),
)
_LAGS: Final = (("#Diff", 20), ("#Inflight", 20), ("#LastTime", 0))
_QUEUES: Final = Columns(*_OFFSETS, *_LAGS)
_QUEUES_WITH_CLIENT: Final = Columns(*_OFFSETS, ("#Client IP", 20), *_LAGS)
_GROUPS: Final = Columns(
    ("#Group", 64),
    ("#Count", 6),
    ("#Version", 24),
    ("#Type", 5),
    ("#Model", 14),
    ("#TPS", 7),
    ("#Diff Total", 0),
)
_RESET: Final = Columns(("#brokerName", 40), ("#queueId", 40), ("#offset", 40))
_RATE_INTERVAL_S: Final = 1.0
_NOT_KNOWN: Final = "N/A"


@with_cluster
def update_sub_group(
    cluster: ClusterChoice,
    group: GroupOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    consume_enable: Annotated[
        TrueFalse | None,
        typer.Option("--consumeEnable", "-s", case_sensitive=False, help="Whether it is given messages."),
    ] = None,
    consume_orderly: Annotated[
        TrueFalse | None,
        typer.Option("--consumeMessageOrderly", "-o", case_sensitive=False, help="In order, for FIFO."),
    ] = None,
    retry_max_times: Annotated[
        int | None,
        typer.Option("--retryMaxTimes", "-r", min=0, help="Redeliveries before the dead letter queue; 0: none."),
    ] = None,
    from_min: Annotated[str, typer.Option("--consumeFromMinEnable", "-m", help="Ignored.")] = "",
    broadcast: Annotated[str, typer.Option("--consumeBroadcastEnable", "-d", help="Ignored.")] = "",
    retry_queues: Annotated[str, typer.Option("--retryQueueNums", "-q", help="Ignored.")] = "",
    retry_policy: Annotated[str, typer.Option("--groupRetryPolicy", "-p", help="Ignored.")] = "",
    broker_id: Annotated[str, typer.Option("--brokerId", "-i", help="Ignored.")] = "",
    slow_broker: Annotated[
        int | None,
        typer.Option("--whichBrokerWhenConsumeSlowly", "-w", min=0, help="The slave that reads what lies far behind."),
    ] = None,
    notify: Annotated[str, typer.Option("--notifyConsumerIdsChanged", "-a", help="Ignored.")] = "",
    attributes: Annotated[
        str, typer.Option("--attributes", help="Such as +lite.sub.model=Exclusive; -NAME removes one.")
    ] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Create a consumer group, or change it, on all masters. What is not given stays as it is.

    Example: mqadmin updateSubGroup -c DefaultCluster -g billing -r 5
    """
    from tandemmq.admin.operations.groups import GROUP_ATTRIBUTES
    from tandemmq.admin.operations.values import GroupChange

    if broker_addr is None and cluster_name is None:
        raise Refused("where is the group to be?", remedy="give -c, the name of the cluster")
    note_ignored([("-b", broker_addr)], "a group is on all masters")
    ignored = [("-m", from_min), ("-d", broadcast), ("-q", retry_queues), ("-p", retry_policy), ("-i", broker_id)]
    note_ignored([*ignored, ("-a", notify)], "it is not kept here")
    change = GroupChange(
        group,
        ordered=consume_orderly.truth if consume_orderly is not None else None,
        retry_max_times=retry_max_times,
        enabled=consume_enable.truth if consume_enable is not None else None,
        slow_broker_id=slow_broker,
        attributes=changed_attributes(attributes, GROUP_ATTRIBUTES),
    )

    async def put(connection: ClusterConnection) -> tuple[ChangeResult, GroupSummary | None]:
        operations = await operations_in(connection, cluster_name)
        result = await operations.put_group(change, dry_run=dry_run)
        return result, None if dry_run else (await operations.group(group)).summary

    result, summary = cluster.run(put)
    if summary is None:
        tell_changes(result)
        return
    for each in result.changes:
        typer.echo(f"create subscription group to {each.subject} success.")
    typer.echo(
        f"SubscriptionGroupConfig{{groupName='{group}', consumeEnable={_java(summary.enabled)}, "
        f"consumeMessageOrderly={_java(summary.ordered)}, retryMaxTimes={summary.retry_max_times}}}"
    )
    tell_warnings(result.warnings)


@with_cluster
def delete_sub_group(
    cluster: ClusterChoice,
    group: GroupOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    remove_offset: Annotated[
        str, typer.Option("--removeOffset", "-r", help="Ignored: progress goes with the group.")
    ] = "",
    with_members: Annotated[bool, typer.Option("--with-members", help="Although consumers are connected.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove a consumer group with its progress from all masters.

    Example: mqadmin deleteSubGroup -c DefaultCluster -g billing --yes
    """
    note_ignored([("-b", broker_addr)], "a group is removed from all masters")
    note_ignored([("-r", remove_offset)], "progress goes with the group")

    async def delete(connection: ClusterConnection, dry: bool) -> ChangeResult:
        operations = await operations_in(connection, cluster_name)
        return await operations.delete_group(group, even_with_members=with_members, dry_run=dry)

    question = f"Delete group {group} with its progress?"
    result = confirmed(
        cluster, lambda dry: cluster.run(lambda to: delete(to, dry)), tell_changes, question, dry_run=dry_run, yes=yes
    )
    if result is None:
        return
    for each in result.changes:
        where = f" in cluster [{cluster_name}]" if cluster_name else ""
        typer.echo(f"delete subscription group [{group}] from broker [{each.subject}]{where} success.")
    tell_warnings(result.warnings)


@with_cluster
def consumer_progress(
    cluster: ClusterChoice,
    group: Annotated[str | None, typer.Option("--groupName", "-g", help="Only this group, queue by queue.")] = None,
    topic: Annotated[str | None, typer.Option("--topicName", "-t", help="Only this topic, with -g.")] = None,
    show_client_ip: Annotated[
        TrueFalse,
        typer.Option("--showClientIP", "-s", case_sensitive=False, help="A column of N/A: members share queues."),
    ] = TrueFalse.FALSE,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show how far groups are behind; with -g queue by queue. TPS is measured over a second.

    Examples:

      mqadmin consumerProgress

      mqadmin consumerProgress -g billing -t orders
    """

    async def one(connection: ClusterConnection, name: str) -> tuple[GroupDetail, float]:
        operations, clock = await operations_in(connection, cluster_name), SystemClock()
        before, started_ms = await operations.group(name), clock.monotonic_ms()
        await asyncio.sleep(_RATE_INTERVAL_S)
        now = await operations.group(name)
        seconds = max(0.001, (clock.monotonic_ms() - started_ms) / 1_000)
        return now, max(0, _committed(now, topic) - _committed(before, topic)) / seconds

    async def all_of(connection: ClusterConnection) -> list[GroupDetail]:
        operations = await operations_in(connection, cluster_name)
        page = await collect(lambda request: operations.groups(page=request))
        tell_unseen(page.unseen)
        return await read_groups(operations, [summary.name for summary in page.items])

    if group is None:
        details = cluster.run(all_of)
        emit_lines(output, [detail.summary for detail in details], _GROUPS.lines(map(_group_row, details)))
        return
    detail, rate = cluster.run(lambda connection: one(connection, group))
    progress = [each for each in detail.progress if topic in (None, each.topic)]
    columns = _QUEUES_WITH_CLIENT if show_client_ip.truth else _QUEUES
    totals = [
        "",
        f"Consume TPS: {rate:.2f}",
        f"Consume Diff Total: {sum(each.lag for each in progress)}",
        f"Consume Inflight Total: {sum(each.inflight for each in progress)}",
    ]
    rows = [_progress_row(each, with_client=show_client_ip.truth) for each in progress]
    emit_lines(output, progress, [*columns.lines(rows), *totals])
    tell_unseen(detail.unseen)


@with_cluster
def reset_offset_by_time(
    cluster: ClusterChoice,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group.")],
    topic: TopicOption,
    timestamp: Annotated[
        str, typer.Option("--timestamp", "-s", help="now, milliseconds, yyyy-MM-dd#HH:mm:ss:SSS, ISO, or 2h (ago).")
    ],
    force: Annotated[str, typer.Option("--force", "-f", help="Ignored: an operator's word counts.")] = "",
    broker_addr: Annotated[str | None, typer.Option("--broker", "-b", help="With -q: only on this broker.")] = None,
    queue_id: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="With -b: only this queue.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="With -b and -q: there instead of by time.")
    ] = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: Annotated[OutputFormat, typer.Option("--output", help="table, json or yaml.")] = OutputFormat.TABLE,
) -> None:
    """Set where a group goes on in a topic: at the first message stored at that time. Clients need not be stopped.

    Examples:

      mqadmin resetOffsetByTime -g billing -t orders -s 2026-11-22#04:00:00:000 --dry-run

      mqadmin resetOffsetByTime -g billing -t orders -s now --yes
    """
    from tandemmq.admin.operations.values import ResetTarget

    if (broker_addr is None) != (queue_id is None) or (offset is not None and queue_id is None):
        raise Refused("which queue?", remedy="-b and -q belong together, and -o needs both")
    time_ms = parse_moment_ms(timestamp, now_ms=SystemClock().wall_ms())

    async def reset(connection: ClusterConnection, dry: bool) -> Sequence[OffsetReset]:
        state = await connection.read_state()
        check_cluster_name(state, cluster_name)
        operations = await connection.operations()
        target = ResetTarget(time_ms=time_ms)
        if broker_addr is not None and queue_id is not None:
            name = find_broker(state, broker_addr).broker_name
            target = ResetTarget(
                offsets={(name, queue_id): await _offset_of(operations, group, topic, name, queue_id, offset, target)}
            )
        return await operations.reset_offsets(group, topic, target, dry_run=dry)

    moves = confirmed(
        cluster,
        lambda dry: cluster.run(lambda connection: reset(connection, dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, reset_table(planned)),
        f"Have group {group} go on there in topic {topic}?",
        dry_run=dry_run,
        yes=yes,
    )
    if moves is None:
        return
    head = (
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], force[{force or 'true'}], "
        f"timestamp(string)[{timestamp}], timestamp(long)[{time_ms}]"
    )
    rows = [(move.broker_name, move.queue_id, move.to_offset) for move in moves]
    emit_lines(output, moves, [head, *_RESET.lines(rows)])


async def _offset_of(
    operations: Operations,
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    offset: int | None,
    target: ResetTarget,
) -> int:
    """The offset given, else the one the time stands for in that queue."""
    if offset is not None:
        return offset
    for move in await operations.reset_offsets(group, topic, target, dry_run=True):
        if (move.broker_name, move.queue_id) == (broker_name, queue_id):
            return move.to_offset
    raise Refused(f"topic {topic} has no queue {queue_id} on {broker_name}", remedy="see mqadmin topicStatus")


def _committed(detail: GroupDetail, topic: str | None) -> int:
    return sum(each.committed_offset for each in detail.progress if topic in (None, each.topic))


def _progress_row(progress: Progress, *, with_client: bool) -> tuple[object, ...]:
    client = (_NOT_KNOWN,) if with_client else ()
    return (
        progress.topic,
        progress.broker_name,
        progress.queue_id,
        progress.max_offset,
        progress.committed_offset,
        *client,
        progress.lag,
        progress.inflight,
        _NOT_KNOWN,
    )


def _group_row(detail: GroupDetail) -> tuple[object, ...]:
    members = detail.members
    versions = sorted({member.version for member in members if member.version})
    version = (versions[0] if versions else "unknown") if members else "OFFLINE"
    kind = "POP" if members else ""
    lag = sum(progress.lag for progress in detail.progress)
    return (detail.summary.name, len(members), version, kind, "CLUSTERING" if members else "", 0, lag)


def _java(value: bool) -> str:
    return "true" if value else "false"

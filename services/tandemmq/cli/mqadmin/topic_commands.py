"""topicList, topicRoute, topicStatus, updateTopic and deleteTopic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandemmq.cli.commands.brokers import check_cluster_name, find_broker, operations_in
from tandemmq.cli.commands.topics import TOPIC_TYPES, permission_text
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.listing import collect, confirmed, tell_changes, tell_warnings
from tandemmq.cli.mqadmin.options import (
    BrokerAddrOption,
    ClusterNameOption,
    Columns,
    TopicOption,
    TrueFalse,
    changed_attributes,
    emit_lines,
    human_time,
    note_ignored,
)
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption
from tandemmq.cli.output import OutputFormat, tell_unseen
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import ClusterState
    from tandemmq.admin.operations.values import ChangeResult, Route, TopicDetail, TopicSummary

_LIST: Final = Columns(("#Cluster Name", 20), ("#Topic", 64), ("#Consumer Group", 64))
_ROUTE: Final = Columns(
    ("#ClusterName", 45),
    ("#BrokerName", 32),
    ("#BrokerAddrs", 50),
    ("#ReadQueue", 10),
    ("#WriteQueue", 11),
    ("#Perm", 5),
)
_STATUS: Final = Columns(
    ("#Broker Name", 32), ("#QID", 4), ("#Min Offset", 20), ("#Max Offset", 20), ("  #Last Updated", 0)
)
_RULER: Final = "-" * 158
_ASKED_AT_ONCE: Final = 16
_RATE_INTERVAL_S: Final = 1.0
_MESSAGE_TYPE: Final = "+message.type="


@with_cluster
def topic_list(
    cluster: ClusterChoice,
    cluster_model: Annotated[
        bool, typer.Option("--clusterModel", "-c", help="With the cluster's name and the groups that read each topic.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the names of all topics, the system's too; with -c without retry and dead letter topics.

    Example: mqadmin topicList -n 127.0.0.1:9876
    """
    from tandemmq.admin.operations.topics import CATEGORIES, ORDINARY

    async def read(connection: ClusterConnection) -> tuple[list[TopicSummary], list[Sequence[str]], str]:
        operations = await connection.operations()
        categories = (ORDINARY,) if cluster_model else CATEGORIES
        page = await collect(lambda request: operations.topics(categories=categories, page=request))
        tell_unseen(page.unseen)
        topics = list(page.items)
        if not cluster_model:
            return topics, [], ""
        at_once = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def groups_of(name: str) -> Sequence[str]:
            async with at_once:
                return [progress.group for progress in (await operations.topic(name)).groups]

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(groups_of(topic.name)) for topic in topics]
        return topics, [task.result() for task in asked], _cluster_name(await connection.read_state())

    topics, groups, cluster_name = cluster.run(read)
    if cluster_model:
        rows = [
            (cluster_name, topic.name, group)
            for topic, names in zip(topics, groups, strict=True)
            for group in names or ("",)
        ]
        lines = _LIST.lines(rows)
    else:
        lines = [topic.name for topic in topics]
    emit_lines(output, topics, lines)


@with_cluster
def topic_route(
    cluster: ClusterChoice,
    topic: TopicOption,
    as_list: Annotated[bool, typer.Option("--list", "-l", help="As a table.")] = False,
    output: OutputOption = OutputFormat.JSON,
) -> None:
    """Show a topic's route, as the first NameServer that knows it tells it: RocketMQ's JSON, or with -l a table.

    Examples:

      mqadmin topicRoute -t orders

      mqadmin topicRoute -t orders -l
    """

    async def read(connection: ClusterConnection) -> tuple[Route, str]:
        routes, unseen = await (await connection.operations()).topic_routes(topic)
        tell_unseen(unseen)
        found = next((route for route in routes if route.queues), None)
        if found is None:
            raise CommandError(f"no NameServer routes to topic {topic}", remedy="see mqadmin topicList")
        return found, _cluster_name(await connection.read_state())

    route, cluster_name = cluster.run(read)
    emit_lines(
        OutputFormat.TABLE if as_list else output, _route_data(route, cluster_name), _route_lines(route, cluster_name)
    )


@with_cluster
def topic_status(
    cluster: ClusterChoice,
    topic: TopicOption,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the offsets of each queue of a topic, and how many messages a second come in, measured over a second.

    Example: mqadmin topicStatus -t orders
    """

    async def read(connection: ClusterConnection) -> tuple[TopicDetail, float]:
        operations, clock = await operations_in(connection, cluster_name), SystemClock()
        before, started_ms = await operations.topic(topic), clock.monotonic_ms()
        await asyncio.sleep(_RATE_INTERVAL_S)
        now = await operations.topic(topic)
        seconds = max(0.001, (clock.monotonic_ms() - started_ms) / 1_000)
        return now, max(0, _stored(now) - _stored(before)) / seconds

    detail, rate = cluster.run(read)
    rows = [
        (each.broker_name, each.queue_id, each.min_offset, each.max_offset, "  " + human_time(each.newest_store_ms))
        for each in detail.extents
    ]
    emit_lines(output, detail, [*_STATUS.lines(rows), "", f"Topic Put TPS: {rate:.2f}"])
    tell_unseen(detail.unseen)


@with_cluster
def update_topic(
    cluster: ClusterChoice,
    topic: TopicOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    read_queues: Annotated[
        int, typer.Option("--readQueueNums", "-r", min=0, help="0: the broker's default, or as it is.")
    ] = 0,
    write_queues: Annotated[int, typer.Option("--writeQueueNums", "-w", min=0, help="Likewise.")] = 0,
    permission: Annotated[int, typer.Option("--perm", "-p", min=0, max=7, help="2: write, 4: read, 6: both.")] = 0,
    attributes: Annotated[
        str,
        typer.Option(
            "--attributes", "-a", help=f"{_MESSAGE_TYPE}NORMAL, FIFO, DELAY, TRANSACTION, MIXED, PRIORITY or LITE."
        ),
    ] = "",
    order: Annotated[
        TrueFalse | None,
        typer.Option("--order", "-o", case_sensitive=False, help="true is refused: the type FIFO is what orders."),
    ] = None,
    unit: Annotated[TrueFalse | None, typer.Option("--unit", "-u", case_sensitive=False, help="Ignored.")] = None,
    has_unit_sub: Annotated[
        TrueFalse | None, typer.Option("--hasUnitSub", "-s", case_sensitive=False, help="Ignored.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic, or change it, on one broker group or on all.

    Examples:

      mqadmin updateTopic -c DefaultCluster -t orders -r 8 -w 8

      mqadmin updateTopic -b 127.0.0.1:10911 -t orders -a +message.type=FIFO
    """
    from tandemmq.admin.operations.values import TopicChange

    if (broker_addr is None) == (cluster_name is None):
        raise Refused("where is the topic to be?", remedy="give -c for all broker groups, or -b for one")
    if order is TrueFalse.TRUE:
        raise Refused(
            "-o true is not kept here",
            cause="order is a matter of the topic's type",
            remedy=f"give -a {_MESSAGE_TYPE}FIFO",
        )
    note_ignored([("-u", unit), ("-s", has_unit_sub)], "there are no units here")
    message_type, others = _attributes(attributes)

    async def put(connection: ClusterConnection) -> tuple[ChangeResult, TopicSummary | None]:
        state = await connection.read_state()
        check_cluster_name(state, cluster_name)
        names = (find_broker(state, broker_addr).broker_name,) if broker_addr else ()
        operations = await connection.operations()
        change = TopicChange(topic, read_queues, write_queues, permission, message_type, names, others)
        result = await operations.put_topic(change, dry_run=dry_run)
        return result, None if dry_run else (await operations.topic(topic)).summary

    result, summary = cluster.run(put)
    if summary is None:
        tell_changes(result)
        return
    for each in result.changes:
        typer.echo(f"create topic to {each.subject} success.")
    for broker in summary.brokers[:1]:
        typer.echo(
            f"TopicConfig [topicName={topic}, readQueueNums={broker.read_queue_count}, "
            f"writeQueueNums={broker.write_queue_count}, perm={_rocketmq_permission(broker.permission)}, "
            f"topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, "
            f"attributes={{+message.type={broker.message_type or 'NORMAL'}}}]"
        )
    tell_warnings(result.warnings)


@with_cluster
def delete_topic(
    cluster: ClusterChoice,
    topic: TopicOption,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove a topic from all masters and all routes.

    Example: mqadmin deleteTopic -c DefaultCluster -t orders --yes
    """

    async def delete(connection: ClusterConnection, dry: bool) -> ChangeResult:
        return await (await operations_in(connection, cluster_name)).delete_topic(topic, dry_run=dry)

    question = f"Delete topic {topic} with all its messages?"
    result = confirmed(
        cluster, lambda dry: cluster.run(lambda to: delete(to, dry)), tell_changes, question, dry_run=dry_run, yes=yes
    )
    if result is None:
        return
    typer.echo(f"delete topic [{topic}] from cluster [{cluster_name or 'all'}] success.")
    typer.echo(f"delete topic [{topic}] from NameServer success.")
    tell_warnings(result.warnings)


def _route_data(route: Route, cluster_name: str) -> dict[str, Any]:
    """As RocketMQ's TopicRouteData in JSON."""
    return {
        "brokerDatas": [
            {
                "brokerAddrs": _addresses(route, each.broker_name),
                "brokerName": each.broker_name,
                "cluster": cluster_name,
            }
            for each in route.queues
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": each.broker_name,
                "perm": each.permission,
                "readQueueNums": each.read_queue_count,
                "topicSysFlag": 0,
                "writeQueueNums": each.write_queue_count,
            }
            for each in route.queues
        ],
    }


def _route_lines(route: Route, cluster_name: str) -> list[str]:
    rows = [
        (
            cluster_name,
            each.broker_name,
            "{"
            + ", ".join(f"{number}={address}" for number, address in _addresses(route, each.broker_name).items())
            + "}",
            each.read_queue_count,
            each.write_queue_count,
            each.permission,
        )
        for each in sorted(route.queues, key=lambda each: each.broker_name)
    ]
    read = sum(each.read_queue_count for each in route.queues)
    written = sum(each.write_queue_count for each in route.queues)
    return [*_ROUTE.lines(rows), _RULER, _ROUTE.line("Total:", len(rows), "", read, written, "")]


def _addresses(route: Route, broker_name: str) -> dict[str, str]:
    return {
        key.rpartition(":")[2]: address
        for key, address in sorted(route.brokers.items())
        if key.rpartition(":")[0] == broker_name
    }


def _cluster_name(state: ClusterState) -> str:
    return next((broker.cluster for broker in state.brokers), "")


def _stored(detail: TopicDetail) -> int:
    return sum(extent.max_offset for extent in detail.extents)


def _rocketmq_permission(bits: int) -> str:
    """RW-, as PermName.perm2String writes it."""
    return permission_text(bits).upper().replace("I", "X")


def _attributes(text: str) -> tuple[str, dict[str, str]]:
    """The message type, and other attributes: `+name=value` sets one, `-name` removes it."""
    from tandemmq.admin.operations.topics import TOPIC_ATTRIBUTES

    message_type, others = "", []
    for part in filter(None, text.split(",")):
        if part.startswith(_MESSAGE_TYPE) and part.removeprefix(_MESSAGE_TYPE) in TOPIC_TYPES:
            message_type = part.removeprefix(_MESSAGE_TYPE)
        else:
            others.append(part)
    more = f"{_MESSAGE_TYPE} and one of {', '.join(TOPIC_TYPES)}, or "
    return message_type, changed_attributes(",".join(others), TOPIC_ATTRIBUTES, more=more)

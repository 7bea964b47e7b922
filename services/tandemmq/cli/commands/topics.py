"""`tandemmq topic …`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.listing import carry_out, collect, tell_changes, tell_rest
from tandemmq.cli.options import (
    DryRunOption,
    LimitOption,
    OutputOption,
    SearchOption,
    TopicArgument,
    YesOption,
    aged_text,
    complete_broker_group,
)
from tandemmq.cli.output import OutputFormat, Shown, emit, new_table, or_text, plain_row, styled, tell_unseen
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.values import Extent, Progress, Route, TopicDetail, TopicSummary


# Topics as tables.

_PERMISSION_LETTERS: Final = ((4, "r"), (2, "w"), (1, "i"))


def topics_table(topics: Iterable[TopicSummary]) -> Table:
    """One line a topic: type, permission, queues of each group, messages held."""
    table = new_table("topic", "category", "type", "permission", "read / write queues", "messages")
    for topic in topics:
        plain_row(
            table,
            topic.name,
            topic.category,
            _agreed(each.message_type or "NORMAL" for each in topic.brokers),
            _agreed(permission_text(each.permission) for each in topic.brokers),
            " ".join(f"{each.broker_name}:{each.read_queue_count}/{each.write_queue_count}" for each in topic.brokers),
            f"{topic.held:,}" if topic.held >= 0 else "?",
        )
    return table


def topic_tables(detail: TopicDetail, *, now_ms: int) -> Shown:
    """The topic, its queues, whether its routes agree, and who reads it."""
    from tandemmq.admin.operations.topics import attributes_text

    routes = (
        "every NameServer that answers gives the same route"
        if detail.routes_agree
        else styled("NameServers disagree about its route; see `tandemmq topic routes`", "bold yellow")
    )
    attributes = sorted({text for each in detail.summary.brokers if (text := attributes_text(each.attributes))})
    return [
        topics_table([detail.summary]),
        *([f"attributes: {' / '.join(attributes)}"] if attributes else []),
        "",
        _queues_table(detail.extents, now_ms=now_ms),
        "",
        routes,
        "",
        _groups_table(detail.groups),
    ]


def routes_table(routes: Sequence[Route]) -> Table:
    """One line a NameServer and broker group."""
    table = new_table("NameServer", "broker group", "read / write queues", "permission", "brokers")
    for route in routes:
        if not route.queues:
            plain_row(table, route.name_server, "knows no such topic", "-", "-", "-")
        for queues in route.queues:
            brokers = [
                f"{key}={endpoint}"
                for key, endpoint in sorted(route.brokers.items())
                if key.rpartition(":")[0] == queues.broker_name
            ]
            plain_row(
                table,
                route.name_server,
                queues.broker_name,
                f"{queues.read_queue_count}/{queues.write_queue_count}",
                permission_text(queues.permission),
                " ".join(brokers) or "-",
            )
    return table


def permission_text(bits: int) -> str:
    """rw-: read, write, inherit."""
    return "".join(letter if bits & bit else "-" for bit, letter in _PERMISSION_LETTERS)


def _queues_table(extents: Sequence[Extent], *, now_ms: int) -> Table:
    table = new_table("broker", "queue", "from offset", "to offset", "held", "oldest stored", "newest stored")
    for extent in extents:
        plain_row(
            table,
            extent.broker_name,
            str(extent.queue_id),
            f"{extent.min_offset:,}",
            f"{extent.max_offset:,}",
            f"{extent.held:,}",
            aged_text(extent.oldest_store_ms, now_ms=now_ms),
            aged_text(extent.newest_store_ms, now_ms=now_ms),
        )
    return table


def _groups_table(groups: Sequence[Progress]) -> Shown:
    if not groups:
        return "no group has read it"
    table = new_table("read by group", "lag", "in flight")
    for progress in groups:
        plain_row(table, progress.group, f"{progress.lag:,}", f"{progress.inflight:,}")
    return table


def _agreed(values: Iterable[str]) -> str:
    # Masters may differ while a change is under way.
    return "/".join(sorted(set(values))) or "-"


topic_app = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics, on all masters.")

TOPIC_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")
PERMISSIONS: Final = {"r": 4, "w": 2, "rw": 6}
_LIMIT: Final = 1_000


@topic_app.command("create")
@with_cluster
def topic_create(
    cluster: ClusterChoice,
    topic: TopicArgument,
    queues: Annotated[
        int, typer.Option(min=0, max=1024, help="Queues on each master; 0: the broker's default, or as it is.")
    ] = 0,
    read_queues: Annotated[
        int, typer.Option(min=0, max=1024, help="Queues that are read, if other than --queues.")
    ] = 0,
    write_queues: Annotated[
        int, typer.Option(min=0, max=1024, help="Queues that are written, if other than --queues.")
    ] = 0,
    permission: Annotated[str, typer.Option(help="r, w or rw. Default: rw, or as it is.")] = "",
    message_type: Annotated[
        str, typer.Option("--type", help=f"One of {', '.join(TOPIC_TYPES)}. Default: NORMAL, or as it is.")
    ] = "",
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="Repeatable, such as deduplication.window=3600; a wrong one is told which there are. NAME= removes "
            "it. Default: as they are.",
        ),
    ] = None,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--broker",
            metavar="NAME",
            help="Only on this broker group; repeatable. Default: on all.",
            autocompletion=complete_broker_group,
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic, or change it, and wait until every NameServer routes to it.

    To shrink a topic, first write to fewer queues than are read, and read fewer once the rest is consumed.

    Examples:

      tandemmq topic create orders --queues 4 --type FIFO

      tandemmq topic create orders --read-queues 8 --write-queues 4 --dry-run

      tandemmq topic create sessions --type LITE --attribute lite.topic.expiration=60
    """
    from tandemmq.admin.operations.topics import read_attributes
    from tandemmq.admin.operations.values import TopicChange

    try:
        named = read_attributes(attributes or ())
    except ValueError as error:
        raise Refused(str(error), remedy="see --help") from error
    if message_type and message_type not in TOPIC_TYPES:
        raise Refused(f"there is no topic type {message_type}", remedy=f"choose one of {', '.join(TOPIC_TYPES)}")
    if permission and permission not in PERMISSIONS:
        raise Refused(f"there is no permission {permission}", remedy=f"choose one of {', '.join(PERMISSIONS)}")
    change = TopicChange(
        topic,
        read_queue_count=read_queues or queues,
        write_queue_count=write_queues or queues,
        permission=PERMISSIONS.get(permission, 0),
        message_type=message_type,
        broker_names=tuple(brokers or ()),
        attributes=named,
    )
    tell_changes(cluster.ask(lambda operations: operations.put_topic(change, dry_run=dry_run)))


@topic_app.command("lite")
@with_cluster
def topic_lite(
    cluster: ClusterChoice,
    topic: TopicArgument,
    search: SearchOption = "",
    limit: LimitOption = _LIMIT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the lite topics of a topic of the type LITE, and who lags in them.

    Example: tandemmq topic lite sessions --search user-7
    """
    page = cluster.ask(lambda operations: operations.lite_topics(topic, search=search, limit=limit))
    table = new_table("lite topic", "broker group", "messages", "newest", "subscribers", "lags of groups")
    now_ms = SystemClock().wall_ms()
    for one in page.lite_topics:
        plain_row(
            table,
            one.lite_topic,
            one.broker_name,
            f"{one.max_offset - one.min_offset:,}",
            aged_text(one.last_store_ms, now_ms=now_ms),
            f"{one.subscribers:,}",
            ", ".join(f"{group}: {lag:,}" for group, lag in one.lags.items()) or "-",
        )
    emit(output, page, or_text(table, f"{topic} has no lite topic"))
    if output is OutputFormat.TABLE and page.total > len(page.lite_topics):
        typer.echo(f"{page.total - len(page.lite_topics):,} more")
    tell_unseen(page.unseen)


@topic_app.command("list")
@with_cluster
def topic_list(
    cluster: ClusterChoice,
    search: SearchOption = "",
    system: Annotated[
        bool, typer.Option("--system", help="Include the system's own topics, retry topics and dead letter topics.")
    ] = False,
    limit: LimitOption = _LIMIT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List topics with their queues and the messages they hold.

    Examples:

      tandemmq topic list --search order

      tandemmq topic list --system -o json
    """
    from tandemmq.admin.operations.topics import CATEGORIES, ORDINARY

    categories = CATEGORIES if system else (ORDINARY,)
    found = cluster.ask(
        lambda operations: collect(
            lambda page: operations.topics(search=search, categories=categories, page=page), limit=limit
        )
    )
    emit(output, found, or_text(topics_table(found.items), "no such topic" if search else "there is no topic yet"))
    tell_rest(found)


@topic_app.command("describe")
@with_cluster
def topic_describe(cluster: ClusterChoice, topic: TopicArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one topic: each of its queues with the times of its messages, its routes, and the groups that read it.

    Example: tandemmq topic describe orders
    """
    detail = cluster.ask(lambda operations: operations.topic(topic))
    emit(output, detail, topic_tables(detail, now_ms=SystemClock().wall_ms()))
    tell_unseen(detail.unseen)


@topic_app.command("routes")
@with_cluster
def topic_routes(cluster: ClusterChoice, topic: TopicArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show what each NameServer tells clients about a topic.

    Example: tandemmq topic routes orders
    """
    routes, unseen = cluster.ask(lambda operations: operations.topic_routes(topic))
    emit(output, {"routes": routes, "unseen": unseen}, routes_table(routes))
    tell_unseen(unseen)
    if not any(route.queues for route in routes):
        raise CommandError(
            f"no NameServer routes to topic {topic}", remedy="`tandemmq topic list` shows the topics there are"
        )


@topic_app.command("delete")
@with_cluster
def topic_delete(
    cluster: ClusterChoice, topic: TopicArgument, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Remove a topic from all masters. Nobody can consume its messages while there is no topic of that name.

    A topic made again under the name has them until they expire; groups begin in it as new ones do.

    Examples:

      tandemmq topic delete orders --dry-run

      tandemmq topic delete orders --yes
    """
    carry_out(
        cluster,
        f"Delete topic {topic}?",
        lambda operations, dry: operations.delete_topic(topic, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )

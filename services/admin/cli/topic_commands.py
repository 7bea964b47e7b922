"""`tandemmq topic …` and `tandemmq group …`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer
from rich.console import Group
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.cli.cluster_address import ClusterAddress
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.groups import create_group, group_queues_table, groups_by_master, groups_table
from admin.cli.options import TopicArgument
from admin.cli.status_view import table_console
from admin.cli.topics import (
    create_topic,
    delete_topic,
    find_topic,
    topic_queues_table,
    topics_by_master,
    topics_table,
)
from admin.rpc import Channels

__all__ = ["group_app", "topic_app"]

ResultT = TypeVar("ResultT")

topic_app = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics, on all masters.")
group_app = typer.Typer(no_args_is_help=True, help="Create and list subscription groups, on all masters.")

_TOPIC_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


@topic_app.command("create")
@with_cluster
def topic_create(
    cluster: ClusterChoice,
    topic: TopicArgument,
    queues: Annotated[int, typer.Option(min=0, max=1024, help="Queues on each master; 0: the broker's default.")] = 0,
    message_type: Annotated[str, typer.Option("--type", help=f"One of {', '.join(_TOPIC_TYPES)}.")] = "NORMAL",
) -> None:
    """Create a topic, or change it, and wait until every NameServer routes to it.

    Example: tandemmq topic create orders --queues 4 --type FIFO
    """
    if message_type not in _TOPIC_TYPES:
        raise CommandError(
            f"there is no topic type {message_type}",
            remedy=f"choose one of {', '.join(_TOPIC_TYPES)}",
            exit_code=EXIT_REFUSED,
        )
    request = admin_pb.UpdateTopicRequest(
        topic=topic, read_queue_count=queues, write_queue_count=queues, message_type=message_type
    )
    masters = _run(cluster, lambda channels, address: create_topic(channels, address, request))
    typer.echo(f"topic {topic} is on {', '.join(masters)}")


@topic_app.command("list")
@with_cluster
def topic_list(
    cluster: ClusterChoice,
    system: Annotated[bool, typer.Option("--system", help="Include the system's own topics.")] = False,
) -> None:
    """List topics with their queues and the messages they hold.

    Example: tandemmq topic list --system
    """
    by_master = _run(cluster, lambda channels, address: topics_by_master(channels, address, include_system=system))
    table_console().print(topics_table(by_master))


@topic_app.command("describe")
@with_cluster
def topic_describe(cluster: ClusterChoice, topic: TopicArgument) -> None:
    """Show one topic and the extent of each of its queues.

    Example: tandemmq topic describe orders
    """
    by_master = _run(cluster, lambda channels, address: find_topic(channels, address, topic))
    if not by_master:
        raise CommandError(f"there is no topic {topic}", remedy="`tandemmq topic list` shows those there are")
    summary = topics_table({name: [status] for name, status in by_master.items()})
    table_console().print(Group(summary, "", topic_queues_table(by_master)))


@topic_app.command("delete")
@with_cluster
def topic_delete(
    cluster: ClusterChoice,
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a topic from all masters. Its messages can no longer be read and go when their files expire.

    Example: tandemmq topic delete orders --yes
    """
    if not yes and not typer.confirm(f"Delete topic {topic} with all its messages?"):
        raise typer.Abort
    masters = _run(cluster, lambda channels, address: delete_topic(channels, address, topic))
    typer.echo(f"topic {topic} is gone from {', '.join(masters)}")


@group_app.command("create")
@with_cluster
def group_create(
    cluster: ClusterChoice,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Group name.")],
    ordered: Annotated[bool, typer.Option("--ordered", help="Deliver each message group in order, for FIFO.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="Redeliveries before the dead letter queue; 0: 16.")] = 0,
) -> None:
    """Create a subscription group, or change it.

    Example: tandemmq group create billing --retries 5
    """
    request = admin_pb.UpdateSubscriptionGroupRequest(
        group=group, consume_message_orderly=ordered, retry_max_times=retries, consume_enable=True
    )
    masters = _run(cluster, lambda channels, address: create_group(channels, address, request))
    typer.echo(f"group {group} is on {', '.join(masters)}")


@group_app.command("list")
@with_cluster
def group_list(
    cluster: ClusterChoice,
    group: Annotated[str | None, typer.Option("--group", help="Only this group, a line per queue.")] = None,
) -> None:
    """List subscription groups and how far they are behind.

    Example: tandemmq group list --group billing
    """
    by_master = _run(cluster, lambda channels, address: groups_by_master(channels, address))
    table_console().print(groups_table(by_master) if group is None else group_queues_table(by_master, group))


def _run(cluster: ClusterChoice, action: Callable[[Channels, ClusterAddress], Awaitable[ResultT]]) -> ResultT:
    return cluster.run(lambda connection: action(connection.channels, connection.address))

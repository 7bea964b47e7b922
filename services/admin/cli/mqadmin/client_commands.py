"""consumerStatus, consumerConnection and producerConnection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.failure import CommandError
from admin.cli.mqadmin.columns import Columns, emit_lines
from admin.cli.mqadmin.options import BrokerAddrOption, TopicOption, note_ignored, refuse
from admin.cli.options import OutputOption
from admin.cli.output import OutputFormat, tell_unseen
from admin.operations.values import Client

__all__ = ["consumer_connection", "consumer_status", "producer_connection"]

_CONNECTIONS: Final = Columns(("#ClientId", 36), ("#ClientAddr", 22), ("#Language", 10), ("#Version", 0))
_SUBSCRIPTIONS: Final = Columns(("#Topic", 20), ("#SubExpression", 0))
_STATUS: Final = Columns(("#Index", 10), ("#ClientId", 40), ("#Version", 20), ("#ConsumerRunningInfoFile", 0))
_PRODUCERS: Final = Columns(("", 4), ("", 32), ("", 22), ("", 8), ("", 0))
_PRODUCER: Final = "PRODUCER"
_CLIENTS_MAX: Final = 1_000

_ConsumerGroupOption = Annotated[str, typer.Option("--consumerGroup", "-g", help="Consumer group.")]


@with_cluster
def consumer_connection(
    cluster: ClusterChoice,
    group: _ConsumerGroupOption,
    broker_addr: BrokerAddrOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the members of a group, and what they subscribe to.

    Example: mqadmin consumerConnection -g billing
    """
    note_ignored([("-b", broker_addr)], "all brokers are asked")
    members = _members(cluster, group)
    subscriptions = sorted({(topic, rule) for each in members for topic, rule in each.subscriptions.items()})
    rows = [(each.client_id, each.address, each.language, each.version) for each in members]
    lines = [
        *_CONNECTIONS.lines(rows),
        "",
        "Below is subscription:",
        *_SUBSCRIPTIONS.lines((topic, rule or "*") for topic, rule in subscriptions),
        "",
        "ConsumeType: CONSUME_POP",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: as the brokers' consumeFromEarliest says",
    ]
    emit_lines(output, members, lines)


@with_cluster
def consumer_status(
    cluster: ClusterChoice,
    group: _ConsumerGroupOption,
    client_id: Annotated[str | None, typer.Option("--clientId", "-i", help="Only this member, in detail.")] = None,
    broker_addr: BrokerAddrOption = None,
    jstack: Annotated[bool, typer.Option("--jstack", "-s", help="Refused: brokers cannot look into clients.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the members of a group, and whether they all subscribe to the same.

    Clients of the 5.x API do not tell their internal state: there are no running info files.

    Example: mqadmin consumerStatus -g billing
    """
    if jstack:
        raise refuse(
            "there is no way to a client's threads", remedy="use jstack, py-spy or the like where the client runs"
        )
    note_ignored([("-b", broker_addr)], "all brokers are asked")
    members = _members(cluster, group)
    if client_id is not None:
        chosen = [each for each in members if each.client_id == client_id]
        if not chosen:
            raise CommandError(f"group {group} has no member {client_id}", remedy="see mqadmin consumerConnection")
        emit_lines(output, chosen, _detail_lines(chosen[0]))
        return
    rows = [(number, each.client_id, each.version, "-") for number, each in enumerate(members, 1)]
    same = len({tuple(sorted(each.subscriptions.items())) for each in members}) <= 1
    verdict = (
        "Same subscription in the same group of consumer"
        if same
        else "WARN: Different subscription in the same group of consumer!!!"
    )
    emit_lines(output, members, [*_STATUS.lines(rows), "", "", verdict])


@with_cluster
def producer_connection(
    cluster: ClusterChoice,
    topic: TopicOption,
    group: Annotated[str | None, typer.Option("--producerGroup", "-g", help="Ignored: clients name none.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the producers of a topic that are connected.

    Example: mqadmin producerConnection -g any -t orders
    """
    found = cluster.ask(lambda operations: operations.clients(topic=topic, limit=_CLIENTS_MAX))
    tell_unseen(found.unseen)
    note_ignored([("-g", group)], "producers of the 5.x API are in no group; shown are all of the topic")
    producers = [each for each in found.items if each.client_type == _PRODUCER]
    lines = [
        _PRODUCERS.line(f"{number:04d}", each.client_id, each.address, each.language, each.version)
        for number, each in enumerate(producers, 1)
    ]
    emit_lines(output, producers, lines)


def _members(cluster: ClusterChoice, group: str) -> Sequence[Client]:
    detail = cluster.ask(lambda operations: operations.group(group))
    tell_unseen(detail.unseen)
    if not detail.members:
        raise CommandError(f"no consumer of group {group} is connected", remedy="see mqadmin consumerProgress")
    return detail.members


def _detail_lines(client: Client) -> list[str]:
    facts = [
        ("Client Id:", client.client_id),
        ("Client Type:", client.client_type),
        ("Client Address:", client.address),
        ("Language:", client.language),
        ("Version:", client.version),
        ("Silent For (ms):", str(client.silent_ms)),
        ("Connected To:", " ".join(client.brokers)),
    ]
    subscriptions = [f"{topic:<32} {rule or '*'}" for topic, rule in sorted(client.subscriptions.items())]
    return [*(f"{name:<20} {value}" for name, value in facts), "", "#Subscription", *subscriptions]

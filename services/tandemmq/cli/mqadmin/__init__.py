"""RocketMQ's own commands under their own names, with their options and their columns, for scripts and for habits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from tandemmq.cli.mqadmin.cluster_commands import (
    add_write_perm,
    broker_status,
    cluster_list,
    consumer_connection,
    consumer_status,
    elect_master,
    get_broker_config,
    get_sync_state_set,
    ha_status,
    producer_connection,
    update_broker_config,
    wipe_write_perm,
)
from tandemmq.cli.mqadmin.group_commands import (
    consumer_progress,
    delete_sub_group,
    reset_offset_by_time,
    update_sub_group,
)
from tandemmq.cli.mqadmin.message_commands import (
    print_msg,
    query_msg_by_id,
    query_msg_by_key,
    query_msg_by_offset,
    query_msg_by_unique_key,
    send_message,
)
from tandemmq.cli.mqadmin.topic_commands import delete_topic, topic_list, topic_route, topic_status, update_topic

__all__ = ["MQADMIN_COMMANDS", "add_mqadmin_commands"]

MQADMIN_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "clusterList": cluster_list,
    "topicList": topic_list,
    "topicRoute": topic_route,
    "topicStatus": topic_status,
    "updateTopic": update_topic,
    "deleteTopic": delete_topic,
    "updateSubGroup": update_sub_group,
    "deleteSubGroup": delete_sub_group,
    "consumerProgress": consumer_progress,
    "consumerStatus": consumer_status,
    "consumerConnection": consumer_connection,
    "producerConnection": producer_connection,
    "brokerStatus": broker_status,
    "getBrokerConfig": get_broker_config,
    "updateBrokerConfig": update_broker_config,
    "queryMsgById": query_msg_by_id,
    "queryMsgByKey": query_msg_by_key,
    "queryMsgByOffset": query_msg_by_offset,
    "queryMsgByUniqueKey": query_msg_by_unique_key,
    "printMsg": print_msg,
    "sendMessage": send_message,
    "resetOffsetByTime": reset_offset_by_time,
    "wipeWritePerm": wipe_write_perm,
    "addWritePerm": add_write_perm,
    "haStatus": ha_status,
    "getSyncStateSet": get_sync_state_set,
    "electMaster": elect_master,
}
"""By RocketMQ's name."""

_PANEL: Final = "RocketMQ's own commands"


def add_mqadmin_commands(app: typer.Typer) -> None:
    """Adds all of them, and `help`, as RocketMQ's tool has it."""
    for name, command in MQADMIN_COMMANDS.items():
        app.command(name, rich_help_panel=_PANEL)(command)
    app.command("help", hidden=True)(_help)


def _help(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]", help="Of which.")] = None,
) -> None:
    """Show the help of a command, as RocketMQ's tool does.

    Example: tandemmq help clusterList
    """
    parent = ctx.parent
    assert parent is not None
    found, shown = parent.command, parent
    for name in command or ():
        below = getattr(found, "commands", {}).get(name)
        if below is None:
            raise typer.BadParameter(f"there is no command {name}")
        found, shown = below, type(shown)(below, info_name=name, parent=shown)
    typer.echo(found.get_help(shown))

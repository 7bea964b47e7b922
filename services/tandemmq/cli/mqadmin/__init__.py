"""RocketMQ's own commands under their own names, with their options and their columns, for scripts and for habits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tandemmq.cli.lazy_group import LazyCommand

__all__ = ["MQADMIN_COMMANDS", "show_help"]

_PANEL: Final = "RocketMQ's own commands"


def _of(place: str, summary: str) -> LazyCommand:
    return LazyCommand(f"tandemmq.cli.mqadmin.{place}", summary, _PANEL)


MQADMIN_COMMANDS: Final = {
    "clusterList": _of("cluster_commands:cluster_list", "List clusters and brokers."),
    "topicList": _of(
        "topic_commands:topic_list",
        "List the names of all topics, the system's too; with -c without retry and dead letter topics.",
    ),
    "topicRoute": _of(
        "topic_commands:topic_route",
        "Show a topic's route, as the first NameServer that knows it tells it: RocketMQ's JSON, or with -l a table.",
    ),
    "topicStatus": _of(
        "topic_commands:topic_status",
        "Show the offsets of each queue of a topic, and how many messages a second come in, measured over a second.",
    ),
    "updateTopic": _of("topic_commands:update_topic", "Create a topic, or change it, on one broker group or on all."),
    "deleteTopic": _of("topic_commands:delete_topic", "Remove a topic from all masters and all routes."),
    "updateSubGroup": _of("group_commands:update_sub_group", "Create a consumer group, or change it, on all masters."),
    "deleteSubGroup": _of(
        "group_commands:delete_sub_group", "Remove a consumer group with its progress from all masters."
    ),
    "consumerProgress": _of(
        "group_commands:consumer_progress", "Show how far groups are behind; with -g queue by queue."
    ),
    "consumerStatus": _of(
        "cluster_commands:consumer_status", "Show the members of a group, and whether they all subscribe to the same."
    ),
    "consumerConnection": _of(
        "cluster_commands:consumer_connection", "Show the members of a group, and what they subscribe to."
    ),
    "producerConnection": _of(
        "cluster_commands:producer_connection", "Show the producers of a topic that are connected."
    ),
    "brokerStatus": _of(
        "cluster_commands:broker_status", "Show the state of a broker, or of all of a cluster, by RocketMQ's names."
    ),
    "getBrokerConfig": _of(
        "cluster_commands:get_broker_config", "Show the settings of a broker, or of all of a cluster."
    ),
    "updateBrokerConfig": _of(
        "cluster_commands:update_broker_config",
        "Change a setting of a running broker, or of all masters of a cluster, until its next start.",
    ),
    "queryMsgById": _of("message_commands:query_msg_by_id", "Show a message by its id."),
    "queryMsgByKey": _of("message_commands:query_msg_by_key", "Find messages by their key."),
    "queryMsgByOffset": _of("message_commands:query_msg_by_offset", "Show a message by its place in a queue."),
    "queryMsgByUniqueKey": _of(
        "message_commands:query_msg_by_unique_key", "Show a message by the id its client gave it."
    ),
    "printMsg": _of("message_commands:print_msg", "Print all messages of a topic, queue by queue, the oldest first."),
    "sendMessage": _of("message_commands:send_message", "Send one message."),
    "resetOffsetByTime": _of(
        "group_commands:reset_offset_by_time",
        "Set where a group goes on in a topic: at the first message stored at that time.",
    ),
    "wipeWritePerm": _of(
        "cluster_commands:wipe_write_perm", "Take a broker group out of producers' routes at every NameServer."
    ),
    "addWritePerm": _of(
        "cluster_commands:add_write_perm", "Put a broker group back into producers' routes at every NameServer."
    ),
    "haStatus": _of("cluster_commands:ha_status", "Show replication of a broker, or of all."),
    "getSyncStateSet": _of(
        "cluster_commands:get_sync_state_set", "Show which replicas hold what was acknowledged, group by group."
    ),
    "electMaster": _of("cluster_commands:elect_master", "Make a broker of a group that fails over its master."),
    "createUser": _of("access_commands:create_user", "Create a user on all masters."),
    "updateUser": _of("access_commands:update_user", "Change a user on all masters."),
    "deleteUser": _of("access_commands:delete_user", "Remove a user with its policies from all masters."),
    "getUser": _of("access_commands:get_user", "Show a user."),
    "listUser": _of("access_commands:list_user", "List users."),
    "copyUser": _of(
        "access_commands:copy_user",
        "Copy users, with their secrets, from one master to another that has the same key file.",
    ),
    "createAcl": _of("access_commands:create_acl", "Say what a user may do with some resources, on all masters."),
    "updateAcl": _of("access_commands:update_acl", "Say anew what a user may do with some resources, on all masters."),
    "deleteAcl": _of(
        "access_commands:delete_acl",
        "Remove what was said of a user and some resources, or all of it, from all masters.",
    ),
    "getAcl": _of("access_commands:get_acl", "Show what a user may do."),
    "listAcl": _of("access_commands:list_acl", "List what users may do."),
    "copyAcl": _of("access_commands:copy_acl", "Copy policies from one master to another, of users that are there."),
}
"""By RocketMQ's name."""


def show_help(
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

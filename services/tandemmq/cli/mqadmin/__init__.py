"""RocketMQ's own commands under their own names, with their options and their columns, for scripts and for habits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = ["MQADMIN_COMMANDS", "show_help"]

MQADMIN_COMMANDS: Final = {
    "clusterList": ("cluster_commands:cluster_list", "List clusters and brokers."),
    "topicList": (
        "topic_commands:topic_list",
        "List the names of all topics, the system's too; with -c without retry and dead letter topics.",
    ),
    "topicRoute": (
        "topic_commands:topic_route",
        "Show a topic's route, as the first NameServer that knows it tells it: RocketMQ's JSON, or with -l a table.",
    ),
    "topicStatus": (
        "topic_commands:topic_status",
        "Show the offsets of each queue of a topic, and how many messages a second come in, measured over a second.",
    ),
    "updateTopic": ("topic_commands:update_topic", "Create a topic, or change it, on one broker group or on all."),
    "deleteTopic": ("topic_commands:delete_topic", "Remove a topic from all masters and all routes."),
    "updateSubGroup": ("group_commands:update_sub_group", "Create a consumer group, or change it, on all masters."),
    "deleteSubGroup": (
        "group_commands:delete_sub_group",
        "Remove a consumer group with its progress from all masters.",
    ),
    "consumerProgress": ("group_commands:consumer_progress", "Show how far groups are behind; with -g queue by queue."),
    "consumerStatus": (
        "cluster_commands:consumer_status",
        "Show the members of a group, and whether they all subscribe to the same.",
    ),
    "consumerConnection": (
        "cluster_commands:consumer_connection",
        "Show the members of a group, and what they subscribe to.",
    ),
    "producerConnection": ("cluster_commands:producer_connection", "Show the producers of a topic that are connected."),
    "brokerStatus": (
        "cluster_commands:broker_status",
        "Show the state of a broker, or of all of a cluster, by RocketMQ's names.",
    ),
    "getBrokerConfig": ("cluster_commands:get_broker_config", "Show the settings of a broker, or of all of a cluster."),
    "updateBrokerConfig": (
        "cluster_commands:update_broker_config",
        "Change a setting of a running broker, or of all masters of a cluster, until its next start.",
    ),
    "queryMsgById": ("message_commands:query_msg_by_id", "Show a message by its id."),
    "queryMsgByKey": ("message_commands:query_msg_by_key", "Find messages by their key."),
    "queryMsgByOffset": ("message_commands:query_msg_by_offset", "Show a message by its place in a queue."),
    "queryMsgByUniqueKey": ("message_commands:query_msg_by_unique_key", "Show a message by the id its client gave it."),
    "printMsg": ("message_commands:print_msg", "Print all messages of a topic, queue by queue, the oldest first."),
    "sendMessage": ("message_commands:send_message", "Send one message."),
    "resetOffsetByTime": (
        "group_commands:reset_offset_by_time",
        "Set where a group goes on in a topic: at the first message stored at that time.",
    ),
    "wipeWritePerm": (
        "cluster_commands:wipe_write_perm",
        "Take a broker group out of producers' routes at every NameServer.",
    ),
    "addWritePerm": (
        "cluster_commands:add_write_perm",
        "Put a broker group back into producers' routes at every NameServer.",
    ),
    "haStatus": ("cluster_commands:ha_status", "Show replication of a broker, or of all."),
    "getSyncStateSet": (
        "cluster_commands:get_sync_state_set",
        "Show which replicas hold what was acknowledged, group by group.",
    ),
    "electMaster": ("cluster_commands:elect_master", "Make a broker of a group that fails over its master."),
    "createUser": ("access_commands:create_user", "Create a user on all masters."),
    "updateUser": ("access_commands:update_user", "Change a user on all masters."),
    "deleteUser": ("access_commands:delete_user", "Remove a user with its policies from all masters."),
    "getUser": ("access_commands:get_user", "Show a user."),
    "listUser": ("access_commands:list_user", "List users."),
    "copyUser": (
        "access_commands:copy_user",
        "Copy users, with their secrets, from one master to another that has the same key file.",
    ),
    "createAcl": ("access_commands:create_acl", "Say what a user may do with some resources, on all masters."),
    "updateAcl": ("access_commands:update_acl", "Say anew what a user may do with some resources, on all masters."),
    "deleteAcl": (
        "access_commands:delete_acl",
        "Remove what was said of a user and some resources, or all of it, from all masters.",
    ),
    "getAcl": ("access_commands:get_acl", "Show what a user may do."),
    "listAcl": ("access_commands:list_acl", "List what users may do."),
    "copyAcl": ("access_commands:copy_acl", "Copy policies from one master to another, of users that are there."),
}
"""By RocketMQ's name: where it is below this package, and its summary."""


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

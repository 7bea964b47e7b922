"""The command line: `tandemmq`, also installed under RocketMQ's name for its admin tool, `mqadmin`.

Commands are named here and imported when they are called.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tandemmq.cli.lazy_group import LazyCommand, lazy_group, panel
from tandemmq.cli.mqadmin import MQADMIN_COMMANDS

_RUN: Final = {
    "up": ("commands.local_cluster:up", "Start a whole cluster on this machine and watch it; Ctrl-C stops it."),
    "down": ("commands.local_cluster:down", "Stop the cluster that runs in a data folder, in order; its data stays."),
    "smoke": (
        "commands.smoke:smoke",
        "Send messages, receive them, compare and acknowledge them; one line says how long it took.",
    ),
    "rollout": (
        "kube.rollout:rollout",
        "Renew brokers after `helm upgrade`, group by group, so that nothing acknowledged is ever on one broker only.",
    ),
    "certs": ("commands.certificates:certs_app", "Certificates of the links between services."),
    "context": (
        "commands.contexts:context_app",
        "Names for clusters: a local folder, NameServers, or a release in Kubernetes.",
    ),
    "version": ("app:print_version", "Print the version."),
}
_LOOK: Final = {
    "status": (
        "commands.brokers:status",
        "Show NameServers, brokers, offsets, replication lag, and what is wrong and how to mend it.",
    ),
    "doctor": (
        "doctor.command:doctor",
        "Check names, ports, replication both ways, clocks, disks and settings, and say how to mend what is wrong.",
    ),
    "check": (
        "commands.checks:check_app",
        "Checks for monitoring: one line with performance data; exit code 0 OK, 1 warning, 2 critical, 3 unknown.",
    ),
    "ha": ("commands.brokers:ha_app", "Replication."),
    "events": ("commands.brokers:events", "Show what happened lately on all brokers, newest first."),
    "clients": ("commands.groups:clients", "List connected clients: producers and consumers, of all brokers together."),
}
_CHANGE: Final = {
    "topic": ("commands.topics:topic_app", "Create, list, describe and delete topics, on all masters."),
    "group": ("commands.groups:group_app", "Consumer groups: create, list, describe, reset and delete them."),
    "user": ("commands.access:user_app", "Users of the client API: access keys and secret keys."),
    "acl": ("commands.access:acl_app", "What users may do with topics and groups."),
    "broker": ("commands.brokers:broker_app", "Brokers: list them, read and change their settings."),
    "dlq": ("commands.messages:dead_letter_app", "Dead letters: what a group could not consume."),
    "transaction": ("commands.messages:transaction_app", "Transactions that nobody has committed or rolled back."),
    "client": ("commands.messages:client_app", "Tell a connected client something."),
    "failover": ("commands.brokers:failover", "Make another member of a group its master, without losing a message."),
    "repair": (
        "commands.repair:repair",
        "Make replicas equal again by the repair plan of a run of the consistency job, while the cluster serves.",
    ),
    "restore-kept-tail": ("commands.kept_tails:restore_kept_tail", "Bring back what was cut off a log."),
}
_MESSAGES: Final = {
    "produce": ("commands.transfer:produce", "Send each line of standard input as a message."),
    "consume": ("commands.transfer:consume", "Print each message as a line and acknowledge it."),
    "send": ("commands.messages:send", "Send one message, as a client would, and say where it was stored."),
    "tail": ("commands.messages:tail", "Print messages as they come in, from now on, until Ctrl-C."),
    "message": ("commands.messages:message_app", "Find and read messages where they lie, without consuming them."),
    "trace": (
        "commands.trace:trace",
        "Show where the time of one message went: its send in the master, its copy in the slave, its deliveries.",
    ),
}
_COMMANDS: Final = {
    **panel("Run a cluster", "tandemmq.cli", _RUN),
    **panel("Look at it", "tandemmq.cli", _LOOK),
    "verify": LazyCommand(
        "tandemmq.cli.commands.verify:verify",
        "Prove that all replicas of every broker group hold the same, byte by byte; say which message differs if not.",
        "Look at it",
        is_verdict=True,
    ),
    **panel("Operate it", "tandemmq.cli", _CHANGE),
    **panel("Messages", "tandemmq.cli", _MESSAGES),
    **panel("RocketMQ's own commands", "tandemmq.cli.mqadmin", MQADMIN_COMMANDS),
    "help": LazyCommand("tandemmq.cli.mqadmin:show_help", ""),
}

app = typer.Typer(
    cls=lazy_group(_COMMANDS),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    epilog="First steps: tandemmq up | in another terminal: seq 100 | tandemmq produce greetings | "
    "tandemmq consume greetings --group readers",
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


@app.callback()
def _root(
    tell_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version.")
    ] = False,
) -> None:
    """Run, watch, operate and use a TandemMQ cluster."""


def print_version() -> None:
    """Print the version.

    Example: tandemmq version
    """
    from importlib.metadata import version  # It takes a fifth of what a page of help takes.

    typer.echo(f"tandemmq {version('tandemmq')}")

"""The command line: `tandemmq`, also installed under RocketMQ's name for its admin tool, `mqadmin`.

Commands are named here and imported when they are called.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Final

import typer

from tandemmq.cli.lazy_group import LazyCommand, lazy_group
from tandemmq.cli.mqadmin import MQADMIN_COMMANDS

_RUN: Final = "Run a cluster"
_LOOK: Final = "Look at it"
_CHANGE: Final = "Operate it"
_MESSAGES: Final = "Messages"

_COMMANDS: Final = {
    "up": LazyCommand(
        "tandemmq.cli.commands.local_cluster:up",
        "Start a whole cluster on this machine and watch it; Ctrl-C stops it.",
        _RUN,
    ),
    "down": LazyCommand(
        "tandemmq.cli.commands.local_cluster:down",
        "Stop the cluster that runs in a data folder, in order; its data stays.",
        _RUN,
    ),
    "smoke": LazyCommand(
        "tandemmq.cli.commands.smoke:smoke",
        "Send messages, receive them, compare and acknowledge them; one line says how long it took.",
        _RUN,
    ),
    "rollout": LazyCommand(
        "tandemmq.cli.kube.rollout:rollout",
        "Renew brokers after `helm upgrade`, group by group, so that nothing acknowledged is ever on one broker only.",
        _RUN,
    ),
    "certs": LazyCommand(
        "tandemmq.cli.commands.certificates:certs_app",
        "Certificates of the links between services.",
        _RUN,
    ),
    "context": LazyCommand(
        "tandemmq.cli.commands.contexts:context_app",
        "Names for clusters: a local folder, NameServers, or a release in Kubernetes.",
        _RUN,
    ),
    "version": LazyCommand("tandemmq.cli.app:print_version", "Print the version.", _RUN),
    "status": LazyCommand(
        "tandemmq.cli.commands.brokers:status",
        "Show NameServers, brokers, offsets, replication lag, and what is wrong and how to mend it.",
        _LOOK,
    ),
    "doctor": LazyCommand(
        "tandemmq.cli.doctor.command:doctor",
        "Check names, ports, replication both ways, clocks, disks and settings, and say how to mend what is wrong.",
        _LOOK,
    ),
    "check": LazyCommand(
        "tandemmq.cli.commands.checks:check_app",
        "Checks for monitoring: one line with performance data; exit code 0 OK, 1 warning, 2 critical, 3 unknown.",
        _LOOK,
    ),
    "ha": LazyCommand("tandemmq.cli.commands.brokers:ha_app", "Replication.", _LOOK),
    "events": LazyCommand(
        "tandemmq.cli.commands.brokers:events", "Show what happened lately on all brokers, newest first.", _LOOK
    ),
    "clients": LazyCommand(
        "tandemmq.cli.commands.groups:clients",
        "List connected clients: producers and consumers, of all brokers together.",
        _LOOK,
    ),
    "verify": LazyCommand(
        "tandemmq.cli.commands.verify:verify",
        "Prove that all replicas of every broker group hold the same, byte by byte; say which message differs if not.",
        _LOOK,
        is_verdict=True,
    ),
    "topic": LazyCommand(
        "tandemmq.cli.commands.topics:topic_app", "Create, list, describe and delete topics, on all masters.", _CHANGE
    ),
    "group": LazyCommand(
        "tandemmq.cli.commands.groups:group_app",
        "Consumer groups: create, list, describe, reset and delete them.",
        _CHANGE,
    ),
    "user": LazyCommand(
        "tandemmq.cli.commands.access:user_app", "Users of the client API: access keys and secret keys.", _CHANGE
    ),
    "acl": LazyCommand("tandemmq.cli.commands.access:acl_app", "What users may do with topics and groups.", _CHANGE),
    "broker": LazyCommand(
        "tandemmq.cli.commands.brokers:broker_app", "Brokers: list them, read and change their settings.", _CHANGE
    ),
    "dlq": LazyCommand(
        "tandemmq.cli.commands.messages:dead_letter_app", "Dead letters: what a group could not consume.", _CHANGE
    ),
    "transaction": LazyCommand(
        "tandemmq.cli.commands.messages:transaction_app",
        "Transactions that nobody has committed or rolled back.",
        _CHANGE,
    ),
    "client": LazyCommand("tandemmq.cli.commands.messages:client_app", "Tell a connected client something.", _CHANGE),
    "failover": LazyCommand(
        "tandemmq.cli.commands.brokers:failover",
        "Make another member of a group its master, without losing a message.",
        _CHANGE,
    ),
    "repair": LazyCommand(
        "tandemmq.cli.commands.repair:repair",
        "Make replicas equal again by the repair plan of a run of the consistency job, while the cluster serves.",
        _CHANGE,
    ),
    "restore-kept-tail": LazyCommand(
        "tandemmq.cli.commands.kept_tails:restore_kept_tail", "Bring back what was cut off a log.", _CHANGE
    ),
    "produce": LazyCommand(
        "tandemmq.cli.commands.transfer:produce", "Send each line of standard input as a message.", _MESSAGES
    ),
    "consume": LazyCommand(
        "tandemmq.cli.commands.transfer:consume", "Print each message as a line and acknowledge it.", _MESSAGES
    ),
    "send": LazyCommand(
        "tandemmq.cli.commands.messages:send",
        "Send one message, as a client would, and say where it was stored.",
        _MESSAGES,
    ),
    "tail": LazyCommand(
        "tandemmq.cli.commands.messages:tail", "Print messages as they come in, from now on, until Ctrl-C.", _MESSAGES
    ),
    "message": LazyCommand(
        "tandemmq.cli.commands.messages:message_app",
        "Find and read messages where they lie, without consuming them.",
        _MESSAGES,
    ),
    "trace": LazyCommand(
        "tandemmq.cli.commands.trace:trace",
        "Show where the time of one message went: its send in the master, its copy in the slave, its deliveries.",
        _MESSAGES,
    ),
    **MQADMIN_COMMANDS,
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
    typer.echo(f"tandemmq {version('tandemmq')}")

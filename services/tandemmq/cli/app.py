"""The command line: `tandemmq`, also installed under RocketMQ's name for its admin tool, `mqadmin`."""

from __future__ import annotations

import typer

from tandemmq.cli.commands.brokers import broker_app, events, ha_app
from tandemmq.cli.commands.checks import check_app
from tandemmq.cli.commands.cluster import down, status, up, version
from tandemmq.cli.commands.contexts import context_app
from tandemmq.cli.commands.dead_letters import dead_letter_app
from tandemmq.cli.commands.failovers import failover
from tandemmq.cli.commands.groups import clients, group_app
from tandemmq.cli.commands.kept_tails import restore_kept_tail
from tandemmq.cli.commands.messages import message_app, send, tail
from tandemmq.cli.commands.repair import repair
from tandemmq.cli.commands.smoke import smoke
from tandemmq.cli.commands.topics import topic_app
from tandemmq.cli.commands.trace import trace
from tandemmq.cli.commands.transactions import client_app, transaction_app
from tandemmq.cli.commands.transfer import consume, produce
from tandemmq.cli.commands.verify import verify
from tandemmq.cli.doctor.command import doctor
from tandemmq.cli.kube.rollout import rollout
from tandemmq.cli.mqadmin import add_mqadmin_commands

__all__ = ["app"]

_RUN = "Run a cluster"
_LOOK = "Look at it"
_CHANGE = "Operate it"
_MESSAGES = "Messages"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Run, watch, operate and use a TandemMQ cluster.",
    epilog="First steps: tandemmq up | in another terminal: seq 100 | tandemmq produce greetings | "
    "tandemmq consume greetings --group readers",
)
app.command(rich_help_panel=_RUN)(up)
app.command(rich_help_panel=_RUN)(down)
app.command(rich_help_panel=_RUN)(smoke)
app.command(rich_help_panel=_RUN)(rollout)
app.add_typer(context_app, name="context", rich_help_panel=_RUN)
app.command(rich_help_panel=_RUN)(version)

app.command(rich_help_panel=_LOOK)(status)
app.command(rich_help_panel=_LOOK)(doctor)
app.add_typer(check_app, name="check", rich_help_panel=_LOOK)
app.add_typer(ha_app, name="ha", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(events)
app.command(rich_help_panel=_LOOK)(clients)
app.command(rich_help_panel=_LOOK)(verify)

app.add_typer(topic_app, name="topic", rich_help_panel=_CHANGE)
app.add_typer(group_app, name="group", rich_help_panel=_CHANGE)
app.add_typer(broker_app, name="broker", rich_help_panel=_CHANGE)
app.add_typer(dead_letter_app, name="dlq", rich_help_panel=_CHANGE)
app.add_typer(transaction_app, name="transaction", rich_help_panel=_CHANGE)
app.add_typer(client_app, name="client", rich_help_panel=_CHANGE)
app.command(rich_help_panel=_CHANGE)(failover)
app.command(rich_help_panel=_CHANGE)(repair)
app.command(rich_help_panel=_CHANGE)(restore_kept_tail)

app.command(rich_help_panel=_MESSAGES)(produce)
app.command(rich_help_panel=_MESSAGES)(consume)
app.command(rich_help_panel=_MESSAGES)(send)
app.command(rich_help_panel=_MESSAGES)(tail)
app.add_typer(message_app, name="message", rich_help_panel=_MESSAGES)
app.command(rich_help_panel=_MESSAGES)(trace)

add_mqadmin_commands(app)

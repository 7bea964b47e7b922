"""The command line: `tandemmq`, also installed under RocketMQ's name for its admin tool, `mqadmin`."""

from __future__ import annotations

import typer

from admin.cli.broker_commands import broker_app, events, ha_app
from admin.cli.check_commands import check_app
from admin.cli.cluster_commands import down, status, up, version
from admin.cli.context_commands import context_app
from admin.cli.dead_letter_commands import dead_letter_app
from admin.cli.doctor_command import doctor
from admin.cli.group_commands import clients, group_app
from admin.cli.kept_tail_command import restore_kept_tail
from admin.cli.message_commands import message_app, send, tail
from admin.cli.mqadmin import add_mqadmin_commands
from admin.cli.repair_command import repair
from admin.cli.rollout_command import rollout
from admin.cli.smoke_command import smoke
from admin.cli.topic_commands import topic_app
from admin.cli.trace_command import trace
from admin.cli.transfer_commands import consume, produce
from admin.cli.verify_command import verify

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
app.command(rich_help_panel=_CHANGE)(repair)
app.command(rich_help_panel=_CHANGE)(restore_kept_tail)

app.command(rich_help_panel=_MESSAGES)(produce)
app.command(rich_help_panel=_MESSAGES)(consume)
app.command(rich_help_panel=_MESSAGES)(send)
app.command(rich_help_panel=_MESSAGES)(tail)
app.add_typer(message_app, name="message", rich_help_panel=_MESSAGES)
app.command(rich_help_panel=_MESSAGES)(trace)

add_mqadmin_commands(app)

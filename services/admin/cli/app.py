"""The command line: `tandemmq`, also installed under RocketMQ's name for its admin tool, `mqadmin`."""

from __future__ import annotations

import typer

from admin.cli.cluster_commands import down, status, up, version
from admin.cli.context_commands import context_app
from admin.cli.doctor_command import doctor
from admin.cli.repair_command import repair
from admin.cli.rollout_command import rollout
from admin.cli.smoke_command import smoke
from admin.cli.topic_commands import group_app, topic_app
from admin.cli.trace_command import trace
from admin.cli.transfer_commands import consume, produce
from admin.cli.verify_command import verify

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Run, watch and use a TandemMQ cluster.",
    epilog="First steps: tandemmq up | in another terminal: seq 100 | tandemmq produce greetings | "
    "tandemmq consume greetings --group readers",
)
app.command()(up)
app.command()(down)
app.command()(status)
app.command()(doctor)
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(context_app, name="context")
app.command()(produce)
app.command()(consume)
app.command()(trace)
app.command()(smoke)
app.command()(verify)
app.command()(repair)
app.command()(rollout)
app.command()(version)

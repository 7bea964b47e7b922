"""`tandemmq transaction …` and `tandemmq client …`: ending transactions nobody decided, and talking to clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tandemmq.cli.completion import complete_broker_group, complete_topic
from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.listing import confirmed
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption
from tandemmq.cli.output import OutputFormat, emit, new_table, or_text, plain_row, tell_unseen
from tandemmq.service.texts import age_text, bytes_text

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.values import Transaction, TransactionPage

__all__ = ["client_app", "transaction_app"]

transaction_app = typer.Typer(no_args_is_help=True, help="Transactions that nobody has committed or rolled back.")
client_app = typer.Typer(no_args_is_help=True, help="Tell a connected client something.")


@transaction_app.command("list")
@with_cluster
def transaction_list(
    cluster: ClusterChoice,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Only those of this topic.", autocompletion=complete_topic)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 200,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List undecided transactions, the oldest first.

    Example: tandemmq transaction list --topic payments
    """
    page = cluster.ask(lambda operations: operations.transactions(topic=topic, limit=limit))
    emit(output, page, or_text(_table(page.transactions), "no transaction is undecided"))
    _tell_rest(page, output)


@transaction_app.command("resolve")
@with_cluster
def transaction_resolve(
    cluster: ClusterChoice,
    transaction_id: Annotated[str, typer.Argument(metavar="ID", help="As `transaction list -o json` shows it.")],
    commit: Annotated[bool, typer.Option("--commit/--rollback", help="Make its message visible, or drop it.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Commit a transaction, or roll it back, in its producer's place. It cannot be undone.

    Example: tandemmq transaction resolve djEg… --rollback
    """
    end = "commit" if commit else "rollback"
    result = confirmed(
        cluster,
        lambda dry: cluster.ask(lambda operations: operations.resolve_transaction(transaction_id, end, dry_run=dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, _table([planned])),
        f"{end.capitalize()} it?",
        dry_run=dry_run,
        yes=yes,
    )
    if result is not None:
        emit(output, result, _table([result]))


@client_app.command("stack")
@with_cluster
def client_stack(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Client id, see `tandemmq clients`.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the stacks of a client's threads. Java and Go clients have them.

    Example: tandemmq client stack host@123@1@abc
    """
    _tell(cluster, client_id, "print-stack", output)


@client_app.command("reconnect")
@with_cluster
def client_reconnect(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Client id, see `tandemmq clients`.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have a client connect anew. Java and Node clients do.

    Example: tandemmq client reconnect host@123@1@abc
    """
    _tell(cluster, client_id, "reconnect", output)


@client_app.command("verify")
@with_cluster
def client_verify(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="A push consumer, see `tandemmq clients`.")],
    broker: Annotated[
        str,
        typer.Option("--broker", "-b", metavar="NAME", help="Broker group.", autocompletion=complete_broker_group),
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic.", autocompletion=complete_topic)],
    queue: Annotated[int, typer.Option("--queue", min=0, help="Queue of the message.")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="Its offset there.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Hand a stored message to a client's listener and tell what came of it. Nothing is acknowledged.

    Example: tandemmq client verify host@123@1@abc -b broker-a -t orders --queue 0 --offset 7
    """
    _tell(cluster, client_id, "verify-message", output, broker_name=broker, topic=topic, queue=queue, offset=offset)


def _tell(
    cluster: ClusterChoice,
    client_id: str,
    command: str,
    output: OutputFormat,
    *,
    broker_name: str = "",
    topic: str = "",
    queue: int = 0,
    offset: int = 0,
) -> None:
    replies = cluster.ask(
        lambda operations: operations.command_client(
            client_id, command, broker_name=broker_name, topic=topic, queue_id=queue, queue_offset=offset
        )
    )
    table = new_table("broker", "answer", "")
    for reply in replies:
        plain_row(table, reply.broker, reply.code, reply.text)
    emit(output, replies, table)


def _table(transactions: Sequence[Transaction]) -> Table:
    from tandemmq.service.loop_meter import SystemClock

    now_ms = SystemClock().wall_ms()
    table = new_table("transaction", "broker", "topic", "message", "age", "asked", "producer", "size")
    for one in transactions:
        plain_row(
            table,
            one.transaction_id,
            one.broker_name,
            one.topic or "has ended before",
            one.message_id,
            age_text(max(0, now_ms - one.store_ms)) if one.store_ms > 0 else "-",
            f"{one.checks} times",
            one.producer or "-",
            bytes_text(one.body_bytes),
        )
    return table


def _tell_rest(page: TransactionPage, output: OutputFormat) -> None:
    rest = page.total - len(page.transactions)
    if rest > 0 and output is OutputFormat.TABLE:
        typer.echo(f"and {rest:,} more; see --limit and --topic", err=True)
    tell_unseen(page.unseen)

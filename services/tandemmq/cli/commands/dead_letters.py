"""`tandemmq dlq …`: what consumers could not consume, and giving it to them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.commands.messages import messages_table, resend_table
from tandemmq.cli.completion import complete_broker_group
from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from tandemmq.cli.listing import collect, confirmed, tell_rest
from tandemmq.cli.options import DryRunOption, GroupArgument, LimitOption, OutputOption, SearchOption, YesOption
from tandemmq.cli.output import OutputFormat, emit, new_table, or_text, plain_row, tell_unseen

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import DeadLetterResult

__all__ = ["dead_letter_app"]

dead_letter_app = typer.Typer(no_args_is_help=True, help="Dead letters: what a group could not consume.")

# A broker takes so many at once.
_RESEND_BATCH: Final = 100
_RESEND_MAX: Final = 10_000
_SEARCH_PAGE: Final = 100
_PREVIEW_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class _Letters:
    """A group and its dead letters."""

    group: str
    topic: str
    # Held by the masters that answered; -1: not known.
    dead_letters: int


@dead_letter_app.command("list")
@with_cluster
def dead_letter_list(
    cluster: ClusterChoice,
    search: SearchOption = "",
    limit: LimitOption = 1_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the groups that have dead letters.

    Example: tandemmq dlq list
    """
    from tandemmq.admin.operations.topics import DEAD_LETTER, DEAD_LETTER_PREFIX
    from tandemmq.admin.operations.values import Page

    topics = cluster.ask(
        lambda operations: collect(
            lambda page: operations.topics(search=search, categories=(DEAD_LETTER,), page=page), limit=limit
        )
    )
    lines = [_Letters(each.name.removeprefix(DEAD_LETTER_PREFIX), each.name, each.held) for each in topics.items]
    table = new_table("group", "dead letters")
    for line in lines:
        plain_row(table, line.group, f"{line.dead_letters:,}" if line.dead_letters >= 0 else "?")
    found = Page(lines, topics.number, topics.size, topics.total, topics.unseen)
    emit(output, found, or_text(table, "no group has dead letters"))
    tell_rest(topics)


@dead_letter_app.command("show")
@with_cluster
def dead_letter_show(
    cluster: ClusterChoice,
    group: GroupArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 20,
    page: Annotated[str, typer.Option(metavar="TOKEN", help="Go on where the answer before ended.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a group's dead letters, the newest first.

    Example: tandemmq dlq show billing --limit 50
    """
    from tandemmq.admin.operations.topics import dead_letter_topic
    from tandemmq.admin.operations.values import MessageQuery
    from tandemmq.service.loop_meter import SystemClock

    query = MessageQuery(dead_letter_topic(group), limit=limit, body_bytes=_PREVIEW_BYTES, page_token=page)
    found = cluster.ask(lambda operations: operations.search(query))
    table = messages_table(found.messages, now_ms=SystemClock().wall_ms())
    emit(output, found, or_text(table, f"group {group} has no dead letters"))
    if found.next_page_token and output is OutputFormat.TABLE:
        typer.echo(f"more with --page {found.next_page_token}", err=True)
    tell_unseen(found.unseen)


@dead_letter_app.command("resend")
@with_cluster
def dead_letter_resend(
    cluster: ClusterChoice,
    group: GroupArgument,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            "-b",
            metavar="NAME",
            help="With --offset: broker group it lies on.",
            autocompletion=complete_broker_group,
        ),
    ] = "",
    offsets: Annotated[
        list[int] | None, typer.Option("--offset", min=0, help="Offset of a dead letter on --broker; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help=f"All of them, {_RESEND_MAX:,} at most.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put dead letters back into the topics they came from, as new messages; all groups that read those topics get
    them. The dead letters themselves stay until their files expire.

    Exit code 0: all were sent. 1: some were not, each with its reason.

    Examples:

      tandemmq dlq resend billing --broker broker-a --offset 3 --offset 4 --dry-run

      tandemmq dlq resend billing --all --yes
    """
    if every == bool(broker and offsets):
        raise CommandError("which dead letters?", remedy="give --broker and --offset, or --all", exit_code=EXIT_REFUSED)
    wanted = {broker: list(offsets or ())} if not every else cluster.ask(lambda operations: _all_of(operations, group))
    results = confirmed(
        cluster,
        lambda dry: cluster.ask(lambda operations: _resend(operations, group, wanted, dry_run=dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, resend_table(planned)),
        lambda planned: f"Send {sum(not each.problem for each in planned):,} of {len(planned):,} again?",
        dry_run=dry_run,
        yes=yes,
    )
    if results is None:
        return
    emit(output, results, resend_table(results))
    if any(each.problem for each in results):
        raise typer.Exit(EXIT_FAILED)


async def _resend(
    operations: Operations, group: str, wanted: dict[str, list[int]], *, dry_run: bool
) -> list[DeadLetterResult]:
    results: list[DeadLetterResult] = []
    for broker_name, offsets in wanted.items():
        for start in range(0, len(offsets), _RESEND_BATCH):
            batch: Sequence[int] = offsets[start : start + _RESEND_BATCH]
            results += await operations.resend_dead_letters(group, broker_name, batch, dry_run=dry_run)
    return results


async def _all_of(operations: Operations, group: str) -> dict[str, list[int]]:
    """Offsets of all dead letters of a group by broker name, oldest first."""
    from tandemmq.admin.operations.topics import dead_letter_topic
    from tandemmq.admin.operations.values import MessageQuery

    found: dict[str, list[int]] = {}
    token, count = "", 0
    while True:
        page = await operations.search(MessageQuery(dead_letter_topic(group), limit=_SEARCH_PAGE, page_token=token))
        for message in page.messages:
            found.setdefault(message.broker_name, []).append(message.queue_offset)
        count += len(page.messages)
        token = page.next_page_token
        if not token:
            return {name: sorted(offsets) for name, offsets in sorted(found.items())}
        if count >= _RESEND_MAX:
            raise CommandError(
                f"group {group} has more than {_RESEND_MAX:,} dead letters",
                remedy="send them in parts, with --broker and --offset",
                exit_code=EXIT_REFUSED,
            )

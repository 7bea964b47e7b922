"""`tandemmq failover`, and how groups that fail over stand: the second half of `tandemmq ha status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tandemmq.cli.completion import complete_broker_group
from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.failure import EXIT_REFUSED, CommandError
from tandemmq.cli.listing import confirmed
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption, aged_text
from tandemmq.cli.output import OutputFormat, emit, new_table, plain_row
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.service.texts import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from tandemmq.admin.group_failover import GroupFailover
    from tandemmq.admin.operations.values import HandOver

__all__ = ["failover", "failover_tables"]


def failover_tables(groups: Sequence[tuple[str, GroupFailover]], *, now_ms: int) -> list[RenderableType]:
    """Groups by name: their records, members, and last changes. Nothing without a group that fails over."""
    from rich.text import Text

    if not groups:
        return []
    records = new_table("fails over", "epoch", "master", "since", "why", "in-sync set", "authority")
    members = new_table("member", "role", "in-sync set", "lag", "electable", "")
    changes = new_table("became master", "broker", "epoch", "served after", "why")
    for name, group in groups:
        away = f", away for {' '.join(group.authority_away)}" if group.authority_away else ""
        plain_row(
            records,
            name,
            str(group.epoch),
            Text(group.master or "nobody", style="" if group.acts else "bold red"),
            aged_text(group.since_ms, now_ms=now_ms),
            group.reason or "-",
            " ".join(group.in_sync) or "-",
            Text(group.authority + away, style="bold red" if away else ""),
        )
        for one in group.members:
            plain_row(
                members,
                one.broker,
                one.role or Text("does not answer", style="bold red"),
                "in" if one.in_sync else "out",
                bytes_text(one.lag_bytes) if one.lag_bytes is not None else "-",
                "yes" if one.electable else "is master" if group.acts and one.broker == group.master else "no",
                Text(one.problem, style="bold red"),
            )
        for change in group.changes:
            plain_row(
                changes,
                aged_text(change.time_ms, now_ms=now_ms),
                change.broker,
                str(change.epoch),
                seconds_text(change.took_ms / 1_000),
                change.reason,
            )
    parts: list[RenderableType] = ["", records, "", members]
    return [*parts, "", changes] if changes.row_count else parts


@with_cluster
def failover(
    cluster: ClusterChoice,
    broker_group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Name of a broker group.", autocompletion=complete_broker_group)
    ],
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="N", help="brokerId of the new master. Default: the nearest that may."),
    ] = None,
    home: Annotated[
        bool, typer.Option("--home", help="To the broker that is master by its settings: brokerId 0.")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Without a master: broker N becomes it although it may lack acknowledged messages. The others of the "
            "in-sync set are given up.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make another member of a group its master, without losing a message. The master stops to take sends, the other
    one reaches its end and takes over, and the old one follows it. Sends of that moment wait or are tried again.

    Only a member of the in-sync set can take over; `tandemmq ha status` shows it. Waits until the new master serves.

    Examples:

      tandemmq failover broker-a --dry-run

      tandemmq failover broker-a --to 1 --yes

      tandemmq failover broker-a --home --yes

      tandemmq failover broker-a --to 1 --unclean
    """
    if home and to is not None:
        raise CommandError("--home and --to exclude each other", remedy="leave one out", exit_code=EXIT_REFUSED)
    wanted = MASTER_ID if home else to

    def hand_over(dry: bool) -> HandOver:
        return cluster.ask(
            lambda operations: operations.failover(broker_group, to=wanted, unclean=unclean, dry_run=dry)
        )

    done = confirmed(
        cluster,
        hand_over,
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, _told(planned)),
        lambda planned: "Give up what they have, and go on without?" if unclean else _question(planned),
        dry_run=dry_run,
        yes=yes,
    )
    if done is not None:
        emit(output, done, _told(done))


def _question(planned: HandOver) -> str:
    return "" if planned.from_broker == planned.to_broker else "Hand over?"


def _told(done: HandOver) -> Text:
    from rich.text import Text

    if done.given_up:
        return Text(
            f"{'planned: ' if done.dry_run else ''}{done.to_broker} becomes the master in place of {done.from_broker}, "
            f"and {', '.join(done.given_up)} given up: {bytes_text(done.lost_bytes)} more than it has are known to be "
            f"there, and there may be more" + ("" if done.dry_run else f"; it serves in epoch {done.epoch}")
        )
    if done.from_broker == done.to_broker:
        return Text(f"{done.to_broker} is the master already, in epoch {done.epoch}; nothing is to be done")
    if done.dry_run:
        return Text(f"planned: {done.from_broker}, master in epoch {done.epoch}, hands over to {done.to_broker}")
    return Text(
        f"{done.from_broker} handed over to {done.to_broker}, master in epoch {done.epoch}; the group took no sends "
        f"for {seconds_text(done.no_sends_ms / 1_000)} at most"
    )

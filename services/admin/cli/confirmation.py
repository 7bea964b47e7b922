"""How a command changes something: it says what would change, asks, and changes it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence

import typer

from admin.cli.cluster_choice import ClusterChoice
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.operations.interface import Operations
from admin.operations.values import ChangeResult

__all__ = ["ask", "carry_out", "tell_changes"]


def carry_out(
    cluster: ClusterChoice,
    question: str,
    action: Callable[[Operations, bool], Awaitable[ChangeResult]],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Does `action(operations, dry_run)` first dry, then, if the answer to `question` is yes, for good.

    CommandError when it is refused, when nobody can be asked, or when the answer is no.
    """
    if dry_run or not yes:
        planned = cluster.ask(lambda operations: action(operations, True))
        tell_changes(planned)
        if dry_run:
            return
        ask(f"{question} ({cluster.target().title})")
    tell_changes(cluster.ask(lambda operations: action(operations, False)))


def tell_changes(result: ChangeResult) -> None:
    """A line for each broker or NameServer; what needs attention on standard error."""
    planned = "planned: " if result.dry_run else ""
    for change in result.changes:
        typer.echo(f"{change.subject}: {planned}{change.what}")
    tell_warnings(result.warnings)


def tell_warnings(warnings: Sequence[str]) -> None:
    """On standard error."""
    for warning in warnings:
        typer.echo(f"note: {warning}", err=True)


def ask(question: str) -> None:
    """Returns if the answer is yes. CommandError if not, or if there is no terminal to ask at."""
    if not _is_asked():
        raise CommandError(
            "nobody can be asked here; nothing was changed",
            remedy="see with --dry-run what would be done, then run it with --yes",
            exit_code=EXIT_REFUSED,
        )
    if not typer.confirm(question):
        raise CommandError("you said no; nothing was changed")


def _is_asked() -> bool:
    return sys.stdin.isatty()

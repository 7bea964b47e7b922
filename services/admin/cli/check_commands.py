"""`tandemmq check …`: for Nagios, Icinga, and whatever runs a command and reads its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from admin.cli.check_result import CheckLevel, CheckResult
from admin.cli.checks import (
    check_consistency,
    check_disk,
    check_health,
    check_lag,
    check_name_servers,
    check_replication,
)
from admin.cli.cluster_address import ClusterTarget
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.completion import complete_group, complete_topic
from admin.cli.contexts import KubernetesPlace
from admin.cli.duration_option import parse_duration_s
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.listing import collect, read_groups
from admin.cli.release_results import runs_of_release
from admin.cluster_state import ClusterState
from admin.consistency_results import CONFIG_MAP_PREFIX, ResultsUnavailable, results_place
from admin.consistency_state import ConsistencyReading, standings
from admin.operations.interface import Operations
from admin.operations.values import GroupSummary, Progress, Unseen
from mqcore.audit.run_summary import RunSummary
from mqservice.loop_meter import SystemClock

__all__ = ["check_app"]

_TIMEOUT_S: Final = "10s"
_USAGE_EXIT_CODE: Final = 2

ResultT = TypeVar("ResultT")

_TimeoutOption = Annotated[
    float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="After that the answer is UNKNOWN.")
]


class _CheckGroup(TyperGroup):
    """Whatever goes wrong is UNKNOWN, exit code 3: 2 would say that the cluster is in trouble."""

    def invoke(self, ctx: Any) -> Any:
        """Runs one check."""
        try:
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except CommandError as error:
            name = str(ctx.invoked_subcommand or "check")
            reason = " ".join(f"{error.problem}: {error.cause}".split()) if error.cause else error.problem
            typer.echo(CheckResult(name, CheckLevel.UNKNOWN, [reason]).line())
            raise typer.Exit(CheckLevel.UNKNOWN) from error
        except Exception as error:
            # A usage error, whose class is Typer's own matter.
            if getattr(error, "exit_code", None) == _USAGE_EXIT_CODE:
                error.exit_code = int(CheckLevel.UNKNOWN)  # type: ignore[attr-defined]
            raise


check_app = typer.Typer(
    cls=_CheckGroup,
    no_args_is_help=True,
    help="Checks for monitoring: one line with performance data; exit code 0 OK, 1 warning, 2 critical, 3 unknown.",
)


@check_app.command("health")
@with_cluster
def health(cluster: ClusterChoice, timeout: _TimeoutOption = _TIMEOUT_S) -> None:  # type: ignore[assignment]
    """Critical when `tandemmq status` would say degraded.

    Example: tandemmq check health --context prod
    """
    _answer(check_health(_state(cluster, timeout)))


@check_app.command("nameservers")
@with_cluster
def nameservers(cluster: ClusterChoice, timeout: _TimeoutOption = _TIMEOUT_S) -> None:  # type: ignore[assignment]
    """Critical when no NameServer answers; a warning when one does not, or when they disagree.

    Example: tandemmq check nameservers
    """
    _answer(check_name_servers(_state(cluster, timeout)))


@check_app.command("replication")
@with_cluster
def replication(
    cluster: ClusterChoice,
    warning: Annotated[int, typer.Option("--warning", "-w", min=0, help="Bytes a slave may be behind.")] = 64 << 20,
    critical: Annotated[int, typer.Option("--critical", "-c", min=0, help="Likewise.")] = 1 << 30,
    warning_age: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Time a slave may be behind.")
    ] = "30s",  # type: ignore[assignment]
    critical_age: Annotated[float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Likewise.")] = "5m",  # type: ignore[assignment]
    timeout: _TimeoutOption = _TIMEOUT_S,  # type: ignore[assignment]
) -> None:
    """Critical when a master is away or lacks slaves it needs; slaves' lag by the limits.

    Example: tandemmq check replication --warning 10000000 --critical-age 2m
    """
    _answer(
        check_replication(
            _state(cluster, timeout),
            warning_bytes=warning,
            critical_bytes=critical,
            warning_s=warning_age,
            critical_s=critical_age,
        )
    )


@check_app.command("disk")
@with_cluster
def disk(
    cluster: ClusterChoice,
    warning: Annotated[float, typer.Option("--warning", "-w", min=0, max=100, help="Percent used.")] = 75.0,
    critical: Annotated[
        float | None,
        typer.Option("--critical", "-c", min=0, max=100, help="Likewise. Default: where the broker refuses sends."),
    ] = None,
    timeout: _TimeoutOption = _TIMEOUT_S,  # type: ignore[assignment]
) -> None:
    """How full the disks of the brokers are.

    Example: tandemmq check disk -w 70 -c 85
    """
    ratio = critical / 100 if critical is not None else None
    _answer(check_disk(_state(cluster, timeout), warning_ratio=warning / 100, critical_ratio=ratio))


@check_app.command("lag")
@with_cluster
def lag(
    cluster: ClusterChoice,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Only this group; repeatable. Default: all.", autocompletion=complete_group),
    ] = None,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Only in this topic.", autocompletion=complete_topic)
    ] = "",
    warning: Annotated[int, typer.Option("--warning", "-w", min=0, help="Messages behind.")] = 10_000,
    critical: Annotated[int, typer.Option("--critical", "-c", min=0, help="Likewise.")] = 1_000_000,
    warning_age: Annotated[
        float | None,
        typer.Option(parser=parse_duration_s, metavar="DURATION", help="Age of the oldest message that waits."),
    ] = None,
    critical_age: Annotated[
        float | None, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Likewise.")
    ] = None,
    timeout: _TimeoutOption = _TIMEOUT_S,  # type: ignore[assignment]
) -> None:
    """How far consumer groups are behind.

    Examples:

      tandemmq check lag --warning 1000 --critical 100000

      tandemmq check lag --group billing --topic orders --critical-age 10m
    """
    found, unseen = cluster.ask(lambda operations: _within(timeout, _progress(operations, groups or ())))
    _answer(
        check_lag(
            found,
            unseen,
            topic=topic,
            warning=warning,
            critical=critical,
            warning_s=warning_age,
            critical_s=critical_age,
        )
    )


@check_app.command("consistency")
@with_cluster
def consistency(
    cluster: ClusterChoice,
    results: Annotated[
        str,
        typer.Option(
            metavar="DIR|configmap:NAME",
            help="Where the consistency job leaves its runs. Default: consistency in the data folder, or the "
            "ConfigMap of the release in Kubernetes.",
        ),
    ] = "",
    max_age: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="A warning when no run ended since.")
    ] = "2h",  # type: ignore[assignment]
) -> None:
    """Critical when the last runs of the consistency job found replicas that differ.

    Example: tandemmq check consistency --results configmap:mq-consistency --max-age 3h
    """
    runs = tuple(_runs(cluster, results))
    reading = ConsistencyReading(
        runs=runs,
        standings=standings(runs),
        error="",
        # Nobody has watched: a folder without runs is told as such.
        watched_ms=0,
        overdue_after_ms=round(max_age * 1_000),
    )
    _answer(check_consistency(reading, now_ms=SystemClock().wall_ms()))


def _runs(cluster: ClusterChoice, results: str) -> Sequence[RunSummary]:
    """CommandError when they cannot be read, or nobody said where they are."""
    if not results or results.startswith(CONFIG_MAP_PREFIX):
        target = cluster.target()
        if isinstance(target.where, KubernetesPlace):
            return asyncio.run(runs_of_release(target.where, results.removeprefix(CONFIG_MAP_PREFIX)))
        results = results or _results_beside(target)
    place = results_place(results, namespace="")
    assert place is not None
    try:
        return place.read()
    except ResultsUnavailable as error:
        raise CommandError(
            "the runs of the consistency job cannot be read",
            cause=str(error),
            remedy="see --results",
            exit_code=EXIT_REFUSED,
        ) from error


def _results_beside(target: ClusterTarget) -> str:
    if target.data is None:
        raise CommandError(
            f"where the consistency job of {target.title} leaves its runs is not known",
            remedy="say it with --results",
            exit_code=EXIT_REFUSED,
        )
    return str(target.data / "consistency")


def _answer(result: CheckResult) -> None:
    typer.echo(result.line())
    if result.level is not CheckLevel.OK:
        raise typer.Exit(int(result.level))


def _state(cluster: ClusterChoice, timeout_s: float) -> ClusterState:
    return cluster.run(lambda connection: _within(timeout_s, connection.read_state()))


async def _within(timeout_s: float, answer: Awaitable[ResultT]) -> ResultT:
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        raise CommandError(f"the cluster did not answer within {timeout_s:g} s") from None


async def _progress(
    operations: Operations, names: Sequence[str]
) -> tuple[list[tuple[GroupSummary, Sequence[Progress]]], list[Unseen]]:
    """The groups named, or all, with their progress; and whom no answer has seen."""
    unseen: set[Unseen] = set()
    if not names:
        page = await collect(lambda request: operations.groups(page=request))
        names = [group.name for group in page.items]
        unseen |= set(page.unseen)
    details = await read_groups(operations, names)
    for detail in details:
        unseen |= set(detail.unseen)
    found = [(detail.summary, detail.progress) for detail in details]
    return found, sorted(unseen, key=lambda each: each.subject)

"""`tandemmq check …`: for Nagios, Icinga, and whatever runs a command and reads its exit code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tandemmq.cli import ending
from tandemmq.cli.cluster_address import ClusterTarget, KubernetesPlace
from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.kube.release import runs_of_release
from tandemmq.cli.lazy_group import QuickGroup
from tandemmq.cli.listing import collect, read_groups
from tandemmq.cli.options import complete_group, complete_topic, parse_duration_s
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.texts import bytes_text, counted, duration_text

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerState, ClusterState
    from tandemmq.admin.consistency_runs import (
        ConsistencyReading,
    )
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import GroupSummary, Progress, Unseen
    from tandemmq.core.audit.run_summary import RunSummary


# What a monitoring plugin answers: one line with performance data, and an exit code 0 to 3.
#
# As Nagios, Icinga and what speaks their language want it: `SERVICE STATE - text |
# label=value;warning;critical;min;max`.

RESULTS_VARIABLE: Final = "TANDEMMQ_CONSISTENCY_RESULTS"
"""What `consistencyResults` is for the admin service, in the environment of whoever works beside it."""
_NAMED_MAX: Final = 3
_MEASURES_MAX: Final = 200
# What is told of each subject is one line's part; the details are for `doctor`.
_TEXT_CHARACTERS_MAX: Final = 400


class CheckLevel(IntEnum):
    """How bad it is: the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of the performance data."""

    label: str
    value: float
    # B, s, % or empty for a count.
    unit: str = ""
    warning: float | None = None
    critical: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    def level(self) -> CheckLevel:
        """By its limits: above them is bad."""
        if self.critical is not None and self.value > self.critical:
            return CheckLevel.CRITICAL
        if self.warning is not None and self.value > self.warning:
            return CheckLevel.WARNING
        return CheckLevel.OK

    def text(self) -> str:
        """'label'=value[unit];warning;critical;min;max, without what is empty at its end."""
        label = self.label.replace("'", "''").replace("=", "_")
        limits = (self.warning, self.critical, self.minimum, self.maximum)
        return f"'{label}'={_number(self.value)}{self.unit};{';'.join(map(_limit, limits))}".rstrip(";")


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    level: CheckLevel
    # What is wrong, the worst first; what is well, if nothing is.
    reasons: Sequence[str]
    measures: Sequence[Measure] = field(default=())

    def line(self) -> str:
        """The one line. `|` begins the performance data, so no text may hold one."""
        told = "; ".join(self.reasons[:_NAMED_MAX])
        rest = len(self.reasons) - _NAMED_MAX
        text = " ".join((told + (f"; and {rest} more" if rest > 0 else "")).replace("|", "/").split())
        if len(text) > _TEXT_CHARACTERS_MAX:
            text = text[: _TEXT_CHARACTERS_MAX - 1] + "…"
        data = " ".join(measure.text() for measure in self.measures[:_MEASURES_MAX])
        return f"TANDEMMQ {self.name.upper()} {self.level.name} - {text}" + (f" | {data}" if data else "")


def worst(levels: Iterable[CheckLevel]) -> CheckLevel:
    """Critical before unknown before warning; OK without any."""
    found = set(levels)
    for level in (CheckLevel.CRITICAL, CheckLevel.UNKNOWN, CheckLevel.WARNING):
        if level in found:
            return level
    return CheckLevel.OK


def _judged(name: str, found: Sequence[tuple[CheckLevel, str]], measures: Sequence[Measure], well: str) -> CheckResult:
    """As bad as the worst that was found; `well` is said where nothing was."""
    reasons = [reason for _, reason in found] or [well]
    return CheckResult(name, worst(level for level, _ in found), reasons, measures)


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _limit(value: float | None) -> str:
    return "" if value is None else _number(value)


# The checks behind `tandemmq check`: pure functions from what was read to a result.


def check_health(state: ClusterState) -> CheckResult:
    """As `tandemmq status`: critical when the cluster is degraded; what is only worth knowing stays OK."""
    from tandemmq.admin.cluster_state import Severity, diagnose

    findings = diagnose(state)
    problems = [f"{each.subject} {each.problem}" for each in findings if each.severity is Severity.PROBLEM]
    notes = len(findings) - len(problems)
    measures = [
        Measure("problems", len(problems), minimum=0),
        Measure("notes", notes, minimum=0),
        Measure("brokers", sum(broker.status is not None for broker in state.brokers), minimum=0),
    ]
    if problems:
        return CheckResult("health", CheckLevel.CRITICAL, problems, measures)
    answering = sum(broker.status is not None for broker in state.brokers)
    told = [f"well: {counted(answering, 'broker')}, {counted(len(state.name_servers), 'NameServer')}"]
    return CheckResult("health", CheckLevel.OK, told, measures)


def check_name_servers(state: ClusterState) -> CheckResult:
    """Critical when none answers; a warning when one does not, or when they know different brokers."""
    answering = [server for server in state.name_servers if server.error is None]
    known = {key for server in answering for key in server.brokers}
    reasons = [f"{server.address} does not answer ({server.error})" for server in state.name_servers if server.error]
    reasons += [
        f"{server.address} does not know {', '.join(sorted(known - set(server.brokers)))}"
        for server in answering
        if known - set(server.brokers)
    ]
    measures = [
        Measure("answering", len(answering), minimum=0, maximum=len(state.name_servers)),
        Measure("brokers", len(known), minimum=0),
    ]
    if not answering:
        return CheckResult("nameservers", CheckLevel.CRITICAL, reasons or ["there is none"], measures)
    level = CheckLevel.WARNING if reasons else CheckLevel.OK
    told = reasons or [
        f"answering: {counted(len(answering), 'NameServer')}, all with the same {counted(len(known), 'broker')}"
    ]
    return CheckResult("nameservers", level, told, measures)


def check_replication(
    state: ClusterState, *, warning_bytes: int, critical_bytes: int, warning_s: float, critical_s: float
) -> CheckResult:
    """Critical when a master is away or lacks slaves it needs; each slave's lag by its limits."""
    measures: list[Measure] = []
    masters = [broker for broker in state.brokers if broker.is_master]
    orphans = {broker.broker_name for broker in state.brokers} - {broker.broker_name for broker in masters}
    found = [(CheckLevel.CRITICAL, f"broker group {name} has no master") for name in sorted(orphans)]
    for broker in masters:
        if broker.status is None:
            found.append((CheckLevel.CRITICAL, f"{broker.key} does not answer ({broker.error})"))
            continue
        if broker.status.start_wait is not None:
            reason = broker.status.start_wait.reason
            found.append((CheckLevel.CRITICAL, f"{broker.key} waits and does not serve: {reason}"))
            continue
        in_sync = sum(slave.in_sync for slave in broker.status.slaves)
        if in_sync < broker.status.needed_slave_count:
            needed = broker.status.needed_slave_count
            found.append((CheckLevel.CRITICAL, f"{broker.key} has {in_sync} of {needed} slaves in sync"))
        for slave in broker.status.slaves:
            name = f"{broker.broker_name}:{slave.broker_id}" if slave.broker_id >= 0 else f"{broker.key}<-{slave.peer}"
            lag = Measure(f"{name} lag", slave.lag_bytes, "B", warning_bytes, critical_bytes, 0)
            age = Measure(f"{name} age", round(slave.lag_seconds, 3), "s", warning_s, critical_s, 0)
            measures += [lag, age]
            level = worst((lag.level(), age.level()))
            if level is not CheckLevel.OK:
                behind = f"{bytes_text(slave.lag_bytes)} and {duration_text(slave.lag_seconds)}"
                found.append((level, f"{name} is {behind} behind"))
    for broker in state.brokers:
        link = broker.status.master_link if broker.status is not None else None
        if link is not None and link.state == "refusing":
            found.append((CheckLevel.CRITICAL, f"{broker.key} refuses to follow its master: {link.problem}"))
    if not masters and not orphans:
        return CheckResult("replication", CheckLevel.UNKNOWN, ["no broker is registered"])
    slaves = sum(len(broker.status.slaves) for broker in masters if broker.status)
    well = f"keeping up: {counted(slaves, 'slave')} of {counted(len(masters), 'master')}"
    return _judged("replication", found, measures, well)


def check_disk(state: ClusterState, *, warning_ratio: float, critical_ratio: float | None) -> CheckResult:
    """The part of each broker's disk that is used. Critical by default where the broker itself refuses sends."""
    found: list[tuple[CheckLevel, str]] = []
    measures: list[Measure] = []
    for broker in state.brokers:
        disk = broker.status.disk if broker.status is not None else None
        if disk is None:
            found.append((CheckLevel.UNKNOWN, f"{broker.key} {_why_no_disk(broker)}"))
            continue
        critical = critical_ratio if critical_ratio is not None else disk.warning_ratio
        measure = Measure(
            f"{broker.key} used",
            round(disk.used_ratio * 100, 1),
            "%",
            round(min(warning_ratio, critical) * 100, 1),
            round(critical * 100, 1),
            0,
            100,
        )
        measures.append(measure)
        if (level := measure.level()) is not CheckLevel.OK:
            room = f"{disk.used_ratio:.0%} of {disk.path}, {bytes_text(disk.free_bytes)} are free"
            found.append((level, f"{broker.key} uses {room}"))
    if not state.brokers:
        return CheckResult("disk", CheckLevel.UNKNOWN, ["no broker is registered"])
    return _judged("disk", found, measures, f"with room: {counted(len(measures), 'disk')}")


def check_lag(
    groups: Sequence[tuple[GroupSummary, Sequence[Progress]]],
    unseen: Sequence[Unseen],
    *,
    topic: str,
    warning: int,
    critical: int,
    warning_s: float | None,
    critical_s: float | None,
) -> CheckResult:
    """How far groups are behind, in messages, and by the age of the oldest message that waits."""
    found: list[tuple[CheckLevel, str]] = []
    measures: list[Measure] = []
    for summary, progress in groups:
        read = [each for each in progress if topic in ("", each.topic)]
        lag = Measure(summary.name, sum(each.lag for each in read), "", warning, critical, 0)
        age_s = max((each.oldest_age_ms for each in read), default=0) / 1_000
        age = Measure(f"{summary.name} age", round(age_s, 3), "s", warning_s, critical_s, 0)
        measures += [lag, age]
        level = worst((lag.level(), age.level()))
        if level is not CheckLevel.OK:
            oldest = f", the oldest for {duration_text(age_s)}" if age_s else ""
            members = "" if summary.member_count else ", no member is connected"
            behind = f"is {counted(int(lag.value), 'message')} behind{oldest}{members}"
            found.append((level, f"group {summary.name} {behind}"))
    found += [(CheckLevel.UNKNOWN, f"{each.subject} was not seen ({each.reason})") for each in unseen]
    return _judged("lag", found, measures, f"keeping up: {counted(len(groups), 'group')}")


def check_consistency(reading: ConsistencyReading, *, now_ms: int) -> CheckResult:
    """Critical when replicas differ; a warning when no run ended lately or a group could not be compared."""
    from tandemmq.admin.cluster_state import Severity
    from tandemmq.admin.consistency_runs import diagnose_consistency

    findings = diagnose_consistency(reading, now_wall_ms=now_ms)
    problems = [f"{each.subject} {each.problem}" for each in findings if each.severity is Severity.PROBLEM]
    notes = [f"{each.subject} {each.problem}" for each in findings if each.severity is not Severity.PROBLEM]
    measures = [Measure("differences", len(problems), minimum=0), Measure("runs", len(reading.runs), minimum=0)]
    if problems:
        return CheckResult("consistency", CheckLevel.CRITICAL, [*problems, *notes], measures)
    if reading.error or not reading.runs:
        told = notes or ["the consistency job has left no run here"]
        return CheckResult("consistency", CheckLevel.UNKNOWN, told, measures)
    if notes:
        return CheckResult("consistency", CheckLevel.WARNING, notes, measures)
    told = [f"equal in run {reading.runs[0].run_id}: all replicas of {counted(len(reading.standings), 'broker group')}"]
    return CheckResult("consistency", CheckLevel.OK, told, measures)


def _why_no_disk(broker: BrokerState) -> str:
    return f"does not answer ({broker.error})" if broker.status is None else "has not looked at its disk yet"


_TIMEOUT_S: Final = "10s"
_USAGE_EXIT_CODE: Final = 2

ResultT = TypeVar("ResultT")

_TimeoutOption = Annotated[
    float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="After that the answer is UNKNOWN.")
]


class _CheckGroup(QuickGroup):
    """Whatever goes wrong is UNKNOWN, exit code 3: 2 would say that the cluster is in trouble."""

    def invoke(self, ctx: Any) -> Any:
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
    found, unseen = cluster.ask(lambda operations: _within(timeout, _progress(operations, groups or (), topic)))
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
            f"ConfigMap of the release in Kubernetes; {RESULTS_VARIABLE} in an admin pod.",
        ),
    ] = "",
    max_age: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="A warning when no run ended since.")
    ] = "2h",  # type: ignore[assignment]
) -> None:
    """Critical when the last runs of the consistency job found replicas that differ.

    Example: tandemmq check consistency --results configmap:mq-consistency --max-age 3h
    """
    from tandemmq.admin.consistency_runs import ConsistencyReading, standings

    target = cluster.target()
    runs = ending.run(consistency_runs(target, results))
    if runs is None:
        raise Refused(
            f"where the consistency job of {target.title} leaves its runs is not known", remedy="say it with --results"
        )
    reading = ConsistencyReading(
        runs=tuple(runs),
        standings=standings(runs),
        error="",
        # Nobody has watched: a folder without runs is told as such.
        watched_ms=0,
        overdue_after_ms=round(max_age * 1_000),
    )
    _answer(check_consistency(reading, now_ms=SystemClock().wall_ms()))


async def consistency_runs(target: ClusterTarget, results: str = "") -> Sequence[RunSummary] | None:
    """The newest first. Where the job leaves them is said by `results`, the release, the data folder or, in an admin
    pod, the environment; None when nobody says it. CommandError when they cannot be read.
    """
    from tandemmq.admin.consistency_runs import CONFIG_MAP_PREFIX, ResultsUnavailable, results_place

    if isinstance(target.where, KubernetesPlace) and (not results or results.startswith(CONFIG_MAP_PREFIX)):
        return await runs_of_release(target.where, results.removeprefix(CONFIG_MAP_PREFIX))
    if not results and target.data is not None:
        results = str(target.data / "consistency")
    place = results_place(results or os.environ.get(RESULTS_VARIABLE, ""), namespace="")
    if place is None:
        return None
    try:
        return await asyncio.to_thread(place.read)
    except ResultsUnavailable as error:
        raise Refused(
            "the runs of the consistency job cannot be read",
            cause=str(error),
            remedy=f"see --results, and {RESULTS_VARIABLE}",
        ) from error


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
        raise CommandError(
            f"the cluster did not answer within {timeout_s:g} s",
            remedy="raise --timeout, or see `tandemmq doctor` for what is slow",
        ) from None


async def _progress(
    operations: Operations, names: Sequence[str], topic: str
) -> tuple[list[tuple[GroupSummary, Sequence[Progress]]], list[Unseen]]:
    """The groups named, or all, with their progress; and whom no answer has seen. OperationFailed when there is no
    such group or topic: nobody lags in a name that was misspelt."""
    unseen: set[Unseen] = set()
    if topic:
        await operations.topic(topic)
    if not names:
        page = await collect(lambda request: operations.groups(page=request))
        names = [group.name for group in page.items]
        unseen |= set(page.unseen)
    details = await read_groups(operations, names)
    for detail in details:
        unseen |= set(detail.unseen)
    found = [(detail.summary, detail.progress) for detail in details]
    return found, sorted(unseen, key=lambda each: each.subject)

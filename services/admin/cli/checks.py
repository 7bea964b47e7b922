"""The checks behind `tandemmq check`: pure functions from what was read to a result."""

from __future__ import annotations

from collections.abc import Sequence

from admin.cli.check_result import CheckLevel, CheckResult, Measure, worst
from admin.cluster_state import BrokerState, ClusterState, Severity, diagnose
from admin.consistency_state import ConsistencyReading, diagnose_consistency
from admin.operations.values import GroupSummary, Progress, Unseen
from admin.quantities import bytes_text, counted, duration_text

__all__ = [
    "check_consistency",
    "check_disk",
    "check_health",
    "check_lag",
    "check_name_servers",
    "check_replication",
]


def check_health(state: ClusterState) -> CheckResult:
    """As `tandemmq status`: critical when the cluster is degraded; what is only worth knowing stays OK."""
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
    levels, reasons, measures = [], [], []
    masters = [broker for broker in state.brokers if broker.is_master]
    orphans = {broker.broker_name for broker in state.brokers} - {broker.broker_name for broker in masters}
    for name in sorted(orphans):
        levels.append(CheckLevel.CRITICAL)
        reasons.append(f"broker group {name} has no master")
    for broker in masters:
        if broker.status is None:
            levels.append(CheckLevel.CRITICAL)
            reasons.append(f"{broker.key} does not answer ({broker.error})")
            continue
        if broker.status.start_wait is not None:
            levels.append(CheckLevel.CRITICAL)
            reasons.append(f"{broker.key} waits and does not serve: {broker.status.start_wait.reason}")
            continue
        in_sync = sum(slave.in_sync for slave in broker.status.slaves)
        if in_sync < broker.status.needed_slave_count:
            levels.append(CheckLevel.CRITICAL)
            reasons.append(f"{broker.key} has {in_sync} of {broker.status.needed_slave_count} slaves in sync")
        for slave in broker.status.slaves:
            name = f"{broker.broker_name}:{slave.broker_id}" if slave.broker_id >= 0 else f"{broker.key}<-{slave.peer}"
            lag = Measure(f"{name} lag", slave.lag_bytes, "B", warning_bytes, critical_bytes, 0)
            age = Measure(f"{name} age", round(slave.lag_seconds, 3), "s", warning_s, critical_s, 0)
            measures += [lag, age]
            level = worst((lag.level(), age.level()))
            if level is not CheckLevel.OK:
                levels.append(level)
                behind = f"{bytes_text(slave.lag_bytes)} and {duration_text(slave.lag_seconds)}"
                reasons.append(f"{name} is {behind} behind")
    for broker in state.brokers:
        link = broker.status.master_link if broker.status is not None else None
        if link is not None and link.state == "refusing":
            levels.append(CheckLevel.CRITICAL)
            reasons.append(f"{broker.key} refuses to follow its master: {link.problem}")
    if not masters and not orphans:
        return CheckResult("replication", CheckLevel.UNKNOWN, ["no broker is registered"])
    slaves = sum(len(broker.status.slaves) for broker in masters if broker.status)
    told = reasons or [f"keeping up: {counted(slaves, 'slave')} of {counted(len(masters), 'master')}"]
    return CheckResult("replication", worst(levels), told, measures)


def check_disk(state: ClusterState, *, warning_ratio: float, critical_ratio: float | None) -> CheckResult:
    """The part of each broker's disk that is used. Critical by default where the broker itself refuses sends."""
    levels, reasons, measures = [], [], []
    for broker in state.brokers:
        disk = broker.status.disk if broker.status is not None else None
        if disk is None:
            levels.append(CheckLevel.UNKNOWN)
            reasons.append(f"{broker.key} {_why_no_disk(broker)}")
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
            levels.append(level)
            reasons.append(
                f"{broker.key} uses {disk.used_ratio:.0%} of {disk.path}, {bytes_text(disk.free_bytes)} are free"
            )
    if not state.brokers:
        return CheckResult("disk", CheckLevel.UNKNOWN, ["no broker is registered"])
    told = reasons or [f"with room: {counted(len(measures), 'disk')}"]
    return CheckResult("disk", worst(levels), told, measures)


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
    levels, reasons, measures = [], [], []
    for summary, progress in groups:
        read = [each for each in progress if topic in ("", each.topic)]
        lag = Measure(summary.name, sum(each.lag for each in read), "", warning, critical, 0)
        age_s = max((each.oldest_age_ms for each in read), default=0) / 1_000
        age = Measure(f"{summary.name} age", round(age_s, 3), "s", warning_s, critical_s, 0)
        measures += [lag, age]
        level = worst((lag.level(), age.level()))
        if level is not CheckLevel.OK:
            levels.append(level)
            oldest = f", the oldest for {duration_text(age_s)}" if age_s else ""
            members = "" if summary.member_count else ", no member is connected"
            reasons.append(f"group {summary.name} is {counted(int(lag.value), 'message')} behind{oldest}{members}")
    for each in unseen:
        levels.append(CheckLevel.UNKNOWN)
        reasons.append(f"{each.subject} was not seen ({each.reason})")
    return CheckResult("lag", worst(levels), reasons or [f"keeping up: {counted(len(groups), 'group')}"], measures)


def check_consistency(reading: ConsistencyReading, *, now_ms: int) -> CheckResult:
    """Critical when replicas differ; a warning when no run ended lately or a group could not be compared."""
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

"""What the runs of the consistency job mean for the cluster now. Values only.

A finding stands until a later run that could see it finds its group equal. A quick run compares bytes and metadata;
what is alike on all replicas, and the files derived from the log, only a deep one sees: so the newest quick run does
not answer those findings of the last deep run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from admin.cluster_state import Finding, Severity
from mqcore.audit.findings import KINDS, FindingKind, Verdict
from mqcore.audit.findings import Finding as ReplicaFinding
from mqcore.audit.run_summary import GroupSummary, Outcome, RunSummary, Tier

__all__ = [
    "ConsistencyReading",
    "GroupStanding",
    "diagnose_consistency",
    "finished_at_ms",
    "remedy_of",
    "standings",
    "subject_of",
]

_SEEN_BY_DEEP_RUNS_ONLY: Final = frozenset(
    {
        FindingKind.QUEUE_ENTRY_WRONG,
        FindingKind.QUEUE_ENTRY_MISSING,
        FindingKind.QUEUE_GAP,
        FindingKind.INDEX_ENTRY_WRONG,
        FindingKind.INDEX_ENTRY_MISSING,
    }
)
_TOLD: Final = frozenset({Outcome.EQUAL, Outcome.DIVERGED})
# Problems of one cluster that are told one by one; a page of thousands tells nobody anything.
_PROBLEMS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What stands against one group now."""

    group: str
    # The run that looked at it last, successfully or not, and what it said.
    run: RunSummary
    summary: GroupSummary
    findings: tuple[ReplicaFinding, ...]
    # Beyond those listed.
    unlisted: int


@dataclass(frozen=True, slots=True)
class ConsistencyReading:
    """The runs as they were read last."""

    # Newest first.
    runs: tuple[RunSummary, ...]
    # What they mean, by group name.
    standings: tuple[GroupStanding, ...]
    # Why they could not be read just now; the runs are those read before.
    error: str
    # The service runs so long and has seen no other runs.
    watched_ms: int
    # A run is missed when none has ended for so long; 0: never.
    overdue_after_ms: int

    def newest(self, tier: Tier) -> RunSummary | None:
        """The last run of a tier."""
        return next((run for run in self.runs if run.tier is tier), None)

    def find(self, run_id: str) -> RunSummary | None:
        """A run by its id; `latest` is the newest."""
        if run_id == "latest":
            return self.runs[0] if self.runs else None
        return next((run for run in self.runs if run.run_id == run_id), None)

    def overdue_ms(self, now_wall_ms: int) -> int | None:
        """How long ago the last run ended if that is too long, or how long none was seen; None: not overdue."""
        if not self.overdue_after_ms:
            return None
        silent_ms = now_wall_ms - finished_at_ms(self.runs[0]) if self.runs else self.watched_ms
        return silent_ms if silent_ms > self.overdue_after_ms else None


def finished_at_ms(run: RunSummary) -> int:
    """Wall clock; 0 if it cannot be told."""
    try:
        return round(datetime.fromisoformat(run.finished_at).timestamp() * 1_000)
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class _Look:
    """What one run said of one group."""

    run: RunSummary
    summary: GroupSummary
    findings: tuple[ReplicaFinding, ...]


def standings(runs: Sequence[RunSummary]) -> tuple[GroupStanding, ...]:
    """Of all groups that the newest run of either tier over all groups knows, or one over some, by name.

    `runs` newest first.
    """
    whole = [next((run for run in runs if run.tier is tier and not run.only_groups), None) for tier in Tier]
    telling = [run for run in runs if run.only_groups or run in whole]
    looks: dict[str, list[_Look]] = {group.group: [] for run in telling for group in run.groups}
    for run in runs:
        findings: dict[str, list[ReplicaFinding]] = {}
        for finding in run.findings:
            findings.setdefault(finding.group, []).append(finding)
        for group in run.groups:
            if group.group in looks:
                looks[group.group].append(_Look(run, group, tuple(findings.get(group.group, ()))))
    return tuple(_standing(name, looks[name]) for name in sorted(looks))


def _standing(name: str, looks: Sequence[_Look]) -> GroupStanding:
    findings: tuple[ReplicaFinding, ...] = ()
    unlisted = 0
    told = [look for look in looks if look.summary.outcome in _TOLD]
    if told:
        findings = told[0].findings
        unlisted = max(0, told[0].summary.findings - len(findings))
        deep = next((look for look in told if look.run.tier is Tier.DEEP), None)
        if deep is not None and deep is not told[0]:
            findings += tuple(each for each in deep.findings if _is_for_deep_runs(each) and each not in findings)
    return GroupStanding(name, looks[0].run, looks[0].summary, findings, unlisted)


def _is_for_deep_runs(finding: ReplicaFinding) -> bool:
    """Whether a quick run would not see it."""
    if finding.kind is FindingKind.BODY_CRC:
        # Bit rot on one replica is a difference; on all of them it is none.
        return finding.broker_id is None
    return finding.kind in _SEEN_BY_DEEP_RUNS_ONLY


def subject_of(finding: ReplicaFinding) -> str:
    """`broker-a:1`, as findings about brokers have it; the group when no replica is named."""
    return f"broker group {finding.group}" if finding.broker_id is None else f"{finding.group}:{finding.broker_id}"


def remedy_of(finding: ReplicaFinding) -> str:
    """What to do first."""
    if finding.verdict is Verdict.UNDECIDED:
        return "nothing tells who is right; docs/operations/consistency.md says how to decide"
    return KINDS[finding.kind].remedy


def diagnose_consistency(reading: ConsistencyReading, *, now_wall_ms: int) -> list[Finding]:
    """What an operator should know, problems first."""
    problems = [finding for each in reading.standings for finding in _problems_of(each)]
    rest = len(problems) - _PROBLEMS_MAX
    if rest > 0:
        problems = problems[:_PROBLEMS_MAX]
        problems.append(
            _problem("cluster", f"has {rest:,} more kinds of differences between replicas", "see the report")
        )
    return [*problems, *_notes(reading, now_wall_ms)]


def _problem(subject: str, problem: str, remedy: str) -> Finding:
    return Finding(Severity.PROBLEM, subject, problem, remedy)


def _problems_of(standing: GroupStanding) -> Iterator[Finding]:
    """One for each replica and kind."""
    by_kind: dict[tuple[str, FindingKind], list[ReplicaFinding]] = {}
    for finding in standing.findings:
        by_kind.setdefault((subject_of(finding), finding.kind), []).append(finding)
    for (subject, kind), found in by_kind.items():
        meaning = KINDS[kind]
        times = f"{meaning.title}, {len(found):,} times" if len(found) > 1 else meaning.title
        yield _problem(subject, f"differs from its replicas: {times} ({_first(found[0])})", remedy_of(found[0]))
    if standing.unlisted or (standing.summary.outcome is Outcome.DIVERGED and not standing.findings):
        count = max(1, standing.unlisted)
        yield _problem(
            f"broker group {standing.group}",
            f"has {count:,} more differences between its replicas than are listed here",
            f"see the report of run {standing.run.run_id}",
        )


def _first(finding: ReplicaFinding) -> str:
    """Whose message, in short."""
    parts = [finding.topic] if finding.topic else []
    parts += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    parts += [f"offset {finding.queue_offset}"] if finding.queue_offset is not None else []
    parts += [finding.message_id] if finding.message_id else []
    return " ".join(parts) if parts else finding.detail


def _notes(reading: ConsistencyReading, now_wall_ms: int) -> Iterator[Finding]:
    if reading.error:
        yield Finding(
            Severity.NOTE,
            "consistency job",
            f"has results that cannot be read ({reading.error})",
            "check consistencyResults and the rights to it",
        )
    overdue_ms = reading.overdue_ms(now_wall_ms)
    if overdue_ms is not None and not reading.error:
        hours = overdue_ms / 3_600_000
        yield Finding(
            Severity.NOTE,
            "consistency job",
            f"has not ended a run for {hours:.1f} hours" if reading.runs else "has never run",
            "look at its schedule and its last Job (docs/operations/consistency.md)",
        )
    unread = [each for each in reading.standings if each.summary.outcome is Outcome.INCOMPLETE]
    for each in unread[:_PROBLEMS_MAX]:
        yield Finding(
            Severity.NOTE,
            f"broker group {each.group}",
            f"could not be compared by run {each.run.run_id} ({each.summary.problem or 'not every replica was read'})",
            "mend what keeps the replica from being read; the next run takes it up again",
        )

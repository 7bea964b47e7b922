"""What the page says of a run: the verdict in words, groups worst first, findings by severity, figures.

Values only, ready to be shown; the template chooses none of the words about the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from consistency.report.quantities import as_bytes, as_count, as_duration, as_rate, counted
from consistency.report.replica_bars import Bar, replica_bars
from mqcore.audit.findings import KINDS, Finding, FindingKind, KindMeaning, Severity, Verdict
from mqcore.audit.run_summary import GroupSummary, Outcome, RunSummary, Tier
from mqcore.replication.log_history import LogRange

__all__ = [
    "EARLIER_RUNS_MAX",
    "EVIDENCE",
    "FindingsOfKind",
    "FindingsOfSeverity",
    "GroupView",
    "ReportView",
    "RunMark",
    "report_view",
    "role_of",
]

EARLIER_RUNS_MAX: Final = 60
# Pictures open at once; further groups are folded, and stand in the overview of all groups either way.
_PICTURES_MAX: Final = 40
_EQUAL_PICTURES_MAX: Final = 8
# A folded list of names stays searchable; its pictures would make the file too large to open.
_FOLDED_PICTURES_MAX: Final = 200

EVIDENCE: Final[dict[Verdict, str]] = {
    Verdict.MAJORITY: "most replicas hold another content",
    Verdict.CHECKSUM: "its checksum or structure is broken",
    Verdict.STORED_DIGEST: "an earlier run saw what the others hold",
    Verdict.OWN_EVIDENCE: "its own files contradict each other",
    Verdict.MASTER_RULE: "a slave is a copy of its master",
    Verdict.UNDECIDED: "nothing tells who is right: docs/operations/consistency.md says how to decide",
}
_SEVERITIES: Final[dict[Severity, tuple[str, str]]] = {
    Severity.LOSS: (
        "Fewer copies than promised",
        "Messages exist on fewer replicas than they should: repair before a switch makes these the only ones.",
    ),
    Severity.DAMAGE: (
        "Bytes differ from what was written",
        "Whoever reads the named replica is refused, or gets something else.",
    ),
    Severity.DERIVED: (
        "Queue files and index",
        "Nothing is lost: they are rebuilt from the CommitLog.",
    ),
    Severity.METADATA: (
        "Topics, groups and offsets",
        "After a switch consumers would start elsewhere.",
    ),
}
_SHORT: Final[dict[Severity, str]] = {
    Severity.LOSS: "fewer copies than promised",
    Severity.DAMAGE: "other bytes than were written",
    Severity.DERIVED: "queue or index entries",
    Severity.METADATA: "topics, groups or offsets",
}
_WORST_FIRST: Final = (Outcome.DIVERGED, Outcome.INCOMPLETE, Outcome.SKIPPED, Outcome.EQUAL)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group with its picture."""

    number: int
    summary: GroupSummary
    sentence: str
    axis: LogRange
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class FindingsOfKind:
    """One kind's findings, and what they mean."""

    kind: FindingKind
    meaning: KindMeaning
    findings: tuple[Finding, ...]
    # Over the whole run, listed here or not.
    total: int


@dataclass(frozen=True, slots=True)
class FindingsOfSeverity:
    """All kinds of one severity that occur."""

    severity: Severity
    title: str
    meaning: str
    kinds: tuple[FindingsOfKind, ...]
    total: int


@dataclass(frozen=True, slots=True)
class RunMark:
    """One run in the strip of runs."""

    run_id: str
    outcome: Outcome
    label: str
    is_this: bool


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything the page shows."""

    summary: RunSummary
    headline: str
    lines: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    groups_by_outcome: tuple[tuple[Outcome, int], ...]
    # Drawn open, drawn in a fold, and without a picture: beyond what one file should hold.
    pictured: tuple[GroupView, ...]
    folded: tuple[GroupView, ...]
    named_only: tuple[GroupSummary, ...]
    # All, worst first.
    groups: tuple[GroupSummary, ...]
    severities: tuple[FindingsOfSeverity, ...]
    unlisted_findings: int
    costs: tuple[tuple[str, str], ...]
    runs: tuple[RunMark, ...]
    runs_sentence: str
    finished: str


def report_view(summary: RunSummary, earlier: Sequence[RunSummary]) -> ReportView:
    """`earlier` runs in any order; those from this one on are left out."""
    by_group: dict[str, list[Finding]] = {}
    for finding in summary.findings:
        by_group.setdefault(finding.group, []).append(finding)
    groups = sorted(summary.groups, key=lambda group: (_WORST_FIRST.index(group.outcome), -group.findings, group.group))
    is_small = len(groups) <= _EQUAL_PICTURES_MAX
    open_groups = groups if is_small else [group for group in groups if _is_bad(group)][:_PICTURES_MAX]
    rest = groups[len(open_groups) :]
    views = [_group_view(number, group, by_group.get(group.group, [])) for number, group in enumerate(open_groups)]
    folded = [
        _group_view(len(open_groups) + number, group, by_group.get(group.group, []))
        for number, group in enumerate(rest[:_FOLDED_PICTURES_MAX])
    ]
    runs = _run_marks(summary, earlier)
    return ReportView(
        summary=summary,
        headline=_headline(summary),
        lines=tuple(_lines(summary)),
        figures=tuple(_figures(summary)),
        groups_by_outcome=tuple(
            (outcome, count)
            for outcome in _WORST_FIRST
            if (count := sum(group.outcome is outcome for group in summary.groups))
        ),
        pictured=tuple(views),
        folded=tuple(folded),
        named_only=tuple(rest[_FOLDED_PICTURES_MAX:]),
        groups=tuple(groups),
        severities=tuple(_severities(summary)),
        unlisted_findings=max(0, summary.findings_total - len(summary.findings)),
        costs=tuple(_costs(summary)),
        runs=runs,
        runs_sentence=_runs_sentence(runs),
        finished=_minute(summary.finished_at),
    )


def role_of(broker_id: int) -> str:
    """`master`, `slave 1`."""
    return "master" if broker_id == 0 else f"slave {broker_id}"


def _is_bad(group: GroupSummary) -> bool:
    return group.outcome in (Outcome.DIVERGED, Outcome.INCOMPLETE)


# The verdict


def _headline(summary: RunSummary) -> str:
    diverged = sum(group.outcome is Outcome.DIVERGED for group in summary.groups)
    compared = [group for group in summary.groups if group.outcome is not Outcome.SKIPPED]
    if summary.outcome is Outcome.DIVERGED:
        if len(summary.groups) == 1:
            return f"The replicas of {summary.groups[0].group} differ."
        return f"{diverged:,} of {counted(len(summary.groups), 'group')} " + (
            "differs." if diverged == 1 else "differ."
        )
    if summary.outcome is Outcome.INCOMPLETE:
        return "Nothing wrong was found, but not everything could be read."
    if not compared:
        return "Nothing was compared."
    return "All replicas hold the same."


def _lines(summary: RunSummary) -> list[str]:
    """The next sentences: how bad, and what was looked at."""
    lines = []
    counts = _by_severity(summary.findings_by_kind)
    if counts:
        found = "; ".join(f"{_SHORT[severity]}: {counts[severity]:,}" for severity in Severity if counts[severity])
        lines.append(f"{counted(summary.findings_total, 'finding')} ({found}).")
    replicas = sum(len(group.replicas) for group in summary.groups)
    new, again = _verified(summary)
    looked = f"{counted(len(summary.groups), 'group')}, {counted(replicas, 'replica')}: "
    if new or again:
        looked += f"{as_bytes(new + again)} compared on every replica"
        looked += f", {as_bytes(again) if new else 'all'} of it again" if again else ""
    else:
        looked += "no new bytes since the last run"
    lines.append(
        f"{looked}; every record looked at by itself." if summary.tier is Tier.DEEP else f"{looked}, by its digests."
    )
    skipped = sum(group.outcome is Outcome.SKIPPED for group in summary.groups)
    if skipped and skipped < len(summary.groups):
        lines.append(f"{counted(skipped, 'group')} left out on purpose; see below.")
    return lines


def _by_severity(by_kind: dict[str, int]) -> Counter[Severity]:
    """Kinds that this version does not know count as damage: better named wrongly than not at all."""
    known = {str(kind): meaning.severity for kind, meaning in KINDS.items()}
    counts: Counter[Severity] = Counter()
    for kind, count in by_kind.items():
        counts[known.get(kind, Severity.DAMAGE)] += count
    return counts


def _verified(summary: RunSummary) -> tuple[int, int]:
    return sum(group.new_bytes for group in summary.groups), sum(group.scrubbed_bytes for group in summary.groups)


def _figures(summary: RunSummary) -> list[tuple[str, str]]:
    new, again = _verified(summary)
    figures = [
        ("findings", as_count(summary.findings_total)),
        ("compared for the first time", as_bytes(new)),
        ("compared again", as_bytes(again)),
    ]
    if summary.records_checked:
        figures.append(("records looked at", as_count(summary.records_checked)))
    figures.append(("took", as_duration(summary.duration_seconds)))
    return figures


# Groups


def _group_view(number: int, group: GroupSummary, findings: Sequence[Finding]) -> GroupView:
    axis, bars = replica_bars(group, findings)
    return GroupView(number, group, _group_sentence(group, findings), axis, tuple(bars))


def _group_sentence(group: GroupSummary, findings: Sequence[Finding]) -> str:
    if group.outcome is Outcome.SKIPPED:
        return f"skipped: {group.problem}" if group.problem else "skipped"
    if group.outcome is Outcome.INCOMPLETE:
        return f"incomplete: {group.problem}" if group.problem else "incomplete: not every replica could be read"
    if group.outcome is Outcome.EQUAL:
        return f"equal on {counted(len(group.replicas), 'replica')}, {_compared(group)}"
    wrong = sorted({finding.broker_id for finding in findings if finding.broker_id is not None})
    unnamed = any(finding.broker_id is None for finding in findings)
    who = ", ".join(role_of(broker_id) for broker_id in wrong)
    if who and unnamed:
        who += "; elsewhere nobody can be named"
    sentence = f"{counted(group.findings, 'finding')}"
    if who:
        sentence += f" on {who}"
    elif unnamed:
        sentence += ", nobody can be named"
    return f"{sentence}; {group.problem}" if group.problem else sentence


def _compared(group: GroupSummary) -> str:
    if not group.new_bytes and not group.scrubbed_bytes:
        return "nothing new"
    parts = [f"{as_bytes(group.new_bytes)} new"] if group.new_bytes else []
    parts += [f"{as_bytes(group.scrubbed_bytes)} again"] if group.scrubbed_bytes else []
    return " and ".join(parts)


# Findings


def _severities(summary: RunSummary) -> list[FindingsOfSeverity]:
    found = []
    for severity, (title, meaning) in _SEVERITIES.items():
        kinds = []
        for kind, kind_meaning in KINDS.items():
            listed = tuple(finding for finding in summary.findings if finding.kind is kind)
            total = max(summary.findings_by_kind.get(str(kind), 0), len(listed))
            if kind_meaning.severity is severity and total:
                kinds.append(FindingsOfKind(kind, kind_meaning, listed, total))
        if kinds:
            found.append(FindingsOfSeverity(severity, title, meaning, tuple(kinds), sum(kind.total for kind in kinds)))
    return found


# Costs and runs


def _costs(summary: RunSummary) -> list[tuple[str, str]]:
    costs = [
        ("time", as_duration(summary.duration_seconds)),
        ("read, over all replicas", as_bytes(summary.bytes_read)),
        ("read per second", as_rate(summary.bytes_read, summary.duration_seconds)),
        ("processor time", as_duration(summary.cpu_seconds)),
        ("read per processor second", as_rate(summary.bytes_read, summary.cpu_seconds)),
    ]
    if summary.records_checked:
        costs.append(("records looked at by themselves", as_count(summary.records_checked)))
    if summary.spark_application_id:
        costs.append(("Spark application", summary.spark_application_id))
    return costs


def _run_marks(summary: RunSummary, earlier: Sequence[RunSummary]) -> tuple[RunMark, ...]:
    """Oldest first, this one last."""
    before = sorted((run for run in earlier if run.run_id < summary.run_id), key=lambda run: run.run_id)
    runs = [*before[-(EARLIER_RUNS_MAX - 1) :], summary]
    return tuple(
        RunMark(
            run.run_id,
            run.outcome,
            f"{_minute(run.finished_at)} {run.tier}: {run.outcome}"
            + (f", {counted(run.findings_total, 'finding')}" if run.findings_total else ""),
            run is summary,
        )
        for run in runs
    )


def _runs_sentence(runs: Sequence[RunMark]) -> str:
    if len(runs) == 1:
        return "This is the first run known here."
    counts = Counter(run.outcome for run in runs)
    parts = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in reversed(_WORST_FIRST) if counts[outcome])
    last_bad = next((run for run in reversed(runs) if run.outcome is Outcome.DIVERGED), None)
    sentence = f"The last {len(runs):,} runs: {parts}."
    if last_bad is not None and not last_bad.is_this:
        sentence += f" The last that found something: {last_bad.run_id}."
    return sentence


def _minute(moment: str) -> str:
    """2026-11-21 22:00 UTC; what cannot be read as a time is shown as it is."""
    try:
        return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return moment

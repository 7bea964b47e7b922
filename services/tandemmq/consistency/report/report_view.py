"""What the page says of a run: the verdict in words, groups worst first, findings by severity, figures.

Values only, ready to be shown; the template chooses none of the words about the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from tandemmq.core.audit.findings import KINDS, Finding, FindingKind, KindMeaning, Severity, Verdict
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, ReplicaSummary, RunSummary, Tier
from tandemmq.core.replication.log_history import LogRange
from tandemmq.service.settings import VERSION
from tandemmq.service.texts import bytes_rate_text, bytes_text, count_text, counted, seconds_text

# The picture: a bar for each replica of a group, cut into parts by what a run knows of them.
#
# Every bar of a group has the same axis, from the first byte any replica holds to the last, so that a missing tail
# looks like one. A part that is wrong is told by form as well as by colour: it is higher than the others and carries a
# mark.


class PartState(StrEnum):
    """What is known of a part of one replica."""

    OUTSIDE = "outside"
    """Held, but not by every replica: nothing to compare with."""
    NEVER = "never"
    """Not verified yet."""
    EARLIER = "earlier"
    """Verified by an earlier run."""
    EQUAL = "equal"
    """Verified by this one."""
    WRONG = "wrong"
    UNDECIDED = "undecided"
    """The replicas differ here and nothing tells who is right."""


_BY_LETTER: Final = {
    ".": PartState.NEVER,
    "o": PartState.EARLIER,
    "=": PartState.EQUAL,
    "x": PartState.UNDECIDED,
}
_ON_THE_LOG: Final = frozenset({Severity.LOSS, Severity.DAMAGE})
_MARKED: Final = frozenset({PartState.WRONG, PartState.UNDECIDED})
# Marks nearer to each other than this share of the bar would cover one another.
_MARK_DISTANCE: Final = 0.012


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar; `start` and `width` are shares of the bar, 0 to 1."""

    start: float
    width: float
    state: PartState


@dataclass(frozen=True, slots=True)
class Mark:
    """Points at a place of a bar: something is wrong here, however narrow it is."""

    position: float
    state: PartState


@dataclass(frozen=True, slots=True)
class Bar:
    """One replica. No parts: it could not be read."""

    replica: ReplicaSummary
    parts: tuple[Part, ...]
    marks: tuple[Mark, ...]


_Located = Sequence[tuple[Finding, LogRange]]


def replica_bars(group: GroupSummary, findings: Sequence[Finding]) -> tuple[LogRange, list[Bar]]:
    """The axis in CommitLog bytes, and a bar for each replica. `findings` are the group's own."""
    located = [
        (finding, LogRange(finding.start_offset, finding.end_offset or finding.start_offset + 1))
        for finding in findings
        if finding.start_offset is not None
    ]
    on_the_log = [each for each in located if each[0].severity in _ON_THE_LOG]
    axis = _axis(group, [log_range for _, log_range in on_the_log])
    common = _of_the_map(group, located, all_listed=len(findings) >= group.findings)
    return axis, [_bar(replica, group, common, on_the_log, axis) for replica in group.replicas]


def _axis(group: GroupSummary, located: Iterable[LogRange]) -> LogRange:
    read = [replica for replica in group.replicas if _was_read(replica)]
    ranges = [LogRange(replica.min_offset, replica.end_offset) for replica in read]
    ranges += [LogRange(group.start_offset, group.end_offset), *located]
    ranges = [each for each in ranges if each.end_offset > each.start_offset]
    if not ranges:
        return LogRange(0, 0)
    return LogRange(min(each.start_offset for each in ranges), max(each.end_offset for each in ranges))


def _was_read(replica: ReplicaSummary) -> bool:
    return replica.outcome is not Outcome.INCOMPLETE or replica.end_offset > 0


def _bar(
    replica: ReplicaSummary,
    group: GroupSummary,
    common: Sequence[tuple[LogRange, PartState]],
    on_the_log: _Located,
    axis: LogRange,
) -> Bar:
    if not _was_read(replica) or axis.end_offset == axis.start_offset:
        return Bar(replica, (), ())
    own = [(_state_of(finding, replica), log_range) for finding, log_range in on_the_log]
    accused = [(state, log_range) for state, log_range in own if state is not None]
    parts = [_part(log_range, state, axis) for log_range, state in _merged([*_held(replica, group), *common])]
    # Over the others, as narrow as they are.
    parts += [_part(log_range, state, axis) for state, log_range in accused]
    marks = [Mark(part.start + part.width / 2, part.state) for part in parts if part.state in _MARKED]
    return Bar(replica, tuple(parts), tuple(_thinned(marks)))


def _state_of(finding: Finding, replica: ReplicaSummary) -> PartState | None:
    """What a finding makes of its range on this replica; None if it accuses another one."""
    if finding.broker_id is None:
        # Nobody is named: either nothing tells who is right, or none is.
        return PartState.UNDECIDED if finding.source_broker_id is None else None
    return PartState.WRONG if finding.broker_id == replica.broker_id else None


def _held(replica: ReplicaSummary, group: GroupSummary) -> list[tuple[LogRange, PartState]]:
    """What this replica holds outside the common range."""
    start = min(max(group.start_offset, replica.min_offset), replica.end_offset)
    end = max(min(group.end_offset, replica.end_offset), start)
    return [
        (LogRange(replica.min_offset, start), PartState.OUTSIDE),
        (LogRange(end, replica.end_offset), PartState.OUTSIDE),
    ]


def _of_the_map(group: GroupSummary, located: _Located, *, all_listed: bool) -> list[tuple[LogRange, PartState]]:
    """The extent map, alike for all replicas.

    An extent that differs was looked at down to the message: what no finding covers is equal in it. Only where its
    findings are not listed is it painted as a whole.
    """
    count = len(group.extent_map)
    length = group.end_offset - group.start_offset
    if not count:
        watermark = min(max(group.watermark, group.start_offset), group.end_offset)
        return [
            (LogRange(group.start_offset, watermark), PartState.EARLIER),
            (LogRange(watermark, group.end_offset), PartState.NEVER),
        ]
    found = []
    first = 0
    for letter, same in groupby(group.extent_map):
        last = first + len(list(same))
        part = LogRange(group.start_offset + length * first // count, group.start_offset + length * last // count)
        state = _BY_LETTER.get(letter, PartState.NEVER)
        if state is PartState.UNDECIDED and all_listed and _is_explained(part, located):
            state = PartState.EQUAL
        found.append((part, state))
        first = last
    return found


def _is_explained(part: LogRange, located: _Located) -> bool:
    return any(
        log_range.start_offset < part.end_offset and part.start_offset < log_range.end_offset
        for _, log_range in located
    )


def _merged(pieces: list[tuple[LogRange, PartState]]) -> list[tuple[LogRange, PartState]]:
    """Neighbours of one state as one piece: a map of 256 letters is mostly one of them."""
    ordered = sorted(
        (piece for piece in pieces if piece[0].end_offset > piece[0].start_offset), key=lambda each: each[0]
    )
    merged = []
    for state, same in groupby(ordered, key=lambda piece: piece[1]):
        ranges = [log_range for log_range, _ in same]
        merged.append((LogRange(ranges[0].start_offset, ranges[-1].end_offset), state))
    return merged


def _part(log_range: LogRange, state: PartState, axis: LogRange) -> Part:
    length = axis.end_offset - axis.start_offset
    start = (log_range.start_offset - axis.start_offset) / length
    return Part(start, (log_range.end_offset - log_range.start_offset) / length, state)


def _thinned(marks: Iterable[Mark]) -> list[Mark]:
    """Wrong before undecided, and no two that would lie on each other."""
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda each: (each.state is PartState.UNDECIDED, each.position)):
        if all(abs(mark.position - other.position) >= _MARK_DISTANCE for other in kept):
            kept.append(mark)
    return sorted(kept, key=lambda each: each.position)


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
    Verdict.NEIGHBOURS: "only one side fits the records around",
    Verdict.EPOCHS: "a later master's epoch, or what the members remember of each other, says otherwise",
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
    master_ids: Mapping[str, int | None]
    """Of each group."""
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
        master_ids={group.group: group.master_id for group in summary.groups},
        severities=tuple(_severities(summary)),
        unlisted_findings=max(0, summary.findings_total - len(summary.findings)),
        costs=tuple(_costs(summary)),
        runs=runs,
        runs_sentence=_runs_sentence(runs),
        finished=_minute(summary.finished_at),
    )


def role_of(broker_id: int, master_id: int | None) -> str:
    """`master`, `slave 1`."""
    return "master" if broker_id == master_id else f"slave {broker_id}"


def _is_bad(group: GroupSummary) -> bool:
    return group.outcome in (Outcome.DIVERGED, Outcome.INCOMPLETE)


# The verdict


def _headline(summary: RunSummary) -> str:
    diverged = sum(group.outcome is Outcome.DIVERGED for group in summary.groups)
    if summary.outcome is Outcome.DIVERGED:
        if len(summary.groups) == 1:
            return f"The replicas of {summary.groups[0].group} differ."
        return f"{diverged:,} of {counted(len(summary.groups), 'group')} " + (
            "differs." if diverged == 1 else "differ."
        )
    return f"{summary.sentence.capitalize()}."


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
        looked += f"{bytes_text(new + again)} compared on every replica"
        looked += f", {bytes_text(again) if new else 'all'} of it again" if again else ""
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
        ("findings", count_text(summary.findings_total)),
        ("compared for the first time", bytes_text(new)),
        ("compared again", bytes_text(again)),
    ]
    if summary.records_checked:
        figures.append(("records looked at", count_text(summary.records_checked)))
    figures.append(("took", seconds_text(summary.duration_seconds)))
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
    if group.outcome is Outcome.EQUAL and len(group.replicas) == 1:
        return f"one replica, and none to compare it with; {_compared(group)}"
    if group.outcome is Outcome.EQUAL:
        return f"equal on {counted(len(group.replicas), 'replica')}, {_compared(group)}"
    wrong = sorted({finding.broker_id for finding in findings if finding.broker_id is not None})
    unnamed = any(finding.broker_id is None for finding in findings)
    who = ", ".join(role_of(broker_id, group.master_id) for broker_id in wrong)
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
    parts = [f"{bytes_text(group.new_bytes)} new"] if group.new_bytes else []
    parts += [f"{bytes_text(group.scrubbed_bytes)} again"] if group.scrubbed_bytes else []
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
        ("time", seconds_text(summary.duration_seconds)),
        ("read, over all replicas", bytes_text(summary.bytes_read)),
        ("read per second", _rate(summary.bytes_read, summary.duration_seconds)),
        ("processor time", seconds_text(summary.cpu_seconds)),
        ("read per processor second", _rate(summary.bytes_read, summary.cpu_seconds)),
    ]
    if summary.records_checked:
        costs.append(("records looked at by themselves", count_text(summary.records_checked)))
    if summary.spark_application_id:
        costs.append(("Spark application", summary.spark_application_id))
    return costs


def _rate(value: float, seconds: float) -> str:
    """Bytes in a time, by the second; a dash without a time."""
    return bytes_rate_text(value / seconds) if seconds > 0 else "–"


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


# Writes the report: one file, no scripts, nothing loaded from anywhere, for screen (light, dark, narrow) and paper.


def render_report(summary: RunSummary, *, earlier: Sequence[RunSummary] = ()) -> str:
    """The page as HTML text, to be stored as UTF-8. `earlier` runs make the strip at its end; their order is free."""
    return _template().render(view=report_view(summary, earlier))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tandemmq.consistency.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": bytes_text,
        "count": count_text,
        "counted": counted,
        "percent": _percent,
        "role": role_of,
        "moment": _moment,
    }
    style = files("tandemmq.consistency.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
    # Our own file, not a value of a run.
    environment.globals |= {"version": VERSION, "style": Markup(style), "evidence": EVIDENCE}
    return environment.get_template("report.html")


def _percent(share: float) -> str:
    return f"{share * 100:.3f}%"


def _moment(wall_ms: int) -> str:
    """2026-11-21 22:00:00.123; a number that is no time, as a damaged record may have one, as it is."""
    try:
        moment = datetime.fromtimestamp(wall_ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{wall_ms % 1_000:03d}"

"""What the console says of the consistency job as a whole: when replicas were last proven equal, or what differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tandemmq.admin.consistency_runs import ConsistencyReading, GroupStanding, finished_at_ms, remedy_of, subject_of
from tandemmq.core.audit.findings import KINDS, Finding
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier
from tandemmq.service.texts import age_text, counted

__all__ = ["ConsistencySection", "FindingRow", "GroupRow", "consistency_section", "finding_row", "tone_of"]

# Beyond these the report is the place to look.
_FINDINGS_MAX: Final = 25
_GROUPS_MAX: Final = 12
_TONES: Final = {
    Outcome.EQUAL: "ok",
    Outcome.DIVERGED: "bad",
    Outcome.INCOMPLETE: "warning",
    Outcome.SKIPPED: "warning",
}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A broker group."""

    name: str
    # ok, warning or bad.
    tone: str
    outcome: str
    replicas: int
    compared_bytes: int
    watermark: int
    findings: int


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Something that is wrong."""

    subject: str
    title: str
    # Topic, queue and offset of the first message.
    place: str
    message_id: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RunDot:
    """A run in the strip of runs."""

    run_id: str
    tone: str
    label: str


@dataclass(frozen=True, slots=True)
class ConsistencySection:
    """What all runs together mean; known when the service is told where the job leaves them."""

    tone: str
    headline: str
    lines: tuple[str, ...]
    groups: tuple[GroupRow, ...]
    more_groups: str
    findings: tuple[FindingRow, ...]
    more_findings: int
    # Oldest first.
    runs: tuple[RunDot, ...]


def consistency_section(reading: ConsistencyReading, *, now_wall_ms: int) -> ConsistencySection:
    """`now_wall_ms` on the wall clock, which the job's times are by."""
    findings = [finding for standing in reading.standings for finding in standing.findings]
    unlisted = sum(standing.unlisted for standing in reading.standings)
    tone, headline = _headline(reading, len(findings) + unlisted, now_wall_ms)
    bad = [standing for standing in reading.standings if _tone(standing) != "ok"]
    shown = list(reading.standings) if len(reading.standings) <= _GROUPS_MAX else bad[:_GROUPS_MAX]
    counts = Counter(_outcome(standing) for standing in reading.standings)
    more = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    return ConsistencySection(
        tone=tone,
        headline=headline,
        lines=tuple(_lines(reading, now_wall_ms)),
        groups=tuple(_group_row(standing) for standing in shown),
        more_groups=f"All {len(reading.standings):,} groups: {more}." if len(shown) < len(reading.standings) else "",
        findings=tuple(finding_row(finding) for finding in findings[:_FINDINGS_MAX]),
        more_findings=max(0, len(findings) - _FINDINGS_MAX) + unlisted,
        runs=tuple(_dot(run) for run in reversed(reading.runs)),
    )


def _headline(reading: ConsistencyReading, found: int, now_wall_ms: int) -> tuple[str, str]:
    if not reading.runs:
        return ("warning", "the results cannot be read") if reading.error else ("warning", "never proven")
    newest = reading.runs[0]
    if found:
        return "bad", f"{counted(found, 'finding')}, as of {_ago(newest, now_wall_ms)}"
    if any(standing.summary.outcome is Outcome.DIVERGED for standing in reading.standings):
        return "bad", f"replicas differ, as of {_ago(newest, now_wall_ms)}"
    sound = next((run for run in reading.runs if run.outcome is Outcome.EQUAL), None)
    if sound is None:
        return "warning", "not all of them could be read yet"
    if newest.outcome is not Outcome.EQUAL:
        return (
            "warning",
            f"proven equal {_ago(sound, now_wall_ms)}; the last run could not read all of them",
        )
    tone = "warning" if reading.overdue_ms(now_wall_ms) is not None else "ok"
    return tone, f"proven equal {_ago(sound, now_wall_ms)}"


def _lines(reading: ConsistencyReading, now_wall_ms: int) -> list[str]:
    lines = [f"The results cannot be read: {reading.error}."] if reading.error else []
    if not reading.runs and not reading.error:
        lines.append(
            "Start a first run: kubectl create job --from=cronjob/RELEASE-consistency-quick first-proof, or on one "
            "machine: tandemmq verify."
        )
    for tier, meaning in ((Tier.QUICK, "what is new, by its digests"), (Tier.DEEP, "every record by itself")):
        run = reading.newest(tier)
        if run is not None:
            groups = counted(len(run.groups), "group")
            lines.append(
                f"Last {tier} run ({meaning}): {_ago(run, now_wall_ms)}, {groups}, {run.outcome}; {run.run_id}."
            )
    return lines


def _outcome(standing: GroupStanding) -> str:
    return "diverged" if standing.findings or standing.unlisted else str(standing.summary.outcome)


def _tone(standing: GroupStanding) -> str:
    return _TONES[Outcome(_outcome(standing))]


def tone_of(outcome: Outcome) -> str:
    """ok, warning or bad."""
    return _TONES[outcome]


def _group_row(standing: GroupStanding) -> GroupRow:
    summary = standing.summary
    outcome = _outcome(standing)
    return GroupRow(
        name=standing.group,
        tone=_tone(standing),
        outcome=f"{outcome}: {summary.problem}" if summary.problem else outcome,
        replicas=len(summary.replicas),
        compared_bytes=summary.new_bytes + summary.scrubbed_bytes,
        watermark=summary.watermark,
        findings=len(standing.findings) + standing.unlisted,
    )


def finding_row(finding: Finding) -> FindingRow:
    """A finding with its first step."""
    meaning = KINDS[finding.kind]
    place = [finding.topic] if finding.topic else []
    place += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    place += [f"offset {finding.queue_offset:,}"] if finding.queue_offset is not None else []
    title = f"{meaning.title}, {finding.messages:,} messages" if finding.messages > 1 else meaning.title
    return FindingRow(
        subject=subject_of(finding),
        title=title,
        place=", ".join(place),
        message_id=finding.message_id or "",
        detail=finding.detail,
        remedy=remedy_of(finding),
    )


def _dot(run: RunSummary) -> RunDot:
    label = f"{run.run_id} {run.tier}: {run.outcome}"
    return RunDot(
        run.run_id, _TONES[run.outcome], f"{label}, {run.findings_total:,} findings" if run.findings_total else label
    )


def _ago(run: RunSummary, now_wall_ms: int) -> str:
    return age_text(max(0, now_wall_ms - finished_at_ms(run)))

"""One run of the consistency job as a page: what was read, how much of each log is proven, and every listed finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from fastapi import FastAPI, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.consistency_runs import (
    ConsistencyReading,
    GroupStanding,
    finished_at_ms,
    is_ahead,
    remedy_of,
    subject_of,
)
from tandemmq.admin.console.answers import Pages, form_of
from tandemmq.admin.console.frame import Flash
from tandemmq.admin.operations.questions import OperationFailed, not_found
from tandemmq.admin.operations.values import Verification, VerificationState
from tandemmq.core.audit.findings import KINDS, Finding
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, RunSummary, Tier
from tandemmq.service.texts import age_text, bytes_text, count_text, counted, duration_text

_FINDINGS_MAX: Final = 200
_GROUPS_MAX: Final = 200
_MAP_TONES: Final = {".": "never", "o": "earlier", "=": "now", "x": "differs"}
_MAP_WORDS: Final = {
    "never": "never verified",
    "earlier": "verified by an earlier run",
    "now": "equal now",
    "differs": "differs",
}


@dataclass(frozen=True, slots=True)
class MapPart:
    """Part of the picture of a group's log: `x` and `width` in 256ths or fewer."""

    x: int
    width: int
    # never, earlier, now or differs.
    kind: str


@dataclass(frozen=True, slots=True)
class RunGroup:
    summary: GroupSummary
    map_parts: Sequence[MapPart]
    # The picture in a sentence.
    map_text: str


@dataclass(frozen=True, slots=True)
class RunView:
    summary: RunSummary
    facts: Sequence[tuple[str, str]]
    groups: Sequence[RunGroup]
    more_groups: int
    findings: Sequence[FindingRow]
    more_findings: int


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that was started from here last."""

    is_running: bool
    tone: str
    headline: str
    # Of its page; empty: there is none yet.
    run_id: str
    # Of 100; None: not known.
    percent: int | None
    lines: Sequence[str]


def started_run(run: Verification, *, now_wall_ms: int) -> StartedRun | None:
    """None: there was none."""
    if run.state is VerificationState.NONE:
        return None
    if run.state is VerificationState.RUNNING:
        took = duration_text(max(0, now_wall_ms - run.started_ms) / 1_000)
        return StartedRun(True, "", f"A {run.tier} run is in progress, for {took}", "", _percent(run), _how_far(run))
    took = duration_text(max(0, run.ended_ms - run.started_ms) / 1_000)
    if run.state is VerificationState.FAILED:
        return StartedRun(False, "bad", f"The {run.tier} run came to no verdict", "", None, (run.problem,))
    headline = f"The {run.tier} run ended after {took}: {run.outcome}"
    return StartedRun(False, tone_of(run.outcome), headline, run.name, None, ())


def _percent(run: Verification) -> int | None:
    return min(100, 100 * run.read_bytes // run.planned_bytes) if run.planned_bytes else None


def _how_far(run: Verification) -> Sequence[str]:
    if run.problem:
        return (run.problem,)
    if not run.groups_total:
        return (f"{run.name} tells how far it is in its log." if run.name else "It finds out what there is to read.",)
    parts = [f"{run.groups_done:,} of {run.groups_total:,} groups"]
    if run.planned_bytes:
        parts.append(f"{bytes_text(run.read_bytes)} of {bytes_text(run.planned_bytes)}")
    parts += [f"about {duration_text(run.seconds_left)} left"] if run.seconds_left else []
    parts += [f"{run.findings:,} findings so far"] if run.findings else []
    return (f"{', '.join(parts)}.",)


def run_view(run: RunSummary) -> RunView:
    groups = sorted(run.groups, key=lambda group: (not group.findings, not group.problem, group.group))
    return RunView(
        summary=run,
        facts=tuple(_facts(run)),
        groups=tuple(_group(group) for group in groups[:_GROUPS_MAX]),
        more_groups=max(0, len(groups) - _GROUPS_MAX),
        findings=tuple(finding_row(finding) for finding in run.findings[:_FINDINGS_MAX]),
        more_findings=max(0, run.findings_total - min(len(run.findings), _FINDINGS_MAX)),
    )


def _facts(run: RunSummary) -> Iterator[tuple[str, str]]:
    yield "began", run.started_at
    yield "ended", run.finished_at
    yield "took", duration_text(run.duration_seconds)
    yield "read", f"{bytes_text(run.bytes_read)} over all replicas"
    if run.records_checked:
        yield "records checked by themselves", count_text(run.records_checked)
    if run.only_groups:
        yield "asked for", ", ".join(run.only_groups)
    for name, count in sorted(run.benign.items()):
        yield f"harmless: {name}", count_text(count)
    if run.spark_application_id:
        yield "Spark application", run.spark_application_id


def _group(group: GroupSummary) -> RunGroup:
    parts = tuple(_map_parts(group.extent_map))
    return RunGroup(
        summary=group,
        map_parts=parts,
        map_text=_map_text(group, parts),
    )


def _map_parts(extent_map: str) -> Iterator[MapPart]:
    x = 0
    for letter, run in groupby(extent_map):
        width = len(list(run))
        yield MapPart(x, width, _MAP_TONES.get(letter, "never"))
        x += width


def _map_text(group: GroupSummary, parts: Sequence[MapPart]) -> str:
    total = len(group.extent_map)
    if not total:
        return ""
    shares = {kind: sum(part.width for part in parts if part.kind == kind) / total for kind in _MAP_WORDS}
    told = ", ".join(f"{share:.0%} {_MAP_WORDS[kind]}" for kind, share in shares.items() if share)
    return f"CommitLog of {group.group} from {group.start_offset:,} to {group.end_offset:,}: {told}"


# `/consistency`: what the consistency job found, and each of its runs.

# The job's results are read every ten seconds; a run in progress moves faster.
_LIVE_MS: Final = 10_000


def add_consistency_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/consistency", include_in_schema=False)
    async def consistency(request: Request) -> Response:
        reading = pages.consistency.latest
        now_wall_ms = pages.clock.wall_ms()
        return pages.html(
            request,
            "consistency.html",
            live_ms=min(_LIVE_MS, pages.refresh_ms),
            is_watched=pages.consistency.is_watched,
            started=started_run(await pages.operations(request).verification(), now_wall_ms=now_wall_ms),
            section=consistency_section(reading, now_wall_ms=now_wall_ms) if reading is not None else None,
            runs=reading.runs if reading is not None else (),
            tone_of=tone_of,
            outcome_of=_outcome,
            finished_at_ms=finished_at_ms,
        )

    @app.post("/consistency/verify", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def verify(request: Request) -> Response:
        posted = await form_of(request)
        tier = Tier.DEEP if posted.text("tier") == Tier.DEEP else Tier.QUICK
        try:
            await pages.operations(request).verify(tier=tier)
        except OperationFailed as failure:
            cause = (failure.cause,) if failure.cause else ()
            flash = Flash("bad", f"No run was started: {failure.problem}.", (*cause, failure.remedy))
        else:
            flash = Flash("ok", f"A {tier} run was started.")
        return pages.go_to("/consistency", flash)

    @app.get("/consistency/{run_id}", include_in_schema=False)
    async def consistency_run(request: Request, run_id: str) -> Response:
        reading = pages.consistency.latest
        run = reading.find(run_id) if reading is not None else None
        if run is None:
            raise not_found(
                f"no run {run_id} is known",
                cause="the job keeps its last runs only",
                remedy="see the list on the page Consistency",
            )
        return pages.html(request, "consistency_run.html", run=run_view(run), tone_of=tone_of)


# What the console says of the job as a whole: when replicas were last proven equal, or what differs.

# Beyond these the report is the place to look.
_SECTION_FINDINGS_MAX: Final = 25
_SECTION_GROUPS_MAX: Final = 12
_TONES: Final = {
    Outcome.EQUAL: "ok",
    Outcome.DIVERGED: "bad",
    Outcome.INCOMPLETE: "warning",
    Outcome.SKIPPED: "warning",
}


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
class ConsistencySection:
    """What all runs together mean; known when the service is told where the job leaves them."""

    tone: str
    headline: str
    lines: tuple[str, ...]
    standings: Sequence[GroupStanding]
    more_groups: str
    findings: tuple[FindingRow, ...]
    more_findings: int
    # Oldest first.
    runs: Sequence[RunSummary]


def consistency_section(reading: ConsistencyReading, *, now_wall_ms: int) -> ConsistencySection:
    """`now_wall_ms` on the wall clock, which the job's times are by."""
    findings = [finding for standing in reading.standings for finding in standing.findings]
    unlisted = sum(standing.unlisted for standing in reading.standings)
    tone, headline = _headline(reading, len(findings) + unlisted, now_wall_ms)
    bad = [standing for standing in reading.standings if tone_of(_outcome(standing)) != "ok"]
    shown = list(reading.standings) if len(reading.standings) <= _SECTION_GROUPS_MAX else bad[:_SECTION_GROUPS_MAX]
    counts = Counter(_outcome(standing) for standing in reading.standings)
    more = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    return ConsistencySection(
        tone=tone,
        headline=headline,
        lines=tuple(_lines(reading, now_wall_ms)),
        standings=shown,
        more_groups=f"All {len(reading.standings):,} groups: {more}." if len(shown) < len(reading.standings) else "",
        findings=tuple(finding_row(finding) for finding in findings[:_SECTION_FINDINGS_MAX]),
        more_findings=max(0, len(findings) - _SECTION_FINDINGS_MAX) + unlisted,
        runs=tuple(reversed(reading.runs)),
    )


def _headline(reading: ConsistencyReading, found: int, now_wall_ms: int) -> tuple[str, str]:
    if not reading.runs:
        return ("warning", "the results cannot be read") if reading.error else ("warning", "never proven")
    newest = reading.runs[0]
    if found:
        return "bad", f"{counted(found, 'finding')}, as of {_ago(newest, now_wall_ms)}"
    if any(standing.summary.outcome is Outcome.DIVERGED for standing in reading.standings):
        return "bad", f"replicas differ, as of {_ago(newest, now_wall_ms)}"
    unproven = [standing for standing in reading.standings if standing.summary.outcome is not Outcome.EQUAL]
    if unproven or not reading.standings:
        # Of all groups: a run of some proves nothing of the others.
        sound = next((run for run in reading.runs if run.outcome is Outcome.EQUAL and not run.only_groups), None)
        if sound is None:
            return "warning", "not all of them could be read yet"
        return (
            "warning",
            f"proven equal {_ago(sound, now_wall_ms)}; the last run could not read all of them",
        )
    oldest = min((standing.run for standing in reading.standings), key=finished_at_ms)
    is_old = reading.overdue_ms(now_wall_ms) is not None or is_ahead(newest, now_wall_ms)
    tone = "warning" if is_old else "ok"
    return tone, f"proven equal {_ago(oldest, now_wall_ms)}"


def _lines(reading: ConsistencyReading, now_wall_ms: int) -> list[str]:
    lines = [f"The results cannot be read: {reading.error}."] if reading.error else []
    if not reading.runs and not reading.error:
        lines.append(
            "Start a first run: an operator by Verify now; on one machine by tandemmq verify; on Kubernetes by kubectl "
            "create job --from=cronjob/RELEASE-consistency-quick first-proof."
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


def tone_of(outcome: str) -> str:
    """ok, warning or bad."""
    return _TONES[Outcome(outcome)]


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


def _ago(run: RunSummary, now_wall_ms: int) -> str:
    if is_ahead(run, now_wall_ms):
        return "at a time that is still to come"
    return age_text(max(0, now_wall_ms - finished_at_ms(run)))

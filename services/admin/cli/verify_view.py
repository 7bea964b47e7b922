"""A run of the consistency job on a terminal: the verdict, a line a group, and what differs."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.cli.status_view import new_table
from mqcore.audit.findings import KINDS, Finding
from mqcore.audit.run_summary import GroupSummary, Outcome, RunSummary

__all__ = ["run_view"]

_FINDINGS_MAX: Final = 30
_GROUPS_MAX: Final = 50
_VERDICTS: Final = {
    Outcome.EQUAL: Text("all replicas hold the same", style="bold green"),
    Outcome.DIVERGED: Text("replicas differ", style="bold red"),
    Outcome.INCOMPLETE: Text("nothing wrong was found, but not everything could be read", style="bold yellow"),
    Outcome.SKIPPED: Text("nothing was compared", style="bold yellow"),
}
_WORST_FIRST: Final = (Outcome.DIVERGED, Outcome.INCOMPLETE, Outcome.SKIPPED, Outcome.EQUAL)


def run_view(summary: RunSummary) -> RenderableType:
    """The whole run."""
    parts: list[RenderableType] = ["", _groups(summary)]
    if summary.findings:
        parts += ["", _findings(summary)]
        rest = summary.findings_total - min(len(summary.findings), _FINDINGS_MAX)
        if rest > 0:
            parts.append(f"{rest:,} more findings; the report has them")
    parts += ["", *map(Text, summary.notes), _VERDICTS[summary.outcome]]
    return Group(*parts)


def _groups(summary: RunSummary) -> Table:
    table = new_table("group", "outcome", "replicas", "compared now", "verified up to", "findings", "")
    groups = sorted(summary.groups, key=lambda group: (_WORST_FIRST.index(group.outcome), group.group))
    for group in groups[:_GROUPS_MAX]:
        table.add_row(
            group.group,
            str(group.outcome),
            str(len(group.replicas)),
            f"{group.new_bytes + group.scrubbed_bytes:,}",
            f"{group.watermark:,}",
            f"{group.findings:,}",
            Text(_problem(group)),
        )
    if len(groups) > _GROUPS_MAX:
        table.add_row(f"{len(groups) - _GROUPS_MAX:,} more", "", "", "", "", "", "")
    return table


def _problem(group: GroupSummary) -> str:
    unread = [f"{group.group}:{each.broker_id} {each.problem}" for each in group.replicas if each.problem]
    return "; ".join([group.problem, *unread] if group.problem else unread)


def _findings(summary: RunSummary) -> Table:
    table = new_table("wrong", "what", "message", "evidence", "detail")
    for finding in summary.findings[:_FINDINGS_MAX]:
        table.add_row(
            f"{finding.group}:{finding.broker_id}" if finding.broker_id is not None else f"{finding.group}:?",
            KINDS[finding.kind].title,
            Text(_message(finding)),
            str(finding.verdict),
            Text(finding.detail),
        )
    return table


def _message(finding: Finding) -> str:
    parts = [finding.topic] if finding.topic else []
    parts += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    parts += [f"offset {finding.queue_offset}"] if finding.queue_offset is not None else []
    parts += [finding.message_id] if finding.message_id else []
    text = " ".join(parts)
    return f"{text} and {finding.messages - 1:,} more" if finding.messages > 1 else text

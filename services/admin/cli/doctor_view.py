"""Shows what the doctor found: a table for people, the remedies below it; one document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from admin.cli.doctor_facts import Check, Verdict, is_bad
from admin.cli.status_view import new_table

__all__ = ["doctor_document", "doctor_table"]

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.NOTE: "bold",
    Verdict.WARNING: "bold yellow",
    Verdict.PROBLEM: "bold red",
}


def doctor_table(checks: Sequence[Check]) -> RenderableType:
    """All checks in their order, then those that want something done, the worst first, and a last line with the sum."""
    table = new_table("area", "subject", "", "what was found")
    for check in checks:
        table.add_row(check.area, check.subject, Text(check.verdict, style=_STYLES[check.verdict]), check.fact)
    return Group(table, "", _to_do(checks))


def doctor_document(checks: Sequence[Check]) -> dict[str, object]:
    """`healthy` and `checks`, fields as in `admin.cli.doctor_facts.Check`."""
    return {
        "healthy": not any(is_bad(check) for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _to_do(checks: Sequence[Check]) -> Text:
    text = Text()
    for verdict in (Verdict.PROBLEM, Verdict.WARNING, Verdict.NOTE):
        for check in checks:
            if check.verdict is verdict:
                text.append(f"{verdict}: ", style=_STYLES[verdict])
                text.append(f"{check.subject} {check.fact}\n")
                text.append(f"  remedy: {check.remedy}\n", style="dim")
    counts = Counter(check.verdict for check in checks)
    healthy = not counts[Verdict.PROBLEM]
    text.append("fine" if healthy else "not fine", style="bold green" if healthy else "bold red")
    text.append(
        f": {len(checks)} checks, {counts[Verdict.PROBLEM]} problem(s), {counts[Verdict.WARNING]} warning(s), "
        f"{counts[Verdict.NOTE]} note(s)"
    )
    return text

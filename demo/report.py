"""The demo's result: rows that hold or do not, for people and as JSON."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

_COMPARISONS: Final = {"==": operator.eq, ">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Row:
    """One measured value and what it had to be."""

    name: str
    value: float
    unit: str
    target: str
    holds: bool


def compared(name: str, value: float, unit: str, target: str) -> Row:
    """A row whose target is a comparison, for example `== 0`."""
    comparison, limit = target.split()
    return Row(name, value, unit, target, bool(_COMPARISONS[comparison](value, float(limit))))


def verdict(rows: Sequence[Row], folder: Path) -> list[str]:
    """What the rows come to, and what to do now."""
    failed = [row for row in rows if not row.holds]
    if not failed:
        return [
            f"All {len(rows)} rows hold: a master was killed, and nothing that was acknowledged is lost.",
            "Next: `make up` starts a cluster to use, with its console; README.md goes on from there.",
        ]
    return [
        f"{len(failed)} of {len(rows)} rows do not hold:",
        *(f"  {row.name.replace('_', ' ')}: {row.value:,} {row.unit}, wanted {row.target}" for row in failed),
        f"Next: look at the logs of brokers and clients in {folder}; another run of the demo removes them.",
        "docs/operations/what-to-do-when.md goes by symptom.",
    ]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """All rows as a JSON list."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def result_table(rows: Sequence[Row]) -> Table:
    table = Table(title="What the demo shows")
    table.add_column("")
    table.add_column("value", justify="right")
    for column in ("unit", "target", "holds"):
        table.add_column(column)
    for row in rows:
        verdict = "[green]yes[/green]" if row.holds else "[bold red]NO[/bold red]"
        table.add_row(row.name.replace("_", " "), f"{row.value:,}", row.unit, row.target, verdict)
    return table

"""The demo's result: rows that hold or do not, for people and as JSON."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

__all__ = ["Row", "compared", "result_table", "write_rows"]

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


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """All rows as a JSON list."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def result_table(rows: Sequence[Row]) -> Table:
    """All rows for people."""
    table = Table(title="What the demo shows")
    table.add_column("")
    table.add_column("value", justify="right")
    for column in ("unit", "target", "holds"):
        table.add_column(column)
    for row in rows:
        verdict = "[green]yes[/green]" if row.holds else "[bold red]NO[/bold red]"
        table.add_row(row.name.replace("_", " "), f"{row.value:,}", row.unit, row.target, verdict)
    return table

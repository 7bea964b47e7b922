"""Rows that hold or do not, for programs and as a page."""

from __future__ import annotations

import json
import operator
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from e2e.kubernetes.cluster import say

_COMPARISONS: Final = {"==": operator.eq, ">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value and what it had to be; without a target it is a figure."""

    name: str
    value: float
    unit: str
    target: str | None
    holds: bool
    # Why it does not hold, if more is known.
    note: str = ""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault and how long it was felt. Seconds; None where it was not felt or does not apply."""

    fault: str
    # Longest time in which no send at all was acknowledged.
    no_acknowledgement_s: float
    # From the fault until the last affected group acknowledges sends again.
    group_s: float | None
    # From the fault (for a node: from its return) until every pod is Ready and all slaves are in sync.
    healthy_s: float
    acknowledged: int
    lost: int | None = None
    # Longest time in which nothing was delivered; None where nobody received meanwhile.
    no_delivery_s: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one pod takes when nobody sends."""

    pod: str
    anonymous_mib: float
    working_set_mib: float
    millicores: float


@dataclass
class Part:
    """What one part of a run showed."""

    rows: list[Row] = field(default_factory=list)
    faults: list[FaultRow] = field(default_factory=list)
    usage: list[UsageRow] = field(default_factory=list)


class Report:
    """Everything that was shown so far, part by part; written after each row, so that nothing is lost with a run.

    A part that is not played again keeps what it showed the last time: `make e2e-kube` plays all.
    """

    def __init__(self, folder: Path, *, keep: bool) -> None:
        self._folder = folder
        self._state = folder / "e2e-kube-parts.json"
        self._parts: dict[str, Part] = {}
        self._part = Part()
        if keep and self._state.exists():
            for name, known in json.loads(self._state.read_text(encoding="utf-8")).items():
                self._parts[name] = Part(
                    rows=[Row(**row) for row in known["rows"]],
                    faults=[FaultRow(**row) for row in known["faults"]],
                    usage=[UsageRow(**row) for row in known["usage"]],
                )

    def begin(self, part: str) -> None:
        """What follows belongs to this part; what it showed before is forgotten."""
        self._part = self._parts[part] = Part()

    def check(self, name: str, value: float, unit: str, target: str, note: str = "") -> bool:
        """Adds a row whose target is a comparison, for example `== 0`; returns whether it holds."""
        comparison, limit = target.split()
        holds = bool(_COMPARISONS[comparison](value, float(limit)))
        self._add(Row(name, value, unit, target, holds, note if not holds else ""))
        return holds

    def figure(self, name: str, value: float, unit: str) -> None:
        """Adds a row that is only measured."""
        self._add(Row(name, round(value, 2), unit, None, True))

    def failure(self, name: str, note: str) -> None:
        """Adds a row for a step that broke off."""
        self._add(Row(name, 1, "failures", "== 0", False, note[:4000]))

    def add_fault(self, fault: FaultRow) -> None:
        """A line of the table of faults."""
        self._part.faults.append(fault)
        self.write()

    def add_usage(self, usage: UsageRow) -> None:
        """A line of the table of what idle pods take."""
        self._part.usage.append(usage)
        self.write()

    def holds(self, parts: Sequence[str]) -> bool:
        """True when each of these parts has shown something and all of it holds."""
        shown = [self._parts.get(part, Part()).rows for part in parts]
        return all(rows and all(row.holds for row in rows) for rows in shown)

    def write(self) -> None:
        """build/e2e-kube.json, build/e2e-kube.md, and what a later run keeps."""
        self._folder.mkdir(parents=True, exist_ok=True)
        parts = {name: asdict(part) for name, part in self._parts.items()}
        self._state.write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")
        rows = [asdict(row) for part in self._parts.values() for row in [*part.rows, *_fault_rows(part.faults)]]
        (self._folder / "e2e-kube.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        (self._folder / "e2e-kube.md").write_text(self.page(), encoding="utf-8")

    def page(self) -> str:
        """The tables in Markdown."""
        faults = [row for part in self._parts.values() for row in part.faults]
        usage = [row for part in self._parts.values() for row in part.usage]
        tables = []
        if faults:
            tables.append(_faults_table(faults))
        if usage:
            tables.append(_usage_table(usage))
        lines = ["| what | value | unit | target | holds |", "|---|---:|---|---|---|"]
        for row in (row for part in self._parts.values() for row in part.rows):
            verdict = "yes" if row.holds else "**no**"
            lines.append(f"| {row.name} | {_number(row.value)} | {row.unit} | {row.target or ''} | {verdict} |")
        return "\n\n".join([*tables, "\n".join(lines)]) + "\n"

    def _add(self, row: Row) -> None:
        self._part.rows.append(row)
        target = f" (target {row.target})" if row.target else ""
        say(f"{'  ' if row.holds else '!!'} {row.name}: {_number(row.value)} {row.unit}{target}")
        if row.note:
            say(f"   {row.note}")
        self.write()


def _fault_rows(faults: Sequence[FaultRow]) -> list[Row]:
    """The table of faults as rows, for programs."""
    rows = []
    for fault in faults:
        rows.append(Row(f"{fault.fault}: in sync again", round(fault.healthy_s, 1), "s", None, True))
        if fault.group_s is not None:
            rows.append(Row(f"{fault.fault}: group acknowledges again", round(fault.group_s, 1), "s", None, True))
        if fault.lost is not None:
            rows.append(Row(f"{fault.fault}: lost", fault.lost, "messages", "== 0", fault.lost == 0))
    return rows


def _faults_table(faults: Sequence[FaultRow]) -> str:
    """A line a fault; rounds of one fault are one line, with median and longest."""
    heads = ["fault, under load", "rounds", "longest without any acknowledgement", "the group acknowledges again"]
    heads += ["longest without any delivery", "all in sync again", "acknowledged meanwhile", "of them lost"]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name in dict.fromkeys(row.fault for row in faults):
        rounds = [row for row in faults if row.fault == name]
        lost = [row.lost for row in rounds if row.lost is not None]
        cells = [
            name,
            str(len(rounds)),
            _seconds([row.no_acknowledgement_s for row in rounds], ""),
            _seconds([row.group_s for row in rounds if row.group_s is not None], "not felt"),
            _seconds([row.no_delivery_s for row in rounds if row.no_delivery_s is not None], ""),
            _seconds([row.healthy_s for row in rounds], ""),
            f"{sum(row.acknowledged for row in rounds):,}",
            str(sum(lost)) if lost else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(values: Sequence[float], nothing: str) -> str:
    """One value, or of several the median and the longest."""
    if not values:
        return nothing
    if len(values) == 1:
        return f"{values[0]:.1f} s"
    return f"{statistics.median(values):.1f}, at most {max(values):.1f} s"


def _usage_table(usage: Sequence[UsageRow]) -> str:
    lines = ["| pod, idle | anonymous memory | working set | CPU |", "|---|---:|---:|---:|"]
    total = UsageRow(
        "**whole installation**",
        sum(row.anonymous_mib for row in usage),
        sum(row.working_set_mib for row in usage),
        sum(row.millicores for row in usage),
    )
    lines += [
        f"| {row.pod} | {row.anonymous_mib:.0f} MiB | {row.working_set_mib:.0f} MiB | {row.millicores:.1f} m |"
        for row in (*usage, total)
    ]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"

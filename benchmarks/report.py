"""Rows of build/bench.json, the table on the screen and the one in RESULTS.md.

python benchmarks/report.py                    # the table of the last run, as Markdown
python benchmarks/report.py --write-results    # the same, put between the markers of benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
JSON_PATH: Final = ROOT / "build" / "bench.json"
MARKDOWN_PATH: Final = ROOT / "build" / "bench.md"
RESULTS_PATH: Final = ROOT / "benchmarks" / "RESULTS.md"
OTHER_FIGURES: Final = (
    *("broker_memory_", "ha_catchup_", "loopback_", "start_time_", "recovery_time_", "noise_"),
    "growth_log_bytes",
)
BEGIN_MARK: Final = "<!-- figures of make bench: begin -->"
END_MARK: Final = "<!-- figures of make bench: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of build/bench.json. A ratio is ours over theirs; a row without a target is for reading only."""

    name: str
    value: float | None
    unit: str
    target: str | None = None
    holds: bool = True

    @classmethod
    def absolute(cls, name: str, value: float | None, unit: str) -> Row:
        """A figure by itself."""
        return cls(name, _rounded(value), unit)

    @classmethod
    def at_most(cls, name: str, value: float, limit: float, unit: str = "ratio") -> Row:
        """A figure that should be low."""
        return cls(name, _rounded(value), unit, f"<= {limit:g}", value <= limit)

    @classmethod
    def at_least(cls, name: str, value: float, limit: float, unit: str = "ratio") -> Row:
        """A figure that should be high."""
        return cls(name, _rounded(value), unit, f">= {limit:g}", value >= limit)

    @classmethod
    def missing(cls, name: str) -> Row:
        """A measurement that failed."""
        return cls(name, None, "not measured", None, False)


def _rounded(value: float | None) -> float | None:
    """Four significant digits: more than the noise leaves."""
    return None if value is None else float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure of one contender, a value a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread_percent(self) -> float:
        """Largest minus smallest round, in percent of the median: how far two runs may differ by chance."""
        return (max(self.values) - min(self.values)) / self.median * 100 if self.median else 0.0


def write(rows: Sequence[Row], tables: str) -> None:
    """Writes build/bench.json and build/bench.md; `tables` is Markdown with the absolute figures."""
    JSON_PATH.parent.mkdir(parents=True, exist_ok=True)
    JSON_PATH.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    MARKDOWN_PATH.write_text(f"{markdown(rows)}{figures(rows)}{tables}")


def _text(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_target(rows: Iterable[Row]) -> list[Row]:
    """Rows that judge, and those that should but failed."""
    return [row for row in rows if row.target is not None or row.value is None]


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| row of `build/bench.json` | value | target | holds |", "|---|---|---|---|"]
    for row in with_target(rows):
        unit = "" if row.unit == "ratio" else f" {row.unit}"
        lines.append(
            f"| `{row.name}` | {_text(row.value)}{unit} | {row.target or ''} | {'yes' if row.holds else '**no**'} |"
        )
    return "\n".join(lines) + "\n"


def figures(rows: Sequence[Row]) -> str:
    """What no table of windows holds: ratios without a target, and figures that are not rates of messages."""
    shown = [
        row
        for row in rows
        if row.target is None
        and row.value is not None
        and (row.unit == "ratio" or row.name.startswith(OTHER_FIGURES))
        and not row.name.endswith("_spread")
    ]
    lines = ["\nFurther figures:\n", "| row | value |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{row.name}` | {_text(row.value)} {row.unit} |" for row in shown)]) + "\n"


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """The judged rows, for people."""
    table = Table(title="Side by side, ratios are TandemMQ's figure over RocketMQ's", title_justify="left")
    for heading, justify in (("row", "left"), ("value", "right"), ("unit", "left"), ("target", "left"), ("", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    for row in with_target(rows):
        verdict = "[green]holds[/]" if row.holds else "[red]missed[/]"
        table.add_row(row.name, _text(row.value), row.unit, row.target or "", verdict)
    console.print(table)


def write_results() -> None:
    """Puts build/bench.md between the markers of RESULTS.md."""
    text = RESULTS_PATH.read_text()
    head, begin, rest = text.partition(BEGIN_MARK)
    _, end, tail = rest.partition(END_MARK)
    if not begin or not end:
        raise SystemExit(f"{RESULTS_PATH} lacks the marks {BEGIN_MARK} and {END_MARK}")
    RESULTS_PATH.write_text(f"{head}{begin}\n{MARKDOWN_PATH.read_text().strip()}\n{end}{tail}")


def main() -> int:
    """Prints or inserts the tables of the last run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-results", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    if not MARKDOWN_PATH.exists():
        raise SystemExit("no run to report: run `make bench` first")
    if parser.parse_args().write_results:
        write_results()
    else:
        sys.stdout.write(MARKDOWN_PATH.read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Lines as RocketMQ's tools print them: fixed columns, and a header whose names begin with #."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import typer

from admin.cli.output import OutputFormat, emit

__all__ = ["Columns", "emit_lines", "human_time"]

_GAP: Final = "  "


class Columns:
    """A table's columns: names and widths in characters, a negative width for numbers on the right."""

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._names = tuple(name for name, _ in columns)
        self._widths = tuple(width for _, width in columns)

    def header(self) -> str:
        """The first line."""
        return self.line(*self._names)

    def line(self, *cells: object) -> str:
        """A line; what is longer than its column pushes the rest to the right."""
        assert len(cells) == len(self._widths), "a cell for each column"
        padded = [
            text.rjust(-width) if width < 0 else text.ljust(width)
            for text, width in zip((str(cell) for cell in cells), self._widths, strict=True)
        ]
        return _GAP.join(padded).rstrip()

    def lines(self, rows: Iterable[Sequence[object]]) -> list[str]:
        """The header and the rows."""
        return [self.header(), *(self.line(*row) for row in rows)]


def emit_lines(output: OutputFormat, value: object, lines: Iterable[str]) -> None:
    """The lines, or the document of the value."""
    if output is OutputFormat.TABLE:
        for line in lines:
            typer.echo(line)
    else:
        emit(output, value, "")


def human_time(time_ms: int) -> str:
    """2026-11-22 01:02:03,456 in the caller's zone, as UtilAll.timeMillisToHumanString2; empty if it is not known."""
    if time_ms < 0:
        return ""
    try:
        moment = datetime.fromtimestamp(time_ms / 1_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{time_ms % 1_000:03d}"

"""What a monitoring plugin answers: one line with performance data, and an exit code 0 to 3.

As Nagios, Icinga and what speaks their language want it: `SERVICE STATE - text | label=value;warning;critical;min;max`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

__all__ = ["CheckLevel", "CheckResult", "Measure", "worst"]

_NAMED_MAX: Final = 3
_MEASURES_MAX: Final = 200
# What is told of each subject is one line's part; the details are for `doctor`.
_TEXT_CHARACTERS_MAX: Final = 400


class CheckLevel(IntEnum):
    """How bad it is: the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of the performance data."""

    label: str
    value: float
    # B, s, % or empty for a count.
    unit: str = ""
    warning: float | None = None
    critical: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    def level(self) -> CheckLevel:
        """By its limits: above them is bad."""
        if self.critical is not None and self.value > self.critical:
            return CheckLevel.CRITICAL
        if self.warning is not None and self.value > self.warning:
            return CheckLevel.WARNING
        return CheckLevel.OK

    def text(self) -> str:
        """'label'=value[unit];warning;critical;min;max, without what is empty at its end."""
        label = self.label.replace("'", "''").replace("=", "_")
        limits = (self.warning, self.critical, self.minimum, self.maximum)
        return f"'{label}'={_number(self.value)}{self.unit};{';'.join(map(_limit, limits))}".rstrip(";")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """An answer."""

    name: str
    level: CheckLevel
    # What is wrong, the worst first; what is well, if nothing is.
    reasons: Sequence[str]
    measures: Sequence[Measure] = field(default=())

    def line(self) -> str:
        """The one line. `|` begins the performance data, so no text may hold one."""
        told = "; ".join(self.reasons[:_NAMED_MAX])
        rest = len(self.reasons) - _NAMED_MAX
        text = " ".join((told + (f"; and {rest} more" if rest > 0 else "")).replace("|", "/").split())
        if len(text) > _TEXT_CHARACTERS_MAX:
            text = text[: _TEXT_CHARACTERS_MAX - 1] + "…"
        data = " ".join(measure.text() for measure in self.measures[:_MEASURES_MAX])
        return f"TANDEMMQ {self.name.upper()} {self.level.name} - {text}" + (f" | {data}" if data else "")


def worst(levels: Iterable[CheckLevel]) -> CheckLevel:
    """Critical before unknown before warning; OK without any."""
    found = set(levels)
    for level in (CheckLevel.CRITICAL, CheckLevel.UNKNOWN, CheckLevel.WARNING):
        if level in found:
            return level
    return CheckLevel.OK


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _limit(value: float | None) -> str:
    return "" if value is None else _number(value)

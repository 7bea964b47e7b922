"""How far back plots go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RANGES", "TimeRange", "time_range"]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """One that can be chosen."""

    # As the query has it.
    name: str
    label: str
    duration_ms: int


RANGES: Final = (
    TimeRange("5m", "5 min", 300_000),
    TimeRange("15m", "15 min", 900_000),
    TimeRange("1h", "1 h", 3_600_000),
)
_DEFAULT: Final = RANGES[1]


def time_range(name: str) -> TimeRange:
    """By its name; a quarter of an hour for others."""
    return next((each for each in RANGES if each.name == name), _DEFAULT)

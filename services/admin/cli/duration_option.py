"""Durations on the command line: 90, 90s, 30m, 1h."""

from __future__ import annotations

import re
from typing import Final

import typer

__all__ = ["parse_duration_s"]

_UNITS_S: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|)$")


def parse_duration_s(text: str) -> float:
    """Seconds. A usage error of Typer when it is no duration."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 30m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]

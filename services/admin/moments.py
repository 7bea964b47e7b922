"""Moments as people write and read them: UTC and an age, `2026-11-22T04:20` and `10m`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from admin.quantities import wall_text

__all__ = ["FORMS", "Moment", "MomentUnreadable", "age_text", "moment", "read_moment"]

FORMS: Final = "2026-11-22T04:20 (UTC), or how long ago: 90s, 10m, 2h, 1d"
"""What `read_moment` takes, for hints."""

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|m|min|h|d)(?: ago)?", re.IGNORECASE)
_SINCE_1970_MS: Final = re.compile(r"\d{12,14}")
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, behind which no date can be written."""


class MomentUnreadable(ValueError):
    """This is no moment; the text tells its writer what is."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as pages show it."""

    # For <time datetime>.
    iso: str
    # 2026-11-22 01:02:03.456 UTC.
    text: str
    # 3 min ago.
    age: str


def moment(wall_ms: int, *, now_ms: int) -> Moment | None:
    """None where it is not known: below 0, or behind the year 9999."""
    if not 0 <= wall_ms <= _LAST_MS:
        return None
    iso = datetime.fromtimestamp(wall_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Moment(iso=iso, text=wall_text(wall_ms), age=age_text(now_ms - wall_ms))


def age_text(age_ms: int) -> str:
    """One unit: `just now`, `12 s ago`, `3 min ago`; what lies ahead is `in 5 s`, as clocks differ."""
    if -1_000 < age_ms < 1_000:
        return "just now"
    span = _span_text(abs(age_ms) // 1_000)
    return f"{span} ago" if age_ms > 0 else f"in {span}"


def read_moment(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970. Takes ISO 8601 (UTC if it names no zone), `now`, an age, milliseconds since 1970.

    Raises MomentUnreadable.
    """
    written = text.strip()
    if written.lower() == "now":
        return now_ms
    if ago := _AGO.fullmatch(written):
        found = now_ms - int(float(ago[1]) * _UNITS_MS[ago[2].lower()])
    elif _SINCE_1970_MS.fullmatch(written):
        found = int(written)
    else:
        found = _of_iso(written)
    if not 0 <= found <= _LAST_MS:
        raise MomentUnreadable(f"{written!r} lies outside the years 1970 to 9999")
    return found


def _of_iso(written: str) -> int:
    # As this service itself writes moments.
    iso = written.removesuffix("UTC").rstrip()
    try:
        found = datetime.fromisoformat(iso)
        moment_in_zone = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return round(moment_in_zone.timestamp() * 1_000)
    except (ValueError, OverflowError) as error:
        raise MomentUnreadable(f"{written!r} is no moment; write {FORMS}") from error


def _span_text(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"

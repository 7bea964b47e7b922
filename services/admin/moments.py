"""Moments as people write them: `2026-11-22T04:20` in UTC, and `10m` ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["FORMS", "MomentUnreadable", "read_moment"]

FORMS: Final = "2026-11-22T04:20 (UTC), or how long ago: 90s, 10m, 2h, 1d"
"""What `read_moment` takes, for hints."""

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|m|min|h|d)(?: ago)?", re.IGNORECASE)
# Ten digits are seconds, which would be taken for a day in 1970. 0 is how the beginning comes back from a form.
_SINCE_1970_MS: Final = re.compile(r"0|\d{12,14}")
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, behind which no date can be written."""


class MomentUnreadable(ValueError):
    """This is no moment; the text tells its writer what is."""


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

"""Numbers, sizes, durations and moments as people read and write them, in pages, on terminals and in reports."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final


def count_text(value: int) -> str:
    """12,345."""
    return f"{value:,}"


def counted(value: int, noun: str, plural: str = "") -> str:
    """1 message, 12,345 messages; `plural` where it is not the noun with an s."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def sentence(text: str) -> str:
    """With a capital and a full stop; names in it stay as they are."""
    return f"{text[:1].upper()}{text[1:]}."


def bytes_text(value: float) -> str:
    """Short and readable: 0 B, 67 B, 1.2 MiB."""
    if value < 1_024:
        return f"{value:.0f} B"
    size = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1_024
        if size < 1_024:
            return f"{size:.1f} {unit}"
    return f"{size / 1_024:.1f} TiB"


def bytes_rate_text(per_second: float) -> str:
    """0 B/s, 1.2 MiB/s."""
    return f"{bytes_text(per_second)}/s"


def duration_text(seconds: float) -> str:
    """The two leading units: 4 s, 3 min 5 s, 2 d 7 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def age_text(age_ms: int) -> str:
    """How long ago, by the largest unit: just now, 12 s ago, 3 min ago, 5 h ago, 12 d ago; in 4 min for what comes."""
    seconds = abs(age_ms) // 1_000
    if seconds < 2:
        return "just now"
    for unit, size, next_size in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < next_size:
            text = f"{seconds // size} {unit}"
            break
    else:
        text = f"{seconds // 86_400:,} d"
    return f"{text} ago" if age_ms >= 0 else f"in {text}"


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: 0 s, 412 µs, 7.4 ms, 3.2 s, then as `duration_text`."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def rate_text(per_second: float) -> str:
    """0/s, 0.4/s, 12/s, 12,345/s."""
    if per_second == 0 or per_second >= 10:
        return f"{per_second:,.0f}/s"
    return f"{per_second:.1f}/s" if per_second >= 0.05 else "under 0.1/s"


def wall_text(wall_ms: int) -> str:
    """2026-11-22 01:02:03.456 UTC. Records of another store, or damaged ones, have times outside of the years that have
    dates: those are milliseconds since 1970."""
    try:
        moment = datetime.fromtimestamp(wall_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms:,} ms since 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{wall_ms % 1_000:03d} UTC"


def iso_text(wall_ms: int) -> str:
    """2026-11-22T01:02:03.456Z, for programs. ValueError or OverflowError outside of the years that have dates."""
    return datetime.fromtimestamp(wall_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def nanoseconds_text(nanoseconds: int) -> str:
    """Three digits at least and a unit: 412 µs, 7.37 ms, 3.02 s."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return f"{nanoseconds / 1_000:.0f} µs"


# Moments as people write them: `2026-11-22T04:20` in UTC, and `10m` ago.

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

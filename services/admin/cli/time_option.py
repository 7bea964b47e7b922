"""Moments on the command line, as `admin.moments` reads them, and as RocketMQ's tools write them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.moments import FORMS, MomentUnreadable, read_moment
from admin.quantities import age_text, iso_text

__all__ = ["MOMENT_HELP", "aged_text", "moment_text", "parse_moment_ms"]

MOMENT_HELP: Final = FORMS
# yyyy-MM-dd#HH:mm:ss:SSS, in the caller's zone.
_ROCKETMQ = re.compile(r"^(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})$")
_UNKNOWN: Final = "-"


def parse_moment_ms(text: str, *, now_ms: int) -> int:
    """Wall-clock milliseconds. CommandError when it is no moment."""
    try:
        if match := _ROCKETMQ.match(text.strip()):
            local = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}")
            return round(local.timestamp() * 1_000)
        return read_moment(text, now_ms=now_ms)
    except (MomentUnreadable, ValueError, OverflowError, OSError) as error:
        reason = str(error) if isinstance(error, MomentUnreadable) else f"{text!r} is no moment"
        problem, _, _ = reason.partition(";")
        raise CommandError(problem, remedy=f"write {FORMS}", exit_code=EXIT_REFUSED) from error


def moment_text(time_ms: int) -> str:
    """ISO in UTC, to the millisecond; - where it is not known."""
    if time_ms < 0:
        return _UNKNOWN
    try:
        return iso_text(time_ms)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def aged_text(time_ms: int, *, now_ms: int) -> str:
    """The same with its age."""
    return f"{moment_text(time_ms)} ({age_text(now_ms - time_ms)})" if time_ms >= 0 else _UNKNOWN

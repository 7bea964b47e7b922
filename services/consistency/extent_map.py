"""A log as a line of letters, for a picture of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqcore.replication.log_history import LogRange

__all__ = ["extent_map"]

_PARTS_MAX: Final = 256
_NEVER, _EARLIER, _NOW, _DIFFERS = ".o=x"


def extent_map(
    common: LogRange, *, verified_now: Iterable[LogRange], differing: Iterable[LogRange], watermark: int
) -> str:
    """The range in at most 256 equal parts; see GroupSummary.extent_map. A part is as bad as the worst byte in it."""
    length = common.end_offset - common.start_offset
    if length <= 0:
        return ""
    count = min(_PARTS_MAX, length)
    earlier = max(0, min(watermark, common.end_offset) - common.start_offset)
    letters = [_EARLIER if (part + 1) * length <= earlier * count else _NEVER for part in range(count)]
    for ranges, letter in ((verified_now, _NOW), (differing, _DIFFERS)):
        for log_range in ranges:
            start = max(common.start_offset, log_range.start_offset) - common.start_offset
            end = min(common.end_offset, log_range.end_offset) - common.start_offset
            for part in range(start * count // length, -(-end * count // length) if end > start else 0):
                letters[part] = letter
    return "".join(letters)

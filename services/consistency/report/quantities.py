"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["as_bytes", "as_count", "as_duration", "as_rate", "counted"]


def as_count(value: int) -> str:
    """1,234,567."""
    return f"{value:,}"


def counted(value: int, noun: str, plural: str = "") -> str:
    """1 group, 3 groups."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def as_bytes(value: float) -> str:
    """0 B, 67 B, 1.2 MiB."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1_024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_024
    return f"{size:.1f} TiB"


def as_rate(value: float, seconds: float) -> str:
    """Bytes in a time, by the second; a dash without a time."""
    return f"{as_bytes(value / seconds)}/s" if seconds > 0 else "–"


def as_duration(seconds: float) -> str:
    """The two leading units: 4.2 s, 3 min 5 s, 2 d 7 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"

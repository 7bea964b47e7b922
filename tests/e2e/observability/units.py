"""Grafana's units as far as the dashboards use them: one scale for all of a panel's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_THOUSANDS: Final = (("", 1.0), ("K", 1e3), ("Mil", 1e6), ("Bil", 1e9))
_BINARY: Final = (("", 1.0), ("Ki", 1024.0), ("Mi", 1024.0**2), ("Gi", 1024.0**3), ("Ti", 1024.0**4))
_SECONDS: Final = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0))
# A time is shown in the next unit once there are so many of it, 0.1 min being no way to say 6 s.
_TIME_ENOUGH: Final = 1.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Values are divided, then followed by the suffix."""

    divisor: float
    suffix: str

    def text(self, value: float, decimals: int | None = None) -> str:
        scaled = value / self.divisor
        if decimals is not None:
            return f"{scaled:.{decimals}f}{self.suffix}"
        return f"{plain(round(scaled, 2 if abs(scaled) < 100 else 1))}{self.suffix}"


def scale_of(unit: str, largest: float) -> Scale:
    """The scale for values up to `largest`. ValueError for a unit that is not known."""
    if unit in ("short", "none", "locale", ""):
        return _prefixed(largest, _THOUSANDS, "")
    if unit == "percentunit":
        return Scale(0.01, "%")
    if unit == "percent":
        return Scale(1, "%")
    if unit in ("bytes", "decbytes"):
        return _prefixed(largest, _BINARY, "B", space=" ")
    if unit in ("Bps", "binBps"):
        return _prefixed(largest, _BINARY, "B/s", space=" ")
    if unit in ("ops", "cpm", "reqps", "cps", "mps", "wps", "rps", "pps", "eps"):
        return _prefixed(largest, _THOUSANDS, {"ops": " ops/s", "cpm": " /min", "reqps": " req/s"}.get(unit, "/s"))
    if unit in ("s", "ms", "µs", "us", "dtdurations"):
        second = {"ms": 1e-3, "µs": 1e-6, "us": 1e-6}.get(unit, 1.0)
        return _time(largest * second, second)
    if unit == "bool_yes_no":
        return Scale(1, "")
    raise ValueError(f"unit {unit}")


def plain(value: float) -> str:
    """Without a fraction that says nothing."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _prefixed(largest: float, prefixes: tuple[tuple[str, float], ...], unit: str, space: str = "") -> Scale:
    prefix, divisor = next(
        ((name, size) for name, size in reversed(prefixes) if largest >= size), (prefixes[0][0], prefixes[0][1])
    )
    gap = " " if (prefix or space) and not unit.startswith(" ") else ""
    return Scale(divisor, f"{gap}{prefix}{unit}" if prefix or unit else "")


def _time(largest_s: float, second: float) -> Scale:
    name, size = next(
        ((name, size) for name, size in reversed(_SECONDS) if largest_s >= size * _TIME_ENOUGH),
        ("s", 1.0) if largest_s == 0 else _SECONDS[0],
    )
    return Scale(size / second, f" {name}")

"""Line plots as SVG path data: figures of the last hours on a grid of fixed height. Pure; `_plot.html` draws them.

The drawing is `WIDTH` by `HEIGHT` units and stretched to its place, so labels are no part of it: they stand beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from tandemmq.admin.console.frame import zone_name, zoned
from tandemmq.service.texts import duration_text

if TYPE_CHECKING:
    from tandemmq.admin.history import Samples

WIDTH: Final = 1_000
HEIGHT: Final = 100
# One a screen's pixel or so; a line of 720 points looks the same and costs four times the bytes.
_POINTS_MAX: Final = 180
_LINES_MAX: Final = 4
_ROWS_MAX: Final = 12
_TIME_LABELS: Final = 3
_UNKNOWN: Final = "not known"
_DECIMAL_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_BINARY_STEPS: Final = tuple(float(1 << exponent) for exponent in range(11))
# Above a minute: minutes, hours and days.
_TIME_STEPS_S: Final = (60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0, 86_400.0)
# Of what is sampled every five seconds.
_GAP_MS: Final = 20_000


class Scale(Enum):
    """Which numbers are round."""

    DECIMAL = "1, 2, 5, 10 …"
    BINARY = "1, 2, 4, 8 … of B, KiB, MiB …"
    TIME = "decimal up to a minute, then minutes and hours; values are seconds"


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    # SVG path data; empty: nothing is known.
    path: str
    # The last value in words.
    newest: str
    # Which of the styles it has, 0 to 3.
    style: int


@dataclass(frozen=True, slots=True)
class Plot:
    """What a template draws."""

    title: str
    lines: Sequence[Line]
    # From the top down.
    y_labels: Sequence[str]
    # From the left.
    x_labels: Sequence[str]
    # Height of a horizontal line that something should not cross; None: there is none, or it is far above.
    limit_y: int | None
    # The plot in a sentence, for who cannot see it.
    summary: str
    # What is said when nothing is known of the time shown.
    empty: str
    # Time and a value of each line, for who wants figures; newest first.
    rows: Sequence[tuple[str, Sequence[str]]]

    @property
    def has_data(self) -> bool:
        """False: nothing is known of the time shown."""
        return any(line.path for line in self.lines)


def plot(
    title: str,
    series: Sequence[tuple[str, Samples]],
    *,
    unit: Callable[[float], str],
    from_ms: float,
    to_ms: float,
    limit: float | None = None,
    scale: Scale = Scale.DECIMAL,
    least_top: float = 0.0,
    unknown: str = _UNKNOWN,
    gap_ms: float = _GAP_MS,
) -> Plot:
    """A plot of up to four figures from 0 upwards, over `from_ms` to `to_ms` (wall clock).

    `unit` puts a value into words. `least_top` keeps the plot from magnifying what is next to nothing. `unknown` is
    said of a newest value that is not there. Longer than `gap_ms` between two samples, and a line is interrupted.
    """
    recent = [(label, samples.since(from_ms)) for label, samples in series[:_LINES_MAX]]
    shown = [(label, _thinned(samples)) for label, samples in recent]
    highest = max((value for _, points in shown for _, value in points if value == value), default=0.0)
    top = _round_up(max(highest, least_top), scale)
    lines = tuple(
        Line(label, _path(points, from_ms, to_ms, top, gap_ms), _value_text(samples.newest, unit, unknown), style)
        for style, ((label, points), (_, samples)) in enumerate(zip(shown, recent, strict=True))
    )
    return Plot(
        title=title,
        lines=lines,
        y_labels=tuple(_whole(unit(top * part)) for part in (1.0, 0.5, 0.0)),
        x_labels=tuple(_time_labels(from_ms, to_ms)),
        limit_y=_y(limit, top) if limit is not None and limit <= top else None,
        summary=_summary(title, shown, lines, unit, (to_ms - from_ms) / 1_000),
        empty=f"{unknown.capitalize()} in this time." if unknown != _UNKNOWN else "Nothing is known of this time yet.",
        rows=tuple(_rows(shown, unit)),
    )


_Points = Sequence[tuple[float, float]]


def _thinned(samples: Samples) -> _Points:
    """At most so many points: of those that fall together the highest, so that no peak is lost."""
    points = list(zip(samples.times_ms, samples.values, strict=True))
    size = -(-len(points) // _POINTS_MAX) or 1
    return [
        # NaN sorts first: it is shown only where nothing else is known.
        max(points[start : start + size], key=lambda point: (point[1] == point[1], point[1]))
        for start in range(0, len(points), size)
    ]


def _path(points: _Points, from_ms: float, to_ms: float, top: float, gap_ms: float) -> str:
    """Moves and lines in whole units; a point between two gaps is a line of no length, which its ends make a dot."""
    span_ms = max(1.0, to_ms - from_ms)
    parts: list[str] = []
    before_ms: float | None = None
    for at_ms, value in points:
        if value != value:
            before_ms = None
            continue
        place = f"{round((at_ms - from_ms) / span_ms * WIDTH)} {_y(value, top)}"
        joined = before_ms is not None and at_ms - before_ms <= max(gap_ms, span_ms / _POINTS_MAX * 4)
        parts.append(f"L{place}" if joined else f"M{place}h0")
        before_ms = at_ms
    return "".join(parts)


def _y(value: float, top: float) -> int:
    return HEIGHT - round(value / top * HEIGHT)


def _round_up(value: float, scale: Scale) -> float:
    """The next round number at or above; 1 for 0."""
    if value <= 0:
        return 1.0
    if scale is Scale.TIME and value > _TIME_STEPS_S[0] / 2:
        days = math.ceil(value / _TIME_STEPS_S[-1])
        return next((step for step in _TIME_STEPS_S if step >= value), days * _TIME_STEPS_S[-1])
    if scale is Scale.BINARY:
        base, steps = 1_024.0, _BINARY_STEPS
    else:
        base, steps = 10.0, _DECIMAL_STEPS
    magnitude = base ** math.floor(math.log(value, base))
    # The logarithm may be off by a hair, hence one more.
    return next(step * part for part in (magnitude, magnitude * base) for step in steps if step * part >= value)


def _whole(text: str) -> str:
    """Without what says nothing: 512 MiB for 512.0 MiB, 5 min for 5 min 0 s."""
    return re.sub(r"\.0(?=\D)|(?<=min) 0 s$|(?<=h) 0 min$", "", text)


def _time_labels(from_ms: float, to_ms: float) -> Iterator[str]:
    for index in range(_TIME_LABELS):
        at_ms = from_ms + (to_ms - from_ms) * index / (_TIME_LABELS - 1)
        text = _clock_text(at_ms, with_seconds=False)
        yield f"{text} {zone_name()}" if index == _TIME_LABELS - 1 else text


def _clock_text(at_ms: float, *, with_seconds: bool) -> str:
    return f"{zoned(at_ms):{'%H:%M:%S' if with_seconds else '%H:%M'}}"


def _value_text(value: float | None, unit: Callable[[float], str], unknown: str = _UNKNOWN) -> str:
    return unit(value) if value is not None and value == value else unknown


def _summary(
    title: str,
    shown: Sequence[tuple[str, _Points]],
    lines: Sequence[Line],
    unit: Callable[[float], str],
    span_s: float,
) -> str:
    parts = []
    for (label, points), line in zip(shown, lines, strict=True):
        values = [value for _, value in points if value == value]
        parts.append(f"{label} now {line.newest}, highest {unit(max(values))}" if values else f"{label} not known")
    return f"{title}, last {_whole(duration_text(span_s))}: {'; '.join(parts) or 'not known'}."


def _rows(shown: Sequence[tuple[str, _Points]], unit: Callable[[float], str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    times = sorted({at_ms for _, points in shown for at_ms, _ in points}, reverse=True)
    by_time = [dict(points) for _, points in shown]
    for at_ms in times[:: max(1, -(-len(times) // _ROWS_MAX))]:
        values = tuple(_value_text(values.get(at_ms), unit) for values in by_time)
        yield _clock_text(at_ms, with_seconds=True), values


# How far back plots go.


@dataclass(frozen=True, slots=True)
class TimeRange:
    # As the query has it.
    name: str
    label: str
    duration_ms: int


RANGES: Final = (
    TimeRange("5m", "5 min", 300_000),
    TimeRange("15m", "15 min", 900_000),
    TimeRange("1h", "1 h", 3_600_000),
    TimeRange("6h", "6 h", 21_600_000),
    TimeRange("24h", "24 h", 86_400_000),
)
_DEFAULT: Final = RANGES[1]


def time_range(name: str) -> TimeRange:
    """By its name; a quarter of an hour for others."""
    return next((each for each in RANGES if each.name == name), _DEFAULT)


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure in large type."""

    label: str
    value: str
    # A line below it.
    detail: str = ""
    # warning, bad or empty.
    tone: str = ""
    href: str = ""

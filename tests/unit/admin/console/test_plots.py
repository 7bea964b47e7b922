"""Where lines run, what stands at their axes, and what is said of them."""

from __future__ import annotations

import pytest

from tandemmq.admin.console.plots import Plot, Scale, plot
from tandemmq.admin.history import Samples
from tandemmq.service.texts import bytes_text, seconds_text

_NAN = float("nan")


def _plot(values: list[float], *, scale: Scale = Scale.DECIMAL, limit: float | None = None) -> Plot:
    times = [float(index * 5_000) for index in range(len(values))]
    return plot(
        "Rate",
        [("in", Samples(times, values))],
        unit="{:g}/s".format,
        from_ms=0,
        to_ms=times[-1],
        scale=scale,
        limit=limit,
    )


def test_a_line_from_the_left_edge_to_the_right() -> None:
    drawn = _plot([0, 50, 100])
    assert drawn.lines[0].path == "M0 100h0L500 50L1000 0"
    assert drawn.y_labels == ("100/s", "50/s", "0/s")
    assert drawn.x_labels == ("00:00", "00:00", "00:00 UTC")
    assert drawn.summary == "Rate, last 10 s: in now 100/s, highest 100/s."


def test_what_is_not_known_is_a_gap() -> None:
    assert _plot([0, 0, _NAN, 0, 0]).lines[0].path == "M0 100h0L250 100M750 100h0L1000 100"


def test_a_long_pause_is_a_gap() -> None:
    samples = Samples([0.0, 5_000.0, 65_000.0, 70_000.0], [0.0, 0.0, 0.0, 0.0])
    drawn = plot("Rate", [("in", samples)], unit=str, from_ms=0, to_ms=70_000)
    assert drawn.lines[0].path.count("M") == 2


def test_nothing_known_draws_nothing_and_says_so() -> None:
    drawn = plot("Rate", [("in", Samples())], unit=str, from_ms=0, to_ms=60_000)
    assert not drawn.has_data
    assert drawn.lines[0].newest == "not known"
    assert drawn.summary == "Rate, last 1 min: in not known."


def test_thinning_keeps_the_peak() -> None:
    values = [1.0] * 700
    values[333] = 90.0
    drawn = _plot(values)
    assert drawn.lines[0].path.count("L") < 180
    assert drawn.y_labels[0] == "100/s"
    assert " 10L" in drawn.lines[0].path


def test_newest_is_the_last_value_and_not_a_peak_beside_it() -> None:
    assert _plot([1.0] * 718 + [70.0, 3.0]).lines[0].newest == "3/s"


@pytest.mark.parametrize(
    ("highest", "scale", "top"),
    [
        (0.0, Scale.DECIMAL, 1.0),
        (0.7, Scale.DECIMAL, 1.0),
        (1.0, Scale.DECIMAL, 1.0),
        (21.0, Scale.DECIMAL, 50.0),
        (1_000.0, Scale.DECIMAL, 1_000.0),
        (1_001.0, Scale.DECIMAL, 2_000.0),
        (3.0, Scale.BINARY, 4.0),
        (1_000.0, Scale.BINARY, 1_024.0),
        (300 << 20, Scale.BINARY, 512 << 20),
        (0.003, Scale.TIME, 0.005),
        (29.0, Scale.TIME, 50.0),
        (45.0, Scale.TIME, 60.0),
        (400.0, Scale.TIME, 600.0),
        (100_000.0, Scale.TIME, 172_800.0),
    ],
)
def test_scales_end_at_round_numbers(highest: float, scale: Scale, top: float) -> None:
    drawn = plot("x", [("x", Samples([0.0], [highest]))], unit=repr, from_ms=0, to_ms=1, scale=scale)
    assert float(drawn.y_labels[0]) == pytest.approx(top)


def test_labels_say_no_more_than_they_must() -> None:
    sizes = plot(
        "x",
        [("x", Samples([0.0], [400 << 20]))],
        unit=lambda value: bytes_text(round(value)),
        from_ms=0,
        to_ms=1,
        scale=Scale.BINARY,
    )
    assert sizes.y_labels == ("512 MiB", "256 MiB", "0 B")
    times = plot("x", [("x", Samples([0.0], [400.0]))], unit=seconds_text, from_ms=0, to_ms=1, scale=Scale.TIME)
    assert times.y_labels == ("10 min", "5 min", "0 s")


def test_limit_is_drawn_when_it_is_within_the_scale() -> None:
    assert _plot([0.0, 100.0], limit=90.0).limit_y == 10
    assert _plot([0.0, 10.0], limit=90.0).limit_y is None


def test_figures_as_a_table_newest_first() -> None:
    rows = _plot([1.0] * 60).rows
    assert len(rows) == 12
    assert rows[0] == ("00:04:55", ("1/s",))

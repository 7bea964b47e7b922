"""A dashboard with its figures as a page that looks much as Grafana shows it, drawn by Plotly."""

from __future__ import annotations

import html
import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from e2e.observability.dashboards import Curve, FilledPanel
from e2e.observability.units import Scale, plain, scale_of
from e2e.programs import ROOT

_PLOTLY: Final = "plotly==6.5.0"
_TOOLS: Final = ROOT / "build" / "tools"
# Of Grafana's classic palette.
_COLOURS: Final = (
    *("#3274d9", "#e0752d", "#56a64b", "#a352cc", "#e02f44", "#1f9e9e"),
    *("#b877d9", "#8f6c00", "#447ebc", "#c15c17", "#508642", "#890f02"),
)
_NAMED: Final = {
    "green": "#37872d",
    "red": "#c4162a",
    "orange": "#e0752d",
    "yellow": "#b58900",
    "blue": "#1f60c4",
    "text": "#24292e",
    "transparent": "#24292e",
}
# Of a row of Grafana's grid, and between two of them.
_ROW_PX: Final = 34
# As many series as a legend has room for, and in a panel of a third of the page.
_LEGEND_MAX: Final = 8
_LEGEND_NARROW_MAX: Final = 5
_NARROW: Final = 8
# A threshold is drawn when the curves come so near to it.
_NEAR: Final = 1.3
_STYLE: Final = (Path(__file__).parent / "dashboard.css").read_text(encoding="utf-8")


def plotly_script() -> Path:
    """Plotly's script out of its package, which is fetched below build/tools if it is not there."""
    script = _TOOLS / "plotly" / "plotly" / "package_data" / "plotly.min.js"
    if not script.exists():
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        python = str(ROOT / ".venv" / "bin" / "python")
        install = [uv, "pip", "install", "-q", "--python", python, "--no-deps", "--target", str(_TOOLS / "plotly")]
        subprocess.run([*install, _PLOTLY], check=True)
    return script


def dashboard_page(title: str, subtitle: str, panels: Sequence[FilledPanel]) -> tuple[str, int]:
    """The page's HTML, and how high it is in pixels."""
    boxes: list[str] = []
    plots: list[dict[str, Any]] = []
    for number, filled in enumerate(panels):
        panel = filled.panel
        place = f"grid-column:{panel.x + 1}/span {panel.width};grid-row:{panel.y + 1}/span {panel.height}"
        if panel.kind == "row":
            boxes.append(f'<div class="row" style="{place}">▾ {html.escape(panel.title)}</div>')
            continue
        body = _body(filled, f"plot-{number}", plots)
        boxes.append(f'<div class="panel" style="{place}"><h2>{html.escape(panel.title)}</h2>{body}</div>')
    moments = [when for filled in panels for curve in filled.curves for when, _ in curve.points]
    for plot in plots:
        # All panels show the same time, whenever their series begin.
        plot["layout"]["xaxis"]["range"] = [round(min(moments) * 1000), round(max(moments) * 1000)]
    rows = max((filled.panel.y + filled.panel.height for filled in panels), default=0)
    head = f"<h1>{html.escape(title)}<small>{html.escape(subtitle)}</small></h1>"
    draw = f"for (const p of {json.dumps(plots)}) Plotly.newPlot(p.id, p.data, p.layout, {{staticPlot: true}});"
    page = (
        f'<!doctype html><meta charset="utf-8"><style>{_STYLE}.grid{{grid-auto-rows:{_ROW_PX - 6}px}}</style>'
        f'<script src="{plotly_script().as_uri()}"></script>{head}<div class="grid">{"".join(boxes)}</div>'
        f"<script>{draw}</script>"
    )
    return page, rows * _ROW_PX + 82


def _body(filled: FilledPanel, plot_id: str, plots: list[dict[str, Any]]) -> str:
    panel = filled.panel
    if panel.kind == "text":
        return f'<div class="text">{html.escape(panel.options.get("content", ""))}</div>'
    if not filled.curves:
        return f'<div class="empty">{html.escape("; ".join(filled.problems) or "No data")}</div>'
    if panel.kind in ("stat", "gauge"):
        return _stats(filled)
    if panel.kind == "bargauge":
        return _bars(filled)
    if panel.kind == "table":
        return _table(filled)
    if panel.kind == "state-timeline":
        return _states(filled)
    plots.append(_plot(filled, plot_id))
    wide = panel.width > _NARROW
    legend = "" if panel.kind == "heatmap" else _legend(filled.curves, most=_LEGEND_MAX if wide else _LEGEND_NARROW_MAX)
    return f'<div class="plot" id="{plot_id}"></div>{legend}'


def _stats(filled: FilledPanel) -> str:
    defaults = filled.panel.defaults
    shown = []
    several = len(filled.curves) > 1
    is_filled = filled.panel.options.get("colorMode") == "background"
    for curve in filled.curves:
        text, colour = _value_text(curve.last, defaults, filled.panel.unit)
        name = f"<small>{html.escape(curve.name)}</small>" if several else ""
        style = f"background:{colour};color:#fff" if is_filled else f"color:{colour}"
        shown.append(f'<div class="stat" style="{style}">{html.escape(text)}{name}</div>')
    return f'<div class="stats{" filled" if is_filled else ""}">{"".join(shown)}</div>'


def _bars(filled: FilledPanel) -> str:
    values = [curve.last or 0.0 for curve in filled.curves]
    top = float(filled.panel.defaults.get("max") or max(values, default=0.0) or 1.0)
    lines = []
    for curve, value in zip(filled.curves, values, strict=True):
        text, colour = _value_text(value, filled.panel.defaults, filled.panel.unit)
        part = max(0.0, min(100.0, 100 * value / top))
        lines.append(
            f'<div class="bar"><span>{html.escape(curve.name)}</span><div><b style="width:{part:.1f}%;'
            f'background:{colour}"></b></div><em>{html.escape(text)}</em></div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


def _states(filled: FilledPanel) -> str:
    """A line for each series, in pieces as long as its value stays the same."""
    moments = sorted({when for curve in filled.curves for when, _ in curve.points})
    start, span = moments[0], max(1.0, moments[-1] - moments[0])
    lines = []
    for curve in filled.curves:
        pieces = []
        for begin, end, value in _pieces(curve.points):
            _, colour = _value_text(value, filled.panel.defaults, filled.panel.unit)
            left, width = 100 * (begin - start) / span, 100 * (end - begin) / span
            pieces.append(f'<b style="left:{left:.2f}%;width:{width:.2f}%;background:{colour}"></b>')
        lines.append(f'<div class="state"><span>{html.escape(curve.name)}</span><div>{"".join(pieces)}</div></div>')
    return f'<div class="states">{"".join(lines)}</div>{_state_legend(filled.panel.defaults)}'


def _pieces(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float, float]]:
    """(begin, end, value) of each stretch of one value; a series that breaks off leaves a gap."""
    step = min((later - earlier for (earlier, _), (later, _) in pairwise(points)), default=1.0)
    begin, last = points[0]
    for (earlier, _), (when, value) in pairwise(points):
        if value != last or when - earlier > 2 * step:
            yield begin, min(when, earlier + step), last
            begin, last = when, value
    yield begin, points[-1][0], last


def _state_legend(defaults: Mapping[str, Any]) -> str:
    states = [state for mapping in defaults.get("mappings", ()) for state in mapping["options"].values()]
    named = "".join(
        f'<span><i style="background:{_colour(state["color"])}"></i>{html.escape(state["text"])}</span>'
        for state in states
    )
    return f'<div class="legend">{named}</div>'


def _table(filled: FilledPanel) -> str:
    columns = list(dict.fromkeys(key for curve in filled.curves for key in curve.labels if not key.startswith("__")))
    # What says nothing of the single row, as Grafana's organising does for the dashboards.
    columns = [key for key in columns if key not in ("instance", "job", "namespace", "pod", "service")]
    head = "".join(f"<th>{html.escape(key)}</th>" for key in (*columns, "value"))
    rows = []
    for curve in filled.curves:
        text, _ = _value_text(curve.last, filled.panel.defaults, filled.panel.unit)
        cells = "".join(f"<td>{html.escape(curve.labels.get(key, ''))}</td>" for key in columns)
        rows.append(f'<tr>{cells}<td class="number">{html.escape(text)}</td></tr>')
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _value_text(value: float | None, defaults: Mapping[str, Any], unit: str) -> tuple[str, str]:
    """As shown, and its colour: by the value mappings, else by the thresholds."""
    if value is None or math.isnan(value):
        return "No data", _NAMED["text"]
    for mapping in defaults.get("mappings", ()):
        known = mapping.get("options", {})
        if mapping.get("type") == "value" and plain(value) in known:
            chosen = known[plain(value)]
            return chosen.get("text", plain(value)), _colour(chosen.get("color") or _threshold(value, defaults))
    return scale_of(unit, abs(value)).text(value, defaults.get("decimals")), _colour(_threshold(value, defaults))


def _threshold(value: float, defaults: Mapping[str, Any]) -> str:
    steps = defaults.get("thresholds", {}).get("steps", ())
    reached = [step["color"] for step in steps if step.get("value") is None or value >= step["value"]]
    return str(reached[-1]) if reached else "text"


def _colour(name: str) -> str:
    if name.startswith("#"):
        return name
    return next((code for known, code in _NAMED.items() if name.endswith(known)), _NAMED["text"])


def _legend(curves: Sequence[Curve], *, most: int) -> str:
    named = "".join(
        f'<span><i style="background:{_COLOURS[place % len(_COLOURS)]}"></i>{html.escape(curve.name)}</span>'
        for place, curve in enumerate(curves[:most])
    )
    more = f"<span>and {len(curves) - most} more</span>" if len(curves) > most else ""
    return f'<div class="legend">{named}{more}</div>'


def _plot(filled: FilledPanel, plot_id: str) -> dict[str, Any]:
    panel = filled.panel
    values = [abs(value) for curve in filled.curves for _, value in curve.points if math.isfinite(value)]
    highest = max(values, default=0.0)
    scale = scale_of(panel.unit, highest)
    if panel.kind == "heatmap":
        layout = _layout(Scale(1, ""), {})
        layout["yaxis"] |= {"type": "category", "nticks": 12}
        return {"id": plot_id, "data": [_heatmap(filled.curves, panel.unit)], "layout": layout}
    custom = panel.defaults.get("custom", {})
    is_stacked = custom.get("stacking", {}).get("mode", "none") != "none"
    opacity = float(custom.get("fillOpacity", 0)) / 100
    data = [_trace(curve, place, scale, is_stacked, opacity) for place, curve in enumerate(filled.curves)]
    return {"id": plot_id, "data": data, "layout": _layout(scale, panel.defaults, highest)}


def _trace(curve: Curve, place: int, scale: Scale, is_stacked: bool, opacity: float) -> dict[str, Any]:
    colour = _COLOURS[place % len(_COLOURS)]
    points = list(_with_gaps(curve.points))
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if len(curve.points) > 1 else "markers",
        "x": [round(when * 1000) for when, _ in points],
        "y": [value / scale.divisor if math.isfinite(value) else None for _, value in points],
        "line": {"color": colour, "width": 1.5},
        "showlegend": False,
    }
    if is_stacked:
        trace["stackgroup"] = "all"
    elif opacity and len(points) == len(curve.points):
        # Where a series breaks off, Plotly would fill the gap too.
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        trace |= {"fill": "tozeroy", "fillcolor": f"rgba({red},{green},{blue},{min(opacity, 0.25):.2f})"}
    return trace


def _with_gaps(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """With a NaN where values are missing, so that no line crosses the time in which nobody answered."""
    step = min((later - earlier for (earlier, _), (later, _) in pairwise(points)), default=1.0)
    last = points[0][0]
    for when, value in points:
        if when - last > 2 * step:
            yield last + step, math.nan
        yield when, value
        last = when


def _heatmap(curves: Sequence[Curve], unit: str) -> dict[str, Any]:
    """Cumulative buckets by `le` as what lies between two bounds, without those that stay empty at either end."""
    ordered = sorted(curves, key=lambda curve: float(curve.labels.get("le", "inf")))
    moments = sorted({when for curve in ordered for when, _ in curve.points})
    names: list[str] = []
    counts: list[list[float | None]] = []
    below = dict.fromkeys(moments, 0.0)
    for curve in ordered:
        current = {**below, **dict(curve.points)}
        bound = float(curve.labels.get("le", "inf"))
        names.append("more" if math.isinf(bound) else f"≤ {scale_of(unit, bound).text(bound)}")
        counts.append([max(0.0, current[when] - below[when]) or None for when in moments])
        below = current
    filled = [place for place, row in enumerate(counts) if any(row)] or [0]
    shown = slice(filled[0], filled[-1] + 1)
    return {
        "type": "heatmap",
        "x": [round(when * 1000) for when in moments],
        "y": names[shown],
        "z": counts[shown],
        "colorscale": [[0, "#fde8d4"], [0.5, "#f08a3c"], [1, "#a33605"]],
        "showscale": False,
    }


def _layout(scale: Scale, defaults: Mapping[str, Any], highest: float = 0.0) -> dict[str, Any]:
    axis = {"gridcolor": "#eceef0", "zeroline": False, "tickfont": {"size": 10, "color": "#57606a"}}
    y_axis: dict[str, Any] = {**axis, "ticksuffix": scale.suffix, "nticks": 6, "automargin": True}
    if "min" in defaults or "max" in defaults:
        bounds = [defaults.get(key) for key in ("min", "max")]
        y_axis |= {"range": [None if bound is None else bound / scale.divisor for bound in bounds]}
        y_axis["autorange"] = "max" if bounds[1] is None else "min" if bounds[0] is None else False
    else:
        y_axis["rangemode"] = "tozero"
    return {
        "margin": {"l": 48, "r": 12, "t": 8, "b": 24},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "xaxis": {**axis, "type": "date", "nticks": 6, "tickformat": "%H:%M:%S"},
        "yaxis": y_axis,
        "shapes": list(_threshold_lines(scale, defaults, highest / scale.divisor)),
    }


def _threshold_lines(scale: Scale, defaults: Mapping[str, Any], top: float) -> Iterator[dict[str, Any]]:
    """Those that the curves come near: a line far above would make the curves flat."""
    if defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode", "off") == "off":
        return
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if step.get("value") is not None:
            height = step["value"] / scale.divisor
            if height > _NEAR * top:
                continue
            line = {"color": _colour(step["color"]), "width": 1, "dash": "dash"}
            yield {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}

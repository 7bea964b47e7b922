"""Writes the report: one file, no scripts, nothing loaded from anywhere, for screen (light, dark, narrow) and paper."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from consistency.report.quantities import as_bytes, as_count, counted
from consistency.report.report_view import EVIDENCE, report_view, role_of
from mqcore.audit.run_summary import RunSummary
from mqservice.command_line import VERSION

__all__ = ["render_report"]


def render_report(summary: RunSummary, *, earlier: Sequence[RunSummary] = ()) -> str:
    """The page as HTML text, to be stored as UTF-8. `earlier` runs make the strip at its end; their order is free."""
    return _template().render(view=report_view(summary, earlier))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("consistency.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": as_bytes,
        "count": as_count,
        "counted": counted,
        "percent": _percent,
        "role": role_of,
        "moment": _moment,
    }
    style = files("consistency.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
    # Our own file, not a value of a run.
    environment.globals |= {"version": VERSION, "style": Markup(style), "evidence": EVIDENCE}
    return environment.get_template("report.html")


def _percent(share: float) -> str:
    return f"{share * 100:.3f}%"


def _moment(wall_ms: int) -> str:
    """2026-11-21 22:00:00.123; a number that is no time, as a damaged record may have one, as it is."""
    try:
        moment = datetime.fromtimestamp(wall_ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{wall_ms % 1_000:03d}"

"""Templates of all pages, and the files they load. Everything is served by this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from admin.quantities import age_text, bytes_text, count_text, duration_text, rate_text, seconds_text, wall_text
from admin.web.frame import NAVIGATION, UNFRAMED, Frame
from mqservice.command_line import VERSION

__all__ = ["PageTemplates", "StaticFile", "address", "segment"]

_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load."""

    content: bytes
    media_type: str


class PageTemplates:
    """Compiled once for the life of the process."""

    def __init__(self) -> None:
        self.static_files: Mapping[str, StaticFile] = MappingProxyType(_static_files())
        self._environment = Environment(
            loader=PackageLoader("admin.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "duration": duration_text,
            "seconds": seconds_text,
            "bytes": bytes_text,
            "count": count_text,
            "rate": rate_text,
            "wall": wall_text,
            "segment": segment,
        }
        self._environment.globals |= {
            "version": VERSION,
            "navigation": NAVIGATION,
            "frame": UNFRAMED,
            "live_ms": 0,
            "static": self._static_path,
            "address": address,
            "moment": _moment,
        }

    def get(self, name: str) -> Template:
        """One template."""
        return self._environment.get_template(name)

    def _static_path(self, name: str) -> str:
        # The digest makes a new file a new address, so that browsers may keep the old one for as long as they like.
        return f"/static/{name}?{hashlib.sha256(self.static_files[name].content).hexdigest()[:12]}"


def address(path: str, **parameters: object) -> str:
    """A path with a query; what is empty, 0, None or False is left out. `path` must be quoted already (`segment`)."""
    pairs = [(name, "true" if value is True else value) for name, value in parameters.items() if value]
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path


def segment(text: str) -> str:
    """One part of a path: names such as %RETRY%billing and a/b are one part."""
    return quote(text, safe="")


@pass_context
def _moment(context: Context, wall_ms: int) -> Markup:
    """A time of the wall clock with its age; a dash where it is not known (negative, or 0)."""
    if wall_ms <= 0:
        return Markup('<span class="fine">not known</span>')
    frame: Frame = context["frame"]
    text = wall_text(wall_ms)
    return Markup('<time datetime="{}">{}</time> <span class="fine">{}</span>').format(
        f"{text[:-4].replace(' ', 'T')}Z", text[:-4], age_text(frame.now_wall_ms - wall_ms)
    )


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for entry in files("admin.web").joinpath("static").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            found[entry.name] = StaticFile(entry.read_bytes(), media_type)
    return found

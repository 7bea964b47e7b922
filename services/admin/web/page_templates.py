"""Templates of all pages, and the files they load. Everything is served by this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from admin.quantities import bytes_text, count_text, duration_text
from mqservice.version import VERSION

__all__ = ["PageTemplates", "StaticFile"]

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
        )
        self._environment.filters |= {"duration": duration_text, "bytes": bytes_text, "count": count_text}
        self._environment.globals |= {"version": VERSION, "static": self._static_path}

    def get(self, name: str) -> Template:
        """One template."""
        return self._environment.get_template(name)

    def _static_path(self, name: str) -> str:
        # The digest makes a new file a new address, so that browsers may keep the old one for as long as they like.
        return f"/static/{name}?{hashlib.sha256(self.static_files[name].content).hexdigest()[:12]}"


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for entry in files("admin.web").joinpath("static").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            found[entry.name] = StaticFile(entry.read_bytes(), media_type)
    return found

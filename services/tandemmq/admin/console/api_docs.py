"""What the page about the API lists, from the API's own description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["ApiOperation", "ApiSection", "api_sections"]

_METHODS: Final = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One method of one path."""

    method: str
    path: str
    summary: str

    @property
    def is_link(self) -> bool:
        """True when a browser can just go there."""
        return self.method == "GET" and "{" not in self.path


@dataclass(frozen=True, slots=True)
class ApiSection:
    """Operations of one tag."""

    tag: str
    operations: Sequence[ApiOperation]


def api_sections(openapi: Mapping[str, Any]) -> list[ApiSection]:
    """By tag in the order they come."""
    found: dict[str, list[ApiOperation]] = {}
    for path, methods in openapi["paths"].items():
        for method in _METHODS:
            operation = methods.get(method)
            if operation is not None:
                text = operation.get("description") or operation.get("summary", "")
                tag = (operation.get("tags") or ["others"])[0]
                found.setdefault(tag, []).append(ApiOperation(method.upper(), path, text))
    return [ApiSection(tag, operations) for tag, operations in found.items()]

"""What axe-core finds wrong with a page for people who use it otherwise than its makers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

from playwright.sync_api import Page

_RUN: Final = """async tags => (await axe.run(document, {runOnly: tags, resultTypes: ["violations"]})).violations"""
_TAGS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """One line each: the rule, what it wants, and where."""
    # By the debugger, not as an element: the page's own policy forbids foreign scripts.
    page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(_RUN, _TAGS)
    return [f"{each['id']}: {each['help']}: {_places(each['nodes'])}" for each in found]


def _places(nodes: list[dict[str, Any]]) -> str:
    return ", ".join(str(node["target"][0]) for node in nodes[:3])


@cache
def _script() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")

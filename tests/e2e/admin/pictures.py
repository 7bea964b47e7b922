"""Pictures of pages for the documentation."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from e2e.admin.conftest import FOLDER
from e2e.programs import ROOT

# Pixels: below it a picture stays small enough for a repository, and shows what a page is about.
_HEIGHT_MAX: Final = 1_100
# In the place of the folder that the cluster really runs in.
_FOLDER: Final = "/srv/tandemmq"
# Again whenever the page is refreshed.
_REPLACE: Final = """([own, shown]) => {
    const replace = () => {
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const text = texts.currentNode;
            if (text.data.includes(own)) text.data = text.data.replaceAll(own, shown);
        }
    };
    replace();
    new MutationObserver(replace).observe(document.body, {childList: true, characterData: true, subtree: true});
}"""
_DOCUMENTED: Final = ROOT / "docs" / "pictures"
_SUFFIXES: Final = {"wide-light": "", "narrow-light": "-narrow", "wide-dark": "-dark"}


def take_picture(page: Page, folder: Path, name: str, *, view: str) -> None:
    """A PNG of the page from its top, `console-<name>[-narrow|-dark].png`; into the documents' folder only what one of
    them shows."""
    path = folder / f"console-{name}{_SUFFIXES[view]}.png"
    if folder == _DOCUMENTED and path.name not in _documents():
        return
    size = page.viewport_size
    assert size is not None
    height = min(_HEIGHT_MAX, page.evaluate("document.documentElement.scrollHeight"))
    page.evaluate(_REPLACE, [str(FOLDER), _FOLDER])
    page.screenshot(
        path=path,
        full_page=True,
        clip={"x": 0, "y": 0, "width": size["width"], "height": height},
        animations="disabled",
    )


@functools.cache
def _documents() -> str:
    return "\n".join(each.read_text(encoding="utf-8") for each in (ROOT / "docs").rglob("*.md"))

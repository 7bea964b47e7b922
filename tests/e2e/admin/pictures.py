"""Pictures of pages for the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.sync_api import Page

# Of these the dark ones are wanted, too.
_DARK: Final = ("replication",)
# Steps within a page: these are pictured, wide.
_STEPS: Final = ("confirm-reset", "confirm-resend", "confirm-setting", "confirm-delete-topic")
# Pixels: below it a picture stays small enough for a repository, and shows what a page is about.
_HEIGHT_MAX: Final = 1_100
_SUFFIXES: Final = {"wide-light": "", "narrow-light": "-narrow", "wide-dark": "-dark"}


def take_picture(page: Page, folder: Path, name: str, *, view: str) -> None:
    """A PNG of the page from its top, `console-<name>[-narrow|-dark].png`; nothing for views nobody wants to see."""
    suffix = _SUFFIXES.get(view)
    if suffix is None or (suffix == "-dark" and name not in _DARK):
        return
    if name.startswith(("confirm-", "refused-")) and (suffix or name not in _STEPS):
        return
    size = page.viewport_size
    assert size is not None
    height = min(_HEIGHT_MAX, page.evaluate("document.documentElement.scrollHeight"))
    page.screenshot(
        path=folder / f"console-{name}{suffix}.png",
        full_page=True,
        clip={"x": 0, "y": 0, "width": size["width"], "height": height},
        animations="disabled",
    )

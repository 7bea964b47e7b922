"""Every page and every confirmation, wide and narrow, light and dark: whole, quiet, and good to use for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser

from e2e.admin.axe import violations
from e2e.admin.console import NARROW, WIDE, Console, open_console
from e2e.admin.page_list import CONFIRMATIONS, PAGES, Shown
from e2e.admin.pictures import take_picture
from e2e.admin.stage import Stage

# Colours do not depend on the width.
_VIEWS: Final = {
    "wide-light": {"viewport": WIDE, "color_scheme": "light"},
    "wide-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "narrow-light": {"viewport": NARROW, "color_scheme": "light"},
}


@pytest.fixture(scope="module", params=list(_VIEWS))
def view(request: pytest.FixtureRequest, stage: Stage, browser: Browser) -> Iterator[tuple[str, Console]]:
    """A console of one width and one scheme, for all pages."""
    with open_console(browser, stage.cluster.admin_url, **_VIEWS[request.param]) as console:
        yield request.param, console


@pytest.mark.parametrize("shown", [*PAGES, *CONFIRMATIONS], ids=lambda shown: shown.name)
def test_page(shown: Shown, view: tuple[str, Console], stage: Stage, pictures: Path | None) -> None:
    name, console = view
    console.faults.clear()
    shown.open(console, stage)
    assert console.faults == []
    assert console.leaks() == []
    assert not console.is_wider_than_window(), "the page scrolls sideways"
    assert console.tables_beyond_the_margin() == []
    assert violations(console.page) == []
    if pictures is not None:
        take_picture(console.page, pictures, shown.name, view=name)


@pytest.mark.parametrize("width", [320, 900])
def test_no_page_is_cut_between_the_widths(width: int, stage: Stage, browser: Browser) -> None:
    viewport = {"width": width, "height": 900}
    with open_console(browser, stage.cluster.admin_url, viewport=viewport, color_scheme="light") as console:
        cut = []
        for shown in PAGES:
            shown.open(console, stage)
            if console.is_wider_than_window() or console.tables_beyond_the_margin():
                cut.append(shown.name)
        assert cut == []

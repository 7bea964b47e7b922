"""The console in a browser, and everything a page may not do while it is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

WIDE: Final = {"width": 1280, "height": 900}
NARROW: Final = {"width": 420, "height": 900}
_LIMIT_MS: Final = 10_000
# What a program says when it does not know, and should not show: as a whole word, outside of messages' bodies.
_LEAKED: Final = re.compile(r"\b(undefined|NaN|null|Traceback)\b|\bNone$|^None[^ ]| None\b")


class Console:
    """One tab. `faults` has what no page may do: errors in the browser's console, requests to other hosts."""

    def __init__(self, page: Page, url: str, *, also: Sequence[str] = ()) -> None:
        self.page = page
        self.url = url
        self._hosts = {urlsplit(each).netloc for each in (url, *also)}
        self.faults: list[str] = []
        page.set_default_timeout(_LIMIT_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))
        page.on("request", self._asked)

    def open(self, path: str) -> int:
        """Goes to a page by its address. Its HTTP status."""
        answer = self.page.goto(f"{self.url}{path}", wait_until="load")
        assert answer is not None
        return answer.status

    def choose(self, page: str) -> None:
        """Goes to a page by the navigation."""
        pages = self.page.get_by_role("navigation", name="Pages", exact=True)
        if not pages.is_visible():
            self.page.get_by_role("button", name="Menu").click()
        pages.get_by_role("link", name=page, exact=True).click()
        expect(self.page.locator("nav#pages a[aria-current=page]")).to_have_text(page)

    def link(self, name: str) -> Locator:
        """A link of the page's content."""
        return self.page.get_by_role("main").get_by_role("link", name=name, exact=True)

    def follow(self, name: str) -> None:
        """Follows a link of the page's content."""
        self.link(name).first.click()

    def press(self, name: str) -> None:
        """Presses a button of the page's content."""
        self.page.get_by_role("main").get_by_role("button", name=name, exact=True).click()

    def type(self, label: str, text: str) -> None:
        """Fills a field."""
        self.page.get_by_role("main").get_by_label(label, exact=True).fill(text)

    def row(self, key: str) -> Locator:
        """A line of a table, by its key."""
        return self.page.locator(f"main tr[data-key={key!r}]")

    def section(self, heading: str) -> Locator:
        """A part of the page, by its heading."""
        return self.page.get_by_role("region", name=heading)

    def expect_heading(self, text: str) -> None:
        """Waits for the page of this heading."""
        expect(self.page.get_by_role("heading", level=1)).to_contain_text(text)

    def expect_said(self, text: str) -> None:
        """Waits for the line that tells what was done."""
        expect(self.page.locator("main .flash")).to_contain_text(text)

    def text(self) -> str:
        """What the page's content says."""
        return self.page.locator("main").inner_text()

    def tab_to(self, name: str, *, role: str) -> None:
        """Moves the focus with the Tab key until it is on that element. AssertionError when it never gets there."""
        wanted = self.page.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
        for _ in range(80):
            if wanted.count() and wanted.first.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"the Tab key never reaches the {role} {name!r} of {self.page.url}")

    def leaks(self) -> list[str]:
        """Words of programs, not of people, on the page; what others wrote (code, bodies) is left out."""
        texts: list[str] = self.page.evaluate(
            """() => {
                const copy = document.body.cloneNode(true);
                copy.querySelectorAll("code, pre, script, .mono").forEach(each => each.remove());
                const walker = document.createTreeWalker(copy, NodeFilter.SHOW_TEXT), texts = [];
                while (walker.nextNode()) texts.push(walker.currentNode.data.trim());
                return texts;
            }"""
        )
        return [text for text in texts if _LEAKED.search(text)]

    def is_wider_than_window(self) -> bool:
        """True when the page as a whole scrolls sideways."""
        wider: bool = self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        return wider

    def tables_beyond_the_margin(self) -> list[str]:
        """What ends to the right of the page's content."""
        found: list[str] = self.page.evaluate(
            """() => {
                const main = document.querySelector('main');
                if (!main) return [];
                const right = main.getBoundingClientRect().right - parseFloat(getComputedStyle(main).paddingRight) + 1;
                return [...main.querySelectorAll('table, .card, form')]
                    .filter(each => each.getBoundingClientRect().right > right)
                    .map(each => `${each.tagName} ${each.className}`);
            }"""
        )
        return found

    def _said(self, message: ConsoleMessage) -> None:
        # Chromium counts an answer that refuses a form among the errors.
        refused = "the server responded with a status of 4" in message.text
        if message.type in ("error", "warning") and not refused:
            self.faults.append(f"{self.page.url}: {message.text}")

    def _asked(self, request: Request) -> None:
        host = urlsplit(request.url)
        if host.scheme in ("http", "https", "ws", "wss") and host.netloc not in self._hosts:
            self.faults.append(f"{self.page.url}: asks {request.url}")


@contextmanager
def open_console(browser: Browser, url: str, *, also: Sequence[str] = (), **context: Any) -> Iterator[Console]:
    """A console in a fresh profile that may ask `also` other hosts; `context` are Playwright's options of a profile."""
    options = {"viewport": WIDE, "locale": "en-GB", "timezone_id": "Asia/Tokyo", **context}
    profile = browser.new_context(**options)
    try:
        yield Console(profile.new_page(), url, also=also)
    finally:
        profile.close()

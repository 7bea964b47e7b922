"""10,000 topics: lists, search and pages stay usable. How long until a page can be used is a figure, not a verdict."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from e2e.admin.brokers import MASTERS
from e2e.admin.conftest import Note
from e2e.admin.console import open_console
from e2e.admin.shell import Shell
from e2e.live_cluster import LiveCluster
from e2e.programs import ROOT
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.metadata.metadata_store import MetadataFile, MetadataStore
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

FOLDER: Final = ROOT / "build" / "e2e-admin-many"
TOPICS: Final = 10_000
_QUEUES: Final = 4
_VISITS: Final = 3
_PAGES: Final = {
    "overview": "/",
    "replication": "/replication",
    "topics": "/topics",
    "topics_last": f"/topics?page={TOPICS // 50}",
    "topics_search": "/topics?search=05000",
    "topic": "/topics/many-05000",
    "groups": "/groups",
    "messages": "/messages?topic=many-05000",
    "events": "/events",
    "brokers": "/brokers",
}
# From the start of the navigation to where a click or a key is answered: parsed, deferred scripts done, a frame drawn.
_INTERACTIVE: Final = """() => new Promise(told => requestAnimationFrame(() => setTimeout(() => told(
    Math.max(performance.now(), performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd)
))))"""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def many() -> Iterator[LiveCluster]:
    """Two masters that had 10,000 topics each when they started, and some messages."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for master in MASTERS:
        _write_topics(FOLDER / "data" / "store" / master)
    with LiveCluster(FOLDER / "data", preset="2m-noslave") as cluster, Shell(FOLDER) as shell:
        for line in ("seq 200 | tandemmq produce many-05000", "tandemmq consume many-05000 --group readers --count 50"):
            answer = shell.run(line)
            assert answer.code == 0, answer.output
        yield cluster


def test_a_topic_is_found_among_many(many: LiveCluster, browser: Browser) -> None:
    with open_console(browser, many.admin_url) as console:
        console.open("/topics")
        assert "10,000" in console.page.locator(".paging").first.inner_text()
        console.type("Part of the name", "many-0500")
        console.press("Search")
        expect(console.page.locator("main tbody tr")).to_have_count(10)
        console.follow("many-05003")
        console.expect_heading("many-05003")
        assert console.faults == []


def test_pages_are_interactive(many: LiveCluster, browser: Browser, note: Note) -> None:
    for name, path in _PAGES.items():
        times = []
        for _ in range(_VISITS):
            with open_console(browser, many.admin_url) as console:
                status = console.page.goto(f"{console.url}{path}", wait_until="commit")
                assert status is not None
                console.page.wait_for_load_state("domcontentloaded")
                times.append(console.page.evaluate(_INTERACTIVE) / 1000)
                assert status.status == 200, path
                assert console.faults == []
        note(f"page_interactive_{name}", round(statistics.median(times), 3), "s")


def _write_topics(store: Path) -> None:
    table = TopicTable()
    for number in range(TOPICS):
        table.put(TopicConfig(f"many-{number:05}", _QUEUES, _QUEUES), now_ms=round(time.time() * 1000))
    store.mkdir(parents=True)
    MetadataStore(PosixDisk(store)).persist(MetadataFile.TOPICS, table.to_json())

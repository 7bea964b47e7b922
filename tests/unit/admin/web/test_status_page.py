"""The page shows what `tandemmq status` prints, and nothing it shows can become markup."""

from __future__ import annotations

import re
from dataclasses import replace

from admin.cluster_state import ClusterState
from admin.web import StatusPage
from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, with_broker

_PAGE = StatusPage(refresh_ms=2_000)


async def _html(state: ClusterState) -> str:
    cluster, _, clock = cached(state)
    reading = await cluster.read_once()
    return _PAGE.status(reading, now_ms=clock.monotonic_ms())


def _text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def test_healthy_cluster_with_all_its_figures() -> None:
    text = _text(await _html(healthy_cluster()))
    assert "Skip to the content" in text
    assert "healthy" in text
    assert "broker-a serving, 1 of 1 slaves in sync" in text
    for fact in ("SYNC_MASTER", "1,234,567", "broker-a:0 → broker-a:1", "127.0.0.1:9877", "127.0.0.1:8081", "67 B"):
        assert fact in text
    assert "What to do" not in text


async def test_findings_come_with_their_remedies() -> None:
    text = _text(await _html(with_broker(healthy_cluster(), master(slaves=()))))
    assert "degraded" in text
    assert "sends are answered SLAVE_NOT_AVAILABLE" in text
    assert "start the slave of this group" in text
    assert "0 of 1 needed slaves in sync" in text


async def test_silent_broker_is_shown_with_its_reason() -> None:
    lost = replace(master(), status=None, error="UNAVAILABLE: refused", registered=False)
    text = _text(await _html(with_broker(healthy_cluster(), lost)))
    assert "broker-a:0 not registered does not answer: UNAVAILABLE: refused" in text
    assert "broker-a no working master" in text


def test_page_before_the_first_reading_says_so() -> None:
    assert "The cluster has not been read yet." in _text(_PAGE.status(None, now_ms=0))


async def test_what_a_broker_says_is_text() -> None:
    html = await _html(with_broker(healthy_cluster(), master(write_refusal="<script>alert(1)</script>")))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


async def test_page_loads_its_own_files_only() -> None:
    html = await _html(healthy_cluster())
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert loaded
    assert all(re.match(r"/(?!/)|#main$", address) for address in loaded)
    assert {address.split("?")[0].removeprefix("/static/") for address in loaded if "/static/" in address} <= set(
        _PAGE.templates.static_files
    )
    assert "style=" not in html
    assert re.findall(r"<script[^>]*>(.*?)</script>", html) == [""]

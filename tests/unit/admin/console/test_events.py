"""Events of all brokers and of operators, filtered."""

from __future__ import annotations

from support.console_client import Page, console_client
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.console.events import add_event_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import EventLine, Unseen


async def _events(query: str = "", operations: FakeOperations | None = None, status: int = 200) -> Page:
    async with console_client(operations or FakeOperations(), add_event_pages) as client:
        return await client.get(f"/events{query}", status=status)


async def test_newest_first_with_fields_and_links() -> None:
    page = await _events()
    assert page.text.index("operator change") < page.text.index("slave connected") < page.text.index("slave lost")
    assert "reason= timed out lag= 3120" in page.text
    assert "/brokers/broker-a:0" in page.links()
    assert "&lt;refused&gt; &amp; gone" in page.html
    assert "60 s ago" in page.text


async def test_filters_by_level_source_and_text() -> None:
    worse = await _events("?level=warning")
    assert "slave lost" in worse.text
    assert "master unreachable" in worse.text
    assert "slave connected" not in worse.text
    assert "slave connected" not in (await _events("?source=broker-b:1")).text
    assert "1 events" in (await _events("?search=TIMED%20out")).text
    assert "No event matches" in (await _events("?search=nonsense")).text
    assert '<option value="gone:0" selected>' in (await _events("?source=gone:0")).html


async def test_nothing_has_happened() -> None:
    assert "Nothing has happened yet" in (await _events(operations=FakeOperations(empty=True))).text


async def test_who_could_not_be_asked_is_said() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-c:0", "does not answer: refused"),)
    assert "broker-c:0 does not answer: refused" in (await _events(operations=operations)).text


async def test_nobody_answers() -> None:
    operations = FakeOperations()
    operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers", remedy="see whether they run")
    page = await _events(operations=operations, status=503)
    assert "no broker answers" in page.text
    assert "see whether they run" in page.text


async def test_five_hundred_events_are_pages_and_long_values_are_cut() -> None:
    operations = FakeOperations()
    operations.cluster.events = [
        EventLine(NOW_MS - number, "broker-a:0", "info", f"tick_{number % 2}", {"text": "x" * 10_000})
        for number in range(250)
    ]
    page = await _events("?page=3", operations)
    assert "201–250 of 250 events" in page.text
    assert "(10,000 characters)" in page.text
    assert len(page.html) < 100_000


async def test_what_is_told_again_and_again_hides_nothing() -> None:
    operations = FakeOperations()
    stalls = [
        EventLine(NOW_MS - 1_000 * number, "broker-a:0", "warning", "event_loop_stalled", {"duration_ms": str(number)})
        for number in range(1, 400)
    ]
    operations.cluster.events = [
        *stalls[:200],
        EventLine(NOW_MS - 200_500, "broker-a:1", "error", "log_cut", {}),
        *stalls[200:],
        EventLine(NOW_MS - 500_000, "broker-a:0", "info", "slave_connected", {}),
    ]
    page = await _events("", operations)
    assert page.text.count("event loop stalled") == 1
    assert "399 times since" in page.text
    assert "log cut" in page.text
    assert page.text.index("event loop stalled") < page.text.index("log cut") < page.text.index("slave connected")
    assert "399 times" not in (await _events("?source=broker-a:1", operations)).text

"""The page of settings: what is not the default where, and the zone in which pages show times."""

from __future__ import annotations

from support.console_client import console_client
from support.fake_operations import FakeOperations
from tandemmq.admin.console.brokers import add_event_pages
from tandemmq.admin.console.settings import add_settings_pages, setting_rows
from tandemmq.admin.operations.values import Setting


def _setting(key: str, value: str, *, origin: str = "configured") -> Setting:
    return Setting(key, value, "72", origin, True, "What it means.")


def test_where_brokers_disagree_comes_first_and_defaults_and_places_are_left_out() -> None:
    rows = setting_rows(
        {
            "broker-a:0": [_setting("b", "48"), _setting("a", "24"), _setting("c", "72"), _setting("listenPort", "1")],
            "broker-b:0": [_setting("b", "36"), _setting("a", "24"), _setting("c", "72"), _setting("listenPort", "2")],
        }
    )
    assert [(row.key, row.disagrees) for row in rows] == [("b", True), ("a", False)]
    assert rows[1].values == (("24", "configured", ("broker-a:0", "broker-b:0")),)


async def test_a_zone_that_was_chosen_is_that_of_every_page() -> None:
    async with console_client(FakeOperations(), add_settings_pages, add_event_pages) as client:
        before = await client.get("/events")
        assert "when (UTC)" in before.text
        page = await client.post("/settings/zone", {"zone": "Asia/Tokyo"})
        assert "Times are shown in Asia/Tokyo" in page.text
        assert '<option value="Asia/Tokyo" selected>' in page.html
        after = await client.get("/events")
        assert "when (Asia/Tokyo)" in after.text
        # Three o'clock in the morning in UTC is noon there.
        assert "2026-11-22 03:50:00.000" in before.text
        assert "2026-11-22 12:50:00.000" in after.text
        assert 'datetime="2026-11-22T03:50:00.000Z"' in after.html, "for machines it stays as it was"


async def test_a_zone_that_there_is_not_is_refused() -> None:
    async with console_client(FakeOperations(), add_settings_pages) as client:
        page = await client.post("/settings/zone", {"zone": "Mars/Olympus"}, status=422)
        assert "none that is known here" in page.text

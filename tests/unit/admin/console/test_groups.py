"""Pages of consumer groups: lag by queue, and changes that are seen before they are made."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest

from support.console_client import console_of
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.audit_log import Role
from tandemmq.admin.console import groups as groups_pages
from tandemmq.admin.console.groups import add_group_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import Unseen

_console = console_of(add_group_pages)


async def test_list_shows_lag_members_and_what_is_read() -> None:
    async with _console() as console:
        page = await console.get("/groups")
        assert "billing 18 24 2 orders , payments concurrent 16" in page.text
        assert "shipping disabled 0 0 0" in page.text
        assert "newcomer 0 0 0 nothing yet" in page.text
        assert "/groups/audit%7Ceu%251" in page.links()
        assert "No group has “zzz” in its name" in (await console.get("/groups?search=zzz")).text


async def test_the_group_that_is_furthest_behind_is_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = FakeOperations()
    usual = operations.cluster.groups["billing"]
    for number in range(120):
        operations.cluster.groups[f"a-{number:03}"] = replace(usual, name=f"a-{number:03}")
    async with _console(operations) as console:
        assert "/groups/billing" not in (await console.get("/groups")).links(), "it is not among the first by name"
        page = await console.get("/groups?order=lag")
        groups = [link for link in page.links() if link.startswith("/groups/")]
        assert groups[0] == "/groups/billing"
        assert len(set(groups)) == len(groups) == 50
        assert "/groups?page=2&order=lag" in page.links()
        others = [await console.get(f"/groups?order=lag&page={number}") for number in (2, 3)]
        shown = {*groups, *(link for other in others for link in other.links() if link.startswith("/groups/"))}
        assert len(shown) == 124, "every group is on one of the pages"
        assert "are not in this list" not in page.text
        # A number that nobody measures at once.
        monkeypatch.setattr(groups_pages, "_ORDERED_MAX", 100)
        cut = await console.get("/groups?order=lag")
        assert "Only the first 100 by name are measured and ordered; 24 more are not in this list" in cut.text
        assert "/groups?page=2&order=lag" in cut.links()
        assert "/groups?page=3&order=lag" not in cut.links()


async def test_group_shows_lag_by_queue_and_members() -> None:
    async with _console() as console:
        page = await console.get("/groups/billing")
    for fact in (
        "lag 18",
        "dead letters 3",
        "orders lacks 12, the oldest for 3 min 0 s, 16 in flight",
        "broker-a, 0 5 8 3 2 3 min 0 s what waits",
        "billing-7d9f@4711@1 simple consumer JAVA 5.0.7",
    ):
        assert fact in page.text, fact
    assert "/messages?topic=orders&broker=broker-a&queue=0&offset=5" in page.links()
    assert "/dead-letters/billing" in page.links()


async def test_groups_without_anything_say_so() -> None:
    async with _console() as console:
        page = await console.get("/groups/newcomer")
        assert "It has not read anything yet" in page.text
        assert "No consumer of this group is connected" in page.text
        assert "This group is disabled" in (await console.get("/groups/shipping")).text
        await console.get(f"/groups/{quote('audit|eu%1', safe='')}")


async def test_lag_that_nobody_works_off_is_told_only_if_all_was_seen() -> None:
    operations = FakeOperations()
    operations.cluster.clients = []
    operations.cluster.groups["billing"] = replace(operations.cluster.groups["billing"], member_count=0)
    async with _console(operations) as console:
        assert "billing nobody reads 18" in (await console.get("/groups")).text
        assert "no consumer of this group is connected." in (await console.get("/groups/billing")).text
        operations.unseen = (Unseen("broker-b:0", "does not answer"),)
        assert "nobody reads" not in (await console.get("/groups")).text
        page = await console.get("/groups/billing")
    assert "18 messages behind, and no consumer" not in page.text
    assert "broker-b:0 does not answer" in page.text
    assert "lag 18 of what can be seen in flight" in page.text


async def test_group_is_made_once() -> None:
    operations = FakeOperations()
    fields = {"name": "fresh", "retry_max_times": "3", "ordered": "true", "enabled": "true"}
    async with _console(operations) as console:
        page = await console.post("/new-group", fields)
        assert page.address == "/groups/fresh"
        assert "Group fresh was created." in page.text
        assert "Delivers each message group in order; a message that fails is delivered 3 times more" in page.text
        again = await console.post("/new-group", fields, status=409)
        assert "there is a group fresh already" in again.text
        wrong = await console.post("/new-group", {"name": "ü", "retry_max_times": "-1"}, status=422)
    assert "use only the characters" in wrong.text
    assert "Write a number from 0 to 1,000." in wrong.text


async def test_attributes_of_a_group_are_set_shown_and_refused_in_words() -> None:
    operations = FakeOperations()
    fields = {
        "retry_max_times": "16",
        "enabled": "true",
        "attributes": "lite.bind.topic=sessions, lite.sub.model=Shared",
    }
    async with _console(operations) as console:
        review = await console.post("/groups/billing/edit", fields)
        await console.post("/groups/billing/edit", review.fields())
        assert operations.cluster.groups["billing"].attributes["lite.bind.topic"] == "sessions"
        page = await console.get("/groups/billing/edit")
        assert 'value="lite.bind.topic=sessions, lite.sub.model=Shared"' in page.html
        wrong = await console.post("/groups/billing/edit", fields | {"attributes": "lite"}, status=422)
    assert "Attribute 'lite': write NAME=VALUE, or NAME= to remove it." in wrong.text


async def test_group_is_changed_after_a_look() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        review = await console.post(
            "/groups/billing/edit", {"retry_max_times": "5", "ordered": "true", "enabled": "true"}
        )
        assert "Messages that were tried more often" in review.text
        assert operations.cluster.groups["billing"].retry_max_times == 16
        done = await console.post("/groups/billing/edit", review.fields())
    assert "Group billing was changed." in done.text
    assert operations.cluster.groups["billing"] == replace(
        FakeOperations().cluster.groups["billing"], retry_max_times=5, ordered=True
    )


async def test_group_is_disabled_and_enabled_by_its_button() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/groups/billing")
        for word, enabled in (("Disable", False), ("Enable", True)):
            review = await console.post("/groups/billing/edit", page.fields())
            assert f"{word} billing" in review.text
            page = await console.post("/groups/billing/edit", review.fields())
            assert f"Group billing was {word.lower()}d." in page.text
            assert operations.cluster.groups["billing"].enabled is enabled
    assert operations.cluster.groups["billing"].retry_max_times == 16


async def test_group_with_members_is_deleted_only_if_that_is_meant() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/groups/billing/delete")
        assert "Its progress is forgotten in orders, payments." in page.text
        assert "group billing has 2 members" in page.text
        wrong = await console.post("/groups/billing/delete", {"typed": "bill", "even_with_members": "true"}, status=422)
        assert "Type billing to delete it." in wrong.text
        refused = await console.post("/groups/billing/delete", {"typed": "billing"}, status=422)
        assert 'id="even_with_members-error"' in refused.html
        assert "billing" in operations.cluster.groups
        done = await console.post("/groups/billing/delete", {"typed": "billing", "even_with_members": "true"})
    assert "Group billing was deleted." in done.text
    assert "billing" not in operations.cluster.groups


async def test_reset_shows_what_it_does_and_keeps_the_moment() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        form = await console.get("/groups/billing/reset?topic=payments")
        assert '<option value="payments" selected>' in form.html
        review = await console.post("/groups/billing/reset", {"topic": "orders", "target": "time", "time": "15m"})
        assert (
            "billing goes on in orders with the first message stored at 2026-11-22 03:45:00.000 15 min ago"
            in review.text
        )
        assert "3 messages will be delivered again." in review.text
        assert "in clients' hands may be consumed twice." in review.text
        assert "broker-a, 1 5 4 back 1 8 2" in review.text
        assert operations.cluster.resets == {}
        # Somebody thinks about it for a while.
        console.clock.advance(600_000)
        assert review.fields()["time"] == [str(NOW_MS - 900_000)]
        done = await console.post("/groups/billing/reset", review.fields())
    assert done.address == "/groups/billing"
    assert "8 queues were set." in done.text
    assert [move.to_offset for move in operations.cluster.resets["billing", "orders"]] == [5, 4, 0, 0, 4, 4, 0, 0]


async def test_reset_to_both_ends() -> None:
    async with _console() as console:
        page = await console.post("/groups/billing/reset", {"topic": "orders", "target": "earliest"})
        assert "20 messages will be delivered again." in page.text
        page = await console.post("/groups/billing/reset", {"topic": "orders", "target": "latest"})
        assert "12 messages will be skipped." in page.text
        page = await console.post("/groups/newcomer/reset", {"topic": "orders", "target": "latest"})
    assert "8 of 8 queues have never been read by this group" in page.text
    assert "never read" in page.text


async def test_reset_with_wrong_fields() -> None:
    async with _console() as console:
        page = await console.post("/groups/billing/reset", {"target": "time", "time": "yesterday"}, status=422)
        assert "Name a topic." in page.text
        assert "'yesterday' is no moment" in page.text
        page = await console.post("/groups/billing/reset", {"topic": "orders", "target": "time"}, status=422)
        assert "Write a moment for this choice." in page.text
        page = await console.post("/groups/billing/reset", {"topic": "orders", "target": "x"}, status=422)
        assert "Choose one." in page.text
        page = await console.post("/groups/billing/reset", {"topic": "gone", "target": "latest"}, status=404)
        assert "there is no topic gone" in page.text


async def test_what_fails_is_told_and_nothing_is_lost() -> None:
    operations = FakeOperations()
    failure = OperationFailed(FailureKind.PARTIAL, "broker-b:0 did not do it", cause="no answer", remedy="do it again")
    operations.failures = {"put_group": failure, "reset_offsets": failure, "delete_group": failure}
    async with _console(operations) as console:
        page = await console.post("/new-group", {"name": "fresh", "retry_max_times": "4"}, status=502)
        assert 'value="fresh"' in page.html
        for part, fields in (("reset", {"topic": "orders", "target": "latest"}), ("delete", {"typed": "billing"})):
            page = await console.post(f"/groups/billing/{part}", fields, status=502)
            assert "broker-b:0 did not do it : no answer do it again" in page.text


async def test_viewer_changes_nothing() -> None:
    operations = FakeOperations()
    async with _console(operations, Role.VIEWER) as console:
        page = await console.get("/groups/billing")
        assert not [link for link in page.links() if link.endswith(("/edit", "/delete", "/reset"))]
        for part in ("edit", "delete", "reset"):
            await console.get(f"/groups/billing/{part}", status=403)
            await console.post(f"/groups/billing/{part}", {"typed": "billing", "confirm": "true"}, status=403)
    assert operations.cluster.groups == FakeOperations().cluster.groups

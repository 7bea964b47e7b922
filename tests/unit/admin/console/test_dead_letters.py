"""Pages of dead letters: sent again after a look, once, and only those that were meant."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Final

import pytest

from support.console_client import console_of
from support.fake_operations import FakeOperations
from tandemmq.admin.audit_log import Role
from tandemmq.admin.console import messages
from tandemmq.admin.console.answers import DOWNLOADS_MAX
from tandemmq.admin.console.dead_letters import add_dead_letter_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import DeadLetterResult, MessagePage, MessageQuery, Unseen

_console = console_of(add_dead_letter_pages)
# In the order of the page.
_PLACES: Final = [("broker-a", 1), ("broker-b", 0), ("broker-a", 0)]


async def test_groups_that_have_some() -> None:
    async with _console() as console:
        page = await console.get("/dead-letters")
        assert "billing 3 3 broker-a, broker-b %DLQ%billing" in page.text
        assert "/dead-letters/billing" in page.links()
        assert "No group with “zz” in its name" in (await console.get("/dead-letters?search=zz")).text
    async with _console(FakeOperations(empty=True)) as console:
        assert "There are no dead letters" in (await console.get("/dead-letters")).text
        assert "there is no group other" in (await console.get("/dead-letters/other", status=404)).text
    async with _console() as console:
        assert "This group has no dead letters" in (await console.get("/dead-letters/shipping")).text


async def test_letters_of_a_group() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-b:0", "does not answer"),)
    async with _console(operations) as console:
        page = await console.get("/dead-letters/billing")
        assert "order-2" in page.text
        assert "broker-b:0 does not answer" in page.text
        assert page.html.count('type="checkbox" name="letter"') == 3
        none = await console.get("/dead-letters/other")
        assert "This group has no dead letters" in none.text
        assert "broker-b:0 does not answer" in none.text
        operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers")
        assert "no broker answers" in (await console.get("/dead-letters/billing", status=503)).text


async def test_all_letters_are_downloaded_whole_a_line_each() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/dead-letters/billing")
        assert "/dead-letters/billing/download" in page.links()
        found = await console.answer("/dead-letters/billing/download")
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''dead-letters-billing.ndjson"
        letters = [json.loads(line) for line in found.text.splitlines()]
        assert [(one["broker_name"], one["queue_offset"]) for one in letters] == _PLACES
        assert all(len(base64.b64decode(one["body_base64"])) == one["body_size"] for one in letters)
        operations.unseen = (Unseen("broker-b:0", "does not answer"),)
        *_, last = (await console.answer("/dead-letters/billing/download")).text.splitlines()
        assert json.loads(last) == {"missing": {"broker-b:0": "does not answer"}}
        assert (await console.answer("/dead-letters/shipping/download")).text == last + "\n"
        operations.unseen = ()
        assert (await console.answer("/dead-letters/shipping/download")).text == ""
        assert "there is no group other" in (await console.get("/dead-letters/other/download", status=404)).text
        operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers")
        assert "no broker answers" in (await console.get("/dead-letters/billing/download", status=503)).text


async def test_a_download_that_breaks_off_says_so_in_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_DOWNLOADED_AT_ONCE", 1)
    operations = FakeOperations()
    search, asked = operations.search, []

    async def breaking(query: MessageQuery) -> MessagePage:
        asked.append(query)
        if len(asked) == 3:
            raise OperationFailed(FailureKind.UNAVAILABLE, "no broker answers", cause="gone")
        return await search(query)

    monkeypatch.setattr(operations, "search", breaking)
    async with _console(operations) as console:
        lines = [
            json.loads(line) for line in (await console.answer("/dead-letters/billing/download")).text.splitlines()
        ]
    assert len(lines) == 3
    assert lines[-1] == {"missing": {"the rest": "no broker answers; gone"}}


async def test_downloads_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps megabytes until its browser has read them."""
    operations = FakeOperations()
    search, may_go_on = operations.search, asyncio.Event()
    begun = 0

    async def waiting(query: MessageQuery) -> MessagePage:
        nonlocal begun
        begun += 1
        await may_go_on.wait()
        return await search(query)

    monkeypatch.setattr(operations, "search", waiting)
    path = "/dead-letters/billing/download"
    async with _console(operations) as console:
        async with asyncio.TaskGroup() as group:
            some = [group.create_task(console.answer(path)) for _ in range(DOWNLOADS_MAX)]
            while begun < DOWNLOADS_MAX:
                await asyncio.sleep(0)
            refused = await console.get(path, status=503)
            given_up = some.pop()
            given_up.cancel()
            may_go_on.set()
        assert f"{DOWNLOADS_MAX} downloads are under way already" in refused.text
        assert {one.result().status_code for one in some} == {200}
        # Those that have ended are not counted any more, however they did.
        async with asyncio.TaskGroup() as group:
            some = [group.create_task(console.answer(path)) for _ in range(DOWNLOADS_MAX)]
        assert {one.result().status_code for one in some} == {200}


async def test_selected_letters_are_sent_after_a_look() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        fields = {"which": "selected", "letter": ["broker-a/1", "broker-b/0"], "shown": ["broker-a/0"]}
        review = await console.post("/dead-letters/billing/resend", fields)
        assert "Resend 2 dead letters of billing" in review.text
        assert "broker-a, 1 orders would be sent" in review.text
        assert operations.cluster.resent == []
        done = await console.post("/dead-letters/billing/resend", review.fields())
    assert done.address == "/dead-letters/billing"
    assert "2 of 2 dead letters were sent again. 2 sent to orders" in done.text
    assert [(one.broker_name, one.queue_offset) for one in operations.cluster.resent] == [
        ("broker-a", 1),
        ("broker-b", 0),
    ]


async def test_form_that_is_sent_twice_sends_once() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        review = await console.post("/dead-letters/billing/resend", {"which": "shown", "shown": "broker-a/1"})
        await console.post("/dead-letters/billing/resend", review.fields())
        again = await console.post("/dead-letters/billing/resend", review.fields())
    assert "nothing was sent a second time" in again.text
    assert len(operations.cluster.resent) == 1


async def test_letter_that_cannot_be_sent_is_left_out() -> None:
    async with _console() as console:
        review = await console.post("/dead-letters/billing/resend", {"letter": ["broker-a/1", "broker-a/77"]})
        assert "1 of 2 cannot be sent" in review.text
        assert "broker-a, 77 – there is no such dead letter" in review.text
        assert review.fields()["letter"] == ["broker-a/1"]
        none = await console.post("/dead-letters/billing/resend", {"letter": "broker-a/77"})
    assert "confirm" not in none.fields()


async def test_nothing_selected_and_too_much() -> None:
    async with _console() as console:
        page = await console.post("/dead-letters/billing/resend", {"which": "selected"}, status=422)
        assert "Select the letters to resend." in page.text
        many = [f"broker-a/{number}" for number in range(101)]
        page = await console.post("/dead-letters/billing/resend", {"letter": many}, status=422)
        assert "Select at most 100 letters." in page.text
        page = await console.post("/dead-letters/billing/resend", {"letter": ["../x", "broker-a/-1"]}, status=422)
        assert "Select the letters to resend." in page.text


async def test_one_broker_that_fails_does_not_hide_what_the_other_did() -> None:
    class HalfDown(FakeOperations):
        async def resend_dead_letters(
            self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
        ) -> Sequence[DeadLetterResult]:
            if broker_name == "broker-a" and not dry_run:
                raise OperationFailed(FailureKind.UNAVAILABLE, "broker-a:0 does not answer")
            return await super().resend_dead_letters(group, broker_name, queue_offsets, dry_run=dry_run)

    async with _console(HalfDown()) as console:
        review = await console.post("/dead-letters/billing/resend", {"letter": ["broker-a/1", "broker-b/0"]})
        done = await console.post("/dead-letters/billing/resend", review.fields())
    assert "1 of 2 dead letters were sent again." in done.text
    assert "broker-a, 1: not sent: broker-a:0 does not answer" in done.text
    assert "1 sent to orders" in done.text


async def test_viewer_may_look_only() -> None:
    operations = FakeOperations()
    async with _console(operations, Role.VIEWER) as console:
        page = await console.get("/dead-letters/billing")
        assert "Resend" not in page.text
        assert "checkbox" not in page.html
        await console.post("/dead-letters/billing/resend", {"letter": "broker-a/1", "confirm": "true"}, status=403)
    assert operations.cluster.resent == []

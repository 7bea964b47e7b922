"""Pages of messages: searches with every kind of answer, the tail, and one message with everything about it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from support.cluster_states import master
from support.console_client import console_client, console_of
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.audit_log import Role
from tandemmq.admin.cluster_state import ClusterState, DelayedState
from tandemmq.admin.console import messages
from tandemmq.admin.console.messages import add_message_pages
from tandemmq.admin.console.settings import add_settings_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessagePage, MessageQuery, Unseen

_console = console_of(add_message_pages)


def _address(operations: FakeOperations, place: int, topic: str = "orders") -> str:
    message = [each for each in operations.cluster.messages if each.topic == topic][place]
    return f"/message?broker={message.broker_name}&offset={message.physical_offset}"


async def test_form_alone() -> None:
    async with _console() as console:
        page = await console.get("/messages")
    assert "Which messages?" in page.text
    assert "No message matches" not in page.text


async def test_newest_of_a_topic() -> None:
    async with _console() as console:
        page = await console.get("/messages?topic=orders")
    assert page.text.index("order-31") < page.text.index("order-30")
    assert "32 messages this is all" in page.text
    assert "/messages?topic=orders&key=order-31" in page.links()
    assert "<script>alert" not in page.html
    assert "<script>alert('from a message')</script>" in page.text


async def test_search_by_key_tag_and_time() -> None:
    async with _console() as console:
        page = await console.get("/messages?topic=orders&key=order-7")
        assert "1 message this is all" in page.text
        page = await console.get("/messages?topic=orders&tag=paid&from=10m&to=5m")
        assert "2 messages this is all" in page.text
        page = await console.get("/messages?topic=orders&key=none")
    assert "No message matches" in page.text


async def test_what_is_found_can_be_downloaded_whole_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/messages?topic=orders&tag=paid&from=10m&to=5m")
        (link,) = (each for each in page.links() if "/download" in each)
        # Moments are written out: the file has what the page has.
        assert f"from={NOW_MS - 600_000}&to={NOW_MS - 300_000}" in link
        found = await console.answer(link)
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''messages-orders.ndjson"
        assert [json.loads(line)["tag"] for line in found.text.splitlines()] == ["paid", "paid"]
        oldest = await console.answer("/messages/download?topic=orders&order=oldest")
        lines = [json.loads(line) for line in oldest.text.splitlines()]
        assert [one["store_ms"] for one in lines] == sorted(one["store_ms"] for one in lines)
        assert len(lines) == 32
        whole = [one for one in lines if len(base64.b64decode(one["body_base64"])) == one["body_size"]]
        # Of the other one the size is that of the body as it is stored, packed.
        assert len(whole) == 31
        monkeypatch.setattr(messages, "_DOWNLOADED_AT_ONCE", 5)
        monkeypatch.setattr(messages, "_DOWNLOADED_MAX", 10)
        *some, last = (await console.answer("/messages/download?topic=orders")).text.splitlines()
        assert len(some) == 10
        assert "a download ends after 10 messages" in json.loads(last)["missing"]["the rest"]
        assert (await console.answer("/messages/download?topic=orders&key=none")).text == ""


async def test_a_download_of_a_wrong_question_says_what_is_wrong() -> None:
    async with _console() as console:
        assert "there is no topic other" in (await console.get("/messages/download?topic=other", status=404)).text
        wrong = await console.answer("/messages/download?topic=orders&from=yesterday")
        assert (wrong.status_code, wrong.headers["location"]) == (303, "/messages?topic=orders&from=yesterday")
        page = await console.get("/messages")
    assert not [each for each in page.links() if "/download" in each]


async def test_search_from_an_offset() -> None:
    async with _console() as console:
        page = await console.get("/messages?topic=orders&broker=broker-a&queue=0&offset=6")
    assert "2 messages this is all" in page.text
    assert "<details open>" in page.html


async def test_next_page_writes_moments_out() -> None:
    asked: list[MessageQuery] = []

    class Endless(FakeOperations):
        async def search(self, query: MessageQuery) -> MessagePage:
            asked.append(query)
            return MessagePage((), "token/1", 5_000)

    async with _console(Endless()) as console:
        page = await console.get("/messages?topic=orders&from=2h&tag=paid+%7C%7C+created")
        assert "5,000 messages were looked at, and there are more." in page.text
        (further,) = [link for link in page.links() if "page_token" in link]
        console.clock.advance(60_000)
        await console.get(further)
    assert asked[0].tags == ("paid", "created")
    assert asked[1] == replace(asked[0], page_token="token/1")
    assert asked[1].start_ms == NOW_MS - 7_200_000


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("key=1", "Name a topic"),
        ("topic=orders&from=yesterday", "'yesterday' is no moment"),
        ("topic=orders&from=5m&to=10m", "This is not after the beginning."),
        ("topic=orders&queue=0", "Each broker group has a queue of this number"),
        ("topic=orders&offset=3", "An offset belongs to a queue"),
        ("topic=orders&broker=broker-a&queue=-1", "Write a number, from 0."),
        ("topic=orders&broker=broker-a&queue=0&key=1", "A key is looked for in all queues"),
    ],
)
async def test_fields_that_are_wrong(query: str, problem: str) -> None:
    async with _console() as console:
        page = await console.get(f"/messages?{query}", status=422)
    assert problem in page.text
    assert "No message matches" not in page.text


async def test_topic_that_is_not_there_brings_those_it_may_be() -> None:
    async with _console() as console:
        page = await console.get("/messages?topic=ORDER", status=404)
    assert "there is no topic ORDER" in page.text
    assert "Did you mean orders ?" in page.text


async def test_what_cannot_be_seen_is_told() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-b:0", "does not answer"),)
    async with _console(operations) as console:
        for address in ("/messages?topic=orders", "/messages/waiting", _address(operations, 0)):
            assert "broker-b:0 does not answer" in (await console.get(address)).text
        operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers")
        for address in ("/messages?topic=orders", "/messages/tail?topic=orders", "/message?id=1"):
            assert "no broker answers" in (await console.get(address, status=503)).text


async def test_message_by_its_id() -> None:
    operations = FakeOperations()
    places = [place for place, message in enumerate(operations.cluster.messages) if message.topic == "orders"]
    first, second = (operations.cluster.messages[place] for place in places[:2])
    async with _console(operations) as console:
        page = await console.get(f"/message?id=+{first.message_id}+")
        assert page.address == f"/message?broker={first.broker_name}&offset={first.physical_offset}"
        assert "No message matches" in (await console.get("/message?id=none&in=orders")).text
        operations.cluster.messages[places[1]] = replace(second, message_id=first.message_id)
        several = await console.get(f"/message?id={first.message_id}")
    assert "2 messages" in several.text
    assert "not read for this list" in several.text
    assert _address(operations, 0) in several.links()


async def test_message_with_everything_about_it() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get(_address(operations, 0))
    for fact in (
        '{ "order": 17, "items": [ { "sku": "A-1", "count": 2 } ], "note": "fragile" }',
        "All 2 replicas hold the same bytes.",
        "billing acknowledged",
        "tenant <b>acme</b> & co",
        "UNIQ_KEY",
        "broker-a, queue 0, offset 0",
    ):
        assert fact in page.text, fact
    links = page.links()
    assert any(link.startswith("/traces?id=01AABBCCDDEEFFFDEE") for link in links)
    assert {"/topics/orders", "/groups/billing", "/dead-letters/billing"} <= set(links)
    # The first of its queue has nothing before it.
    assert "Previous" not in page.text
    assert "/message?broker=broker-a&topic=orders&queue=0&queue_offset=1" in links


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Anchorage"])
@pytest.mark.parametrize("born_ms", [253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1, -(1 << 63), 0, 1])
async def test_a_message_of_any_time_is_shown_in_any_zone(zone: str, born_ms: int) -> None:
    """Clients say when a message was born, up to the end of the year 9999, which is in the next one in the east. The
    records of another store, and damaged ones, have any number."""
    operations = FakeOperations()
    operations.cluster.messages = [replace(each, born_ms=born_ms) for each in operations.cluster.messages]
    async with console_client(operations, add_message_pages, add_settings_pages) as console:
        await console.post("/settings/zone", {"zone": zone})
        page = await console.get(_address(operations, 0))
    assert "All 2 replicas hold the same bytes." in page.text


async def test_body_in_other_forms() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get(_address(operations, 0) + "&view=hex")
        assert "00000000 7b 22 6f 72 64 65 72 22" in page.text
        assert "has no" not in page.text
        page = await console.get(_address(operations, 0) + "&view=text")
        assert '{"order": 17, "items"' in page.text
        assert "The body is empty" in (await console.get(_address(operations, 2))).text
        page = await console.get(_address(operations, 3))
        assert "00000000 00 01 fe ff 62 69 6e 61 72 79 ....binary" in page.text
        page = await console.get(_address(operations, 6))
        assert "128.0 KiB; the first 64.0 KiB are shown" in page.text
        page = await console.get(_address(operations, 10))
    assert "The body cannot be shown: the compressed body is damaged" in page.text


async def test_body_is_saved_and_never_shown() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        answer = await console.answer(_address(operations, 4).replace("/message?", "/message/body?"))
        assert answer.content == b"<script>alert('from a message')</script>"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert answer.headers["x-content-type-options"] == "nosniff"
        broken = await console.answer(_address(operations, 10).replace("/message?", "/message/body?"))
    assert broken.status_code == 409


async def test_a_body_that_was_saved_in_part_says_so_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.admin.console.messages._DOWNLOAD_BYTES", 8)
    operations = FakeOperations()
    async with _console(operations) as console:
        answer = await console.answer(_address(operations, 4).replace("/message?", "/message/body?"))
    assert answer.content == b"<script>"
    assert ".first-" in answer.headers["content-disposition"]


async def test_dead_letter_leads_to_its_group_and_topic() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get(_address(operations, 0, "%DLQ%billing"))
    assert "A dead letter of billing: it was delivered 16 times without success." in page.text
    assert {"/dead-letters/billing", "/groups/billing", "/topics/orders"} <= set(page.links())


async def test_message_that_is_gone() -> None:
    async with _console() as console:
        page = await console.get("/message?broker=broker-a&offset=7", status=404)
        assert "no message begins at 7 on broker-a" in page.text
        page = await console.get("/message?broker=broker-a&topic=orders&queue=0&queue_offset=99", status=404)
        assert "Queue 0 on broker-a has no message at offset 99" in page.text
        assert "/messages?topic=orders&broker=broker-a&queue=0&offset=99" in page.links()
        assert "/message?broker=broker-a&topic=orders&queue=0&queue_offset=98" in page.links()
        assert (await console.get("/message")).address == "/messages"


async def test_tail_marks_what_came_after_it_was_opened() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/messages/tail?topic=orders&tag=paid")
        assert page.address == f"/messages/tail?topic=orders&tag=paid&since={NOW_MS}"
        assert 'data-live-ms="2000"' in page.html
        assert 'class="new"' not in page.html
        newest = operations.cluster.messages[-1]
        operations.cluster.messages.append(
            replace(newest, topic="orders", tag="paid", store_ms=NOW_MS + 500, physical_offset=9, message_id="fresh")
        )
        console.clock.advance(2_000)
        page = await console.get(page.address)
        assert page.html.count('class="new"') == 1
        assert "fresh" in page.text
        assert "data-live-ms" not in (await console.get(f"{page.address}&paused=true")).html


async def test_tails_of_one_topic_are_asked_for_once_a_second() -> None:
    asked = 0

    class Counted(FakeOperations):
        async def search(self, query: MessageQuery) -> MessagePage:
            nonlocal asked
            asked += 1
            return await super().search(query)

    async with _console(Counted()) as console:
        for _ in range(5):
            await console.get("/messages/tail?topic=orders&since=1")
        assert asked == 1
        console.clock.advance(1_000)
        await console.get("/messages/tail?topic=orders&since=1")
        assert asked == 2
        for number in range(19):
            await console.get(f"/messages/tail?topic=orders&tag={number}&since=1")
        page = await console.get("/messages/tail?topic=orders&tag=19&since=1", status=409)
        assert "20 topics are watched at this moment" in page.text
        console.clock.advance(10_000)
        await console.get("/messages/tail?topic=orders&tag=19&since=1")


async def test_delayed_and_half_messages_are_not_promised() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/messages/waiting")
        assert "come from stores taken over from RocketMQ" in page.text
        assert "SCHEDULE_TOPIC_XXXX holds nothing." in page.text
        operations.cluster.messages.append(
            replace(operations.cluster.messages[0], topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
        )
        page = await console.get("/messages/waiting")
        assert "By delay level: 3: 1" in page.text
        del operations.cluster.topics["RMQ_SYS_TRANS_HALF_TOPIC"]
        assert "There is no topic RMQ_SYS_TRANS_HALF_TOPIC." in (await console.get("/messages/waiting")).text


async def test_what_waits_for_its_time_and_is_overdue_is_told_by_broker_group() -> None:
    late = DelayedState(waiting_count=1_234, next_due_ms=NOW_MS, overdue_ms=75_000, delivered_count=9, recalled_count=2)
    state = ClusterState(name_servers=(), brokers=(master(delayed=late),))
    async with console_client(FakeOperations(), add_message_pages, state=state) as console:
        page = await console.get("/messages/waiting")
    assert "1,234 1 min 15 s" in page.text
    assert "not offered" not in page.text


async def test_a_message_is_sent_again_as_a_new_one_after_a_look() -> None:
    operations = FakeOperations()
    async with console_client(operations, add_message_pages) as console:
        address = _address(operations, 0)
        assert "Send again" in (await console.get(address)).text
        review = await console.get(address.replace("/message?", "/message/again?"))
        assert "its id and times are new" in review.text
        assert not operations.cluster.sent, "nothing is sent before it is confirmed"
        first = next(
            one for one in operations.cluster.messages if _address(operations, 0).endswith(f"{one.physical_offset}")
        )
        await console.post(
            "/message/again", {"broker": first.broker_name, "offset": str(first.physical_offset)}, status=404
        )
        [sent] = operations.cluster.sent
        assert (sent.topic, sent.body, sent.tag, tuple(sent.keys)) == (
            first.topic,
            first.body,
            first.tag,
            tuple(first.keys),
        )
        assert not any(name.startswith("UNIQ_KEY") for name in sent.properties)


async def test_a_viewer_sends_nothing_again() -> None:
    operations = FakeOperations()
    async with console_client(operations, add_message_pages, role=Role.VIEWER) as console:
        address = _address(operations, 0)
        assert "Send again" not in (await console.get(address)).text
        await console.get(address.replace("/message?", "/message/again?"), status=403)

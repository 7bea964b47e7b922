"""Pages of topics: found, made, changed and removed, with what is wrong beside the field it is wrong in."""

from __future__ import annotations

from urllib.parse import quote

from support.console_client import console_of
from support.fake_operations import FakeOperations
from support.operations_samples import LONGEST_NAME, RECEIPTS
from tandemmq.admin.audit_log import Role
from tandemmq.admin.console.messages import add_message_pages
from tandemmq.admin.console.topics import add_topic_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import Unseen

_console = console_of(add_topic_pages, add_message_pages)


async def test_list_shows_topics_with_what_they_hold() -> None:
    async with _console() as console:
        page = await console.get("/topics")
    assert "orders NORMAL 2 × 4 broker-a, broker-b read and write 32 32" in page.text
    assert "half-changed NORMAL 16 read/8 write + 4" in page.text
    assert f"/topics/{quote(RECEIPTS, safe='')}" in page.links()
    assert "%DLQ%billing" not in page.text


async def test_list_is_paged_and_searched_on_the_server() -> None:
    async with _console(FakeOperations(bulk_topic_count=10_000)) as console:
        page = await console.get("/topics?search=BULK&page=3")
        assert "101–150 of 10,000 topics" in page.text
        assert "bulk-00100" in page.text
        assert len(page.html) < 100_000
        assert "/topics?page=4&search=BULK" in page.links()
        assert "The list ends before this page" in (await console.get("/topics?search=BULK&page=900")).text


async def test_every_category_can_be_listed() -> None:
    async with _console() as console:
        assert "%DLQ%billing dead letter" in (await console.get("/topics?category=dead+letter")).text
        assert "SCHEDULE_TOPIC_XXXX system" in (await console.get("/topics?category=all&search=schedule")).text


async def test_empty_lists_say_what_to_do() -> None:
    async with _console(FakeOperations(empty=True)) as console:
        assert "There is no topic yet Make the first one" in (await console.get("/topics")).text
        page = await console.get("/topics?search=nothing<b>")
        assert "No topic has “nothing<b>” in its name" in page.text
        assert "nothing<b>" not in page.html


async def test_topic_shows_queues_routes_readers_clients_and_newest_messages() -> None:
    async with _console() as console:
        page = await console.get("/topics/orders")
    for fact in (
        "messages held 32",
        "broker-a, 0 0 8 8",
        "the NameServers agree",
        "broker-a: 4 queues, read and write",
        "billing 12 16",
        "billing-7d9f@4711@1 simple consumer",
        "order-31",
    ):
        assert fact in page.text, fact
    assert {"/groups/billing", "/messages?topic=orders", "/messages/tail?topic=orders"} <= set(page.links())


async def test_names_that_need_quoting_have_their_pages() -> None:
    async with _console() as console:
        for name in (RECEIPTS, LONGEST_NAME, "%RETRY%billing"):
            page = await console.get(f"/topics/{quote(name, safe='')}")
            assert page.text.startswith(("Topics", "Skip")) or name in page.text
            for part in ("edit", "delete", "send"):
                await console.get(f"/topics/{quote(name, safe='')}/{part}")


async def test_masters_and_name_servers_that_disagree_are_told() -> None:
    async with _console() as console:
        page = await console.get("/topics/half-changed")
    assert "The masters have different settings for this topic" in page.text
    assert "NameServers give different routes" in page.text


async def test_what_cannot_be_seen_is_told_and_the_rest_is_shown() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-b:0", "does not answer"),)
    operations.failures = {
        "clients": OperationFailed(FailureKind.UNAVAILABLE, "no broker answers"),
        "search": OperationFailed(FailureKind.UNAVAILABLE, "no broker answers", cause="all refuse"),
    }
    async with _console(operations) as console:
        assert "broker-b:0 does not answer" in (await console.get("/topics")).text
        page = await console.get("/topics/orders")
    assert "broker-b:0 does not answer" in page.text
    assert "of what can be seen ever stored" in page.text
    assert "Clients cannot be listed: no broker answers." in page.text
    assert "Messages cannot be read: no broker answers: all refuse." in page.text
    assert "broker-a, 0 0 8 8" in page.text


async def test_nobody_answers() -> None:
    operations = FakeOperations()
    operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers", remedy="start one")
    async with _console(operations) as console:
        for address in ("/topics", "/topics/orders", "/topics/orders/edit"):
            page = await console.get(address, status=503)
            assert "no broker answers" in page.text
            assert "start one" in page.text


async def test_lite_topics_are_listed_and_looked_up_by_name() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/topics/sessions/lite")
        assert "session-1" in page.text
        assert "session-2" in page.text
        assert "workers: 3" in page.text
        found = await console.get("/topics/sessions/lite?search=on-2")
        assert "session-2" in found.text
        assert "session-1" not in found.text
        none = await console.get("/topics/sessions/lite?search=user")
        assert "No lite topic has “user” in its name" in none.text
        operations.failures = {
            "lite_topics": OperationFailed(FailureKind.REFUSED, "no master tells lite topics of orders")
        }
        refused = await console.get("/topics/orders/lite", status=409)
    assert "no master tells lite topics of orders" in refused.text


async def test_topic_that_is_not_there() -> None:
    async with _console() as console:
        assert "there is no topic nope" in (await console.get("/topics/nope", status=404)).text


async def test_topic_is_made() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        fields = {
            "name": "fresh",
            "message_type": "FIFO",
            "write_queues": "2",
            "read_queues": "2",
            "broker": "broker-a",
        }
        page = await console.post("/new-topic", fields)
    assert page.address == "/topics/fresh"
    assert "Topic fresh was created." in page.text
    assert "created with 2 queues to read" in page.text
    assert operations.cluster.topics["fresh"].brokers[0].message_type == "FIFO"


async def test_topic_that_is_there_is_not_made_again() -> None:
    operations = FakeOperations()
    before = operations.cluster.topics["orders"]
    async with _console(operations) as console:
        page = await console.post(
            "/new-topic", {"name": "orders", "write_queues": "1", "broker": "broker-a"}, status=409
        )
    assert "there is a topic orders already" in page.text
    assert operations.cluster.topics["orders"] == before


async def test_fields_that_are_wrong_are_told_beside_them_and_keep_what_was_typed() -> None:
    async with _console() as console:
        page = await console.post("/new-topic", {"name": "a b", "write_queues": "-1", "read_queues": "x"}, status=422)
    assert "use only the characters a-z A-Z 0-9 _ - % |" in page.text
    assert page.text.count("Write a number from 1") == 2
    assert "Choose at least one." in page.text
    assert 'value="a b"' in page.html
    assert 'aria-invalid="true"' in page.html


async def test_change_is_shown_before_it_is_made() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        form = await console.get("/topics/orders/edit")
        assert 'id="write_queues" name="write_queues" type="text" value="4"' in form.html
        fields = {"write_queues": "2", "read_queues": "2", "permission": "4", "broker": ["broker-a", "broker-b"]}
        review = await console.post("/topics/orders/edit", fields)
        assert "What will happen" in review.text
        assert "Producers can no longer send to it." in review.text
        assert "Queues of higher numbers are no longer read" in review.text
        assert operations.cluster.topics["orders"].brokers[0].write_queue_count == 4
        done = await console.post("/topics/orders/edit", review.fields())
    assert done.address == "/topics/orders"
    assert "Topic orders was changed. broker-a:0: changed" in done.text
    assert {broker.permission for broker in operations.cluster.topics["orders"].brokers} == {4}


async def test_editing_a_topic_of_one_broker_group_leaves_the_others_without_it() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        form = await console.get("/topics/only-on-b/edit")
        assert 'value="broker-a" checked' not in form.html
        review = await console.post("/topics/only-on-b/edit", {"write_queues": "5", "broker": "broker-b"})
        await console.post("/topics/only-on-b/edit", review.fields())
    assert [broker.broker_name for broker in operations.cluster.topics["only-on-b"].brokers] == ["broker-b"]


async def test_deleting_asks_for_the_name_and_tells_what_is_lost() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        page = await console.get("/topics/orders/delete")
        for fact in ("32 messages cannot be consumed while", "billing", "3 connected clients use it now", "removed"):
            assert fact in page.text
        again = await console.post("/topics/orders/delete", {"confirm": "true", "typed": "order"}, status=422)
        assert "Type orders to delete it." in again.text
        assert "orders" in operations.cluster.topics
        done = await console.post("/topics/orders/delete", {"confirm": "true", "typed": "orders"})
    assert "orders" not in operations.cluster.topics
    assert done.address == "/topics"
    assert "Topic orders was deleted." in done.text


async def test_system_topic_cannot_be_deleted() -> None:
    async with _console() as console:
        assert "/topics/DefaultCluster/delete" not in (await console.get("/topics/DefaultCluster")).links()
        page = await console.get("/topics/DefaultCluster/delete", status=422)
    assert "belongs to the system" in page.text
    assert "Type the topic" not in page.text


async def test_message_is_sent() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        fields = {"body": "one\r\ntwo ü", "tag": "a", "keys": "k1  k2", "properties": "tenant = acme=1\r\n\r\nx="}
        answer = await console.post("/topics/orders/send", fields, status=404)
    (sent,) = operations.cluster.sent
    assert sent.body == "one\ntwo ü".encode()
    assert sent.keys == ("k1", "k2")
    assert sent.properties == {"tenant": "acme=1", "x": ""}
    # It leads to the message, which this cluster in memory does not store.
    assert answer.address.startswith("/message?broker=broker-a&topic=orders&queue=0&queue_offset=1001")


async def test_message_that_is_refused_keeps_what_was_typed() -> None:
    async with _console() as console:
        page = await console.post("/topics/payments/send", {"body": "{}"}, status=422)
        assert "This topic is FIFO: name a message group." in page.text
        page = await console.post("/topics/reminders/send", {"body": "remember"}, status=409)
        assert "topic reminders takes no such message" in page.text
        assert "remember</textarea>" in page.html
        page = await console.post("/topics/orders/send", {"tag": "a b", "properties": "none"}, status=422)
    assert "A tag holds neither blanks nor |." in page.text
    assert "“none” is no name=value." in page.text


async def test_viewer_sees_no_buttons_and_is_refused() -> None:
    operations = FakeOperations()
    async with _console(operations, Role.VIEWER) as console:
        page = await console.get("/topics/orders")
        assert not [link for link in page.links() if link.endswith(("/edit", "/delete", "/send"))]
        assert "New topic" not in (await console.get("/topics")).text
        for address in ("/new-topic", "/topics/orders/edit", "/topics/orders/delete", "/topics/orders/send"):
            await console.get(address, status=403)
            await console.post(address, {"name": "x", "typed": "orders"}, status=403)
    assert "orders" in operations.cluster.topics
    assert operations.cluster.sent == []

"""The stand-in that pages, API and command line are tested against: it is one, and its changes take effect."""

from __future__ import annotations

import inspect

import pytest

from support.fake_operations import FakeOperations, operations_of_nothing
from support.operations_samples import NOW_MS, RECEIPTS
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    GroupChange,
    MessageQuery,
    PageRequest,
    ResetTarget,
    SearchOrder,
    TestMessage,
    TopicChange,
    Unseen,
)


async def test_every_operation_is_there_and_can_be_made_to_fail() -> None:
    fake = FakeOperations()
    own = {name: value for name, value in vars(FakeOperations).items() if inspect.isfunction(value)}
    for name, method in inspect.getmembers(operations_of_nothing(), callable):
        if not name.startswith("_"):
            theirs = list(inspect.signature(method).parameters.values())
            ours = list(inspect.signature(own[name]).parameters.values())[1:]
            assert [(one.name, one.kind, one.default) for one in ours] == [
                (one.name, one.kind, one.default) for one in theirs
            ], name
    fake.down = OperationFailed(FailureKind.UNAVAILABLE, "no NameServer answers")
    with pytest.raises(OperationFailed, match="no NameServer"):
        await fake.topics()
    with pytest.raises(OperationFailed, match="no NameServer"):
        await anext(fake.tail("orders"))


async def test_lists_are_searched_and_paged() -> None:
    fake = FakeOperations(bulk_topic_count=10_000)
    page = await fake.topics(search="BULK", page=PageRequest(number=3, size=20))
    assert (page.total, page.last_number) == (10_000, 500)
    assert [topic.name for topic in page.items][:2] == ["bulk-00040", "bulk-00041"]
    assert [topic.name for topic in (await fake.topics(categories=("dead letter",))).items] == ["%DLQ%billing"]
    assert (await fake.topics(search="receipts")).items[0].name == RECEIPTS


async def test_a_dry_run_changes_nothing_and_a_change_shows() -> None:
    fake = FakeOperations()
    change = TopicChange("orders", read_queue_count=9)
    assert (await fake.put_topic(change, dry_run=True)).dry_run
    assert (await fake.topic("orders")).summary.brokers[0].read_queue_count == 4
    await fake.put_topic(change)
    assert (await fake.topic("orders")).summary.brokers[0].read_queue_count == 9
    await fake.delete_topic("orders")
    with pytest.raises(OperationFailed, match="no topic orders"):
        await fake.topic("orders")
    await fake.put_group(GroupChange("billing", enabled=False))
    assert not (await fake.group("billing")).summary.enabled


async def test_a_reset_moves_a_group() -> None:
    fake = FakeOperations()
    before = await fake.group("billing")
    moves = await fake.reset_offsets("billing", "orders", ResetTarget(latest=True))
    after = await fake.group("billing")
    assert all(move.to_offset == move.max_offset for move in moves)
    assert 0 <= after.summary.lag < before.summary.lag
    [first, *_] = await fake.reset_offsets("billing", "orders", ResetTarget(time_ms=NOW_MS - 300_000), dry_run=True)
    assert 0 < first.to_offset <= first.max_offset


async def test_messages_are_found_by_pages_keys_and_ids() -> None:
    fake = FakeOperations()
    page = await fake.search(MessageQuery("orders", limit=10))
    times = [message.store_ms for message in page.messages]
    assert times == sorted(times, reverse=True)
    more = await fake.search(MessageQuery("orders", limit=10, page_token=page.next_page_token, body_bytes=16))
    assert more.messages[0].store_ms < times[-1]
    assert max(len(message.body) for message in more.messages) == 16
    oldest = await fake.search(MessageQuery("orders", order=SearchOrder.OLDEST, limit=1))
    [found] = await fake.find_message(oldest.messages[0].message_id)
    detail = await fake.message(found.broker_name, found.physical_offset)
    assert detail.message.properties["UNIQ_KEY"] == found.message_id
    at = await fake.message_at(found.broker_name, "orders", found.queue_id, found.queue_offset)
    assert at.message == detail.message


async def test_what_is_sent_and_what_a_tail_gets() -> None:
    fake = FakeOperations()
    receipt = await fake.send(TestMessage("orders", b"hello"))
    assert receipt.broker_name == "broker-a"
    assert fake.cluster.sent[0].body == b"hello"
    with pytest.raises(OperationFailed, match="takes no such message"):
        await fake.send(TestMessage("payments", b"without a message group"))
    fake.arrive(fake.cluster.messages[-1])
    fake.arrive(next(message for message in fake.cluster.messages if message.topic == "orders"))
    fake.tail_ends()
    assert [message.topic async for message in fake.tail("orders")] == ["orders"]


async def test_what_is_unseen_is_said() -> None:
    fake = FakeOperations(empty=True)
    fake.unseen = (Unseen("broker-b:0", "UNAVAILABLE: connection refused"),)
    assert (await fake.topics()).unseen == fake.unseen
    assert (await fake.put_group(GroupChange("new"))).warnings == ["broker-b:0 does not answer"]
    assert [line.source for line in (await fake.events())[0]] == []

"""Messages as delivery reads them from a store."""

from __future__ import annotations

import random

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.core.storage.consume_queue import ENTRY, FILLER_SIZE, QueueEntry
from tandemmq.core.storage.message_store import MessageStore


def store_with(count: int) -> MessageStore:
    """Messages of 500 bytes in one queue; a file of the log holds 6 of them."""
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    for number in range(count):
        assert store.put(outgoing_message(body=bytes([number]) * 500)).status.stored
    return store


def test_a_batch_is_read_across_files_of_the_log() -> None:
    reader = StoreQueueReader(store_with(20))
    entries = reader.entries("topic", 0, 0, 20)
    messages = reader.messages("topic", 0, range(20), entries)
    assert [message and bytes(message.body) for message in messages] == [bytes([number]) * 500 for number in range(20)]
    assert [message and message.queue_offset for message in messages] == list(range(20))
    records = [reader.record("topic", 0, place, entry) for place, entry in enumerate(entries)]
    assert [record and record.body for record in records] == [bytes([number]) * 500 for number in range(20)]


def _wrong(first: QueueEntry, second: QueueEntry) -> list[QueueEntry]:
    return [
        QueueEntry(0, FILLER_SIZE, 0),
        QueueEntry(second.physical_offset, FILLER_SIZE, 0),
        QueueEntry(second.physical_offset + 1, second.size, 0),
        QueueEntry(second.physical_offset, second.size + 1, 0),
        QueueEntry(second.physical_offset, 0, 0),
        QueueEntry(10_000_000, second.size, 0),
        QueueEntry(-5, second.size, 0),
        first,
    ]


@pytest.mark.parametrize("kind", range(8))
def test_a_batch_ends_before_an_entry_that_leads_to_no_record_of_its_own(kind: int) -> None:
    damaged = DamagedEntries()
    reader = StoreQueueReader(store_with(3), damaged)
    first, second, third = reader.entries("topic", 0, 0, 3)
    wrong = _wrong(first, second)[kind]
    for _ in range(2):
        found = reader.messages("topic", 0, range(3), [first, wrong, third])
        assert [message is not None for message in found] == [True]
        assert reader.record("topic", 0, 1, wrong) is None
    assert damaged.first() == ("topic", 0, 1)
    assert damaged.count == 1
    damaged.found_empty("topic", 0, 1)
    found = reader.messages("topic", 0, range(3), [first, wrong, third])
    assert [message is not None for message in found] == [True, False, True]


@pytest.mark.parametrize(("topic", "queue_id"), [("other", 0), ("topic", 1)])
def test_a_record_of_another_queue_is_not_taken_for_its_own(topic: str, queue_id: int) -> None:
    store = store_with(1)
    store.put(outgoing_message(topic=topic, queue_id=queue_id))
    damaged = DamagedEntries()
    reader = StoreQueueReader(store, damaged)
    (entry,) = reader.entries("topic", 0, 0, 1)
    assert reader.messages(topic, queue_id, (0,), [entry]) == []
    assert damaged.first() == (topic, queue_id, 0)


@pytest.mark.parametrize("kind", range(8))
def test_without_anybody_who_mends_what_cannot_be_read_is_passed_over(kind: int) -> None:
    reader = StoreQueueReader(store_with(3))
    first, second, third = reader.entries("topic", 0, 0, 3)
    found = reader.messages("topic", 0, range(3), [first, _wrong(first, second)[kind], third])
    assert [message is not None for message in found] == [True, False, True]


@pytest.mark.parametrize("waiting", [0, 1, 7, 20])
def test_what_is_not_confirmed_yet_ends_what_may_be_given(waiting: int) -> None:
    store = store_with(20 - waiting)
    confirmed_offset = store.end_offset
    for number in range(waiting):
        assert store.put(outgoing_message(body=bytes([number]) * 500)).status.stored
    reader = StoreQueueReader(store, confirmed_offset=lambda: confirmed_offset)
    assert [reader.confirmed_end("topic", 0, start, 20) for start in range(20)] == [
        max(start, 20 - waiting) for start in range(20)
    ]
    assert reader.confirmed_end("topic", 1, 0, 0) == 0
    assert StoreQueueReader(store).confirmed_end("topic", 0, 0, 20) == 20


def test_a_record_that_is_confirmed_in_part_is_not_given() -> None:
    store = store_with(2)
    reader = StoreQueueReader(store, confirmed_offset=lambda: store.end_offset - 1)
    assert reader.confirmed_end("topic", 0, 0, 2) == 1


def test_a_damaged_entry_is_not_taken_for_one_that_is_not_confirmed() -> None:
    store = store_with(3)
    queue = store.queues.get("topic", 0)
    assert queue is not None
    queue.rewrite(1, ENTRY.pack(10_000_000, 500, 0))
    reader = StoreQueueReader(store, confirmed_offset=lambda: store.end_offset - 1)
    assert reader.confirmed_end("topic", 0, 1, 3) == 2

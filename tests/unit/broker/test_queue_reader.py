"""Messages as delivery reads them from a store."""

from __future__ import annotations

import random

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.core.storage.consume_queue import FILLER_SIZE, QueueEntry
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

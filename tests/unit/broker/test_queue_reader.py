"""Messages as delivery reads them from a store."""

from __future__ import annotations

import random

from broker.queue_reader import StoreQueueReader
from mqcore.storage import MessageStore, QueueEntry
from mqcore.storage.consume_queue import FILLER_SIZE
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store


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
    messages = reader.messages(entries)
    assert [message and bytes(message.body) for message in messages] == [bytes([number]) * 500 for number in range(20)]
    assert [message and message.queue_offset for message in messages] == list(range(20))
    records = [reader.record(entry) for entry in entries]
    assert [record and record.body for record in records] == [bytes([number]) * 500 for number in range(20)]


def test_filler_has_no_message() -> None:
    reader = StoreQueueReader(store_with(2))
    first, second = reader.entries("topic", 0, 0, 2)
    fillers = [QueueEntry(0, FILLER_SIZE, 0), QueueEntry(second.physical_offset, FILLER_SIZE, 0)]
    found = reader.messages([fillers[0], first, fillers[1], second])
    assert [message is not None for message in found] == [False, True, False, True]
    assert [reader.record(filler) for filler in fillers] == [None, None]


def test_an_entry_that_names_no_record_is_passed_over() -> None:
    reader = StoreQueueReader(store_with(3))
    first, second, third = reader.entries("topic", 0, 0, 3)
    wrong = [
        QueueEntry(second.physical_offset + 1, second.size, 0),
        QueueEntry(second.physical_offset, second.size + 1, 0),
        QueueEntry(10_000_000, second.size, 0),
    ]
    found = reader.messages([first, *wrong, third])
    assert [message is not None for message in found] == [True, False, False, False, True]
    assert [reader.record(entry) for entry in wrong] == [None, None, None]

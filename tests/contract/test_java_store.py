"""A store a Java broker left behind, with and without an orderly stop, opens here as it would there."""

from __future__ import annotations

import random

import pytest

from support import store_samples
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, derived_queues, queue_contents
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions

OPTIONS = StoreOptions(
    commit_log_file_bytes=store_samples.COMMIT_LOG_FILE_BYTES,
    consume_queue_file_bytes=store_samples.CONSUME_QUEUE_FILE_BYTES,
    index_slot_count=store_samples.INDEX_SLOT_COUNT,
    index_entry_count=store_samples.INDEX_ENTRY_COUNT,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    """The sample store, every file as Java wrote it."""
    disk = SimulatedDisk(random.Random(1))
    for path in sorted(store_samples.STORE.rglob("*")):
        if path.is_file():
            disk.write_file(str(path.relative_to(store_samples.STORE)), path.read_bytes())
    return disk


def _opened(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(disk, ManualClock(), OPTIONS, store_host=store_samples.STORE_HOST)
    store.load()
    return store


def _without_java_checkpoint(disk: SimulatedDisk) -> None:
    """As 4.x and early 5.x write it: logicsPhysicalOffset is not known."""
    checkpoint = disk.read_file("checkpoint")
    assert checkpoint is not None
    disk.write_file("checkpoint", checkpoint[:40] + bytes(8) + checkpoint[48:])


@pytest.mark.parametrize("old_checkpoint", [False, True])
@pytest.mark.parametrize("abort", [False, True])
def test_log_and_queues_are_taken_over_byte_for_byte(disk: SimulatedDisk, abort: bool, old_checkpoint: bool) -> None:
    if abort:
        disk.write_file("abort", b"4711")
    if old_checkpoint:
        _without_java_checkpoint(disk)
    store = _opened(disk)
    assert store.end_offset == store_samples.END_OFFSET
    assert queue_contents(store) == derived_queues(store)
    store.trust_tail()
    store.close()
    for name, content in store_samples.commit_log_files().items():
        assert disk.read_file(f"commitlog/{name}") == content
    for path, content in store_samples.consume_queue_files().items():
        assert disk.read_file(path) == content
    assert disk.read_file("abort") is None


def test_queues_that_were_lost_are_made_again(disk: SimulatedDisk) -> None:
    disk.remove_folder("consumequeue")
    disk.remove("checkpoint")
    disk.write_file("abort", b"")
    store = _opened(disk)
    assert queue_contents(store) == derived_queues(store)
    store.close()
    for path, content in store_samples.consume_queue_files().items():
        if any(content):
            assert disk.read_file(path) == content

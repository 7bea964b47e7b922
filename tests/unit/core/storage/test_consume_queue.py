from __future__ import annotations

import random

import pytest

from support.simulated_disk import SimulatedDisk
from tandemmq.core.storage.consume_queue import ENTRY, ConsumeQueue, QueueEntry
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable, StopKind
from tandemmq.core.storage.disk import DiskFull

FILE_BYTES = 200
"""Ten entries a file."""
RECORD_BYTES = 100


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def table(disk: SimulatedDisk) -> ConsumeQueueTable:
    return ConsumeQueueTable(disk, file_bytes=FILE_BYTES)


def fill(queue: ConsumeQueue, *, start: int = 0, end: int) -> None:
    """Entries whose records follow each other: the n-th starts at n * RECORD_BYTES."""
    for offset in range(start, end):
        queue.append(offset, offset * RECORD_BYTES, RECORD_BYTES, offset % 7)


def entries(*, start: int = 0, end: int) -> list[QueueEntry]:
    return [QueueEntry(offset * RECORD_BYTES, RECORD_BYTES, offset % 7) for offset in range(start, end)]


def reload(disk: SimulatedDisk) -> ConsumeQueueTable:
    table = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
    table.load(StopKind.CLEAN, durable_offset=0)
    return table


def test_reads_give_what_was_appended_from_memory_and_from_files(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=95)
    queue.write_out(kept_entries=12)
    fill(queue, start=95, end=100)
    assert queue.max_offset == 100
    assert queue.last_physical_end == 100 * RECORD_BYTES
    assert queue.read(0, 1000) == entries(end=100)
    assert queue.read(79, 4) == entries(start=79, end=83)
    assert queue.read(90, 7) == entries(start=90, end=97)
    assert queue.read(96, 2) == entries(start=96, end=98)


def test_reads_outside_the_queue_are_empty(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    assert queue.read(0, 10) == []
    fill(queue, end=3)
    assert queue.read(3, 1) == queue.read(-1, 5) == queue.read(0, 0) == []


def test_appending_twice_changes_nothing(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=10)
    fill(queue, start=3, end=10)
    assert queue.read(0, 100) == entries(end=10)


def test_an_entry_whose_record_is_behind_the_last_one_is_skipped(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=10)
    queue.append(10, 8 * RECORD_BYTES, RECORD_BYTES, 0)
    assert queue.max_offset == 10


def test_queue_that_does_not_start_at_zero_is_filled_up_as_rocketmq_does(
    disk: SimulatedDisk, table: ConsumeQueueTable
) -> None:
    queue = table.get_or_create("topic", 3)
    fill(queue, start=23, end=25)
    table.write_out()
    assert (queue.min_offset, queue.max_offset) == (23, 25)
    filler = bytes.fromhex("00000000000000007fffffff0000000000000000")
    assert disk.read_file("consumequeue/topic/3/00000000000000000400") == (
        filler * 3 + b"".join(ENTRY.pack(*entry) for entry in entries(start=23, end=25)) + bytes(5 * 20)
    )
    assert disk.paths() == ["consumequeue/topic/3/00000000000000000400"]
    loaded = reload(disk).get("topic", 3)
    assert loaded is not None
    assert (loaded.min_offset, loaded.max_offset) == (23, 25)
    assert loaded.read(23, 10) == entries(start=23, end=25)


def test_a_gap_is_filled_so_that_every_message_keeps_its_place(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=5)
    fill(queue, start=28, end=30)
    assert queue.read(0, 5) == entries(end=5)
    assert all(entry.is_filler for entry in queue.read(5, 23))
    assert queue.read(28, 2) == entries(start=28, end=30)
    queue.correct_min_offset(3 * RECORD_BYTES)
    assert queue.min_offset == 3
    queue.truncate(28 * RECORD_BYTES)
    assert queue.last_physical_end == 28 * RECORD_BYTES


def test_memory_is_bounded_without_anyone_writing_out(disk: SimulatedDisk) -> None:
    table = ConsumeQueueTable(disk, file_bytes=20 * 10_000)
    queue = table.get_or_create("topic", 0)
    fill(queue, end=30_000)
    assert len(queue._tail) <= 8192 * 20
    assert queue.read(0, 30_000) == entries(end=30_000)


def test_a_full_disk_loses_no_entry(disk: SimulatedDisk, table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=15)
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, 4096
    with pytest.raises(DiskFull):
        table.write_out()
    fill(queue, start=15, end=20)
    assert queue.read(0, 100) == entries(end=20)
    disk.capacity_bytes = capacity_bytes
    table.write_out()
    loaded = reload(disk).get("topic", 0)
    assert loaded is not None
    assert loaded.read(0, 100) == entries(end=20)


@pytest.mark.parametrize("kept", [0, 3, 10, 11, 20, 34, 35])
@pytest.mark.parametrize("written", [0, 10, 27, 35])
def test_truncation_drops_entries_from_memory_and_durably_from_files(
    disk: SimulatedDisk, table: ConsumeQueueTable, kept: int, written: int
) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=written)
    queue.write_out(kept_entries=4)
    fill(queue, start=written, end=35)
    queue.truncate(kept * RECORD_BYTES)
    assert queue.max_offset == kept
    assert queue.read(0, 100) == entries(end=kept)
    for path in disk.paths():
        start = int(path.rpartition("/")[2])
        kept_bytes = max(0, min(kept * 20 - start, FILE_BYTES))
        assert not any(disk.durable_bytes(path)[kept_bytes:])
    fill(queue, start=kept, end=40)
    table.write_out()
    loaded = reload(disk).get("topic", 0)
    assert loaded is not None
    assert loaded.read(0, 100) == queue.read(0, 100) == entries(end=40)


def test_truncation_between_the_ends_of_two_records_keeps_the_whole_one(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=5)
    queue.truncate(3 * RECORD_BYTES + 1)
    assert queue.max_offset == 3
    assert queue.last_physical_end == 3 * RECORD_BYTES


def test_min_offset_follows_the_log(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=45)
    table.write_out()
    queue.correct_min_offset(12 * RECORD_BYTES)
    assert queue.min_offset == 12
    assert queue.read(11, 1) == []
    queue.correct_min_offset(13 * RECORD_BYTES)
    assert queue.min_offset == 13
    queue.correct_min_offset(1_000_000)
    assert queue.min_offset == queue.max_offset == 45


def test_expired_files_go_but_never_the_last(disk: SimulatedDisk, table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=40)
    table.write_out()
    assert queue.remove_expired_files(19 * RECORD_BYTES) == 1
    assert queue.min_offset == 10
    assert queue.remove_expired_files(1_000_000) == 2
    assert disk.paths() == ["consumequeue/topic/0/00000000000000000600"]
    fill(queue, start=40, end=41)
    assert queue.read(30, 100) == entries(start=30, end=41)
    table.write_out()
    loaded = reload(disk).get("topic", 0)
    assert loaded is not None
    assert (loaded.min_offset, loaded.max_offset) == (30, 41)


def test_queues_are_removed_with_their_files(disk: SimulatedDisk, table: ConsumeQueueTable) -> None:
    for topic in ("gone", "kept"):
        fill(table.get_or_create(topic, 0), end=3)
    table.write_out()
    fill(table.get_or_create("gone", 0), start=3, end=5)
    table.remove_all()
    assert table.get("gone", 0) is None
    fill(table.get_or_create("kept", 0), end=3)
    table.write_out()
    assert disk.paths() == ["consumequeue/kept/0/00000000000000000000"]


def test_the_queues_of_a_topic_are_known_by_their_ids(disk: SimulatedDisk, table: ConsumeQueueTable) -> None:
    for topic, queue_id in [("topic", 3), ("topic", 0), ("topic", 11), ("gone", 1)]:
        fill(table.get_or_create(topic, queue_id), end=1)
    assert (table.ids_of("topic"), table.ids_of("gone"), table.ids_of("other")) == ([0, 3, 11], [1], [])
    table.write_out()
    assert reload(disk).ids_of("topic") == [0, 3, 11]
    table.remove_all()
    assert table.ids_of("topic") == table.ids_of("gone") == []
    table.get_or_create("gone", 5)
    assert table.ids_of("gone") == [5]


@pytest.mark.parametrize("restart", [3, 14, 23, 35])
def test_an_emptied_queue_starts_again_where_the_log_says(
    disk: SimulatedDisk, table: ConsumeQueueTable, restart: int
) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, start=23, end=28)
    table.write_out()
    queue.truncate(20 * RECORD_BYTES)
    assert (queue.max_offset, queue.is_empty) == (23, True)
    fill(queue, start=restart, end=restart + 2)
    table.write_out()
    loaded = reload(disk).get("topic", 0)
    assert loaded is not None
    assert (loaded.min_offset, loaded.max_offset) == (restart, restart + 2)
    assert loaded.read(restart, 9) == entries(start=restart, end=restart + 2)


def test_sync_covers_what_was_written_out_and_ignores_files_removed_meanwhile(
    disk: SimulatedDisk, table: ConsumeQueueTable
) -> None:
    for topic in ("gone", "kept"):
        fill(table.get_or_create(topic, 0), start=30 if topic == "kept" else 0, end=33)
    table.write_out()
    sync = table.take_sync()
    assert sync is not None
    assert table.take_sync() is None
    # All that came before expires: the files of the one that are full go.
    assert table.remove_expired_files(33 * RECORD_BYTES)
    sync.run()
    disk.crash(power_loss=True)
    loaded = reload(disk)
    assert sorted((queue.topic, queue.max_offset) for queue in loaded) == [("gone", 33), ("kept", 33)]


def test_eighty_thousand_queues_hold_no_file_open(disk: SimulatedDisk) -> None:
    table = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
    for queue_id in range(1000):
        fill(table.get_or_create("topic", queue_id), end=1)
    table.write_out()
    assert len(table) == 1000
    assert len(table._files._open) <= 256


def test_so_many_queues_that_no_handle_is_kept_are_written_as_well(
    disk: SimulatedDisk, table: ConsumeQueueTable
) -> None:
    for end in (1, 3):
        for number in range(300):
            fill(table.get_or_create("t", number), start=end // 2, end=end)
        table.write_out()
    sync = table.take_sync()
    assert sync is not None
    sync.run()
    disk.crash(power_loss=True)
    again = reload(disk)
    assert all(again.get_or_create("t", number).read(0, 9) == entries(end=3) for number in range(300))


def test_rewritten_entries_are_those_of_file_and_memory(disk: SimulatedDisk, table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=95)
    queue.write_out(kept_entries=12)
    fill(queue, start=95, end=100)
    new = [QueueEntry(offset * RECORD_BYTES, RECORD_BYTES, 99) for offset in range(75, 98)]
    queue.rewrite(75, b"".join(ENTRY.pack(*entry) for entry in new))
    expected = [*entries(end=75), *new, *entries(start=98, end=100)]
    assert queue.read(0, 1000) == expected
    queue.write_out(kept_entries=0)
    assert queue.read(0, 1000) == expected
    reloaded = reload(disk).get("topic", 0)
    assert reloaded is not None
    assert reloaded.read(0, 1000) == expected


def test_a_rewritten_last_entry_says_where_the_queue_ends(table: ConsumeQueueTable) -> None:
    queue = table.get_or_create("topic", 0)
    fill(queue, end=3)
    queue.rewrite(2, ENTRY.pack(2 * RECORD_BYTES, RECORD_BYTES + 50, 0))
    assert queue.last_physical_end == 3 * RECORD_BYTES + 50

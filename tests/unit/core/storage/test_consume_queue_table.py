from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulated_disk import SimulatedDisk
from tandemmq.core.storage.consume_queue import ENTRY, QueueEntry
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable, StopKind
from tandemmq.core.storage.disk import SegmentSizeMismatch

FILE_BYTES = 2000
"""A hundred entries, four sectors a file."""
FOLDER = "consumequeue/topic/0"


@dataclass
class _Log:
    """A CommitLog as its ConsumeQueues see it: records of all queues one behind the other."""

    chance: random.Random
    records: list[tuple[int, int, QueueEntry]] = field(default_factory=list)
    end_offset: int = 0
    queue_ends: dict[int, int] = field(default_factory=dict)

    def append(self, table: ConsumeQueueTable, queue_id: int) -> None:
        offset = self.queue_ends.get(queue_id, 0)
        entry = QueueEntry(self.end_offset, self.chance.randint(91, 2**31 - 2), self.chance.randint(0, 2**62))
        self.records.append((queue_id, offset, entry))
        self.queue_ends[queue_id] = offset + 1
        self.end_offset += entry.size
        table.get_or_create("topic", queue_id).append(offset, *entry)

    def dispatch_all(self, table: ConsumeQueueTable) -> None:
        for queue_id, offset, entry in self.records:
            table.get_or_create("topic", queue_id).append(offset, *entry)

    def entries(self, queue_id: int, *, up_to: int) -> list[QueueEntry]:
        return [entry for of, _, entry in self.records if of == queue_id and entry.physical_offset <= up_to]


@settings(deadline=None, max_examples=50)  # A busy machine is no failure.
@given(seed=st.integers(0, 2**32), power_loss=st.booleans())
def test_exactly_the_durable_entries_are_left_after_a_crash(seed: int, power_loss: bool) -> None:
    """Appends, write-outs and syncs in any order, then a crash: what the checkpoint vouches for is there, nothing else
    is, and once the log was dispatched again the files are those of a store that never crashed."""
    chance = random.Random(seed)
    disk = SimulatedDisk(chance)
    table = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
    log = _Log(chance)
    durable_offset = 0
    for _ in range(chance.randint(1, 12)):
        for _ in range(chance.randint(1, 150)):
            log.append(table, chance.randint(0, 2))
        if chance.random() < 0.7:
            table.write_out()
            disk.write_back_some()
            if chance.random() < 0.5 and (sync := table.take_sync()) is not None:
                sync.run()
                durable_offset = log.records[-1][2].physical_offset
    disk.crash(power_loss=power_loss)

    stop = StopKind.POWER_LOST if power_loss else StopKind.KILLED
    for _ in range(2):  # A start that is killed itself must not change what the next one finds.
        table = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
        table.load(stop, durable_offset=durable_offset)
        if not durable_offset:
            table.truncate(0)  # As recovery does: nothing vouches for these entries, and a tags code may be torn.
            continue
        for queue_id in log.queue_ends:
            queue = table.get("topic", queue_id)
            found = queue.read(0, queue.max_offset) if queue is not None else []
            assert found == log.entries(queue_id, up_to=durable_offset)

    log.dispatch_all(table)
    table.write_out()
    assert_files_are_those_of_a_store_that_never_crashed(disk, log)
    reloaded = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
    reloaded.load(StopKind.CLEAN, durable_offset=0)
    for queue_id in log.queue_ends:
        queue = reloaded.get_or_create("topic", queue_id)
        assert queue.read(0, 10_000) == log.entries(queue_id, up_to=log.end_offset)
    assert reloaded.last_physical_end == log.end_offset


def assert_files_are_those_of_a_store_that_never_crashed(disk: SimulatedDisk, log: _Log) -> None:
    fresh = SimulatedDisk(random.Random(0))
    table = ConsumeQueueTable(fresh, file_bytes=FILE_BYTES)
    log.dispatch_all(table)
    table.write_out()
    assert {path: disk.read_file(path) for path in disk.paths()} == {
        path: fresh.read_file(path) for path in fresh.paths()
    }


def store_queue(disk: SimulatedDisk, *files: bytes) -> None:
    for number, content in enumerate(files):
        disk.write_file(f"{FOLDER}/{number * FILE_BYTES:020d}", content.ljust(FILE_BYTES, b"\x00"))


def packed(*offsets: int) -> bytes:
    return b"".join(ENTRY.pack(offset, 100, 0) for offset in offsets)


def loaded_offsets(disk: SimulatedDisk, stop: StopKind, *, durable_offset: int) -> list[int]:
    table = ConsumeQueueTable(disk, file_bytes=FILE_BYTES)
    table.load(stop, durable_offset=durable_offset)
    queue = table.get_or_create("topic", 0)
    return [entry.physical_offset for entry in queue.read(queue.min_offset, 1000)]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(2))


def test_a_torn_entry_whose_predecessor_was_lost_is_not_mistaken_for_an_old_one(disk: SimulatedDisk) -> None:
    # Entry 25 lies across byte 512. The sector before it was lost: it seems to point to offset 0.
    content = bytearray(packed(*range(1000, 5000, 100)))
    content[100:512] = bytes(412)
    store_queue(disk, bytes(content))
    assert loaded_offsets(disk, StopKind.POWER_LOST, durable_offset=1400) == [1000, 1100, 1200, 1300, 1400]
    assert disk.durable_bytes(f"{FOLDER}/{0:020d}") == packed(1000, 1100, 1200, 1300, 1400).ljust(FILE_BYTES, b"\x00")


def test_a_torn_entry_right_behind_the_durable_ones_is_not_mistaken_for_an_old_one(disk: SimulatedDisk) -> None:
    # Entry 51 lies across byte 1024: the upper half of its physical offset is in a sector that kept its older bytes.
    base = 5 << 32
    content = bytearray(packed(*range(base, base + 6000, 100)))
    content[1020:1024] = bytes(4)
    store_queue(disk, bytes(content))
    assert len(loaded_offsets(disk, StopKind.POWER_LOST, durable_offset=base + 5000)) == 51


def test_without_a_checkpoint_every_entry_up_to_the_first_invalid_one_counts(disk: SimulatedDisk) -> None:
    store_queue(disk, packed(0, 100, 200) + bytes(20) + packed(900))
    assert loaded_offsets(disk, StopKind.KILLED, durable_offset=0) == [0, 100, 200]
    assert disk.durable_bytes(f"{FOLDER}/{0:020d}") == packed(0, 100, 200).ljust(FILE_BYTES, b"\x00")


def test_without_a_checkpoint_an_entry_that_points_backwards_ends_the_queue(disk: SimulatedDisk) -> None:
    store_queue(disk, packed(0, 100, 200, 0, 400))
    assert loaded_offsets(disk, StopKind.POWER_LOST, durable_offset=0) == [0, 100, 200]


def test_the_end_may_lie_several_files_before_the_last(disk: SimulatedDisk) -> None:
    store_queue(disk, packed(*range(0, 10_000, 100)), packed(*range(10_000, 20_000, 100)), packed(20_000), b"")
    assert loaded_offsets(disk, StopKind.KILLED, durable_offset=9_800) == list(range(0, 9_900, 100))
    assert disk.paths() == [f"{FOLDER}/{0:020d}"]


def test_full_files_end_where_the_next_one_would_start(disk: SimulatedDisk) -> None:
    store_queue(disk, packed(*range(0, 10_000, 100)))
    assert len(loaded_offsets(disk, StopKind.CLEAN, durable_offset=0)) == 100
    assert len(loaded_offsets(disk, StopKind.KILLED, durable_offset=9_900)) == 100


def test_a_last_file_without_entries_is_removed(disk: SimulatedDisk) -> None:
    store_queue(disk, packed(*range(0, 10_000, 100)), b"")
    assert len(loaded_offsets(disk, StopKind.CLEAN, durable_offset=0)) == 100
    assert disk.paths() == [f"{FOLDER}/{0:020d}"]


def test_files_of_another_length_are_refused(disk: SimulatedDisk) -> None:
    disk.write_file(f"{FOLDER}/{0:020d}", bytes(FILE_BYTES * 2))
    with pytest.raises(SegmentSizeMismatch):
        loaded_offsets(disk, StopKind.CLEAN, durable_offset=0)


@pytest.mark.parametrize("stop", list(StopKind))
def test_a_missing_file_ends_the_queue_before_it(disk: SimulatedDisk, stop: StopKind) -> None:
    store_queue(disk, packed(*range(0, 10_000, 100)), packed(10_000), packed(20_000))
    disk.remove(f"{FOLDER}/{FILE_BYTES:020d}")
    assert len(loaded_offsets(disk, stop, durable_offset=9_900)) == 100


def test_names_that_are_no_queues_are_left_alone(disk: SimulatedDisk) -> None:
    disk.write_file("consumequeue/topic/notes/README", b"by hand")
    disk.write_file("consumequeue/topic/README", b"by hand")
    store_queue(disk, packed(0))
    disk.write_file(f"{FOLDER}/README", b"by hand")
    assert loaded_offsets(disk, StopKind.CLEAN, durable_offset=0) == [0]

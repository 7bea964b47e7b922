from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from support.simulated_disk import SimulatedDisk
from tandemmq.core.storage.consume_queue_table import StopKind
from tandemmq.core.storage.disk import DiskFull, SegmentSizeMismatch
from tandemmq.core.storage.index_file import key_hash, tag_hash
from tandemmq.core.storage.index_table import IndexTable

SLOT_COUNT = 7
"""Few, so that chains are long and shared."""
ENTRY_COUNT = 40
FILE_BYTES = 40 + SLOT_COUNT * 4 + ENTRY_COUNT * 20
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Indexed:
    number: int
    keys: tuple[str, ...]
    tag: str | None = None

    @property
    def physical_offset(self) -> int:
        return self.number * 100

    @property
    def stored_ms(self) -> int:
        return START_MS + self.number * 700


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(3))


def new_table(disk: SimulatedDisk) -> IndexTable:
    return IndexTable(disk, slot_count=SLOT_COUNT, entry_count=ENTRY_COUNT)


def put(table: IndexTable, *messages: Indexed) -> None:
    for message in messages:
        table.put(
            topic="topic",
            keys=message.keys,
            tag=message.tag,
            physical_offset=message.physical_offset,
            store_timestamp_ms=message.stored_ms,
            wall_ms=message.stored_ms,
        )


def numbered(count: int) -> list[Indexed]:
    return [Indexed(number, (f"id-{number}", f"key-{number % 5}"), "TagA") for number in range(count)]


def found(table: IndexTable, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62, max_count: int = 1000) -> list[int]:
    return [
        offset // 100 for offset in table.query("topic", key, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count)
    ]


def stored_ms(physical_offset: int) -> int:
    return Indexed(physical_offset // 100, ()).stored_ms


def files_of(messages: list[Indexed]) -> dict[str, bytes | None]:
    """What a fresh slave's index holds."""
    disk = SimulatedDisk(random.Random(3))
    put(new_table(disk), *messages)
    return files(disk)


def files(disk: SimulatedDisk) -> dict[str, bytes | None]:
    return {path: disk.read_file(path) for path in disk.paths()}


def test_keys_and_tags_find_their_records_newest_first_over_all_files(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(50))
    assert len(disk.paths()) == 4
    assert found(table, "id-17") == [17]
    assert found(table, "key-3") == list(range(48, 0, -5))
    assert len(table.query_tag("topic", "TagA", begin_ms=0, end_ms=1 << 62, max_count=1000)) == 50
    assert found(table, "key-3", max_count=2) == [48, 43]
    assert found(table, "nothing") == []
    assert table.query("other", "id-17", begin_ms=0, end_ms=1 << 62, max_count=9) == []


def test_a_walk_meets_what_a_query_finds_and_may_stop_at_each_step(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(50))
    walk = list(table.walk("topic", "key-3", begin_ms=0, end_ms=1 << 62))
    assert [offset // 100 for offset in walk if offset is not None] == found(table, "key-3")
    assert None in walk
    half_way = table.walk("topic", "key-3", begin_ms=0, end_ms=1 << 62)
    assert next(offset for offset in half_way if offset is not None) == 48 * 100
    put(table, *[Indexed(number, ("key-3",)) for number in range(50, 150)])
    rest = [offset // 100 for offset in half_way if offset is not None]
    assert rest == list(range(43, 0, -5))


def test_a_query_sees_every_record_of_its_time_and_none_more_than_a_second_off(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    messages = [Indexed(number, ("key",)) for number in range(100)]
    put(table, *messages)
    for message in messages:
        numbers = found(table, "key", begin_ms=message.stored_ms, end_ms=message.stored_ms)
        assert message.number in numbers
        assert all(abs(messages[number].stored_ms - message.stored_ms) < 1000 for number in numbers)


def test_first_record_after_a_long_silence_is_found_in_its_new_file(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *[Indexed(number, ("key",)) for number in range(ENTRY_COUNT - 1)])
    late = Indexed(100_000, ("late",))
    put(table, late)
    assert len(disk.paths()) == 2
    assert found(table, "late", begin_ms=late.stored_ms, end_ms=late.stored_ms) == [late.number]


def test_a_record_entered_before_is_left_alone(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(5))
    before = files(disk)
    put(table, *numbered(4))
    assert files(disk) == before


def test_nothing_is_made_for_records_without_keys(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, Indexed(0, ()))
    assert disk.paths() == []


def test_files_are_named_by_time_and_never_fall_back(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    for number in range(3 * ENTRY_COUNT):
        table.put(
            topic="topic",
            keys=("key",),
            tag=None,
            physical_offset=number,
            store_timestamp_ms=START_MS,
            wall_ms=START_MS - number,
        )
    assert disk.paths() == [f"index/20231114221320{milliseconds:03d}" for milliseconds in range(4)]


@pytest.mark.parametrize("kept", range(0, 31, 3))
def test_truncation_restores_the_bytes_of_every_slot(disk: SimulatedDisk, kept: int) -> None:
    table, never_longer = new_table(disk), SimulatedDisk(random.Random(0))
    put(table, *numbered(30))
    table.truncate(kept * 100, stored_ms)
    put(new_table(never_longer), *numbered(kept))
    for path, content in files(never_longer).items():
        truncated = disk.read_file(path)
        assert content is not None
        assert truncated is not None
        slots = slice(32, 40 + SLOT_COUNT * 4)
        assert truncated[slots] == content[slots]
    assert len(disk.paths()) == len(never_longer.paths())
    put(table, *numbered(30)[kept:])
    for number in range(30):
        assert found(table, f"id-{number}") == [number]


def test_expired_files_go_but_never_the_newest(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(40))
    assert len(disk.paths()) == 4
    assert table.forget_expired_files(1200) == []
    assert [segment.path for segment in table.forget_expired_files(1201)] == disk.paths()[:1]
    assert found(table, "id-12") == []
    assert found(table, "id-13") == [13]
    assert [segment.path for segment in table.forget_expired_files(1 << 40)] == disk.paths()[1:3]
    assert found(table, "id-39") == [39]


def test_a_killed_process_leaves_its_index_whole(disk: SimulatedDisk) -> None:
    put(new_table(disk), *numbered(20))
    disk.crash(power_loss=False)
    table = new_table(disk)
    assert table.load(StopKind.KILLED, durable_timestamp_ms=0) is None
    put(table, *numbered(40))
    assert [found(table, f"id-{number}") for number in range(40)] == [[number] for number in range(40)]
    assert files(disk) == files_of(numbered(40))


def test_after_a_power_loss_only_synced_full_files_are_kept(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(20))
    full_files = table.take_full_files()
    assert len(full_files) == 1
    full_files[0].sync()
    assert table.take_full_files() == []
    durable_timestamp_ms = full_files[0].end_timestamp_ms
    disk.crash(power_loss=True)

    table = new_table(disk)
    again_from = table.load(StopKind.POWER_LOST, durable_timestamp_ms=durable_timestamp_ms)
    assert again_from is not None
    assert len(disk.paths()) == 1
    put(table, *(message for message in numbered(20) if message.physical_offset >= again_from))
    assert all(number in found(table, f"id-{number}") for number in range(20))


def test_an_index_that_is_lost_whole_is_wanted_from_the_beginning(disk: SimulatedDisk) -> None:
    put(new_table(disk), *numbered(3))
    disk.crash(power_loss=True)
    assert new_table(disk).load(StopKind.POWER_LOST, durable_timestamp_ms=0) in (0, None)


def test_close_makes_it_durable(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(20))
    assert table.close() == numbered(20)[-1].stored_ms
    disk.crash(power_loss=True)
    table = new_table(disk)
    assert table.load(StopKind.CLEAN, durable_timestamp_ms=0) is None
    assert found(table, "id-19") == [19]


def test_other_counts_than_the_files_were_made_with_are_refused(disk: SimulatedDisk) -> None:
    put(new_table(disk), *numbered(1))
    with pytest.raises(SegmentSizeMismatch):
        IndexTable(disk, slot_count=SLOT_COUNT, entry_count=ENTRY_COUNT + 1).load(
            StopKind.CLEAN, durable_timestamp_ms=0
        )


def test_a_full_disk_takes_keys_but_nothing_else(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(13))
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, FILE_BYTES
    with pytest.raises(DiskFull):
        put(table, numbered(14)[-1])
    assert table.take_full_files() == []
    disk.capacity_bytes = capacity_bytes
    put(table, *numbered(20)[14:])
    assert [len(found(table, f"id-{number}")) for number in range(20)] == [1] * 13 + [0] + [1] * 6
    assert len(table.take_full_files()) == 1


def test_damaged_chains_end_the_search(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *[Indexed(number, ("key",)) for number in range(10)])
    (path,) = disk.paths()
    view = disk.map_segment(path, FILE_BYTES, create=False).view
    newest = 40 + SLOT_COUNT * 4 + 10 * 20
    view[newest + 16 : newest + 20] = (10).to_bytes(4, "big")
    assert found(table, "key") == [9]
    slot = 40 + key_hash("topic", "key") % SLOT_COUNT * 4
    view[slot : slot + 4] = (11).to_bytes(4, "big")
    assert found(table, "key") == []


def test_hashes_have_no_sign() -> None:
    assert key_hash("TopicTest", "k1") == 2_746_024
    assert key_hash("sample", "0102FC000000015FD40B13183F0000000A") >= 0
    assert tag_hash("sample", "TagA") == 1_438_071_857


def put_later(table: IndexTable, *messages: Indexed, topic: str = "topic") -> None:
    for message in messages:
        table.put_later(topic, message.keys, message.tag, message.physical_offset, message.stored_ms)


@pytest.mark.parametrize("count", [1, 63, 64, 200, 512, 700])
def test_entered_later_is_byte_for_byte_entered_at_once(disk: SimulatedDisk, count: int) -> None:
    chance = random.Random(count)
    messages = [
        Indexed(
            number,
            tuple("".join(chance.choices("ab01_", k=chance.randint(1, 40))) for _ in range(chance.randint(0, 3))),
            chance.choice((None, "", "TagA", "TagB")),
        )
        for number in range(count)
    ]
    table = new_table(disk)
    table.load(StopKind.CLEAN, durable_timestamp_ms=0)
    put_later(table, *messages)
    table.enter_waiting()
    other_disk = SimulatedDisk(random.Random(3))
    other_table = new_table(other_disk)
    put(other_table, *messages)
    assert files(disk) == files(other_disk)


@pytest.mark.parametrize("odd", ["ключ", "\U0001f600", "k" * 2000])
def test_keys_of_any_kind_are_found_when_entered_later(disk: SimulatedDisk, odd: str) -> None:
    table = new_table(disk)
    table.load(StopKind.CLEAN, durable_timestamp_ms=0)
    put_later(table, *numbered(70), Indexed(70, (odd, ""), "TagA"))
    table.enter_waiting()
    assert found(table, odd) == [70]
    assert found(table, "id-69") == [69]


def test_what_waits_goes_before_what_is_entered_at_once(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    messages = numbered(4)
    put_later(table, *messages[:2])
    put(table, *messages[2:])
    assert found(table, "id-0") == [0]
    assert found(table, "id-3") == [3]


def test_what_waits_for_room_is_entered_when_there_is_some(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, 0
    put_later(table, *numbered(3))
    with pytest.raises(DiskFull):
        table.enter_waiting()
    disk.capacity_bytes = capacity_bytes
    table.enter_waiting()
    assert found(table, "id-2") == [2]


def test_what_waits_for_room_can_be_given_up(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, 0
    put_later(table, *numbered(2))
    with pytest.raises(DiskFull):
        table.enter_waiting()
    table.forget_waiting()
    disk.capacity_bytes = capacity_bytes
    put_later(table, *numbered(3)[2:])
    table.enter_waiting()
    assert [found(table, f"id-{number}") for number in range(3)] == [[], [], [2]]


def test_what_waits_beyond_a_cut_is_forgotten(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(2))
    put_later(table, *numbered(6)[2:])
    table.truncate(400, stored_ms)
    table.enter_waiting()
    assert [found(table, f"id-{number}") for number in range(6)] == [[0], [1], [2], [3], [], []]


def test_a_file_made_ahead_is_the_next_one(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(1))
    assert table.next_file(wall_ms=START_MS + 5) is None
    put(table, *numbered(8)[1:])
    make = table.next_file(wall_ms=START_MS + 5)
    assert make is not None
    table.take_prepared(make())
    assert table.next_file(wall_ms=START_MS + 6) is None
    before = disk.paths()
    put(table, *numbered(20)[8:])
    assert disk.paths() == before
    assert [found(table, f"id-{number}") for number in range(20)] == [[number] for number in range(20)]


def test_a_file_made_too_late_goes(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(8))
    make = table.next_file(wall_ms=START_MS + 5)
    assert make is not None
    segment = make()
    put(table, *numbered(30)[8:])
    needed = [path for path in disk.paths() if path != segment.path]
    table.take_prepared(segment)
    assert disk.paths() == needed
    assert found(table, "id-29") == [29]


def test_a_file_made_by_two_at_once_is_one(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    messages = numbered(30)
    put(table, *messages[:8])
    make = table.next_file(wall_ms=messages[13].stored_ms)
    put(table, *messages[8:])
    assert make is not None
    table.take_prepared(make())
    assert [found(table, f"id-{number}") for number in range(30)] == [[number] for number in range(30)]


def test_a_file_made_ahead_and_not_needed_goes_at_the_end(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put(table, *numbered(8))
    needed = disk.paths()
    for _ in range(2):
        make = table.next_file(wall_ms=START_MS + 5)
        assert make is not None
        table.take_prepared(make())
        assert len(disk.paths()) == 2
        if disk.generation == 1:
            disk.crash(power_loss=False)
            table = new_table(disk)
            table.load(StopKind.KILLED, durable_timestamp_ms=0)
            assert disk.paths() == needed
    table.close()
    assert disk.paths() == needed


def test_close_enters_what_waits(disk: SimulatedDisk) -> None:
    table = new_table(disk)
    put_later(table, *numbered(3))
    assert table.close() == numbered(3)[-1].stored_ms
    again = new_table(disk)
    again.load(StopKind.CLEAN, durable_timestamp_ms=0)
    assert found(again, "id-1") == [1]


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_a_kill_at_any_store_leaves_what_a_fresh_slave_has_once_the_rest_is_entered(
    seed: int, in_columns: bool
) -> None:
    """The killed process had stored a part of what `enter_waiting` stores: header, entries, slots."""
    chance = random.Random(seed)
    messages = [
        Indexed(n, tuple(f"k{chance.randrange(9)}" for _ in range(chance.randint(0, 4))), chance.choice((None, "T")))
        for n in range(1, 120)
    ]
    disk = SimulatedDisk(random.Random(3))
    table = new_table(disk)
    if in_columns:
        table.load_columns()
    known = chance.randrange(len(messages) - 64)
    put(table, *messages[:known])
    before = files(disk)
    put_later(table, *messages[known:])
    table.enter_waiting()
    after = files(disk)
    # Files become full one after the other: all of the earlier ones is stored before the first byte of the next.
    changed = [path for path in after if after[path] != before.get(path, bytes(FILE_BYTES))]
    torn = chance.choice(changed)
    disk.crash(power_loss=False)
    for path in after:
        view = disk.map_segment(path, FILE_BYTES, create=False).view
        if path < torn:
            continue
        old, new = before.get(path) or bytes(FILE_BYTES), after[path] or b""
        view[:] = bytes(FILE_BYTES) if path > torn else torn_file(old, new, chance, in_columns=in_columns)
    again = new_table(disk)
    again.load(StopKind.KILLED, durable_timestamp_ms=0)
    again.truncate(messages[known].physical_offset, stored_ms)
    put(again, *messages[known:])
    assert files(disk) == files_of(messages) == after


def torn_file(old: bytes, new: bytes, chance: random.Random, *, in_columns: bool) -> bytes:
    """`new` as far as a process came that was killed while it made it of `old`."""
    first, end = max(1, int.from_bytes(old[36:40], "big")), int.from_bytes(new[36:40], "big")
    entries = 40 + SLOT_COUNT * 4
    stores: list[tuple[int, int]] = [(0, 32), (36, 40)]
    if in_columns:
        fields = ((0, 4), (4, 12), (12, 16), (16, 20))
        stores += [(entries + n * 20 + a, entries + n * 20 + b) for a, b in fields for n in range(first, end)]
    else:
        stores += [(entries + n * 20, entries + n * 20 + 20) for n in range(first, end)]
    stores += chance.sample([(40 + n * 4, 44 + n * 4) for n in range(SLOT_COUNT)], SLOT_COUNT)
    torn = bytearray(old)
    for start, stop in stores[: chance.randint(1, len(stores))]:
        torn[start:stop] = new[start:stop]
    return bytes(torn)


@pytest.mark.parametrize("seed", range(40))
def test_dispatching_any_part_again_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    messages = numbered(chance.randint(1, 150))
    disk = SimulatedDisk(random.Random(3))
    table = new_table(disk)
    if chance.random() < 0.5:
        table.load_columns()
    known = chance.randint(1, len(messages))
    put(table, *messages[:known])
    put_later(table, *messages[chance.randint(0, known) :])
    table.enter_waiting()
    put(table, *messages[chance.randint(0, len(messages)) :])
    assert files(disk) == files_of(messages)

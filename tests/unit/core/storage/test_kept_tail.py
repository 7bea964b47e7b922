"""What a truncation took is found again in the file it was kept in, whatever happened to that file."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, log_bytes, new_store, queue_contents, with_options
from tandemmq.core.message.record_layout import BLANK_MAGIC
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.kept_tail import (
    KEPT_TAILS_FOLDER,
    TailPart,
    TailWalk,
    kept_repairs,
    kept_tail_named,
    kept_tails,
)

_FILE_BYTES = 4_096


@dataclass(frozen=True)
class Tail:
    """Bytes of a log from some offset on, and where its records lie in them."""

    start_offset: int
    data: bytes
    records: tuple[tuple[int, int], ...]
    """Start and end."""


def _tail(seed: int) -> Tail:
    """A log of several files, so that blanks lie in it; bodies of one message hold copies of others' records."""
    rng = random.Random(seed)
    store = new_store(SimulatedDisk(rng), options=with_options(commit_log_file_bytes=_FILE_BYTES))
    store.load()
    records: list[tuple[int, int]] = []
    for number in range(rng.randint(1, 30)):
        body = rng.randbytes(rng.choice((0, 10, 700)))
        if records and rng.random() < 0.3:
            start, end = rng.choice(records)
            body = bytes(store.read_log(start, end - start))[:900]
        result = store.put(outgoing_message(body=body, keys=(f"id-{number}",)))
        store.write_appended()
        records.append((int(result.physical_offset), int(result.end_offset)))
    start_offset = rng.choice(records)[0]
    return Tail(
        start_offset,
        log_bytes(store)[start_offset:],
        tuple((start, end) for start, end in records if start >= start_offset),
    )


def _walked(start_offset: int, data: bytes, *, goes_on: random.Random | None = None) -> TailPart:
    """All parts together; with `goes_on` the walk is put down and taken up again at times."""
    end = start_offset + len(data)
    walk, whole = TailWalk(start_offset, end), TailPart([], [])
    reads = 0
    while (wanted := walk.wanted) is not None:
        offset, length = wanted
        part = walk.take(data[offset - start_offset : offset - start_offset + length])
        whole.records.extend(part.records)
        whole.unreadable.extend(part.unreadable)
        reads += 1
        assert reads < 10_000, "it does not come to an end"
        if goes_on is not None and goes_on.random() < 0.5:
            position, lost_from, lost_reason = walk.state
            walk = TailWalk(position, end, lost_from=lost_from, lost_reason=lost_reason)
    return whole


@given(st.integers(0, 10_000))
def test_a_whole_tail_gives_every_record_and_nothing_unreadable(seed: int) -> None:
    tail = _tail(seed)
    found = _walked(tail.start_offset, tail.data, goes_on=random.Random(seed))
    assert [(start, start + len(data)) for start, data in found.records] == list(tail.records)
    assert found.unreadable == []


@given(st.integers(0, 10_000), st.data())
def test_every_record_outside_of_the_damage_is_found_and_the_rest_is_named(seed: int, data: st.DataObject) -> None:
    """Cut at both ends, and damaged in places: bytes flipped, zeros, a page of something else."""
    tail = _tail(seed)
    size = len(tail.data)
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    damaged = bytearray(tail.data)
    harmed: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(first, last - 1))
        length = min(data.draw(st.sampled_from((1, 8, 512))), last - at)
        damaged[at : at + length] = data.draw(
            st.sampled_from((bytes(length), random.Random(seed).randbytes(length), b"\xda\xa3\x20\xa7" * length))
        )[:length]
        harmed.append((tail.start_offset + at, tail.start_offset + at + length))
    start_offset, end_offset = tail.start_offset + first, tail.start_offset + last
    found = _walked(start_offset, bytes(damaged[first:last]))
    starts = {start for start, _ in found.records}
    for start, end in tail.records:
        is_there = start_offset <= start and end <= end_offset
        is_sound = (
            bytes(damaged[start - tail.start_offset : end - tail.start_offset])
            == (tail.data[start - tail.start_offset : end - tail.start_offset])
        )
        if is_there and is_sound:
            assert start in starts, f"the record at {start} is valid, and was not found"
        elif start_offset < end and start < end_offset and start not in starts:
            assert any(lost.start_offset < end and start < lost.end_offset for lost in found.unreadable) or (
                # What looks like a file's blank has no meaning.
                BLANK_MAGIC.to_bytes(4) in bytes(damaged[first:last])
            ), f"of the record at {start} nothing is said"
    for start, record in found.records:
        assert bytes(damaged[start - tail.start_offset :][: len(record)]) == record
    ends = [end for lost in found.unreadable for end in (lost.start_offset, lost.end_offset)]
    assert ends == sorted(ends)


@given(st.integers(2, 3 << 20), st.integers(0, 200))
@example(1 << 20, 4)
@example((1 << 20) - 4, 4)
def test_a_record_is_found_wherever_the_reads_end(garbage_bytes: int, seed: int) -> None:
    """Reads are of a megabyte: magic code, head and body may each lie across one's end."""
    rng = random.Random(seed)
    store = new_store(SimulatedDisk(rng), options=with_options(commit_log_file_bytes=8 << 20))
    store.load()
    store.put(outgoing_message(body=bytes(garbage_bytes)[:1_000]))
    store.write_appended()
    record = log_bytes(store)
    moved = bytearray(garbage_bytes) + record
    moved[garbage_bytes + 28 : garbage_bytes + 36] = garbage_bytes.to_bytes(8)
    found = _walked(0, bytes(moved))
    assert [start for start, _ in found.records] == [garbage_bytes]
    [lost] = found.unreadable
    assert (lost.start_offset, lost.end_offset) == (0, garbage_bytes)


def test_a_record_larger_than_a_read_is_read_whole() -> None:
    options = with_options(commit_log_file_bytes=8 << 20)
    store = new_store(SimulatedDisk(random.Random(1)), options=options)
    store.load()
    for size in (10, 3 << 20, 20):
        store.put(outgoing_message(body=bytes(size)))
        store.write_appended()
    found = _walked(0, log_bytes(store))
    assert len(found.records) == 3
    half = _walked(0, log_bytes(store)[: 2 << 20])
    assert len(half.records) == 1
    assert "the rest of it is missing" in half.unreadable[0].reason


def test_a_damaged_body_is_named_with_its_message() -> None:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    store.put(outgoing_message(topic="orders", body=b"x" * 50, keys=("01ABC",)))
    store.write_appended()
    data = bytearray(log_bytes(store))
    data[90] ^= 1
    [lost] = _walked(0, bytes(data)).unreadable
    assert "CRC" in lost.reason
    assert "message 01ABC of topic orders" in lost.reason


def test_a_tail_is_listed_with_its_reason_and_other_files_are_not() -> None:
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk)
    store.load()
    for _ in range(3):
        store.put(outgoing_message())
        store.write_appended()
    cut = store.end_offset // 3
    kept = store.truncate(cut, reason="it differs from the master's log")
    assert kept is not None
    disk.write_file(f"{KEPT_TAILS_FOLDER}/notes.txt", b"an operator's")
    assert kept_tails(disk) == [kept]
    assert (kept.start_offset, kept.end_offset, kept.reason) == (cut, 3 * cut, "it differs from the master's log")
    assert kept_tail_named(disk, kept.name) == kept
    assert kept_tail_named(disk, "../config/topics.json") is None
    # Of an older version, or damaged.
    for damaged in (b"", b"[]", b"\xff{"):
        disk.write_file(kept.path.removesuffix(".log") + ".json", damaged)
        [found] = kept_tails(disk)
        assert found.reason == ""


def test_what_repairs_have_kept_is_counted() -> None:
    disk = SimulatedDisk(random.Random(1))
    assert kept_repairs(disk) == (0, 0)
    disk.write_file("kept-repairs/queue-T-0-0000", bytes(40))
    disk.write_file("kept-repairs/queue-T-0-0001", bytes(60))
    disk.write_file("kept-tails/other", bytes(60))
    assert kept_repairs(disk) == (2, 100)


@pytest.mark.parametrize("room", range(0, 4_000, 250))
def test_a_cut_that_finds_no_room_leaves_no_copy_however_often_it_is_tried(room: int) -> None:
    """There was room for the copy and none for the checkpoint: each try left one more, until the disk was full."""
    disk = SimulatedDisk(random.Random(1))
    clock = ManualClock()
    store = new_store(disk, clock=clock)
    store.load()
    ends = [store.put(outgoing_message(body=bytes(500))).end_offset for _ in range(4)]
    flush_all(store)
    queues = queue_contents(store)
    disk.capacity_bytes = disk.usage().used_bytes + room
    for _ in range(3):
        clock.now_ms += 1_000
        try:
            store.truncate(ends[1])
        except DiskFull:
            assert (kept_tails(disk), store.end_offset, queue_contents(store)) == ([], ends[-1], queues)
    disk.capacity_bytes *= 2
    store.truncate(ends[1])
    assert ([tail.end_offset for tail in kept_tails(disk)], store.end_offset) == ([ends[-1]], ends[1])

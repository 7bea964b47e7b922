"""Which pages are brought before log and index come to them."""

from __future__ import annotations

import random
from typing import Final

import pytest

from mqcore.storage.commit_log import CommitLog
from mqcore.storage.index_file import index_file_bytes
from mqcore.storage.index_table import IndexTable
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import flush_all, new_store

MIB: Final = 1 << 20
FILE: Final = 96 * MIB
AHEAD: Final = 32 * MIB
AHEAD_MAX: Final = 64 * MIB


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def log(disk: SimulatedDisk) -> CommitLog:
    log = CommitLog(disk, file_bytes=FILE)
    log.load()
    return log


def grow(log: CommitLog, size: int) -> None:
    """By small appends, as far as pages are concerned."""
    log.append_raw(bytes(size))


def pages(log: CommitLog) -> tuple[int, int] | None:
    """What would be brought, as offsets in the log."""
    found = log.pages_ahead()
    if found is None:
        return None
    file_start = int(found.segment.path.rpartition("/")[2])
    return file_start + found.start, file_start + found.end


def test_log_without_a_file_needs_none(log: CommitLog) -> None:
    assert pages(log) is None


def test_first_pages_reach_from_the_end_on(log: CommitLog) -> None:
    grow(log, 100)
    assert pages(log) == (100, 100 + AHEAD)
    assert pages(log) is None


def test_pages_are_brought_once_and_not_for_little(log: CommitLog) -> None:
    grow(log, 100)
    pages(log)
    grow(log, MIB // 2)
    assert pages(log) is None
    grow(log, MIB // 2)
    assert pages(log) == (100 + AHEAD, 100 + MIB + AHEAD)


def test_faster_log_is_gone_further_ahead_of(log: CommitLog) -> None:
    grow(log, MIB)
    pages(log)
    grow(log, 10 * MIB)
    assert pages(log) == (MIB + AHEAD, 11 * MIB + 4 * 10 * MIB)
    grow(log, 1)
    assert pages(log) is None


def test_pages_end_with_the_file_and_begin_with_the_next(log: CommitLog) -> None:
    grow(log, FILE - MIB // 2)
    assert pages(log) == (FILE - MIB // 2, FILE)
    grow(log, MIB // 2)
    assert pages(log) is None
    grow(log, 100)
    assert pages(log) == (FILE + 100, FILE + 100 + AHEAD)


def test_large_writes_bring_their_pages_themselves(log: CommitLog) -> None:
    grow(log, 100)
    pages(log)
    write = log.raw_write([memoryview(bytes(20 * MIB))])
    assert write is not None
    write.run()
    log.written(write)
    assert pages(log) is None
    grow(log, 100)
    assert pages(log) == (100 + AHEAD, 20 * MIB + 200 + AHEAD_MAX)


def test_reads_that_the_loop_writes_leave_the_next_small_one_its_pages(log: CommitLog) -> None:
    grow(log, 100)
    pages(log)
    log.append_parts([memoryview(bytes(MIB))])
    assert pages(log) == (100 + AHEAD, 100 + MIB + AHEAD)


def test_file_made_ahead_has_its_first_pages(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(log, FILE - MIB)
    written = log.files.segment(0)
    brought: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        type(written), "fetch_pages", lambda segment, start, end: brought.append((segment.path, start, end))
    )
    found = log.next_file()
    assert found is not None
    _, make = found
    assert brought == []
    next_segment = make()
    assert brought == [(next_segment.path, 0, AHEAD)]


def test_log_that_was_cut_asks_again(log: CommitLog) -> None:
    grow(log, 10 * MIB)
    pages(log)
    log.set_end(MIB)
    assert pages(log) == (MIB, MIB + AHEAD)


def test_index_is_gone_ahead_of_from_its_last_entry_on(disk: SimulatedDisk) -> None:
    table = IndexTable(disk, slot_count=1_000, entry_count=1 << 21)
    assert table.pages_ahead() is None
    table.put("topic", ["key"], None, 0, 1_000, 1_000)
    first = table.pages_ahead()
    assert first is not None
    entries_start = index_file_bytes(slot_count=1_000, entry_count=0)
    assert (first.start, first.end) == (entries_start + 2 * 20, entries_start + 2 * 20 + AHEAD)
    assert table.pages_ahead() is None


def test_job_brings_what_log_and_index_need(disk: SimulatedDisk) -> None:
    store = new_store(disk)
    store.load()
    store.put(outgoing_message(keys=("k",)))
    flush_all(store)
    job = store.pages_ahead_job()
    assert job is not None
    assert [pages.segment.path.partition("/")[0] for pages in job.ranges] == ["commitlog", "index"]
    job.run()
    assert store.pages_ahead_job() is None, "the same again"


def test_nothing_waits_for_a_file_that_is_made(disk: SimulatedDisk) -> None:
    store = new_store(disk)
    store.load()
    assert store.preparation_job() is not None
    store.put(outgoing_message())
    assert store.pages_ahead_job() is not None

"""Which pages of the file being written are brought before the log comes to them."""

from __future__ import annotations

import random
from typing import Final

import pytest

from mqcore.storage.commit_log import CommitLog
from support.simulated_disk import SimulatedDisk

MIB: Final = 1 << 20
FILE: Final = 40 * MIB
AHEAD: Final = 8 * MIB


@pytest.fixture
def log() -> CommitLog:
    log = CommitLog(SimulatedDisk(random.Random(1)), file_bytes=FILE)
    log.load()
    return log


def grow(log: CommitLog, size: int) -> None:
    """By small appends, as far as pages are concerned."""
    log.append_raw(bytes(size))


def pages(log: CommitLog) -> tuple[int, int] | None:
    """What would be brought, as offsets in the log."""
    job = log.pages_ahead()
    if job is None:
        return None
    job.run()
    file_start = int(job.segment.path.rpartition("/")[2])
    return file_start + job.start, file_start + job.end


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
    grow(log, 3 * MIB)
    assert pages(log) == (3 * MIB, 15 * MIB)
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
    assert pages(log) == (20 * MIB + 200, 20 * MIB + 200 + AHEAD)


def test_log_that_was_cut_asks_again(log: CommitLog) -> None:
    grow(log, 10 * MIB)
    pages(log)
    log.set_end(MIB)
    assert pages(log) == (MIB, MIB + AHEAD)

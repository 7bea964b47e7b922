"""Which pages are brought before the index comes to them."""

from __future__ import annotations

import random
from typing import Final

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.core.storage.index_file import index_file_bytes
from tandemmq.core.storage.index_table import IndexTable, PagesAhead

MIB: Final = 1 << 20
FILE: Final = 40 * MIB
AHEAD: Final = 16 * MIB


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


class Writer:
    """Asks for pages of its file wherever it is."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._pages = PagesAhead()
        self.next_file("first")

    def next_file(self, name: str) -> None:
        self._segment = self._disk.map_segment(name, FILE, create=True)

    def at(self, position: int) -> tuple[int, int] | None:
        """What would be brought."""
        job = self._pages.ahead_of(self._segment, position)
        if job is None:
            return None
        assert job.segment is self._segment
        return job.start, job.end


def test_first_pages_reach_from_the_writer_on(disk: SimulatedDisk) -> None:
    writer = Writer(disk)
    assert writer.at(100) == (100, 100 + AHEAD)
    assert writer.at(100) is None


def test_pages_are_brought_once_and_not_for_little(disk: SimulatedDisk) -> None:
    writer = Writer(disk)
    writer.at(0)
    assert writer.at(8 * MIB - 1) is None
    assert writer.at(8 * MIB) == (AHEAD, 8 * MIB + AHEAD)
    assert writer.at(8 * MIB) is None


def test_writer_that_outran_its_pages_gets_those_from_itself_on(disk: SimulatedDisk) -> None:
    writer = Writer(disk)
    writer.at(0)
    assert writer.at(AHEAD + 100) == (AHEAD + 100, 2 * AHEAD + 100)


def test_pages_end_with_the_file_and_begin_with_the_next(disk: SimulatedDisk) -> None:
    writer = Writer(disk)
    assert writer.at(FILE - MIB) == (FILE - MIB, FILE)
    assert writer.at(FILE - 1) is None
    assert writer.at(FILE) is None
    writer.next_file("second")
    assert writer.at(100) == (100, 100 + AHEAD)


def test_writer_that_was_set_back_has_its_pages(disk: SimulatedDisk) -> None:
    writer = Writer(disk)
    writer.at(0)
    writer.at(8 * MIB)
    assert writer.at(MIB) is None


def test_index_is_gone_ahead_of_from_its_last_entry_on(disk: SimulatedDisk) -> None:
    table = IndexTable(disk, slot_count=1_000, entry_count=1 << 21)
    assert table.pages_ahead_job() is None
    table.put("topic", ["key"], None, 0, 1_000, 1_000)
    first = table.pages_ahead_job()
    assert first is not None
    entries_start = index_file_bytes(slot_count=1_000, entry_count=0)
    assert (first.start, first.end) == (entries_start + 2 * 20, entries_start + 2 * 20 + AHEAD)
    assert table.pages_ahead_job() is None


def test_job_brings_what_the_index_needs_also_while_a_file_is_made(disk: SimulatedDisk) -> None:
    store = new_store(disk)
    store.load()
    assert store.preparation_job() is not None
    store.put(outgoing_message(keys=("k",)))
    list(store.index_walk("TopicTest", "k", begin_ms=0, end_ms=1 << 50))
    job = store.pages_ahead_job()
    assert job is not None
    assert job.segment.path.partition("/")[0] == "index"
    job.run()
    assert store.pages_ahead_job() is None, "the same again"

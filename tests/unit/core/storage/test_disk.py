"""Appends are written together, and nobody outside a put sees the log without them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import SMALL_OPTIONS, flush_all, new_store, queue_contents
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.storage.commit_log import CommitLog
from tandemmq.core.storage.disk import DiskError, MappedSegment
from tandemmq.core.storage.put_result import PutStatus

FILE: Final = 1 << 20


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def log(disk: SimulatedDisk) -> CommitLog:
    log = CommitLog(disk, file_bytes=FILE)
    log.load()
    log.roll()  # Makes the first file.
    return log


def in_file(log: CommitLog, size: int) -> bytes:
    """What a process would find after this one was killed."""
    segment = log.files.segment(0)
    assert segment is not None
    return bytes(segment.view[:size])


def break_writes(segment: MappedSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no write of any file succeeds."""

    def refuse(broken: MappedSegment, start: int, parts: object) -> None:
        raise DiskError(f"{broken.path}: Input/output error")

    monkeypatch.setattr(type(segment), "write_parts", refuse)


def test_appends_are_written_at_once_and_in_order(log: CommitLog) -> None:
    assert log.append(b"first")
    assert log.append(b"second")
    assert log.has_gathered
    assert in_file(log, 11) == bytes(11)
    log.write_gathered()
    assert not log.has_gathered
    assert log.append(b"third")
    log.write_gathered()
    assert in_file(log, 17) == b"firstsecondthird\0"
    assert log.end_offset == 16


def test_reader_of_what_was_appended_has_it_written(log: CommitLog) -> None:
    log.append(b"first")
    log.write_gathered()
    log.append(b"second")
    assert bytes(log.read(0, 5)) == b"first"
    assert log.has_gathered, "what was read was there"
    assert bytes(log.read(3, 100)) == b"stsecond"
    assert in_file(log, 11) == b"firstsecond"


def test_flush_is_of_all_that_was_appended(log: CommitLog) -> None:
    log.append(b"first")
    _, end_offset = log.unflushed()
    assert end_offset == 5
    assert in_file(log, 5) == b"first"


def test_no_more_than_a_bound_waits_to_be_written(log: CommitLog) -> None:
    record = b"r" * (100 << 10)
    for _ in range(2):
        log.append(record)
    assert log.has_gathered
    log.append(record)
    assert not log.has_gathered
    assert in_file(log, 3 * len(record)) == 3 * record


def test_file_is_closed_behind_what_was_appended(log: CommitLog) -> None:
    log.append(b"first")
    log.roll()
    log.append(b"second")
    log.write_gathered()
    assert in_file(log, 5) == b"first"
    assert int.from_bytes(in_file(log, 9)[5:], "big") == FILE - 5
    assert bytes(log.read(FILE, 100)) == b"second"


def test_only_readers_close_behind_the_writer_read_without_readahead(disk: SimulatedDisk) -> None:
    log = CommitLog(disk, file_bytes=FILE)
    log.load()
    assert not log.read(0, 5)
    log.roll()
    log.append(b"first")
    assert log.read(0, 5).readonly, "the tail's view"
    log.roll()
    assert not log.read(0, 5).readonly, "another file"
    log = CommitLog(disk, file_bytes=FILE)
    log.load()
    assert bytes(log.read(0, 5)) == b"first", "before it is known where the log ends"
    log.set_end(FILE)
    assert bytes(log.read(0, 5)) == b"first"


def test_what_could_not_be_written_is_tried_again_and_never_skipped(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(b"first")
    segment = log.files.segment(0)
    assert segment is not None
    with monkeypatch.context() as broken:
        break_writes(segment, broken)
        for attempt in (log.write_gathered, lambda: log.read(0, 5), log.unflushed, log.roll):
            with pytest.raises(DiskError):
                attempt()
    assert log.end_offset == 5
    log.write_gathered()
    assert in_file(log, 5) == b"first"


def test_store_whose_write_fails_takes_no_puts_and_vouches_for_nothing(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(disk)
    store.load()
    store.put(outgoing_message())
    flush_all(store)
    flushed_offset = store.flushed_offset
    store.put(outgoing_message())
    segment = disk.map_segment(f"commitlog/{0:020}", SMALL_OPTIONS.commit_log_file_bytes, create=False)
    break_writes(segment, monkeypatch)
    for ask in (
        lambda: store.end_offset,
        lambda: store.dispatched_offset,
        lambda: store.read_log(flushed_offset, 1000),
        store.log_flush_job,
        store.write_appended,
    ):
        with pytest.raises(DiskError):
            ask()
    assert "the disk failed" in (store.refusal or "")
    assert store.put(outgoing_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.flushed_offset == flushed_offset
    store.close()


@pytest.mark.parametrize(
    "folder", ["", "commitlog", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "index"]
)
@pytest.mark.parametrize(
    "name", [".DS_Store", "copy~", "lost+found/", ".snapshot/", "notes", "00000000000000000000.bak"]
)
def test_what_others_leave_in_a_store_keeps_no_broker_from_its_messages(tmp_path: Path, folder: str, name: str) -> None:
    store = new_store(PosixDisk(tmp_path))
    store.load()
    for _ in range(3):
        store.put(outgoing_message(topic="orders", queue_id=0, keys=("id-1",)))
    flush_all(store)
    held = queue_contents(store)
    store.close()
    stray = tmp_path / folder / name
    if name.endswith("/"):
        stray.mkdir()
    else:
        stray.write_bytes(b"of somebody else")
    store = new_store(PosixDisk(tmp_path))
    store.load()
    assert queue_contents(store) == held
    store.close()
    assert stray.exists()

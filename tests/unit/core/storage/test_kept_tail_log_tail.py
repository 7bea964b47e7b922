"""Damage in the tail of a log, planted in every place of it, and the cuts that a kill makes, which are none."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.messages import changed, outgoing_message
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import SMALL_OPTIONS, derived_queues, flush_all, log_bytes, new_store, queue_contents
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.storage.commit_log import MappedFileQueue
from tandemmq.core.storage.consume_queue_table import StopKind
from tandemmq.core.storage.dispatch import scan_log
from tandemmq.core.storage.kept_tail import describe_damage, read_log_tail
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.recovery import RecoveryReport

FILE = SMALL_OPTIONS.commit_log_file_bytes
PAGE = 512
STOPS = ("clean", "killed", "power lost")

Files = dict[str, bytes]


def _messages(seed: int) -> list[OutgoingMessage]:
    chance = random.Random(seed)
    return [
        changed(
            outgoing_message(
                topic=chance.choice(("topic", "t" * 60)),
                queue_id=n % 2,
                body=chance.randbytes(chance.randint(1, 120)),
                tag=chance.choice((None, "T")),
                keys=(f"u{n}", "k" * chance.randint(1, 50)),
            ),
            born_host=outgoing_message().born_host,
        )
        for n in range(30)
    ]


@cache
def _stopped(stop: str, seed: int = 1) -> tuple[Files, bytes, int]:
    """The files of a store that was stopped like that, its log, and where the record starts that its checkpoint names.

    What follows that record was not flushed, but is there.
    """
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk)
    store.load()
    messages = _messages(seed)
    for message in messages[:-3]:
        store.put(message)
    flush_all(store)
    for message in messages[-3:]:
        store.put(message)
    log = log_bytes(store)
    if stop == "clean":
        store.close()
        vouched = store.checkpoint.logics_physical_offset
    else:
        vouched = store.checkpoint.logics_physical_offset
        disk.crash(power_loss=False)
    files = {path: disk.read_file(path) or b"" for path in disk.paths()}
    if stop == "power lost":
        del files["boot"]
    assert 0 < vouched < len(log)
    return files, log, vouched


def _disk_of(files: Files, log: bytes) -> SimulatedDisk:
    """A disk that holds them, and `log` instead of theirs."""
    disk = SimulatedDisk(random.Random(1))
    for path, data in files.items():
        disk.write_file(path, data)
    for start in range(0, len(log), FILE):
        disk.write_file(f"commitlog/{start:020d}", log[start : start + FILE].ljust(FILE, b"\0"))
    return disk


def _started(disk: SimulatedDisk) -> tuple[MessageStore, RecoveryReport]:
    store = new_store(disk)
    return store, store.load()


def _kept(disk: SimulatedDisk) -> list[bytes | None]:
    return [disk.read_file(path) for path in disk.paths() if path.startswith("kept-tails/") and path.endswith(".log")]


def _damaged(log: bytes, kind: str, at: int, chance: random.Random) -> bytes:
    """The log with one thing wrong, at a byte or from it on."""
    damaged = bytearray(log)
    if kind == "flip":
        damaged[at] ^= 1 << chance.randrange(8)
    elif kind == "page":
        start = at // PAGE * PAGE
        damaged[start : start + PAGE] = bytes(min(PAGE, len(log) - start))
    else:
        damaged[at:] = bytes(len(log) - at)
    return bytes(damaged)


KINDS = ("flip", "page", "end")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_each_byte_is_told_from_what_a_kill_leaves(kind: str) -> None:
    _, log, vouched = _stopped("killed")
    chance = random.Random(kind)
    for at in range(vouched, len(log)):
        damaged = _damaged(log, kind, at, chance)
        files = MappedFileQueue(_disk_of({}, damaged), "commitlog", file_bytes=FILE)
        files.load()
        scan = scan_log(
            files, 0, file_bytes=FILE, limit_offset=files.end_offset, check_crc=True, on_record=lambda _: None
        )
        tail = read_log_tail(files, scan.end_offset, file_bytes=FILE)
        rest = damaged[scan.end_offset :].rstrip(b"\0")
        assert tail.size == len(rest)
        for stop in StopKind:
            damage, reached = describe_damage(tail, stop, reason=scan.stop_reason, vouched_offset=vouched)
            assert (reached > scan.end_offset) == bool(damage)
            assert bool(damage) == _is_damage(stop, log, vouched, scan.end_offset, rest), (at, stop, tail, damage)


def _is_damage(stop: StopKind, log: bytes, vouched: int, end: int, rest: bytes) -> bool:
    if end <= vouched:
        return True
    if stop is StopKind.POWER_LOST or not rest:
        return False
    # A cut of the log as it was, within the first record that is gone, is what a kill leaves.
    is_within = len(rest) < int.from_bytes(log[end : end + 4], "big")
    return stop is StopKind.CLEAN or not (is_within and log[end:].startswith(rest))


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_start_tells_damage_and_keeps_what_it_cuts(stop: str, kind: str, seed: int) -> None:
    files, log, vouched = _stopped(stop, seed % 2)
    chance = random.Random(seed)
    damaged = _damaged(log, kind, chance.randrange(vouched, len(log)), chance)
    disk = _disk_of(files, damaged)
    store, report = _started(disk)
    assert damaged[: report.end_offset] == log_bytes(store)
    rest = damaged[report.end_offset :].rstrip(b"\0")
    if report.end_offset < len(log):  # Else the bit is one that no check covers.
        assert queue_contents(store) == derived_queues(store)
        kind_of_stop = StopKind(stop.replace(" ", "_"))
        assert bool(report.damage) == _is_damage(kind_of_stop, log, vouched, report.end_offset, rest)
    assert report.may_have_lost == (bool(report.damage) or stop == "power lost")
    if report.damage and rest:
        assert _kept(disk) == [rest]
        assert report.kept_tail is not None
        assert (report.kept_tail.start_offset, report.kept_tail.end_offset) == (
            store.end_offset,
            store.end_offset + len(rest),
        )


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_behind_the_end_are_told_unless_a_stop_explains_them(stop: str, seed: int) -> None:
    files, log, _ = _stopped(stop)
    chance = random.Random(seed)
    gap = chance.choice((0, 8, 100))
    junk = chance.randbytes(chance.randint(9, 300))
    disk = _disk_of(files, log + bytes(gap) + junk)
    store, report = _started(disk)
    assert (store.end_offset, bool(report.damage)) == (len(log), stop != "power lost")
    assert _kept(disk) == [(bytes(gap) + junk).rstrip(b"\0")]


def test_a_sound_stop_is_no_damage() -> None:
    for stop in STOPS:
        files, log, _ = _stopped(stop)
        disk = _disk_of(files, log)
        _, report = _started(disk)
        assert (report.damage, report.kept_tail, report.end_offset) == ("", None, len(log))


@cache
def _killed_beside_its_checkpoint(derived_count: int) -> tuple[Files, bytes, list[int]]:
    """The files of a killed store, its log, and where its unflushed records end. Of these `derived_count` are in
    ConsumeQueues and index as well, and in no checkpoint."""
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk)
    store.load()
    messages = _messages(1)
    for message in messages[:-5]:
        store.put(message)
    flush_all(store)
    ends = [store.end_offset]
    for count, message in enumerate(messages[-5:], start=1):
        store.put(message)
        ends.append(store.end_offset)
        if count == derived_count:
            assert store.queue_flush_job() is not None  # It is made, and never run.
    log = log_bytes(store)
    disk.crash(power_loss=False)
    return {path: disk.read_file(path) or b"" for path in disk.paths()}, log, ends


@given(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans(), st.data())
def test_a_tail_of_zeros_is_told_by_what_was_derived_from_it(
    derived_count: int, kept_count: int, has_queues: bool, is_power_lost: bool, data: st.DataObject
) -> None:
    files, log, ends = _killed_beside_its_checkpoint(derived_count)
    torn_bytes = data.draw(st.integers(0, ends[kept_count + 1] - ends[kept_count] - 1)) if kept_count < 5 else 0
    cut = ends[kept_count] + torn_bytes
    disk = _disk_of(files, log[:cut] + bytes(len(log) - cut))
    if is_power_lost:
        disk.remove("boot")
    if not has_queues:
        for path in [path for path in disk.paths() if path.startswith("consumequeue/")]:
            disk.remove(path)
    is_told = kept_count < derived_count and (has_queues or not is_power_lost)
    store, report = _started(disk)
    assert (store.end_offset, bool(report.damage)) == (ends[kept_count], is_told)
    assert report.may_have_lost == (is_told or is_power_lost)
    assert queue_contents(store) == derived_queues(store)
    if is_told and has_queues:
        assert f"the log ends at {ends[kept_count]} " in report.damage
        assert f"know of records up to {ends[derived_count]}" in report.damage


def test_a_crash_at_any_step_of_the_start_does_not_hide_that_the_log_was_longer() -> None:
    files, log, ends = _killed_beside_its_checkpoint(5)
    for step in range(1, 200):
        disk = _disk_of(files, log[: ends[2]] + bytes(len(log) - ends[2]))
        disk.crash_at_operation(step)
        try:
            _started(disk)
            is_through = True
        except SimulatedCrash:
            is_through = False
        disk.crash(power_loss=False)
        assert _started(disk)[1].may_have_lost
        if is_through:
            return
    pytest.fail("no start got through")


@pytest.mark.parametrize("stop", STOPS)
def test_a_log_whose_files_are_gone_is_told(stop: str) -> None:
    files, log, vouched = _stopped(stop)
    last_file = (len(log) - 1) // FILE * FILE
    for first_gone in range(0, last_file + FILE, FILE):
        disk = _disk_of({p: d for p, d in files.items() if not p.startswith("commitlog/")}, log[:first_gone])
        store, report = _started(disk)
        assert bool(report.damage) == (store.end_offset <= vouched)
        disk.crash(power_loss=False)
        assert not report.damage or _started(disk)[1].may_have_lost


@pytest.mark.parametrize("stop", ["killed", "clean"])
def test_a_crash_at_any_step_of_the_start_neither_hides_damage_nor_loses_what_is_cut(stop: str) -> None:
    files, log, _ = _stopped(stop)
    damaged = bytearray(log)
    damaged[log.index(_messages(1)[-1].body)] ^= 4
    for step in range(1, 200):
        disk = _disk_of(files, bytes(damaged))
        disk.crash_at_operation(step)
        try:
            _started(disk)
            is_through = True
        except SimulatedCrash:
            is_through = False
        disk.crash(power_loss=False)
        store, report = _started(disk)
        assert report.may_have_lost
        assert bytes(damaged)[store.end_offset :] in _kept(disk)
        if is_through:
            return
    pytest.fail("no start got through")

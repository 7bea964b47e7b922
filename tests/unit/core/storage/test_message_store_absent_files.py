"""A start finds what was derived from the log cut, emptied, zeroed or gone: the log gives it again, however the last
run ended. Drawn: which run, which file or folder, what happened to it."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import (
    SMALL_OPTIONS,
    ManualClock,
    derived_queues,
    flush_all,
    keys_in,
    messages_by_key,
    new_store,
    queue_contents,
    right_time,
    with_options,
)
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE, QueueEnds, StopKind
from tandemmq.core.storage.disk import FROM_A_REPLICA, LogGap, SegmentSizeMismatch
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.retention import RetentionFloor

MESSAGES = 90
QUEUES = 3
ENTRIES_A_FILE = SMALL_OPTIONS.consume_queue_file_bytes // 20
Image = dict[str, bytes]


@dataclass(repr=False)
class _Run:
    """A run that has ended, and what it left."""

    disk: SimulatedDisk
    clock: ManualClock
    image: Image

    def start(self, image: Image) -> MessageStore:
        self.disk.put_back(image)
        store = new_store(self.disk, self.clock)
        store.load()
        return store


@cache
def _run(stop: StopKind, unflushed: int) -> _Run:
    """The last `unflushed` messages came after the last flush."""
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    store = new_store(disk, clock)
    store.load()
    for number in range(MESSAGES):
        clock.now_ms += 1000
        store.put(outgoing_message(queue_id=number % QUEUES, body=b"b" * 100, keys=(f"id-{number}", f"key-{number}")))
        if number == MESSAGES - unflushed:
            flush_all(store)
    store.write_appended()
    if stop is StopKind.CLEAN:
        store.close()
    disk.crash(power_loss=False)
    image = disk.image()
    if stop is StopKind.POWER_LOST:
        image["boot"] = b"another run of the machine"
    return _Run(disk, clock, image)


RUNS = st.builds(_run, st.sampled_from(StopKind), st.sampled_from((1, 17, 30)))


@cache
def _run_behind_its_ends(stop: StopKind) -> tuple[_Run, tuple[Image, ...]]:
    """Three times the queues are flushed, the last two of them soon after the first: where they end was written down
    then, and not since. And how their files were each time."""
    disk, clock = SimulatedDisk(random.Random(2)), ManualClock()
    store = new_store(disk, clock)
    store.load()
    older: list[Image] = []
    for number in range(MESSAGES):
        # Of queue 2 there is nothing before the second time.
        queue_id = number % (QUEUES if older else QUEUES - 1)
        store.put(outgoing_message(queue_id=queue_id, body=b"b" * 100, keys=(f"id-{number}",)))
        if number in (30, 60, 80):
            clock.now_ms += 20_000 if number == 30 else 100
            if number > 30:
                store.queues.new_count = 0  # As of many queues: a new one waits, too.
            flush_all(store)
            older.append({path: data for path, data in disk.image().items() if path.startswith("consumequeue/")})
    store.write_appended()
    disk.crash(power_loss=False)
    image = disk.image()
    if stop is StopKind.POWER_LOST:
        image["boot"] = b"another run of the machine"
    return _Run(disk, clock, image), tuple(older)


@pytest.mark.parametrize("stop", [StopKind.KILLED, StopKind.POWER_LOST])
@pytest.mark.parametrize("age", [0, 1, 2])
@pytest.mark.parametrize("queue_ids", [(0,), (2,), (1, 2), (0, 1, 2)])
def test_an_older_copy_of_some_queues_is_missed_although_their_ends_were_not_written_down_since(
    stop: StopKind, age: int, queue_ids: tuple[int, ...]
) -> None:
    """The checkpoint vouches for entries that the copy lacks: passed over, those messages would never be delivered."""
    run, older = _run_behind_its_ends(stop)
    folders = tuple(f"consumequeue/topic/{queue_id}/" for queue_id in queue_ids)
    image = {path: data for path, data in run.image.items() if not path.startswith(folders)}
    image |= {path: data for path, data in older[age].items() if path.startswith(folders)}
    run.disk.put_back(image)
    store = new_store(run.disk, run.clock)
    report = store.load()
    assert queue_contents(store) == derived_queues(store)
    assert sum(map(len, queue_contents(store).values())) == MESSAGES
    assert {queue_id for _, queue_id, _ in report.damaged_queues} == (set(queue_ids) if age < 2 else set())
    assert not report.damage


def _changed_length(data: bytes, size: int) -> bytes:
    return (data + bytes(size))[:size]


@given(run=RUNS, data=st.data())
def test_queues_that_lost_files_hold_every_message_again(run: _Run, data: st.DataObject) -> None:
    paths = sorted(path for path in run.image if path.startswith("consumequeue/"))
    folders = {path.rpartition("/")[0] for path in paths} | {"consumequeue"}
    image = dict(run.image)
    if data.draw(st.booleans(), "a whole folder"):
        gone = data.draw(st.sampled_from(sorted(folders)))
        image = {path: content for path, content in image.items() if not path.startswith(f"{gone}/")}
        if gone == "consumequeue" and data.draw(st.booleans(), "without what was written down"):
            del image[QUEUE_ENDS_FILE]
    else:
        path = data.draw(st.sampled_from(paths))
        size = data.draw(st.none() | st.integers(0, 2 * len(image[path])).filter(lambda n: n != len(image[path])))
        if size is None:
            del image[path]
        else:
            image[path] = _changed_length(image[path], size)
    store = run.start(image)
    assert queue_contents(store) == derived_queues(store)
    assert sum(map(len, queue_contents(store).values())) == MESSAGES


@given(run=RUNS, place=st.integers(0, 4), share=st.none() | st.floats(0, 2))
def test_an_index_that_lost_files_is_made_again_or_told_of(run: _Run, place: int, share: float | None) -> None:
    """One file is gone, or has such a share of its length, which is none; or all are gone."""
    paths = sorted(path for path in run.image if path.startswith("index/"))
    image = dict(run.image)
    path = [*paths, "index"][min(place, len(paths))]
    if path == "index":
        image = {path: content for path, content in image.items() if path not in paths}
    elif share is None:
        del image[path]
    else:
        size = int(share * len(image[path]))
        image[path] = _changed_length(b"" if size == len(image[path]) else image[path], size)
    run.disk.put_back(image)
    store = new_store(run.disk, run.clock)
    report = store.load()
    assert report.damaged_index_files in ((), (path.removeprefix("index/"),))
    if path in paths[:-1] and image.get("boot") != b"another run of the machine":
        assert [missing.is_made_again for missing in report.missing_index_files] == [True]
        made = run.disk.image()
        found = sorted(path for path in made if path.startswith("index/"))
        for name, before in list(zip(found, paths))[: len(paths) - 1]:
            assert made[name] == run.image[before], "the very same entries"
    elif path == "index":
        assert report.missing_index_files == ()
    missing = [
        key
        for topic, key, offset in keys_in(store)
        if all(
            record.physical_offset != offset
            for record in messages_by_key(store, topic, key, begin_ms=0, end_ms=run.clock.now_ms)
        )
    ]
    assert not missing


@given(run=RUNS, data=st.data())
def test_a_damaged_length_of_the_log_is_refused_with_its_remedy(run: _Run, data: st.DataObject) -> None:
    paths = sorted(path for path in run.image if path.startswith("commitlog/"))
    path = data.draw(st.sampled_from(paths[:-1]))
    full = len(run.image[path])
    size = data.draw(st.none() | st.integers(0, 2 * full).filter(lambda n: n != full))
    image = dict(run.image)
    if size is None:
        del image[path]
    else:
        image[path] = _changed_length(image[path], size)
    run.disk.put_back(image)
    store = new_store(run.disk, run.clock)
    with pytest.raises((SegmentSizeMismatch, LogGap)) as refusal:
        store.load()
    assert FROM_A_REPLICA in str(refusal.value)
    assert run.disk.image() == image, "nothing was changed"


@given(run=RUNS, count=st.integers(1, 4))
def test_a_first_file_of_the_log_that_is_gone_is_missed(run: _Run, count: int) -> None:
    image = dict(run.image)
    for path in sorted(path for path in image if path.startswith("commitlog/"))[:count]:
        del image[path]
    run.disk.put_back(image)
    with pytest.raises(LogGap, match="the file starting at 0 is missing") as refusal:
        new_store(run.disk, run.clock).load()
    assert FROM_A_REPLICA in str(refusal.value)
    assert run.disk.image() == image, "nothing was changed"
    del image[QUEUE_ENDS_FILE]
    assert run.start(image).min_offset == count * SMALL_OPTIONS.commit_log_file_bytes, "as the refusal says"


@given(run=RUNS, count=st.integers(1, 3), loses_queue=st.booleans())
@example(run=_run(StopKind.CLEAN, 1), count=1, loses_queue=False)
def test_last_files_of_the_log_that_are_gone_are_the_logs_damage_alone(
    run: _Run, count: int, loses_queue: bool
) -> None:
    image = dict(run.image)
    for path in sorted(path for path in image if path.startswith("commitlog/"))[-count:]:
        del image[path]
    if loses_queue:
        del image[min(path for path in image if path.startswith("consumequeue/topic/0/"))]
    run.disk.put_back(image)
    store = new_store(run.disk, run.clock)
    report = store.load()
    # After a kill only the mark of the log's end may know, which is no part of the store.
    assert report.damage or not report.clean
    assert {queue_id for _, queue_id, _ in report.damaged_queues} == ({0} if loses_queue else set())
    assert len(set(report.damaged_queues)) == len(report.damaged_queues)
    assert queue_contents(store) == derived_queues(store)


@pytest.mark.parametrize("changed", ["consume_queue_file_bytes", "index_entry_count"])
def test_lengths_that_a_setting_changed_are_no_damage(changed: str) -> None:
    run = _run(StopKind.CLEAN, 1)
    run.disk.put_back(run.image)
    other = new_store(run.disk, run.clock, with_options(**{changed: 400 * 3}))
    with pytest.raises(SegmentSizeMismatch, match="back to what the store was created with"):
        other.load()
    assert run.disk.image() == run.image, "nothing was changed"


@given(st.lists(st.sampled_from(("put", "flush", "wait", "cut", "kill", "power", "stop")), min_size=1, max_size=25))
@example([*["put"] * 16, "power", "put", "cut", "stop"])
def test_queues_that_lost_nothing_are_not_called_damaged(steps: list[str]) -> None:
    """Ends are written down while the store works: whatever shrinks queues in order comes after they are forgotten."""
    disk, clock = SimulatedDisk(random.Random(len(steps))), ManualClock()
    store = new_store(disk, clock)
    store.load()
    for number, step in enumerate(steps):
        match step:
            case "put":
                for queue_id in range(number % 5 + 1):
                    store.put(outgoing_message(queue_id=queue_id, body=b"b" * (100 * number)))
            case "flush":
                flush_all(store)
            case "wait":
                clock.now_ms += 20_000
            case "cut":
                boundaries = sorted(
                    {entry.physical_end for entries in queue_contents(store).values() for entry in entries}
                )
                if boundaries:
                    store.truncate(boundaries[len(boundaries) // 2])
            case "stop":
                store.close()
        if step in {"kill", "power", "stop"}:
            disk.crash(power_loss=step == "power")
            store = new_store(disk, clock)
            report = store.load()
            assert report.damaged_queues == ()
            assert report.missing_index_files == ()
            assert not report.checkpoint_is_lost
            assert queue_contents(store) == derived_queues(store)


@given(run=RUNS, size=st.sampled_from((None, 0, 4096)))
def test_a_checkpoint_that_is_gone_is_missed(run: _Run, size: int | None) -> None:
    image = dict(run.image)
    if size is None:
        del image["checkpoint"]
    else:
        image["checkpoint"] = bytes(size)
    run.disk.put_back(image)
    store = new_store(run.disk, run.clock)
    assert store.load().checkpoint_is_lost
    assert queue_contents(store) == derived_queues(store)
    assert sum(map(len, queue_contents(store).values())) == MESSAGES


@given(run=RUNS, data=st.data())
def test_a_recovery_that_is_interrupted_misses_nothing_the_next_time(run: _Run, data: st.DataObject) -> None:
    paths = sorted(path for path in run.image if path.startswith("consumequeue/"))
    path = data.draw(st.sampled_from(paths))
    image = dict(run.image)
    size = data.draw(st.none() | st.integers(0, 2 * len(image[path])).filter(lambda n: n != len(image[path])))
    if size is None:
        del image[path]
    else:
        image[path] = _changed_length(image[path], size)
    run.disk.put_back(image)
    run.disk.crash_at_operation(data.draw(st.integers(1, 80), "operations"))
    with suppress(SimulatedCrash):
        new_store(run.disk, run.clock).load()
    run.disk.crash(power_loss=data.draw(st.booleans(), "power is lost"))
    store = new_store(run.disk, run.clock)
    store.load()
    assert queue_contents(store) == derived_queues(store)
    assert sum(map(len, queue_contents(store).values())) == MESSAGES


# A queue whose messages have all expired: its number is all that is left of it.

EXPIRING = with_options(file_reserved_hours=1)


def _expire_all(store: MessageStore, disk: SimulatedDisk, clock: ManualClock) -> None:
    for _ in range(48):
        clock.now_ms += 3_600_000
        job = store.expire(store.expiry_wish(right_time(clock.now_ms)), RetentionFloor())
        if job is not None:
            job.run()
    while store.trim_queues():
        pass


def _store_with_an_expired_queue(disk: SimulatedDisk, clock: ManualClock) -> MessageStore:
    """Queue 0 had 30 messages."""
    store = new_store(disk, clock, EXPIRING)
    store.load()
    for number in range(100):
        store.put(outgoing_message(queue_id=int(number >= 30), body=b"b" * 100))
    flush_all(store)
    _expire_all(store, disk, clock)
    assert (store.queue_min_offset("topic", 0), store.queue_max_offset("topic", 0)) == (30, 30)
    store.put(outgoing_message(queue_id=1))
    clock.now_ms += 20_000
    flush_all(store)
    return store


@pytest.mark.parametrize("flush", ["before", "around", "after"])
@pytest.mark.parametrize("are_removed", [False, True])
def test_files_that_expired_are_not_missed(flush: str, are_removed: bool) -> None:
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    store = new_store(disk, clock, EXPIRING)
    store.load()
    for _ in range(100):
        store.put(outgoing_message(body=b"b" * 100))
    flush_all(store)
    clock.now_ms += 20_000
    store.put(outgoing_message())
    flush_job = store.queue_flush_job() if flush == "around" else None
    if flush == "before":
        flush_all(store)
    expiry = None
    while expiry is None:
        clock.now_ms += 3_600_000
        expiry = store.expire(store.expiry_wish(right_time(clock.now_ms)), RetentionFloor())
    if are_removed:
        expiry.run()
    if flush == "after":
        flush_all(store)
    if flush_job is not None:
        flush_job.run()
    disk.crash(power_loss=False)
    store = new_store(disk, clock, EXPIRING)
    assert store.load().damaged_queues == ()
    assert queue_contents(store) == derived_queues(store)


def test_ends_are_written_down_again_after_retention_though_nothing_is_put() -> None:
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    store = _store_with_an_expired_queue(disk, clock)
    for _ in range(1000):
        store.put(outgoing_message(body=b"b" * 100))
    flush_all(store)
    _expire_all(store, disk, clock)
    assert QUEUE_ENDS_FILE not in disk.image()
    flush_all(store)
    assert QUEUE_ENDS_FILE in disk.image()
    assert store.queue_flush_job() is None, "once is enough"
    disk.crash(power_loss=False)
    store = new_store(disk, clock, EXPIRING)
    assert store.load().damaged_queues == ()


def _copy_log(source: MessageStore, target: MessageStore, offset: int) -> None:
    while data := source.read_log(offset, source.segment_bytes):
        target.append_raw(offset, data)
        offset += len(data)


@pytest.mark.parametrize("damage", ["gone", "cut", "zeros"])
def test_an_expired_queue_goes_on_with_its_number(damage: str) -> None:
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    _store_with_an_expired_queue(disk, clock)
    disk.crash(power_loss=False)
    image = disk.image()
    path = next(path for path in image if path.startswith("consumequeue/topic/0/"))
    match damage:
        case "gone":
            del image[path]
        case "cut":
            image[path] = image[path][:60]
        case "zeros":
            image[path] = image[path][:60] + bytes(len(image[path]) - 60)
    disk.put_back(image)
    for is_first in (True, False):
        store = new_store(disk, clock, EXPIRING)
        report = store.load()
        assert bool(report.damaged_queues) == is_first
        assert (store.queue_min_offset("topic", 0), store.queue_max_offset("topic", 0)) == (30, 30)
        assert queue_contents(store) == derived_queues(store)
        disk.crash(power_loss=not is_first)
    store = new_store(disk, clock, EXPIRING)
    store.load()
    assert store.put(outgoing_message(queue_id=0)).queue_offset == 30


@given(
    number=st.integers(1, 75),
    steps=st.lists(st.sampled_from(("put", "flush", "cut", "cut all", "kill", "power", "stop", "expire")), max_size=15),
)
@example(number=30, steps=["put", "kill", "put", "stop"])
@example(number=30, steps=["put", "cut all", "put", "flush", "kill"])
def test_a_queue_goes_on_with_a_number_that_another_replica_knows(number: int, steps: list[str]) -> None:
    """It has no file until a message comes. Whoever knows the number says it again after a restart."""
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    store = new_store(disk, clock, EXPIRING)
    store.load()
    store.put(outgoing_message(queue_id=1))
    queue_end = store.end_offset
    store.queues.go_on_at("topic", 0, number)
    next_number = number
    assert not [path for path in disk.image() if path.startswith("consumequeue/topic/0/")]
    for count, step in enumerate(steps):
        match step:
            case "put":
                for _ in range(count % 7 + 1):
                    result = store.put(outgoing_message(queue_id=0, body=b"b" * 500))
                    assert result.queue_offset == next_number
                    next_number += 1
            case "flush":
                clock.now_ms += 20_000
                flush_all(store)
            case "cut" | "cut all":
                queue = store.consume_queue("topic", 0)
                assert queue is not None
                entries = queue.read(queue.min_offset, 1000)
                if entries:
                    kept = 0 if step == "cut all" else len(entries) // 2
                    store.truncate(entries[kept - 1].physical_end if kept else entries[0].physical_offset)
                    next_number = queue.min_offset + kept
            case "expire":
                store.put(outgoing_message(queue_id=1))
                flush_all(store)
                _expire_all(store, disk, clock)
            case "stop":
                store.close()
        if step in {"kill", "power", "stop"}:
            if step == "power":
                flush_all(store)
            store.write_appended()
            disk.crash(power_loss=step == "power")
            store = new_store(disk, clock, EXPIRING)
            assert store.load().damaged_queues == ()
            store.queues.go_on_at("topic", 0, next_number)
        assert store.queue_max_offset("topic", 0) == next_number >= number
        assert queue_contents(store) == derived_queues(store)
    assert store.end_offset >= queue_end


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_new_master_that_joined_late_begins_numbers_again(is_killed: bool) -> None:
    """It never had the expired messages, and knows none of their queue."""
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()
    store = _store_with_an_expired_queue(disk, clock)
    late = new_store(SimulatedDisk(random.Random(2)), clock, EXPIRING)
    late.load()
    _copy_log(store, late, store.min_offset)
    late.dispatch()
    assert [late.put(outgoing_message(queue_id=0)).queue_offset for _ in range(40)] == list(range(40))
    _copy_log(late, store, store.end_offset)
    if is_killed:
        disk.crash(power_loss=False)
        store = new_store(disk, clock, EXPIRING)
        store.load()
    else:
        store.dispatch()
    assert queue_contents(store) == derived_queues(store)
    assert store.queue_max_offset("topic", 0) == 40


@given(
    expired_files=st.integers(0, 12),
    stop=st.sampled_from(("stop", "kill", "power")),
    is_written_down=st.booleans(),
    loses_oldest=st.booleans(),
)
def test_an_oldest_index_file_is_missed_unless_retention_removed_it(
    expired_files: int, stop: str, *, is_written_down: bool, loses_oldest: bool
) -> None:
    """Retention goes file by file of the log; with it the IndexFiles that end below."""
    disk, clock = SimulatedDisk(random.Random(expired_files)), ManualClock()
    options = with_options(file_reserved_hours=1)
    store = new_store(disk, clock, options)
    store.load()
    for number in range(MESSAGES):
        clock.now_ms += 1000
        keys = (f"id-{number}", f"key-{number}") if number % 9 else ()
        store.put(outgoing_message(body=b"b" * 100, keys=keys, tag=None))
    flush_all(store)
    for _ in range(expired_files):
        clock.now_ms += 3_600_000
        if (job := store.expire(store.expiry_wish(right_time(clock.now_ms)), RetentionFloor())) is not None:
            job.run()
            while store.trim_queues():
                pass
    if is_written_down:
        clock.now_ms += 20_000
        flush_all(store)
    if stop == "stop":
        store.close()
    disk.crash(power_loss=stop == "power")
    image = disk.image()
    paths = sorted(path for path in image if path.startswith("index/"))
    if loses_oldest and len(paths) > 2:
        del image[paths[0]]
        disk.put_back(image)
    store = new_store(disk, clock, options)
    report = store.load()
    if not (loses_oldest and len(paths) > 2):
        assert report.missing_index_files == ()
    elif QUEUE_ENDS_FILE in image:
        assert all(missing.is_made_again for missing in report.missing_index_files)
        assert not [
            key
            for topic, key, offset in keys_in(store)
            if all(
                record.physical_offset != offset
                for record in messages_by_key(store, topic, key, begin_ms=0, end_ms=clock.now_ms)
            )
        ]
    store.close()
    again = new_store(disk, clock, options)
    assert again.load().missing_index_files == (), "it is told once"


@given(run=RUNS, is_doubtful=st.booleans(), cut_bytes=st.integers(0, 400))
def test_without_its_abort_file_a_run_counts_as_it_ended(run: _Run, is_doubtful: bool, cut_bytes: int) -> None:
    """Whatever the end of its log has lost. `is_doubtful`: it was killed before anybody vouched for the end."""
    image = dict(run.image)
    if is_doubtful:
        store = run.start(image)
        store.doubt_tail()
        run.disk.crash(power_loss=False)
        image = run.disk.image()
    last = max(path for path in image if path.startswith("commitlog/") and any(image[path]))
    used = len(image[last].rstrip(b"\0"))
    image[last] = _changed_length(image[last][: max(0, used - cut_bytes)], len(image[last]))
    seen = []
    for paths in (image, {path: content for path, content in image.items() if path != "abort"}):
        run.disk.put_back(paths)
        store = new_store(run.disk, run.clock)
        report = store.load()
        assert report.abort_is_gone == ("abort" in image and "abort" not in paths)
        seen.append((replace(report, abort_is_gone=False, kept_tail=None), queue_contents(store), keys_in(store)))
    assert seen[0] == seen[1]
    assert seen[0][0].may_have_lost or not is_doubtful


def test_earlier_versions_pass_over_a_file_that_says_more_than_they_know_and_theirs_is_read() -> None:
    theirs = b'[7,[["orders",0,0,3]],5]'
    assert QueueEnds.decode(b"%08x\n" % crc32(theirs) + theirs) == QueueEnds(7, [("orders", 0, 0, 3)], 5)

    disk = SimulatedDisk(random.Random(1))
    ours = QueueEnds(7, [("orders", 0, 0, 3)], 5, 2)
    ours.save(disk)
    assert QueueEnds.load(disk) == ours
    checksum, _, text = (disk.read_file(QUEUE_ENDS_FILE) or b"").partition(b"\n")
    # They compare it with the plain one, and take what does not fit for no file.
    assert checksum != b"%08x" % crc32(text)

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import (
    FILLING_OPTIONS,
    ManualClock,
    derived_queues,
    flush_all,
    new_store,
    queue_contents,
    right_time,
)
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.retention import (
    BelievedTime,
    Hold,
    RetentionFloor,
    RetentionJob,
    expiry_end,
    expiry_wish,
    held_words,
)

FILE = FILLING_OPTIONS.commit_log_file_bytes
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIDNIGHT_MS = 19_000 * DAY_MS
FOUR_MS = MIDNIGHT_MS + 4 * HOUR_MS
OLD_MS = MIDNIGHT_MS - 80 * HOUR_MS
NOBODY = RetentionFloor()


def expire(store: MessageStore, now_ms: int, floor: RetentionFloor = NOBODY) -> RetentionJob | None:
    """One look at old files by a clock that is right."""
    return store.expire(store.expiry_wish(right_time(now_ms)), floor)


def _end(
    ages_ms: list[int],
    *,
    used: float = 0.5,
    now_ms: int = FOUR_MS,
    floor: RetentionFloor = NOBODY,
    options: StoreOptions = FILLING_OPTIONS,
) -> int:
    """How many files of 10 bytes go."""
    usage = DiskUsage(used_bytes=int(used * 1000), total_bytes=1000)
    wish = expiry_wish(ages_ms, start_offset=0, file_bytes=10, usage=usage, options=options, now_ms=now_ms)
    return expiry_end(wish, floor, options=options) // 10


EXPIRED_MS = 72 * HOUR_MS


@pytest.mark.parametrize(
    ("used", "now_ms", "ages_ms", "count"),
    [
        (0.5, MIDNIGHT_MS, [EXPIRED_MS] * 2, 0),  # Expired, but not the hour.
        (0.5, FOUR_MS, [EXPIRED_MS] * 2, 2),
        (0.5, FOUR_MS + HOUR_MS - 1, [EXPIRED_MS, 0], 1),
        (0.5, FOUR_MS, [EXPIRED_MS, EXPIRED_MS - 1], 1),
        (0.76, MIDNIGHT_MS, [EXPIRED_MS, 0], 1),  # Over 75 %: at any hour, but only what expired.
        (0.88, MIDNIGHT_MS, [0] * 9, 3),  # Over 85 %: three files of 1 % bring it back.
        (0.88, MIDNIGHT_MS, [EXPIRED_MS] * 5, 5),
        (0.99, MIDNIGHT_MS, [0] * 5, 5),
        (0.99, MIDNIGHT_MS, [], 0),
    ],
)
def test_what_goes_if_nobody_needs_it(used: float, now_ms: int, ages_ms: list[int], count: int) -> None:
    assert _end(ages_ms, used=used, now_ms=now_ms) == count


SLAVE = Hold(25, "slave 1, which does not have it", "start it")
GROUP = Hold(25, "group G", "start its consumers")
TOPIC = Hold(25, "topic T", "read it")
MASTER = Hold(25, "the master", "give it room")


@pytest.mark.parametrize(
    ("floor", "used", "age_hours", "options", "count"),
    [
        (RetentionFloor(replica=SLAVE), 0.5, 72, {}, 2),
        (RetentionFloor(replica=SLAVE), 0.99, 0, {}, 2),
        (RetentionFloor(replica=SLAVE), 0.99, 10_000, {}, 2),
        (RetentionFloor(replica=SLAVE), 0.5, 100, {"unreplicated_reserved_hours": 100}, 9),
        (RetentionFloor(replica=SLAVE), 0.99, 72, {"delete_unread_when_full": True}, 2),
        (RetentionFloor(reader=GROUP), 0.5, 719, {}, 2),
        (RetentionFloor(reader=GROUP), 0.99, 0, {}, 2),
        (RetentionFloor(reader=GROUP), 0.5, 720, {}, 9),
        (RetentionFloor(reader=GROUP), 0.5, 10_000, {"unread_reserved_hours": 0}, 2),
        (RetentionFloor(reader=GROUP), 0.5, 72, {"unread_reserved_hours": 1}, 9),
        (RetentionFloor(reader=GROUP), 0.5, 71, {"unread_reserved_hours": 1}, 0),
        (RetentionFloor(reader=GROUP), 0.89, 0, {"delete_unread_when_full": True}, 4),
        (RetentionFloor(unread=TOPIC), 0.5, 72, {}, 9),
        (RetentionFloor(unread=TOPIC), 0.99, 0, {}, 2),
        (RetentionFloor(unread=TOPIC), 0.89, 0, {"delete_unread_when_full": True}, 4),
        (RetentionFloor(master=MASTER), 0.5, 72, {}, 2),
        (
            RetentionFloor(master=MASTER),
            0.99,
            10_000,
            {"delete_unread_when_full": True, "unread_reserved_hours": 1, "unreplicated_reserved_hours": 1},
            2,
        ),
    ],
)
def test_what_somebody_needs_stays_unless_a_setting_says_otherwise(
    floor: RetentionFloor, used: float, age_hours: int, options: dict[str, int], count: int
) -> None:
    chosen = replace(FILLING_OPTIONS, **options)  # type: ignore[arg-type]
    assert _end([age_hours * HOUR_MS] * 9, used=used, floor=floor, options=chosen) == count


def test_a_full_disk_says_for_whom_files_are_kept() -> None:
    def words(floor: RetentionFloor, *, used: float = 0.95, files: int = 9) -> str | None:
        usage = DiskUsage(used_bytes=int(used * 1000), total_bytes=1000)
        wish = expiry_wish(
            [0] * files, start_offset=0, file_bytes=10, usage=usage, options=FILLING_OPTIONS, now_ms=FOUR_MS
        )
        return held_words(wish, floor, end_offset=95, options=FILLING_OPTIONS)

    held = "the disk is 95% full; 70 bytes of the log are kept for slave 1, which does not have it: start it"
    assert words(RetentionFloor(replica=SLAVE, reader=replace(GROUP, offset=60))) == held
    assert words(RetentionFloor(replica=SLAVE), used=0.84) is None
    assert words(NOBODY) is None
    assert "not of complete CommitLog files" in (words(NOBODY, files=0) or "")


class TestExpiry:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(OLD_MS)

    @pytest.fixture
    def disk(self, clock: ManualClock) -> SimulatedDisk:
        return SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)

    @pytest.fixture
    def store(self, disk: SimulatedDisk, clock: ManualClock) -> MessageStore:
        store = new_store(disk, clock, FILLING_OPTIONS)
        store.load()
        for n in range(90):
            store.put(outgoing_message(queue_id=n % 2, body=bytes(900), keys=(f"u{n}",)))
        store.put(outgoing_message(topic="idle"))
        flush_all(store)
        return store

    def test_all_but_the_file_being_written_go_and_everything_agrees(
        self, disk: SimulatedDisk, clock: ManualClock, store: MessageStore
    ) -> None:
        clock.now_ms = FOUR_MS
        while (job := expire(store, FOUR_MS)) is not None:
            job.run()
        assert store.min_offset == store.end_offset - store.end_offset % FILE
        assert [entry.name for entry in disk.list_folder("commitlog")] == [f"{store.min_offset:020d}"]
        assert store.queue_min_offset("topic", 0) > 0
        while store.trim_queues(max_queues=1):
            pass
        assert queue_contents(store) == derived_queues(store)
        assert store.queue_max_offset("topic", 0) == 45
        assert disk.read_file(f"consumequeue/topic/0/{0:020d}") is None

    def test_start_after_expiry_knows_the_oldest_messages(
        self, disk: SimulatedDisk, clock: ManualClock, store: MessageStore
    ) -> None:
        job = expire(store, FOUR_MS)
        assert job is not None
        job.run()
        min_offset = store.min_offset
        store.close()
        again = new_store(disk, clock, FILLING_OPTIONS)
        again.load()
        assert again.min_offset == min_offset > 0
        assert queue_contents(again) == derived_queues(again)

    def test_not_more_than_ten_files_go_at_once(self, store: MessageStore) -> None:
        assert len((expire(store, FOUR_MS) or RetentionJob(SimulatedDisk(random.Random(1)), [])).paths) >= 10
        assert store.min_offset == 10 * FILE

    def test_what_is_lost_to_a_setting_is_told(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        store = new_store(disk, clock, replace(FILLING_OPTIONS, unread_reserved_hours=1))
        store.load()
        for _ in range(20):
            store.put(outgoing_message(body=bytes(900)))
        flush_all(store)
        reader = replace(GROUP, offset=FILE + 5)
        job = expire(store, FOUR_MS, RetentionFloor(reader=reader, replica=replace(SLAVE, offset=2 * FILE)))
        assert job is not None
        assert job.lost == [(reader, FILE - 5)]

    def test_unflushed_files_stay(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        store = new_store(disk, clock, FILLING_OPTIONS)
        store.load()
        for _ in range(20):
            store.put(outgoing_message(body=bytes(900)))
        assert expire(store, FOUR_MS) is None

    def test_views_of_a_removed_file_stay_readable(self, store: MessageStore) -> None:
        view = store.read_log(0, 100)
        before = bytes(view)
        job = expire(store, FOUR_MS)
        assert job is not None
        job.run()
        assert bytes(view) == before
        assert not store.read_log(0, 100)

    def test_a_full_disk_refuses_puts_before_it_deletes_what_somebody_needs(
        self, disk: SimulatedDisk, clock: ManualClock, store: MessageStore
    ) -> None:
        disk.capacity_bytes = int(disk.usage().used_bytes / 0.95)
        assert expire(store, clock.now_ms, RetentionFloor(replica=replace(SLAVE, offset=0))) is None
        assert store.min_offset == 0
        assert "for slave 1, which does not have it: start it" in (store.refusal or "")
        assert store.retention_problem == store.refusal
        while (job := expire(store, clock.now_ms)) is not None:
            job.run()
        expire(store, clock.now_ms)
        assert store.min_offset > 0
        assert (store.refusal, store.retention_problem) == (None, None)


@dataclass(slots=True)
class _TwoClocks(ManualClock):
    """A wall clock that is wrong by `wrong_ms`, and a monotonic one."""

    wrong_ms: int = 0
    booted_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.now_ms - self.booted_ms

    def wall_ms(self) -> int:
        return self.now_ms + self.wrong_ms

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000


class _MeasuredDisk(SimulatedDisk):
    """As full as the test says."""

    used_ratio = 0.5

    def usage(self) -> DiskUsage:
        return DiskUsage(used_bytes=int(self.used_ratio * (1 << 40)), total_bytes=1 << 40)


_YEAR_HOURS = 365 * 24
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 12)),
        st.tuples(st.just("pass"), st.sampled_from([HOUR_MS, 12 * HOUR_MS, 30 * HOUR_MS, 80 * HOUR_MS])),
        st.tuples(st.just("used"), st.sampled_from([0.5, 0.8, 0.88, 0.95])),
        st.tuples(st.just("slave lags"), st.sampled_from([0, 30, 100])),
        st.tuples(st.just("group lags"), st.sampled_from([0, 30, 100])),
        st.tuples(st.just("clock is wrong"), st.sampled_from([0, 96, -96, 10 * _YEAR_HOURS, -10 * _YEAR_HOURS])),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=4,
    max_size=30,
)


@given(steps=_STEPS)
@example([("pass", 80 * HOUR_MS), ("clock is wrong", -96), ("write", 12), ("clock is wrong", 0), ("restart", True)])
@example([("pass", 80 * HOUR_MS), ("clock is wrong", 96), ("write", 12), ("restart", False), ("pass", HOUR_MS)])
@settings(max_examples=200, deadline=None)
def test_nothing_needed_or_young_ever_goes_and_nothing_expired_stays(steps: list[tuple[str, int | float]]) -> None:
    """A broker's life with a wall clock that jumps: whatever it says, no file goes that is younger than the settings
    promise, none at or above the lowest of slave and group, and in the end all go that may.
    """
    clock = _TwoClocks(FOUR_MS)
    disk = _MeasuredDisk(random.Random(1), wall_ms=clock.wall_ms)
    options = replace(FILLING_OPTIONS, delete_when_hours=tuple(range(24)))
    written_ms: dict[int, int] = {}
    slave = group = slave_lag = group_lag = 0
    store = new_store(disk, clock, options)
    store.load()
    time = _believed(clock, store, disk, None)

    def look(time: BelievedTime) -> None:
        time.look(wall_ms=clock.wall_ms(), monotonic_ms=clock.monotonic_ms(), jump_max_ms=store.clock_jump_max_ms)
        before, used = store.min_offset, disk.usage().used_ratio
        floor = RetentionFloor(replica=replace(SLAVE, offset=slave), reader=replace(GROUP, offset=group))
        job = store.expire(store.expiry_wish(time), floor)
        if job is None:
            return
        job.run()
        assert store.min_offset <= slave
        for start in range(before, store.min_offset, FILE):
            age_ms = clock.now_ms - written_ms[start // FILE]
            assert age_ms >= 72 * HOUR_MS or used > 0.85
            assert age_ms >= 720 * HOUR_MS or start + FILE <= group

    for step, value in [("write", 12), *steps]:
        if step == "write" and store.refusal is None:
            for _ in range(int(value)):
                store.put(outgoing_message(body=bytes(900)))
            flush_all(store)
        elif step == "pass":
            # As a broker does every ten seconds, but here a file takes an hour.
            for _ in range(int(value) // HOUR_MS):
                look(time)
                clock.now_ms += HOUR_MS
        elif step == "used":
            disk.used_ratio = value
        elif step == "slave lags":
            slave_lag = int(value)
        elif step == "group lags":
            group_lag = int(value)
        elif step == "clock is wrong":
            clock.wrong_ms = int(value) * HOUR_MS
        elif step == "restart":
            store.close()
            if value:
                disk.crash(power_loss=True)
                clock.booted_ms = clock.now_ms - 1_000
            store = new_store(disk, clock, options)
            store.load()
            time = _believed(clock, store, disk, time)
        for start in range(store.min_offset // FILE, store.end_offset // FILE + 1):
            if start * FILE <= store.end_offset and (step == "write" or start not in written_ms):
                is_last = start == store.end_offset // FILE
                written_ms[start] = clock.now_ms if is_last or start not in written_ms else written_ms[start]
        slave = max(slave, store.end_offset * (100 - slave_lag) // 100)
        group = max(group, store.end_offset * (100 - group_lag) // 100)
        look(time)

    # All may go, and after what files are kept for at most, all have gone but the one being written.
    slave = group = store.end_offset
    disk.used_ratio = 0.5
    for _ in range(2 + len(written_ms) // 10):
        clock.now_ms += 73 * HOUR_MS
        look(time)
    assert store.end_offset - store.min_offset <= FILE


def _believed(clock: _TwoClocks, store: MessageStore, disk: SimulatedDisk, before: BelievedTime | None) -> BelievedTime:
    return BelievedTime(
        boot_id=disk.boot_id(),
        saved=None if before is None else before.to_save(),
        newest_ms=store.newest_file_ms(),
        wall_ms=clock.wall_ms(),
        monotonic_ms=clock.monotonic_ms(),
        jump_max_ms=store.clock_jump_max_ms,
    )

from __future__ import annotations

import random

import pytest

from mqcore.storage import DiskUsage, MessageStore
from mqcore.storage.retention import expendable_files
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import SMALL_OPTIONS, ManualClock, derived_queues, flush_all, new_store, queue_contents

FILE = SMALL_OPTIONS.commit_log_file_bytes
HOUR_MS = 3_600_000
MIDNIGHT_MS = 19_000 * 24 * HOUR_MS
FOUR_MS = MIDNIGHT_MS + 4 * HOUR_MS
OLD_MS = MIDNIGHT_MS - 80 * HOUR_MS


def _count(modified_ms: list[int], *, used: float, now_ms: int) -> int:
    usage = DiskUsage(used_bytes=int(used * 1000), total_bytes=1000)
    return expendable_files(modified_ms, file_bytes=10, usage=usage, options=SMALL_OPTIONS, now_wall_ms=now_ms)


@pytest.mark.parametrize(
    ("used", "now_ms", "modified_ms", "count"),
    [
        (0.5, MIDNIGHT_MS, [OLD_MS, OLD_MS], 0),  # Expired, but not the hour.
        (0.5, FOUR_MS, [OLD_MS, OLD_MS], 2),
        (0.5, FOUR_MS + HOUR_MS - 1, [OLD_MS, MIDNIGHT_MS], 1),
        (0.5, FOUR_MS, [FOUR_MS - 72 * HOUR_MS, FOUR_MS - 72 * HOUR_MS + 1], 1),
        (0.76, MIDNIGHT_MS, [OLD_MS, MIDNIGHT_MS], 1),  # Over 75 %: at any hour, but only what expired.
        (0.88, MIDNIGHT_MS, [MIDNIGHT_MS] * 9, 3),  # Over 85 %: three files of 1 % bring it back.
        (0.88, MIDNIGHT_MS, [OLD_MS] * 5, 5),
        (0.99, MIDNIGHT_MS, [MIDNIGHT_MS] * 30, 10),  # Not more in one run.
        (0.99, MIDNIGHT_MS, [], 0),
    ],
)
def test_what_may_go(used: float, now_ms: int, modified_ms: list[int], count: int) -> None:
    assert _count(modified_ms, used=used, now_ms=now_ms) == count


class TestExpiry:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(OLD_MS)

    @pytest.fixture
    def disk(self, clock: ManualClock) -> SimulatedDisk:
        return SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)

    @pytest.fixture
    def store(self, disk: SimulatedDisk, clock: ManualClock) -> MessageStore:
        store = new_store(disk, clock)
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
        while (job := store.expire(now_wall_ms=FOUR_MS)) is not None:
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
        job = store.expire(now_wall_ms=FOUR_MS)
        assert job is not None
        job.run()
        min_offset = store.min_offset
        store.close()
        again = new_store(disk, clock)
        again.load()
        assert again.min_offset == min_offset > 0
        assert queue_contents(again) == derived_queues(again)

    def test_unflushed_files_stay(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        store = new_store(disk, clock)
        store.load()
        for _ in range(20):
            store.put(outgoing_message(body=bytes(900)))
        assert store.expire(now_wall_ms=FOUR_MS) is None

    def test_views_of_a_removed_file_stay_readable(self, store: MessageStore) -> None:
        view = store.read_log(0, 100)
        before = bytes(view)
        job = store.expire(now_wall_ms=FOUR_MS)
        assert job is not None
        job.run()
        assert bytes(view) == before
        assert not store.read_log(0, 100)

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.messages import changed, outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import (
    SMALL_OPTIONS,
    ManualClock,
    derived_queues,
    flush_all,
    log_bytes,
    messages_by_key,
    new_store,
    queue_contents,
    with_options,
)
from tandemmq.core.message.record import SCHEDULE_TOPIC, OutgoingMessage
from tandemmq.core.message.record_layout import (
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tandemmq.core.storage.consume_queue import ENTRY
from tandemmq.core.storage.disk import DiskError, LogGap, RecordCorrupt, SegmentSizeMismatch, StorageError, StoreLocked
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.put_result import AppendResult, PutStatus

FILE = SMALL_OPTIONS.commit_log_file_bytes
BIG = b"b" * 1000
"""Three of these fill a file."""


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> MessageStore:
    store = new_store(disk, clock)
    store.load()
    return store


def store_of_small_jobs(disk: SimulatedDisk) -> MessageStore:
    """A store that writes out two new queues at a time."""
    store = new_store(disk, options=with_options(queue_flush_cost_max=16))
    store.load()
    return store


def run_queue_flush(store: MessageStore) -> None:
    job = store.queue_flush_job()
    assert job is not None
    job.run()
    store.flush_finished(job)


def run_queue_flush_round(store: MessageStore) -> None:
    run_queue_flush(store)
    while store.queue_flush_due:
        run_queue_flush(store)


def put_into_queues(store: MessageStore, count: int) -> AppendResult:
    """A message into each of so many queues; returns where the last is."""
    return [store.put(outgoing_message(queue_id=n)) for n in range(count)][-1]


def flush_log(store: MessageStore) -> None:
    job = store.log_flush_job()
    assert job is not None
    job.run()
    store.flush_finished(job)


class TestPut:
    def test_offsets_follow_each_other(self, store: MessageStore) -> None:
        first = store.put(outgoing_message(queue_id=1))
        second = store.put(outgoing_message(queue_id=1))
        other = store.put(outgoing_message(queue_id=2))
        assert (first.status, first.physical_offset, first.queue_offset) == (PutStatus.PUT_OK, 0, 0)
        assert (second.physical_offset, second.queue_offset) == (first.end_offset, 1)
        assert (other.physical_offset, other.queue_offset) == (second.end_offset, 0)
        assert (store.queue_max_offset("topic", 1), store.end_offset) == (2, other.end_offset)

    def test_what_was_put_can_be_read_through_its_queue(self, store: MessageStore) -> None:
        store.put(outgoing_message(body=b"hello", tag="t"))
        queue = store.consume_queue("topic", 0)
        assert queue is not None
        [entry] = queue.read(0, 10)
        assert store.message_at(entry.physical_offset, entry.size).body == b"hello"

    def test_message_is_found_by_each_of_its_keys(self, store: MessageStore) -> None:
        store.put(outgoing_message(keys=("unique", "order-1")))
        for key in ("unique", "order-1"):
            [found] = messages_by_key(store, "topic", key, begin_ms=0, end_ms=1 << 60)
            assert found.physical_offset == 0
        assert messages_by_key(store, "topic", "order-2", begin_ms=0, end_ms=1 << 60) == []

    def test_store_timestamp_does_not_go_back_with_the_clock(self, store: MessageStore, clock: ManualClock) -> None:
        before = store.put(outgoing_message()).store_timestamp_ms
        clock.now_ms -= 10_000
        assert store.put(outgoing_message()).store_timestamp_ms == before

    def test_due_time_of_a_delayed_message_is_computed_at_the_append(
        self, store: MessageStore, clock: ManualClock
    ) -> None:
        store.put(outgoing_message(topic=SCHEDULE_TOPIC, queue_id=2))
        queue = store.consume_queue(SCHEDULE_TOPIC, 2)
        assert queue is not None
        assert queue.read(0, 1)[0].tags_code == clock.now_ms + 10_000

    def test_prepared_record_takes_no_place_in_its_queue(self, store: MessageStore) -> None:
        message = outgoing_message()
        message.sys_flag = TRANSACTION_PREPARED
        assert store.put(message).queue_offset == 0
        assert store.queue_max_offset("topic", 0) == 0

    def test_batch_is_consecutive_and_shares_its_timestamp(self, store: MessageStore) -> None:
        store.put(outgoing_message())
        results = store.put_batch([outgoing_message(body=bytes([n])) for n in range(3)])
        assert [result.queue_offset for result in results] == [1, 2, 3]
        assert len({result.store_timestamp_ms for result in results}) == 1
        assert [store.message_at(result.physical_offset).body for result in results] == [b"\0", b"\1", b"\2"]


@st.composite
def _batches(draw: st.DrawFn) -> list[OutgoingMessage]:
    flags = st.sampled_from((0, 0, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, INNER_BATCH))
    return [
        changed(
            outgoing_message(
                topic=draw(st.sampled_from(("a", "a", "b", SCHEDULE_TOPIC))),
                queue_id=draw(st.integers(0, 1)),
                body=draw(st.binary(max_size=20)),
                tag=draw(st.sampled_from((None, "x", "y"))),
                keys=(f"u{number}", *draw(st.lists(st.sampled_from(("k1", "k2")), max_size=2))),
            ),
            sys_flag=draw(flags),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


@settings(deadline=None)
@given(st.lists(_batches(), min_size=1, max_size=4))
def test_batch_leaves_what_its_messages_leave_one_by_one(batches: list[list[OutgoingMessage]]) -> None:
    stores = []
    for is_batch in (True, False):
        store = new_store(SimulatedDisk(random.Random(1)), options=with_options(commit_log_file_bytes=1 << 16))
        store.load()
        results = []
        for messages in batches:
            results += store.put_batch(messages) if is_batch else [store.put(message) for message in messages]
        terms = {(message.topic, key) for messages in batches for message in messages for key in message.index_keys}
        found = {term: list(store.index_walk(*term, begin_ms=0, end_ms=1 << 62)) for term in terms}
        places = [(result.physical_offset, result.end_offset, result.queue_offset) for result in results]
        stores.append((places, log_bytes(store), queue_contents(store), found))
    assert stores[0] == stores[1]


class TestRolling:
    def test_record_that_needs_the_blanks_room_goes_to_the_next_file(self, store: MessageStore) -> None:
        """L + 8 <= blank, not L <= blank."""
        overhead = store.put(outgoing_message(body=b"")).end_offset
        filler = store.put(outgoing_message(body=bytes(1990)))
        left = FILE - filler.end_offset
        exact = store.put(outgoing_message(body=bytes(left - overhead - 8)))
        assert exact.end_offset == FILE - 8
        assert store.put(outgoing_message()).physical_offset == FILE
        assert bytes(store.read_log(FILE - 8, 8)).hex() == "00000008cbd43194"

    def test_one_byte_more_does_not_fit(self, store: MessageStore) -> None:
        overhead = store.put(outgoing_message(body=b"")).end_offset
        filler = store.put(outgoing_message(body=bytes(1990)))
        too_long = FILE - filler.end_offset - overhead - 7
        assert store.put(outgoing_message(body=bytes(too_long))).physical_offset == FILE

    def test_batch_moves_to_the_next_file_as_a_whole(self, store: MessageStore) -> None:
        store.put_batch([outgoing_message(body=BIG)] * 2)
        results = store.put_batch([outgoing_message(body=BIG)] * 2)
        assert results[0].physical_offset == FILE
        assert [result.queue_offset for result in results] == [2, 3]

    def test_file_prepared_ahead_is_used(self, disk: SimulatedDisk, store: MessageStore) -> None:
        store.put_batch([outgoing_message(body=BIG)] * 3)
        job = store.preparation_job()
        assert job is not None
        assert store.preparation_job() is None
        job.run()
        store.preparation_finished(job)
        operations = disk.operations
        assert store.put(outgoing_message(body=BIG)).physical_offset == FILE
        assert disk.operations == operations

    def test_young_file_has_none_prepared_behind_it(self, store: MessageStore) -> None:
        store.put(outgoing_message(keys=("u1",)))
        assert messages_by_key(store, "topic", "u1", begin_ms=0, end_ms=1 << 62)
        assert store.preparation_job() is None

    def test_files_of_log_and_index_are_prepared_before_the_first_put(self, disk: SimulatedDisk) -> None:
        store = new_store(disk)
        store.load()
        while (job := store.preparation_job()) is not None:
            job.run()
            store.preparation_finished(job)
        operations = disk.operations
        store.put(outgoing_message(keys=("u1",)))
        assert messages_by_key(store, "topic", "u1", begin_ms=0, end_ms=1 << 62)
        assert disk.operations == operations

    def test_full_disk_refuses_the_next_file_and_keeps_what_is_there(
        self, disk: SimulatedDisk, store: MessageStore
    ) -> None:
        store.put_batch([outgoing_message(body=BIG)] * 3)
        disk.capacity_bytes = disk.usage().used_bytes + 100
        end = store.end_offset
        assert store.put(outgoing_message(body=BIG)).status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert store.end_offset == end
        assert store.put(outgoing_message(body=b"small")).status is PutStatus.PUT_OK


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"body": bytes(4000)}, PutStatus.MESSAGE_ILLEGAL),
            ({"topic": "t" * 256}, PutStatus.MESSAGE_ILLEGAL),
            ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
            ({"keys": ("u", "k" * 32_767)}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
            ({"keys": ("u", "k" * 4000)}, PutStatus.MESSAGE_ILLEGAL),
        ],
    )
    def test_what_is_too_long(self, store: MessageStore, changes: dict[str, bytes | str], status: PutStatus) -> None:
        message = outgoing_message(**changes)  # type: ignore[arg-type]
        assert store.put(message).status is status
        assert [result.status for result in store.put_batch([outgoing_message(), message])] == [status, status]
        assert store.end_offset == 0

    def test_store_that_may_not_be_written(self, store: MessageStore) -> None:
        store.set_writable(False, "a slave takes no puts")
        assert store.put(outgoing_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.refusal == "a slave takes no puts"
        store.set_writable(True)
        assert store.put(outgoing_message()).status is PutStatus.PUT_OK

    def test_disk_that_is_too_full(self, disk: SimulatedDisk, store: MessageStore) -> None:
        store.put(outgoing_message())
        disk.capacity_bytes = disk.usage().used_bytes - 1
        store.check_disk()
        assert store.put(outgoing_message()).status is PutStatus.DISK_FULL
        disk.capacity_bytes *= 2
        store.check_disk()
        assert store.put(outgoing_message()).status is PutStatus.PUT_OK

    def test_second_store_on_the_same_folder(self, disk: SimulatedDisk, store: MessageStore) -> None:
        with pytest.raises(StoreLocked):
            new_store(disk).load()

    def test_another_file_size_than_before(self, disk: SimulatedDisk, store: MessageStore) -> None:
        store.put(outgoing_message())
        store.close()
        other = new_store(disk, options=with_options(commit_log_file_bytes=8192))
        with pytest.raises(SegmentSizeMismatch, match="4096 bytes long but the configured file size is 8192"):
            other.load()
        new_store(disk).load()

    def test_missing_file_in_the_middle(self, disk: SimulatedDisk, store: MessageStore) -> None:
        for _ in range(9):
            store.put(outgoing_message(body=BIG))
        store.close()
        disk.remove(f"commitlog/{FILE:020d}")
        with pytest.raises(LogGap, match=f"starting at {FILE} is missing"):
            new_store(disk).load()


class TestFlushing:
    def test_flushed_offset_moves_when_the_job_is_finished(self, store: MessageStore) -> None:
        end = store.put(outgoing_message()).end_offset
        job = store.log_flush_job()
        assert job is not None
        store.put(outgoing_message())
        assert store.flushed_offset == 0
        job.run()
        store.flush_finished(job)
        assert store.flushed_offset == end

    def test_nothing_to_flush_makes_no_job(self, store: MessageStore) -> None:
        store.put(outgoing_message())
        flush_all(store)
        assert store.log_flush_job() is None
        assert store.queue_flush_job() is None

    def test_many_queues_are_flushed_by_several_jobs_of_which_the_last_writes_the_checkpoint(
        self, disk: SimulatedDisk
    ) -> None:
        store = store_of_small_jobs(disk)
        before = [store.put(outgoing_message(queue_id=n)) for n in range(5)][-1]
        saved: list[int] = []
        while not saved or store.queue_flush_due:
            run_queue_flush(store)
            saved.append(store.checkpoint.logics_physical_offset)
            store.put(outgoing_message(queue_id=4))
        assert saved == [0, 0, before.physical_offset]
        run_queue_flush(store)
        assert not store.queue_flush_due
        assert store.checkpoint.logics_physical_offset > before.physical_offset

    def test_power_loss_in_the_middle_of_a_round_costs_no_entry(self, disk: SimulatedDisk) -> None:
        store = store_of_small_jobs(disk)
        for n in range(5):
            store.put(outgoing_message(queue_id=n))
        run_queue_flush(store)
        flush_log(store)
        disk.crash(power_loss=True)
        again = new_store(disk)
        assert again.load().redispatched_records == 5
        assert len(queue_contents(again)) == 5
        assert queue_contents(again) == derived_queues(again)

    def test_round_given_up_for_a_truncation_does_not_vouch_for_what_was_cut(self, disk: SimulatedDisk) -> None:
        store = store_of_small_jobs(disk)
        end = [store.put(outgoing_message(queue_id=n)) for n in range(5)][2].physical_offset
        run_queue_flush(store)
        store.truncate(end)
        assert not store.queue_flush_due
        other = [store.put(outgoing_message(queue_id=n, body=b"other")) for n in range(5)][-1]
        jobs = 0
        while store.checkpoint.logics_physical_offset < other.physical_offset:
            run_queue_flush(store)
            jobs += 1
        assert jobs > 1
        disk.crash(power_loss=True)
        again = new_store(disk)
        again.load()
        assert len(queue_contents(again)) == 5
        assert queue_contents(again) == derived_queues(again)

    def test_stop_in_the_middle_of_a_round_writes_everything(self, disk: SimulatedDisk) -> None:
        store = store_of_small_jobs(disk)
        for n in range(5):
            store.put(outgoing_message(queue_id=n))
        run_queue_flush(store)
        store.put(outgoing_message(queue_id=7))
        store.close()
        disk.crash(power_loss=True)
        again = new_store(disk)
        assert again.load().clean
        assert len(queue_contents(again)) == 6
        assert queue_contents(again) == derived_queues(again)

    def test_round_goes_on_when_a_full_disk_has_room_again(self, disk: SimulatedDisk) -> None:
        store = store_of_small_jobs(disk)
        for n in range(5):
            store.put(outgoing_message(queue_id=n))
        run_queue_flush(store)
        room = disk.capacity_bytes
        disk.capacity_bytes = disk.usage().used_bytes
        assert store.queue_flush_job() is None
        disk.capacity_bytes = room
        while store.queue_flush_due:
            run_queue_flush(store)
        assert store.checkpoint.logics_physical_offset == store.dispatched_offset - store.message_at(0).total_size

    @pytest.mark.parametrize("free_bytes", [0, 100, 1_000, 10_000])
    def test_a_stop_on_a_full_disk_comes_to_an_end_and_the_next_start_misses_nothing(
        self, disk: SimulatedDisk, free_bytes: int
    ) -> None:
        store = store_of_small_jobs(disk)
        for n in range(5):
            store.put(outgoing_message(queue_id=n, keys=("key",)))
        run_queue_flush_round(store)
        for n in range(5):
            store.put(outgoing_message(queue_id=n, keys=("key",)))
        room = disk.capacity_bytes
        disk.capacity_bytes = disk.usage().used_bytes + free_bytes
        store.close()
        disk.capacity_bytes = room
        again = new_store(disk)
        again.load()
        assert sum(map(len, queue_contents(again).values())) == 10
        assert queue_contents(again) == derived_queues(again)

    def test_many_queues_wait_for_more_of_their_entries_and_few_do_not(
        self, store: MessageStore, clock: ManualClock
    ) -> None:
        put_into_queues(store, 100)
        run_queue_flush_round(store)
        put_into_queues(store, 300)
        assert store.queue_flush_job() is None
        clock.now_ms += 1_999
        assert store.queue_flush_job() is None
        clock.now_ms += 1
        last = put_into_queues(store, 1)
        run_queue_flush(store)
        assert store.queue_flush_due
        run_queue_flush_round(store)
        assert store.checkpoint.logics_physical_offset == last.physical_offset

    def test_queues_do_not_wait_when_there_is_much_to_read_again_after_a_kill(
        self, disk: SimulatedDisk, clock: ManualClock
    ) -> None:
        store = new_store(disk, clock, with_options(queue_flush_wait_max_bytes=20_000))
        store.load()
        put_into_queues(store, 1)
        flush_all(store)
        put_into_queues(store, 110)
        assert store.queue_flush_job() is None
        while store.dispatched_offset - store.saved_offset < 20_000:
            put_into_queues(store, 1)
        assert store.queue_flush_job() is not None

    def test_no_queue_waits_longer_than_the_longest_wait(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        store = new_store(disk, clock, with_options(queue_flush_wait_max_ms=500, new_queue_flush_wait_max_ms=0))
        store.load()
        put_into_queues(store, 300)
        run_queue_flush_round(store)
        put_into_queues(store, 300)
        clock.now_ms += 499
        assert store.queue_flush_job() is None
        clock.now_ms += 1
        assert store.queue_flush_job() is not None

    def test_many_new_queues_wait_less(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        store = new_store(disk, clock, with_options(queue_flush_wait_max_ms=5_000, new_queue_flush_wait_max_ms=500))
        store.load()
        put_into_queues(store, 1)
        flush_all(store)
        put_into_queues(store, 300)
        clock.now_ms += 500
        assert store.queue_flush_job() is not None

    def test_power_loss_after_a_flush_of_many_queues_costs_no_entry(
        self, disk: SimulatedDisk, store: MessageStore
    ) -> None:
        put_into_queues(store, 100)
        run_queue_flush_round(store)
        disk.crash(power_loss=True)
        again = new_store(disk)
        assert again.load().redispatched_records <= 1
        assert len(queue_contents(again)) == 100
        assert queue_contents(again) == derived_queues(again)

    @pytest.mark.parametrize("failing", ["commitlog/", "consumequeue/", "checkpoint"])
    def test_failed_sync_ends_all_writing(self, disk: SimulatedDisk, store: MessageStore, failing: str) -> None:
        store.put(outgoing_message())
        disk.failing_syncs = failing
        job = store.queue_flush_job()
        assert job is not None
        with pytest.raises(DiskError):
            job.run()
        disk.failing_syncs = None
        assert store.flushed_offset == 0
        assert store.put(outgoing_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        store.set_writable(True)
        assert "disk failed" in (store.refusal or "")

    def test_stop_after_a_failed_sync_is_not_an_orderly_one(self, disk: SimulatedDisk, store: MessageStore) -> None:
        store.put(outgoing_message())
        disk.failing_syncs = "commitlog/"
        job = store.log_flush_job()
        assert job is not None
        with pytest.raises(DiskError):
            job.run()
        store.close()
        disk.failing_syncs = None
        assert not new_store(disk).load().clean

    def test_flush_begun_before_a_truncation_says_nothing_afterwards(self, store: MessageStore) -> None:
        keep = store.put(outgoing_message()).end_offset
        store.put(outgoing_message())
        job = store.log_flush_job()
        assert job is not None
        store.truncate(keep)
        store.put(outgoing_message(body=b"other"))
        job.run()
        store.flush_finished(job)
        assert store.flushed_offset <= keep


class TestSlave:
    @pytest.fixture
    def master(self) -> MessageStore:
        master = new_store(SimulatedDisk(random.Random(2)))
        master.load()
        for n in range(10):
            master.put(outgoing_message(queue_id=n % 2, body=BIG, keys=(f"u{n}",)))
        return master

    def test_bytes_in_any_pieces_give_the_masters_log_and_queues(
        self, master: MessageStore, store: MessageStore
    ) -> None:
        chance = random.Random(3)
        while store.end_offset < master.end_offset:
            store.append_raw(store.end_offset, master.read_log(store.end_offset, chance.randint(1, 900)))
            store.dispatch(max_records=1)
            assert store.dispatched_offset <= store.end_offset
        store.dispatch()
        assert log_bytes(store) == log_bytes(master)
        assert store.dispatched_offset == store.end_offset
        assert queue_contents(store) == queue_contents(master) == derived_queues(store)

    def test_empty_store_takes_the_start_of_a_later_file(self, master: MessageStore, store: MessageStore) -> None:
        piece = master.read_log(FILE, FILE)
        store.append_raw(FILE, piece)
        store.dispatch()
        assert (store.min_offset, store.end_offset) == (FILE, 2 * FILE)
        queue = store.consume_queue("topic", 0)
        assert queue is not None
        assert queue.min_offset > 0
        assert queue.read(queue.min_offset, 1)[0].physical_offset >= FILE

    def test_bytes_that_do_not_follow_are_refused(self, master: MessageStore, store: MessageStore) -> None:
        store.append_raw(0, master.read_log(0, 100))
        with pytest.raises(LogGap):
            store.append_raw(200, b"x")

    def test_bytes_written_in_a_thread_belong_to_the_log_when_it_is_told(
        self, master: MessageStore, store: MessageStore
    ) -> None:
        store.append_raw(0, master.read_log(0, 100))
        write = store.replicated_write(100, [master.read_log(100, 500), master.read_log(600, 400)])
        assert write is not None
        write.run()
        assert store.end_offset == 100
        store.replicated_write_finished(write)
        assert log_bytes(store) == log_bytes(master)[:1000]

    def test_bytes_are_not_for_a_thread_unless_they_go_on_in_the_file(
        self, master: MessageStore, store: MessageStore
    ) -> None:
        assert store.replicated_write(0, [master.read_log(0, 100)]) is None, "the first may move the log"
        store.append_raw(0, master.read_log(0, FILE - 100))
        assert store.replicated_write(FILE, [master.read_log(FILE, 10)]) is None, "a gap"
        pieces = [master.read_log(FILE - 100, 100), master.read_log(FILE, 10)]
        assert store.replicated_write(FILE - 100, pieces) is None, "two files"
        store.append_raw(FILE - 100, pieces[0])
        assert store.replicated_write(FILE, pieces[1:]) is None, "a new file"

    @pytest.mark.parametrize("look", ["dispatch", "check_appended"])
    @pytest.mark.parametrize("factor", [0.5, 2.0])
    def test_a_master_with_files_of_another_length_is_told_of(
        self, master: MessageStore, factor: float, look: str
    ) -> None:
        """A Java master does not say how long its files are, and its frames may end where ours do."""
        store = new_store(
            SimulatedDisk(random.Random(5)), options=with_options(commit_log_file_bytes=int(FILE * factor))
        )
        store.load()
        piece = int(FILE * min(factor, 1.0))
        for offset in range(0, 2 * FILE, piece):
            store.append_raw(offset, master.read_log(offset, piece))

        def look_at_all() -> None:
            for _ in range(10):
                getattr(store, look)()

        with pytest.raises(RecordCorrupt, match="mappedFileSizeCommitLog"):
            look_at_all()
        assert 0 < store.checked_offset <= max(piece, FILE)

    def test_bytes_that_go_on_in_the_next_file_are_refused(self, master: MessageStore) -> None:
        store = new_store(SimulatedDisk(random.Random(5)), options=with_options(commit_log_file_bytes=FILE // 2))
        store.load()
        store.append_raw(0, master.read_log(0, 1000))
        parts = [master.read_log(1000, 500), master.read_log(1500, 1000)]
        assert store.replicated_write(1000, parts) is None
        with pytest.raises(StorageError, match="mappedFileSizeCommitLog"):
            store.append_replicated(1000, parts)
        assert log_bytes(store) == log_bytes(master)[:1500]

    def test_a_record_that_says_it_is_larger_than_its_file_is_not_waited_for(
        self, master: MessageStore, store: MessageStore
    ) -> None:
        data = bytearray(master.read_log(0, 3000))
        data[2] ^= 0x40
        store.append_raw(0, bytes(data))
        with pytest.raises(RecordCorrupt):
            store.check_appended()
        with pytest.raises(RecordCorrupt):
            store.dispatch()

    def test_damaged_record_stops_dispatch(self, master: MessageStore, store: MessageStore) -> None:
        data = bytearray(master.read_log(0, 3000))
        data[1300] ^= 1
        store.append_raw(0, bytes(data))
        with pytest.raises(RecordCorrupt):
            store.dispatch()
        store.truncate(store.dispatched_offset)
        assert store.end_offset == master.message_at(0).total_size

    def test_stop_cuts_a_half_record_off_and_is_orderly(
        self, master: MessageStore, disk: SimulatedDisk, store: MessageStore
    ) -> None:
        store.append_raw(0, master.read_log(0, 1500))
        store.close()
        again = new_store(disk)
        assert again.load().clean
        assert again.end_offset == master.message_at(0).total_size

    def test_half_record_must_go_before_puts_are_allowed(self, master: MessageStore, store: MessageStore) -> None:
        store.append_raw(0, master.read_log(0, 1500))
        store.dispatch()
        with pytest.raises(AssertionError):
            store.put(outgoing_message())
        store.truncate(store.dispatched_offset)
        assert store.put(outgoing_message()).status is PutStatus.PUT_OK


class TestReading:
    def test_read_log_stays_within_one_file_and_the_log(self, store: MessageStore) -> None:
        for _ in range(4):
            store.put(outgoing_message(body=BIG))
        assert len(store.read_log(100, 1 << 20)) == FILE - 100
        assert len(store.read_log(FILE, 1 << 20)) == store.end_offset - FILE
        assert not store.read_log(store.end_offset, 10)
        assert not store.read_log(-1, 10)

    def test_message_at_a_wrong_offset_is_refused(self, store: MessageStore) -> None:
        end = store.put(outgoing_message()).end_offset
        for offset in (1, end, end + FILE):
            with pytest.raises(RecordCorrupt):
                store.message_at(offset)

    def test_digest_covers_exactly_the_range(self, store: MessageStore) -> None:
        for n in range(5):
            store.put(outgoing_message(body=BIG, keys=(str(n),)))
        assert store.digest(0, 4000) == store.digest(0, 4000)
        assert store.digest(0, store.end_offset) != store.digest(0, store.end_offset - 1)


def test_the_time_from_a_record_to_the_last_one_survives_a_kill() -> None:
    clock, disk = ManualClock(), SimulatedDisk(random.Random(1))
    store = new_store(disk, clock)
    store.load()
    assert store.written_after_ms(0) is None
    offsets = []
    for pause_ms in (0, 1_000, 20_000):
        clock.now_ms += pause_ms
        offsets.append(store.put(outgoing_message()).physical_offset)
    expected = [21_000, 20_000, 0]
    assert [store.written_after_ms(offset) for offset in offsets] == expected
    assert store.written_after_ms(offsets[1] + 1) is None
    assert store.written_after_ms(store.end_offset) is None
    disk.crash(power_loss=False)
    restarted = new_store(disk, clock)
    restarted.load()
    assert [restarted.written_after_ms(offset) for offset in offsets] == expected


@pytest.mark.parametrize("ending", ["closed", "killed", "cut"])
def test_what_the_checkpoint_vouches_for_is_known_before_the_first_flush(ending: str) -> None:
    """An audit that began with the broker looked at no entry at all."""
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk)
    store.load()
    for _ in range(3):
        last = store.put(outgoing_message())
        flush_all(store)
    if ending == "closed":
        store.close()
    disk.crash(power_loss=False)
    restarted = new_store(disk)
    restarted.load()
    assert restarted.saved_offset == restarted.min_offset
    assert last.physical_offset < restarted.queued_offset <= restarted.end_offset
    if ending == "cut":
        restarted.truncate(last.physical_offset)
        assert restarted.queued_offset <= last.physical_offset


def test_saved_offset_follows_what_is_in_the_files(store: MessageStore) -> None:
    assert store.saved_offset == store.min_offset
    first = store.put(outgoing_message(keys=("a",)))
    assert store.saved_offset == store.min_offset
    flush_all(store)
    assert store.saved_offset == first.end_offset
    store.put(outgoing_message())
    assert store.saved_offset == first.end_offset


def test_replaced_bytes_are_read_at_once_and_survive_power_loss_after_their_sync(
    disk: SimulatedDisk, clock: ManualClock, store: MessageStore
) -> None:
    for _ in range(5):
        store.put(outgoing_message(body=BIG))
    flush_all(store)
    sound = log_bytes(store)
    damaged = FILE + 200
    store.replace_log(damaged, b"\xff" * 40)
    assert log_bytes(store) != sound
    store.replace_log(damaged, sound[damaged : damaged + 40])
    job = store.log_sync_job(damaged, damaged + 40)
    job.run()
    store.flush_finished(job)
    assert log_bytes(store) == sound
    disk.crash(power_loss=True)
    again = new_store(disk, clock)
    again.load()
    assert log_bytes(again) == sound


def test_rewritten_entries_are_durable_after_their_sync(
    disk: SimulatedDisk, clock: ManualClock, store: MessageStore
) -> None:
    for _ in range(5):
        store.put(outgoing_message())
    flush_all(store)
    queue = store.consume_queue("topic", 0)
    assert queue is not None
    sound = queue.read(0, 5)
    store.rewrite_queue("topic", 0, 1, bytes(20))
    assert queue.read(0, 5) != sound
    store.rewrite_queue("topic", 0, 1, ENTRY.pack(*sound[1]))
    job = store.queue_sync_job()
    assert store.queue_flush_job() is None, "one job at a time"
    job.run()
    store.flush_finished(job)
    disk.crash(power_loss=True)
    again = new_store(disk, clock)
    again.load()
    reloaded = again.consume_queue("topic", 0)
    assert reloaded is not None
    assert reloaded.read(0, 5) == sound


def test_a_checkpoint_without_room_is_tried_again_and_stops_nothing() -> None:
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk)
    store.load()
    store.put(outgoing_message())
    store.write_appended()
    job = store.queue_flush_job()
    assert job is not None
    capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, disk.usage().used_bytes
    job.run()
    store.flush_finished(job)
    assert store.refusal == "the disk is full"
    assert store.put(outgoing_message()).status is PutStatus.DISK_FULL
    disk.capacity_bytes = capacity_bytes
    store.check_disk()
    assert store.refusal is None
    again = store.queue_flush_job()
    assert again is not None, "nothing vouches for the entries yet"
    again.run()
    store.flush_finished(again)
    assert store.queue_flush_job() is None

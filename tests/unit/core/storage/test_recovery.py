from __future__ import annotations

import random

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import SMALL_OPTIONS, derived_queues, flush_all, log_bytes, new_store, queue_contents
from tandemmq.core.storage.disk import DiskError, DiskFull
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.core.storage.recovery import RecoveryProgress

FILE = SMALL_OPTIONS.commit_log_file_bytes


def _filled(disk: SimulatedDisk, count: int = 12) -> MessageStore:
    store = new_store(disk)
    store.load()
    for n in range(count):
        store.put(outgoing_message(queue_id=n % 3, body=random.Random(n).randbytes(600), keys=(f"u{n}",)))
    return store


class TestWhereItStarts:
    def test_orderly_stop_reads_only_the_last_record(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk)
        end = store.end_offset
        store.close()
        again = new_store(disk)
        report = again.load()
        assert (report.clean, report.end_offset, report.redispatched_records, report.truncated_bytes) == (
            True,
            end,
            1,
            0,
        )
        assert again.put(outgoing_message()).physical_offset == end

    def test_killed_process_is_read_from_the_checkpoint_on(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk, 9)
        flush_all(store)
        for _ in range(2):
            store.put(outgoing_message())
        end = store.end_offset
        disk.crash(power_loss=False)
        report = new_store(disk).load()
        assert (report.clean, report.same_boot, report.may_have_lost) == (False, True, False)
        assert (report.end_offset, report.redispatched_records) == (end, 3)

    @pytest.mark.parametrize("failing", ["commitlog/", "consumequeue/"])
    def test_what_a_failed_sync_left_out_is_written_before_a_start_vouches_for_it(self, failing: str) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk)
        end = store.end_offset
        disk.failing_syncs = failing
        job = store.queue_flush_job()
        assert job is not None
        with pytest.raises(DiskError):
            job.run()
        disk.failing_syncs = None
        disk.crash(power_loss=False)
        again = new_store(disk)
        again.load()
        assert again.flushed_offset == end
        contents = queue_contents(again)
        disk.crash(power_loss=True)
        last = new_store(disk)
        last.load()
        assert last.end_offset == end
        assert queue_contents(last) == contents == derived_queues(last)

    def test_machine_that_lost_power_may_have_lost_records(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        _filled(disk)
        disk.crash(power_loss=True)
        report = new_store(disk).load()
        assert (report.same_boot, report.may_have_lost) == (False, True)

    def test_kill_before_the_tail_is_trusted_again_does_not_hide_the_power_loss(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        _filled(disk)
        disk.crash(power_loss=True)
        new_store(disk).load()
        disk.crash(power_loss=False)
        assert new_store(disk).load().may_have_lost

    def test_orderly_stop_before_the_tail_is_trusted_again_does_not_hide_the_power_loss(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        _filled(disk)
        disk.crash(power_loss=True)
        store = new_store(disk)
        store.load()
        store.close()
        assert new_store(disk).load().may_have_lost

    def test_kill_after_the_tail_is_trusted_again_has_lost_nothing(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        _filled(disk)
        disk.crash(power_loss=True)
        store = new_store(disk)
        store.load()
        store.trust_tail()
        disk.crash(power_loss=False)
        assert not new_store(disk).load().may_have_lost

    def test_kill_while_an_empty_store_is_filled_from_elsewhere_may_have_lost_the_rest(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = new_store(disk)
        store.load()
        store.doubt_tail()
        store.put(outgoing_message())
        disk.crash(power_loss=False)
        assert new_store(disk).load().may_have_lost

    def test_store_whose_queues_were_deleted_builds_them_again(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk)
        expected = queue_contents(store)
        store.close()
        disk.remove_folder("consumequeue")
        again = new_store(disk)
        again.load()
        assert queue_contents(again) == expected

    def test_queues_of_a_log_that_is_gone_are_deleted(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        _filled(disk).close()
        disk.remove_folder("commitlog")
        again = new_store(disk)
        assert again.load().end_offset == 0
        assert queue_contents(again) == {}
        assert again.put(outgoing_message()).queue_offset == 0


class TestIndexAfterAKill:
    @pytest.mark.parametrize("seed", range(60))
    def test_it_is_byte_for_byte_that_of_a_fresh_slave(self, seed: int) -> None:
        chance = random.Random(seed)
        disk = SimulatedDisk(random.Random(1))
        store = new_store(disk)
        store.load()
        for n in range(chance.randint(1, 60)):
            store.put(outgoing_message(queue_id=n % 3, tag=chance.choice((None, "T")), keys=(f"u{n}", f"k{n % 4}")))
            if chance.random() < 0.1:
                flush_all(store)
            if chance.random() < 0.1:
                list(store.index_walk("topic", "u1", begin_ms=0, end_ms=1))
        disk.crash(power_loss=False)
        again = new_store(disk)
        again.load()
        flush_all(again)
        slave_disk = SimulatedDisk(random.Random(2))
        slave = new_store(slave_disk)
        slave.load()
        file_bytes = again.segment_bytes
        for start in range(0, again.end_offset, file_bytes):
            slave.append_raw(start, bytes(again.read_log(start, file_bytes)))
        while slave.dispatch():
            pass
        flush_all(slave)
        assert _index_files(disk) == _index_files(slave_disk)


def _index_files(disk: SimulatedDisk) -> list[bytes | None]:
    return [disk.read_file(path) for path in disk.paths() if path.startswith("index/")]


class TestTornTail:
    @pytest.mark.parametrize("kept_share", [0.1, 0.5, 0.9])
    def test_record_cut_in_the_middle_of_its_store_is_dropped(self, kept_share: float) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk, 2)
        start = store.put(outgoing_message(body=b"x" * 500)).physical_offset
        torn_from = start + int((store.end_offset - start) * kept_share)
        disk.map_segment(f"commitlog/{0:020d}", FILE, create=False).view[torn_from:] = bytes(FILE - torn_from)
        disk.crash(power_loss=False)
        again = new_store(disk)
        report = again.load()
        assert (again.end_offset, report.truncated_bytes) == (start, torn_from - start)
        assert queue_contents(again) == derived_queues(again)

    def test_zeros_in_the_properties_are_no_record(self) -> None:
        """The body's CRC does not cover them: a lost sector there would otherwise go unseen."""
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk, 2)
        start = store.put(outgoing_message(keys=("u", "k" * 700))).physical_offset
        lost = store.end_offset - 512
        disk.map_segment(f"commitlog/{0:020d}", FILE, create=False).view[lost : lost + 400] = bytes(400)
        disk.crash(power_loss=False)
        again = new_store(disk)
        again.load()
        assert again.end_offset == start

    def test_stale_record_does_not_come_back_under_a_torn_one(self) -> None:
        """A, B, then B's place taken by C of the same size, and C's sectors lost: B must not be seen again."""
        disk = SimulatedDisk(random.Random(1))
        store = new_store(disk)
        store.load()
        kept = store.put(outgoing_message(body=b"A" * 600)).end_offset
        store.put(outgoing_message(body=b"B" * 600))
        flush_all(store)
        store.truncate(kept)
        store.put(outgoing_message(body=b"C" * 600))
        assert disk.durable_bytes(f"commitlog/{0:020d}")[kept:] == bytes(FILE - kept)
        disk.crash(power_loss=True)
        again = new_store(disk)
        again.load()
        assert b"B" * 100 not in log_bytes(again)


class TestTruncation:
    @pytest.mark.parametrize("power_loss", [False, True])
    @pytest.mark.parametrize("cut_record", [0, 3, 7, 11])
    def test_crash_at_each_step_leaves_a_log_that_agrees_with_its_queues(
        self, cut_record: int, power_loss: bool
    ) -> None:
        for step in range(1, 100):
            disk = SimulatedDisk(random.Random(step))
            store = _filled(disk)
            flush_all(store)
            before = log_bytes(store)
            queue = store.consume_queue("topic", cut_record % 3)
            assert queue is not None
            cut = queue.read(cut_record // 3, 1)[0].physical_offset
            disk.crash_at_operation(step)
            try:
                kept = store.truncate(cut)
            except SimulatedCrash:
                kept = None
            else:
                disk.crash_at_operation(0)
            disk.crash(power_loss=power_loss)
            again = new_store(disk)
            again.load()
            after = log_bytes(again)
            assert after == before[: len(after)]
            assert len(after) >= cut
            assert queue_contents(again) == derived_queues(again)
            if len(after) < len(before):
                tails = [path for path in disk.paths() if path.startswith("kept-tails/") and path.endswith(".log")]
                assert [disk.read_file(path) for path in tails] == [before[cut:]]
            again.put(outgoing_message())
            if kept is not None:
                assert (kept.start_offset, kept.end_offset, len(after)) == (cut, len(before), cut)
                return
        pytest.fail("the truncation never got through")

    def test_cut_at_the_end_does_nothing(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk)
        assert store.truncate(store.end_offset) is None
        assert not [path for path in disk.paths() if path.startswith("kept-tails/")]

    def test_store_cut_to_nothing_can_be_moved(self) -> None:
        master, slave_disk = _filled(SimulatedDisk(random.Random(1))), SimulatedDisk(random.Random(2))
        slave = _filled(slave_disk, 4)
        slave.truncate(0)
        slave.append_raw(FILE, master.read_log(FILE, FILE))
        slave.dispatch()
        flush_all(slave)
        slave_disk.crash(power_loss=True)
        again = new_store(slave_disk)
        again.load()
        assert (again.min_offset, log_bytes(again)) == (FILE, bytes(master.read_log(FILE, FILE)))
        assert queue_contents(again) == derived_queues(again)


class TestHowFarItIs:
    def test_progress_grows_to_one(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        store = _filled(disk, 30)
        disk.crash(power_loss=False)
        again = new_store(disk)
        progress = again.recovery_progress
        assert (progress.ratio, progress.elapsed_ms(now_ms=5)) == (0.0, 0)
        again.load()
        assert (progress.ratio, progress.duration_ms) == (1.0, 0)
        assert 0 < progress.read_bytes <= progress.bytes_to_read
        assert store.end_offset >= progress.read_bytes

    def test_until_it_has_ended_it_is_not_one(self) -> None:
        progress = RecoveryProgress()
        progress.begin(now_ms=1_000)
        progress.bytes_to_read, progress.read_bytes = 200, 50
        assert 0.24 < progress.ratio <= 0.25
        assert progress.elapsed_ms(now_ms=1_500) == 500
        progress.read_bytes = 200
        assert 0.9 < progress.ratio < 1
        progress.end(now_ms=3_000)
        assert (progress.ratio, progress.elapsed_ms(now_ms=9_000)) == (1.0, 2_000)


@pytest.mark.parametrize("seed", range(60))
def test_a_start_that_finds_no_room_loses_nothing_and_may_be_tried_again(seed: int) -> None:
    """Wherever it comes to its end, the try that finds room leaves what one with room at once would have left."""
    chance = random.Random(seed)
    disk = SimulatedDisk(random.Random(seed))
    store = new_store(disk)
    store.load()
    for number in range(chance.randint(5, 80)):
        store.put(outgoing_message(body=chance.randbytes(chance.randrange(400)), queue_id=number % 3))
        store.write_appended()
        if chance.random() < 0.2:
            flush_all(store)
    end = store.end_offset
    if chance.random() < 0.2:
        store.close()
    else:
        disk.crash(power_loss=chance.random() < 0.3)
    if chance.random() < 0.8:  # Records lie behind the damage, so that what is cut is kept.
        at = chance.randrange(end)
        file_bytes = SMALL_OPTIONS.commit_log_file_bytes
        disk.damage(f"commitlog/{at - at % file_bytes:020d}", at % file_bytes, chance.randbytes(1))
    image = disk.image()
    disk.put_back(image)
    due = new_store(disk)
    due.load()
    due_log, due_queues, due_kept = log_bytes(due), queue_contents(due), _kept_tails(disk)
    assert due.put(outgoing_message()).status is PutStatus.PUT_OK
    due_end = due.end_offset

    disk.put_back(image)
    disk.capacity_bytes = disk.usage().used_bytes
    store, tries = new_store(disk), 0
    while True:
        tries += 1
        assert tries < 2_000
        try:
            store.load()
            break
        except DiskFull:
            assert all(path.endswith((".log", ".json")) for path in _kept_tails(disk))
            disk.capacity_bytes += chance.randint(1, 6_000)
    assert (log_bytes(store), queue_contents(store), _kept_tails(disk)) == (due_log, due_queues, due_kept)
    disk.capacity_bytes *= 10
    store.check_disk()
    assert store.put(outgoing_message()).status is PutStatus.PUT_OK
    assert store.end_offset == due_end


def _kept_tails(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.image().items() if path.startswith("kept-tails/")}

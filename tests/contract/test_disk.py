"""What `tandemmq.core.storage.disk` promises, held against the real disk and its twin in memory."""

from __future__ import annotations

import os
import platform
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.vanishing_files import let_vanish
from tandemmq.broker import posix_disk
from tandemmq.broker.posix_disk import PosixDisk, WholeSync
from tandemmq.core.storage.disk import Disk, DiskError, DiskFull, SegmentSizeMismatch, StoreLocked

SEGMENT = "commitlog/00000000000000000000"
QUEUE_FILE = "consumequeue/t/0/00000000000000000000"


@pytest.fixture(params=["posix", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "posix":
        return PosixDisk(tmp_path / "store")
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def synced_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every folder that is synced from now on, relative to `tmp_path`."""
    folders: list[str] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            folders.append(_folder_of_inode(tmp_path, status.st_ino))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    return folders


def _folder_of_inode(root: Path, inode: int) -> str:
    [folder] = [path for path in (root, *root.rglob("*")) if path.is_dir() and path.stat().st_ino == inode]
    return "" if folder == root else str(folder.relative_to(root))


class TestMappedSegment:
    def test_created_segment_is_zero_and_listed(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 8192, create=True)
        assert (segment.path, segment.size, len(segment.view)) == (SEGMENT, 8192, 8192)
        assert bytes(segment.view) == bytes(8192)
        [entry] = disk.list_folder("commitlog")
        assert (entry.name, entry.size, entry.is_folder) == (SEGMENT.rpartition("/")[2], 8192, False)

    def test_stores_are_seen_by_the_next_mapping(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 8192, create=True)
        segment.view[4000:4005] = b"hello"
        segment.sync()
        segment.close()
        again = disk.map_segment(SEGMENT, 8192, create=True)
        assert bytes(again.view[4000:4005]) == b"hello"

    def test_parts_lie_one_behind_the_other_and_show_in_the_view(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 1 << 20, create=True)
        segment.view[:3] = b"abc"
        parts = [memoryview(bytes([number % 256])) for number in range(3000)] + [memoryview(b"z" * 5000)]
        segment.write_parts(3, parts)
        expected = b"abc" + b"".join(parts)
        assert bytes(segment.view[: len(expected) + 1]) == expected + b"\0"

    def test_tail_view_shows_what_is_written(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 1 << 20, create=True)
        tail = segment.new_tail_view()
        assert len(tail) == 1 << 20
        assert tail.readonly
        segment.write_parts(3, [b"abc"])
        segment.view[:3] = b"xyz"
        assert bytes(tail[:7]) == b"xyzabc\0"
        held = tail[:6]
        del tail
        segment.close()
        assert bytes(held) == b"xyzabc"

    def test_slices_outlive_close_and_removal(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 8192, create=True)
        segment.view[:5] = b"hello"
        held = segment.view[:5]
        segment.close()
        disk.remove(SEGMENT)
        assert bytes(held) == b"hello"

    def test_zero_from_clears_the_rest_and_nothing_before(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 3 << 20, create=True)
        assert segment.zero_from(100) == 0
        segment.view[98:103] = b"abcde"
        segment.view[2 << 20] = 7
        assert segment.zero_from(100) == (2 << 20) + 1 - 100
        assert bytes(segment.view[96:104]) == b"\0\0ab\0\0\0\0"
        assert segment.view[2 << 20] == 0
        assert segment.zero_from(100) == 0
        assert segment.zero_from(3 << 20) == 0

    def test_used_bytes_end_with_the_last_that_is_not_zero(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 3 << 20, create=True)
        assert segment.used_bytes_from(0) == 0
        segment.view[100] = segment.view[2 << 20] = 7
        assert segment.used_bytes_from(50) == (2 << 20) + 1 - 50
        assert segment.used_bytes_from((2 << 20) + 1) == segment.used_bytes_from(3 << 20) == 0
        segment.view[2 << 20] = 0
        assert segment.used_bytes_from(100) == 1

    def test_pages_that_are_fetched_hold_what_they_held(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 3 << 20, create=True)
        segment.view[100:105] = b"abcde"
        segment.fetch_pages(101, 3 << 20)
        segment.fetch_pages(7, 7)
        assert bytes(segment.view[:110]) == bytes(100) + b"abcde" + bytes(5)
        assert not any(segment.view[110:])

    def test_bytes_stored_again_are_the_same(self, disk: Disk) -> None:
        segment = disk.map_segment(SEGMENT, 3 << 20, create=True)
        segment.view[100:105] = b"abcde"
        segment.view[-1] = 7
        before = bytes(segment.view)
        segment.store_again(102, 3 << 20)
        segment.store_again(0, 0)
        assert bytes(segment.view) == before

    def test_another_length_is_refused(self, disk: Disk) -> None:
        disk.map_segment(SEGMENT, 8192, create=True)
        with pytest.raises(SegmentSizeMismatch, match="8192 bytes long but the configured file size is 4096"):
            disk.map_segment(SEGMENT, 4096, create=True)

    def test_missing_segment_is_an_error_without_create(self, disk: Disk) -> None:
        with pytest.raises(DiskError):
            disk.map_segment(SEGMENT, 8192, create=False)


class TestBlockFile:
    def test_reads_back_what_was_written_and_zeros_elsewhere(self, disk: Disk) -> None:
        file = disk.open_block_file(QUEUE_FILE, 6000, create=True)
        file.write(20, b"entry")
        assert file.read(18, 9) == b"\0\0entry\0\0"
        assert file.read(5990, 10) == bytes(10)
        file.sync()
        file.close()
        file.close()
        assert disk.open_block_file(QUEUE_FILE, 6000, create=False).read(20, 5) == b"entry"

    def test_another_length_is_refused(self, disk: Disk) -> None:
        disk.open_block_file(QUEUE_FILE, 6000, create=True)
        with pytest.raises(SegmentSizeMismatch):
            disk.open_block_file(QUEUE_FILE, 8000, create=False)

    def test_missing_file_is_an_error_without_create(self, disk: Disk) -> None:
        with pytest.raises(DiskError):
            disk.open_block_file(QUEUE_FILE, 6000, create=False)

    def test_zero_from_clears_the_rest_and_nothing_before(self, disk: Disk) -> None:
        file = disk.open_block_file(QUEUE_FILE, 6000, create=True)
        assert file.zero_from(100) == 0
        file.write(98, b"abcde")
        assert file.zero_from(100) == 3
        assert file.read(96, 8) == b"\0\0ab\0\0\0\0"

    def test_block_is_written_without_a_handle_of_ones_own(self, disk: Disk) -> None:
        file = disk.open_block_file(QUEUE_FILE, 6000, create=True)
        file.write(20, b"entry")
        disk.write_block(QUEUE_FILE, 25, b"more")
        assert file.read(18, 13) == b"\0\0entrymore\0\0"
        assert disk.open_block_file(QUEUE_FILE, 6000, create=False).size == 6000

    def test_block_of_a_missing_file_is_an_error(self, disk: Disk) -> None:
        with pytest.raises(DiskError):
            disk.write_block(QUEUE_FILE, 0, b"entry")
        assert disk.list_folder(QUEUE_FILE.rpartition("/")[0]) == []


class TestAppendFile:
    def test_grows_and_keeps_its_content_over_reopening(self, disk: Disk) -> None:
        journal = disk.open_append_file("leases/journal")
        journal.append(b"one")
        journal.append(b"two")
        journal.sync()
        assert journal.size == 6
        journal.close()
        again = disk.open_append_file("leases/journal")
        again.append(b"three")
        assert again.size == 11
        assert disk.read_file("leases/journal") == b"onetwothree"


class TestWholeFilesAndNames:
    def test_write_file_replaces(self, disk: Disk) -> None:
        assert disk.read_file("config/topics.json") is None
        disk.write_file("config/topics.json", b"long old content")
        disk.write_file("config/topics.json", b"new")
        assert disk.read_file("config/topics.json") == b"new"

    def test_folders_list_sorted_names_of_both_kinds(self, disk: Disk) -> None:
        disk.write_file("b", b"1")
        disk.write_file("a/x", b"22")
        disk.write_file("c", b"")
        assert [(e.name, e.size, e.is_folder) for e in disk.list_folder("")] == [
            ("a", 0, True),
            ("b", 1, False),
            ("c", 0, False),
        ]
        assert disk.list_folder("missing") == []

    def test_remove_takes_a_missing_file(self, disk: Disk) -> None:
        disk.write_file("a/x", b"1")
        disk.remove("a/x")
        disk.remove("a/x")
        disk.remove("never/was")
        assert disk.read_file("a/x") is None

    def test_remove_folder_takes_everything_below(self, disk: Disk) -> None:
        disk.write_file("q/t/0/f", b"1")
        disk.write_file("q/u/0/f", b"1")
        disk.remove_folder("q/t")
        disk.remove_folder("q/t")
        assert [e.name for e in disk.list_folder("q")] == ["u"]

    def test_rename_replaces_and_makes_folders(self, disk: Disk) -> None:
        disk.write_file("a", b"new")
        disk.write_file("kept/b", b"old")
        disk.rename("a", "kept/b")
        assert (disk.read_file("a"), disk.read_file("kept/b")) == (None, b"new")

    def test_renaming_a_missing_file_is_an_error(self, disk: Disk) -> None:
        with pytest.raises(DiskError):
            disk.rename("a", "b")

    def test_usage_and_boot_id_make_sense(self, disk: Disk) -> None:
        usage = disk.usage()
        assert 0 <= usage.used_bytes <= usage.total_bytes
        assert 0.0 <= usage.used_ratio <= 1.0
        assert disk.boot_id() == disk.boot_id()


class TestSyncOfEverything:
    def test_is_done_or_said_not_to_be_offered(self, disk: Disk) -> None:
        disk.open_block_file(QUEUE_FILE, 6000, create=True).write(0, b"entry")
        assert disk.sync_all() in (True, False)
        assert disk.open_block_file(QUEUE_FILE, 6000, create=False).read(0, 5) == b"entry"

    def test_what_was_written_before_survives_a_power_loss(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        for number in range(20):
            disk.open_block_file(f"q/{number}", 6000, create=True).write(5000, b"entry")
        assert disk.sync_all()
        disk.crash(power_loss=True)
        for number in range(20):
            assert disk.open_block_file(f"q/{number}", 6000, create=False).read(5000, 5) == b"entry"


class TestLock:
    def test_second_lock_is_refused_until_release(self, disk: Disk) -> None:
        lock = disk.lock("lock")
        assert disk.read_file("lock") == b"lock"
        with pytest.raises(StoreLocked):
            disk.lock("lock")
        lock.release()
        disk.lock("lock").release()


class TestPosixDisk:
    def test_lock_is_a_record_lock_that_other_processes_see(self, tmp_path: Path) -> None:
        held = PosixDisk(tmp_path).lock("lock")
        attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        command = [sys.executable, "-c", attempt, str(tmp_path / "lock")]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
        held.release()
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0

    def test_segment_has_its_space_reserved(self, tmp_path: Path) -> None:
        PosixDisk(tmp_path).map_segment(SEGMENT, 1 << 20, create=True)
        assert (tmp_path / SEGMENT).stat().st_blocks * 512 >= 1 << 20

    def test_space_is_written_where_the_file_system_cannot_reserve(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unsupported(fd: int, offset: int, length: int) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "posix_fallocate", unsupported)
        PosixDisk(tmp_path).map_segment(SEGMENT, 3 << 20, create=True)
        assert (tmp_path / SEGMENT).stat().st_blocks * 512 >= 3 << 20

    def test_full_disk_is_an_error_at_creation_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int, offset: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        disk = PosixDisk(tmp_path)
        with pytest.raises(DiskFull, match="No space left"):
            disk.map_segment(SEGMENT, 1 << 20, create=True)
        assert list((tmp_path / "commitlog").iterdir()) == []

    def test_unfinished_file_of_a_crash_is_neither_listed_nor_in_the_way(self, tmp_path: Path) -> None:
        disk = PosixDisk(tmp_path)
        disk.write_file("commitlog/x", b"")
        (tmp_path / f"{SEGMENT}.unfinished").write_bytes(b"half")
        assert [e.name for e in disk.list_folder("commitlog")] == ["x"]
        assert disk.map_segment(SEGMENT, 4096, create=True).view[0] == 0

    def test_file_that_goes_while_its_folder_is_read_takes_no_other_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(tmp_path)
        disk.write_file("commitlog/expired", b"1")
        disk.write_file("commitlog/kept", b"2")
        let_vanish(monkeypatch, tmp_path / "commitlog/expired")
        assert [entry.name for entry in disk.list_folder("commitlog")] == ["kept"]

    def test_block_file_that_was_made_but_not_lengthened_counts_as_missing(self, tmp_path: Path) -> None:
        disk = PosixDisk(tmp_path)
        disk.write_file(QUEUE_FILE, b"")
        assert disk.open_block_file(QUEUE_FILE, 6000, create=True).size == 6000

    def test_sync_through_a_second_handle_makes_the_name_durable_and_each_folder_once(
        self, tmp_path: Path, synced_folders: list[str]
    ) -> None:
        disk = PosixDisk(tmp_path)
        paths = [f"consumequeue/t/{n}/00000000000000000000" for n in range(3)]
        for path in paths:
            disk.open_block_file(path, 6000, create=True).close()
        assert synced_folders == []
        for path in paths * 2:
            disk.open_block_file(path, 6000, create=False).sync()
        assert sorted(synced_folders) == ["", "consumequeue", "consumequeue/t"] + [
            f"consumequeue/t/{n}" for n in range(3)
        ]

    def test_sync_of_a_file_made_by_another_process_makes_its_name_durable(
        self, tmp_path: Path, synced_folders: list[str]
    ) -> None:
        PosixDisk(tmp_path).open_block_file(QUEUE_FILE, 6000, create=True).close()
        PosixDisk(tmp_path).open_block_file(QUEUE_FILE, 6000, create=False).sync()
        assert "consumequeue/t/0" in synced_folders

    def test_name_made_again_is_synced_again(self, tmp_path: Path, synced_folders: list[str]) -> None:
        disk = PosixDisk(tmp_path)
        disk.open_block_file(QUEUE_FILE, 6000, create=True).sync()
        disk.remove_folder("consumequeue/t")
        synced_folders.clear()
        disk.open_block_file(QUEUE_FILE, 6000, create=True).sync()
        assert sorted(synced_folders) == ["consumequeue", "consumequeue/t", "consumequeue/t/0"]

    def test_name_made_while_its_folder_is_being_synced_is_synced_by_the_next_sync(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(tmp_path)
        first = disk.open_block_file("q/1", 6000, create=True)
        monkeypatch.setattr(os, "fsync", lambda fd: disk.open_block_file("q/2", 6000, create=True).close())
        first.sync()
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        disk.open_block_file("q/2", 6000, create=False).sync()
        assert synced

    def test_failed_sync_of_everything_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def failed(self: WholeSync) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(WholeSync, "of", WholeSync)
        monkeypatch.setattr(WholeSync, "run", failed)
        with pytest.raises(DiskError, match="Input/output error"):
            PosixDisk(tmp_path).sync_all()

    @pytest.mark.parametrize(
        ("mount", "release", "offered"),
        [
            ("36 35 {device} / /data rw,noatime master:1 - ext4 /dev/sdb rw", "5.8.0", True),
            ("36 35 {device} / /data rw - xfs /dev/sdb rw", "6.18.44-generic", True),
            ("36 35 {device} / /data rw - ext4 /dev/sdb rw", "4.18.0-553.el8_10.x86_64", False),
            ("36 35 {device} / / rw - overlay overlay rw,lowerdir=/a", "6.1.0", False),
            ("36 35 0:0 / /data rw - ext4 /dev/sdb rw", "6.1.0", False),
        ],
    )
    def test_sync_of_everything_is_offered_where_it_tells_errors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, release: str, offered: bool
    ) -> None:
        device = os.stat(tmp_path).st_dev
        mounts = tmp_path / "mountinfo"
        mounts.write_text(mount.format(device=f"{os.major(device)}:{os.minor(device)}") + "\n")
        monkeypatch.setattr(posix_disk, "_MOUNTS_FILE", mounts)
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(platform, "release", lambda: release)
        assert (WholeSync.of(str(tmp_path)) is not None) == offered


class TestSimulatedCrash:
    def test_killed_process_loses_nothing(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        disk.map_segment(SEGMENT, 4096, create=True).view[:3] = b"abc"
        disk.open_block_file(QUEUE_FILE, 6000, create=True).write(0, b"def")
        boot_id = disk.boot_id()
        disk.crash(power_loss=False)
        assert bytes(disk.map_segment(SEGMENT, 4096, create=False).view[:3]) == b"abc"
        assert disk.open_block_file(QUEUE_FILE, 6000, create=False).read(0, 3) == b"def"
        assert disk.boot_id() == boot_id

    def test_power_loss_keeps_what_was_synced_and_any_sectors_of_the_rest(self) -> None:
        outcomes = set()
        for seed in range(40):
            disk = SimulatedDisk(random.Random(seed))
            segment = disk.map_segment(SEGMENT, 4096, create=True)
            segment.view[:512] = b"a" * 512
            segment.sync()
            segment.view[512:1536] = b"b" * 1024
            boot_id = disk.boot_id()
            disk.crash(power_loss=True)
            left = bytes(disk.map_segment(SEGMENT, 4096, create=False).view)
            assert left[:512] == b"a" * 512
            assert disk.boot_id() != boot_id
            outcomes.add((left[512], left[1024]))
        assert outcomes == {(0, 0), (0, 98), (98, 0), (98, 98)}

    def test_file_that_was_never_synced_may_be_gone_or_empty(self) -> None:
        outcomes = set()
        for seed in range(40):
            disk = SimulatedDisk(random.Random(seed))
            disk.open_block_file(QUEUE_FILE, 6000, create=True).write(0, b"x")
            disk.crash(power_loss=True)
            outcomes.add(tuple(entry.size for entry in disk.list_folder("consumequeue/t/0")))
        assert outcomes == {(), (0,), (6000,)}

    def test_stores_of_a_dead_process_go_nowhere(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        segment = disk.map_segment(SEGMENT, 4096, create=True)
        disk.crash(power_loss=False)
        segment.view[:3] = b"abc"
        assert disk.map_segment(SEGMENT, 4096, create=False).view[0] == 0
        with pytest.raises(AssertionError):
            segment.sync()

    def test_failed_sync_loses_the_bytes_even_when_a_later_one_succeeds(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        segment = disk.map_segment(SEGMENT, 4096, create=True)
        segment.view[:3] = b"abc"
        disk.failing_syncs = "commitlog/"
        with pytest.raises(DiskError):
            segment.sync()
        disk.failing_syncs = None
        segment.view[1000:1003] = b"def"
        segment.sync()
        assert disk.durable_bytes(SEGMENT)[:3] == bytes(3)
        assert disk.durable_bytes(SEGMENT)[1000:1003] == b"def"

    def test_chosen_operation_crashes(self) -> None:
        disk = SimulatedDisk(random.Random(1))
        disk.crash_at_operation(2)
        disk.write_file("a", b"1")
        with pytest.raises(SimulatedCrash):
            disk.write_file("b", b"1")
        assert disk.paths() == ["a"]

    def test_full_disk(self) -> None:
        disk = SimulatedDisk(random.Random(1), capacity_bytes=10_000)
        disk.map_segment(SEGMENT, 8192, create=True)
        with pytest.raises(DiskFull):
            disk.map_segment("commitlog/00000000000000008192", 8192, create=True)
        sparse = disk.open_block_file(QUEUE_FILE, 6000, create=True)
        with pytest.raises(DiskFull):
            sparse.write(0, b"x")
        assert disk.usage().used_ratio == pytest.approx(0.8192)

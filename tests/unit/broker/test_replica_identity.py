"""What a disk remembers of its group's record."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from support.group_records import RECORD
from support.running_time import PATIENCE_S, until
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.replica_identity import LOG_END_FILE, ForeignStore, LogDamage, LogEndMark, ReplicaIdentity
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, Epoch, LogHistory
from tandemmq.core.replication.mastership import GroupRecord, Replica
from tandemmq.core.routing.values import BrokerIdentity

BOTH = replace(RECORD, epoch=3, renewals=5, in_sync=frozenset({RECORD.master, Replica(7, "S")}))
ALONE = replace(BOTH, renewals=6, in_sync=frozenset({RECORD.master}))


def started(disk: SimulatedDisk) -> ReplicaIdentity:
    replica = ReplicaIdentity(disk, BrokerIdentity("C", "broker-a", 7), new_disk_id=lambda: "S", nonce="N")
    replica.read()
    replica.count_start()
    return replica


@pytest.mark.parametrize(
    ("seen", "version"),
    [
        ([], (0, 0)),
        ([BOTH], (3, 5)),
        ([BOTH, ALONE], (3, 6)),
        ([BOTH, ALONE, replace(ALONE, renewals=90)], (3, 6)),
        ([BOTH, ALONE, replace(BOTH, renewals=91)], (3, 91)),
        ([ALONE, BOTH], (3, 6)),
        ([ALONE, replace(BOTH, epoch=2, renewals=99)], (3, 6)),
        ([ALONE, replace(BOTH, epoch=4, renewals=0)], (4, 0)),
    ],
)
async def test_the_newest_set_is_remembered_after_a_restart(seen: list[GroupRecord], version: tuple[int, int]) -> None:
    disk = SimulatedDisk(random.Random(1))
    replica = started(disk)
    for record in seen:
        await replica.see_record(record)
    assert replica.record_version == started(disk).record_version == version


async def test_what_an_authority_was_put_back_behind_is_remembered() -> None:
    disk = SimulatedDisk(random.Random(1))
    replica = started(disk)
    await replica.see_record(BOTH)
    await replica.hold_to((3, 13))
    await replica.hold_to((3, 12))
    await replica.see_record(replace(BOTH, renewals=11))
    assert replica.record_version == started(disk).record_version == (3, 13)
    await replica.see_record(replace(ALONE, renewals=14))
    assert replica.record_version == (3, 14)


@pytest.mark.parametrize("keeps_disks_apart", [False, True])
def test_the_folder_of_another_member_keeps_its_id_where_that_may_be_in_the_in_sync_set(
    *, keeps_disks_apart: bool
) -> None:
    """Two folders that were exchanged: once each is back in its place, its member may be elected again."""
    disk = SimulatedDisk(random.Random(1))
    started(disk)
    before = disk.read_file(REPLICA_FILE)
    other = ReplicaIdentity(
        disk,
        BrokerIdentity("C", "broker-a", 8),
        new_disk_id=lambda: "another",
        nonce="N",
        keeps_disks_apart=keeps_disks_apart,
    )
    if not keeps_disks_apart:
        other.read()
        assert other.disk_id == "another"
        return
    with pytest.raises(ForeignStore, match="is that of broker 7 of its group, and the settings say brokerId=8"):
        other.read()
    assert disk.read_file(REPLICA_FILE) == before
    disk.remove(REPLICA_FILE)
    other.read()
    assert other.disk_id == "another", "a copy that is to be another disk"


class HeldDisk(SimulatedDisk):
    """Writes of files wait, each for its own turn, and tell how many do at a time."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.gates: list[threading.Event] = []
        self.is_held = False

    def write_file(self, path: str, data: bytes) -> None:
        if self.is_held:
            self.gates.append(gate := threading.Event())
            assert gate.wait(PATIENCE_S)
        super().write_file(path, data)


async def test_a_write_whose_caller_is_cancelled_ends_before_the_next_one_begins() -> None:
    """A slave's role ends while its disk is slow, and an epoch of its own begins: its master's history must not come
    over that afterwards."""
    disk = HeldDisk()
    replica = started(disk)
    disk.is_held = True
    theirs, ours = LogHistory((Epoch(1, 0),)), LogHistory((Epoch(1, 0), Epoch(2, 10)))
    adopting = asyncio.create_task(replica.adopt_history(theirs))
    await until(lambda: len(disk.gates) == 1)
    adopting.cancel()
    beginning = asyncio.create_task(replica.begin_epoch(ours))
    await asyncio.sleep(0.05)
    adopting.cancel()
    await asyncio.sleep(0.05)
    assert len(disk.gates) == 1
    disk.gates[0].set()
    await asyncio.wait([adopting])
    assert adopting.cancelled()
    assert replica.history == theirs
    await until(lambda: len(disk.gates) == 2)
    disk.gates[1].set()
    await beginning
    disk.is_held = False
    assert started(disk).history == ours


async def test_a_promise_that_was_written_for_a_caller_that_went_away_is_kept() -> None:
    disk = HeldDisk()
    replica = started(disk)
    disk.is_held = True
    promising = asyncio.create_task(replica.promise(5, "A", "nonce of A"))
    await until(lambda: disk.gates)
    promising.cancel()
    disk.gates[0].set()
    await asyncio.wait([promising])
    assert not await replica.promise(5, "B", "nonce of B")
    assert await replica.promise(5, "A", "nonce of A")


async def test_renewals_that_change_nothing_write_nothing() -> None:
    disk = SimulatedDisk(random.Random(1))
    replica = started(disk)
    await replica.see_record(BOTH)
    before = disk.read_file(REPLICA_FILE)
    await replica.see_record(replace(BOTH, renewals=60))
    assert disk.read_file(REPLICA_FILE) == before


async def test_a_file_of_before_is_understood() -> None:
    disk = SimulatedDisk(random.Random(1))
    await started(disk).see_record(BOTH)
    document = json.loads(disk.read_file(REPLICA_FILE) or b"")
    del document["recordRenewals"], document["recordInSync"]
    disk.write_file(REPLICA_FILE, json.dumps(document).encode())
    replica = started(disk)
    assert replica.record_version == (3, 0)
    await replica.see_record(replace(BOTH, epoch=2))
    assert replica.record_version == (3, 0)
    await replica.see_record(BOTH)
    assert replica.record_version == (3, 5)


# The mark of where a log ended: what it tells the next run.


def test_the_next_run_hears_what_was_noted_last(tmp_path: Path) -> None:
    mark = LogEndMark(tmp_path)
    mark.note(1)  # Before it is open: nothing.
    assert mark.open() == 0
    mark.note(4_096)
    mark.note(5_000_000_000)
    # A kill: nothing is closed.
    killed = LogEndMark(tmp_path)
    assert killed.open() == 5_000_000_000
    killed.note(0)
    killed.close()
    assert LogEndMark(tmp_path).open() == 0


def test_the_page_of_the_mark_has_its_place_before_anything_is_noted(tmp_path: Path) -> None:
    """On a full disk the first note would end the process, and nobody would know why."""
    mark = LogEndMark(tmp_path)
    mark.open()
    assert (tmp_path / LOG_END_FILE).stat().st_blocks > 0
    mark.close()


def test_a_mark_that_was_cut_off_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "logEnd").write_bytes(b"")
    assert LogEndMark(tmp_path).open() == 0


@pytest.mark.parametrize("gone", [(), (REPLICA_FILE,), (EPOCH_FILE,), (REPLICA_FILE, EPOCH_FILE), (LOG_END_FILE,)])
@pytest.mark.parametrize("kind", ["new", "master", "slave", "slave of a foreign master"])
async def test_what_is_gone_of_a_disk_that_was_used_is_told(kind: str, gone: tuple[str, ...]) -> None:
    disk = SimulatedDisk(random.Random(1))
    if kind != "new":
        replica = started(disk)
        disk.write_file(LOG_END_FILE, (4096 if kind == "master" else 0).to_bytes(8) + bytes(8))
        if kind == "master":
            await replica.begin_epoch(LogHistory.of([(1, 0)]))
        elif kind == "slave":
            await replica.adopt_history(LogHistory.of([(1, 0)]), owner="M")
    were_there = [path for path in gone if disk.read_file(path) is not None]
    for path in were_there:
        disk.remove(path)
    with capture_logs() as lines:
        replica = started(disk)
    told = {line["event"] for line in lines}
    expected = {
        REPLICA_FILE: "replica_record_damaged",
        EPOCH_FILE: "epoch_file_damaged",
        LOG_END_FILE: "log_end_mark_missing",
    }
    due = {expected[path] for path in were_there}
    if kind == "slave" and REPLICA_FILE in gone:
        due.discard("epoch_file_damaged")  # Only the record knew of an epoch.
    assert told == due
    assert replica.was_used == (kind != "new")
    assert (replica.run == 1) == (kind == "new" or REPLICA_FILE in gone)


@given(
    starts=st.lists(st.integers(0, 50), max_size=4, unique=True).map(sorted),
    later_starts=st.lists(st.integers(0, 90), max_size=3, unique=True).map(sorted),
    lost_end=st.integers(1, 60),
    end_offset=st.integers(0, 120),
    knows_history=st.booleans(),
)
def test_lost_bytes_are_back_where_the_same_masters_wrote_as_far(
    *, starts: list[int], later_starts: list[int], lost_end: int, end_offset: int, knows_history: bool
) -> None:
    """`starts` of the masters that wrote our log, `later_starts` of those that came after it was damaged."""
    ours = LogHistory.of((epoch + 1, start) for epoch, start in enumerate(starts))
    theirs = ours
    for number, start in enumerate(later_starts):
        theirs = theirs.begun(10 + number, max(start, *(epoch.start_offset for epoch in theirs.epochs), 0))
    damage = LogDamage("", lost_end, ours if knows_history else LogHistory())

    def writer(history: LogHistory, offset: int) -> int:
        return history.epoch_of_last_byte(offset + 1)

    is_same = all(writer(ours, offset) == writer(theirs, offset) for offset in range(lost_end))
    is_known = knows_history and bool(ours.epochs)
    is_told = damage.is_made_good(theirs, end_offset)
    assert not is_told or (is_known and is_same and end_offset >= lost_end)
    if is_known and is_same and end_offset >= lost_end and all(start < lost_end for start in starts):
        assert is_told

"""Leases survive the broker: journal, snapshot, and every crash between the two."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from support.queue_memory import QueueMemory
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeasePosition, LeaseSource, LeaseStorage
from tandemmq.broker.master import group_recovery
from tandemmq.broker.master.group_recovery import (
    MetadataSource,
    fetch_metadata,
    merge_leases,
    recover_leases,
    recover_metadata,
)
from tandemmq.broker.metadata_tables import MetadataTables, cut_progress
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.journal import JournalEntry, LeaseReplay, read_frames
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import TagFilter
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
from tandemmq.core.storage.disk import Disk, DiskError

GROUP, TOPIC = "group", "topic"
NO_QUEUES = ConsumeQueueTable(SimulatedDisk(random.Random(1)), file_bytes=400)


def loaded(
    disk: Disk, queues: QueueMemory, *, compaction_floor_bytes: int = 1 << 20, clock: Clock | None = None
) -> tuple[LeaseTable, LeaseStorage]:
    """A table with its storage, as a broker has them after its start; at 100 s if no clock is given."""
    table, storage = unloaded(disk, queues, compaction_floor_bytes=compaction_floor_bytes, clock=clock)
    storage.load()
    return table, storage


def unloaded(
    disk: Disk, queues: QueueMemory, *, compaction_floor_bytes: int = 1 << 20, clock: Clock | None = None
) -> tuple[LeaseTable, LeaseStorage]:
    """The same while its log is still being recovered."""
    table = LeaseTable(
        queues,
        options=DeliveryOptions(consume_from_earliest=True, compaction_floor_bytes=compaction_floor_bytes),
        broker_name="broker-a",
        nonce=itertools.count(1).__next__,
    )
    return table, LeaseStorage(disk, table, clock or ManualClock(100_000))


def receive(table: LeaseTable, *, now_ms: int, batch_size: int = 10, auto_renew: bool = False) -> list[str]:
    """Handles of what there is."""
    everything = TagFilter.parse("*")
    assert everything is not None
    received = table.receive(
        group=GROUP,
        topic=TOPIC,
        queue_ids=[0],
        tag_filter=everything,
        batch_size=batch_size,
        invisible_ms=30_000,
        now_ms=now_ms,
        max_attempts=17,
        auto_renew=auto_renew,
        client_id="client",
    )
    return [delivery.handle for delivery in received.deliveries]


def queues_with(count: int) -> QueueMemory:
    queues = QueueMemory()
    for _ in range(count):
        queues.put(TOPIC, 0)
    return queues


def test_handle_given_before_a_kill_acknowledges_after_it() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(3)
    table, storage = loaded(disk, queues)
    first, *_ = receive(table, now_ms=1_000)
    storage.persist()
    disk.crash(power_loss=False)
    table, storage = loaded(disk, queues)
    assert table.acknowledge(group=GROUP, topic=TOPIC, handle=first, now_ms=2_000)
    assert receive(table, now_ms=2_000) == []
    assert table.committed(GROUP, TOPIC, 0) == 1


def test_acknowledged_message_does_not_come_back_after_a_kill() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(2)
    table, storage = loaded(disk, queues)
    for handle in receive(table, now_ms=1_000):
        table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_500)
    storage.persist()
    disk.crash(power_loss=False)
    table, _ = loaded(disk, queues)
    assert receive(table, now_ms=100_000) == []


def test_compaction_keeps_the_state_and_removes_old_files() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(200)
    table, storage = loaded(disk, queues, compaction_floor_bytes=1)
    kept = receive(table, now_ms=1_000, batch_size=1)
    for handle in receive(table, now_ms=1_000, batch_size=150):
        table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_500)
        storage.persist()
    assert table.compaction_due
    asyncio.run(storage.compact_if_due())
    assert len([entry for entry in disk.list_folder("config") if entry.name.startswith("leases-")]) == 2
    disk.crash(power_loss=False)
    table, _ = loaded(disk, queues)
    assert table.acknowledge(group=GROUP, topic=TOPIC, handle=kept[0], now_ms=2_000)
    assert len(receive(table, now_ms=2_000, batch_size=100)) == 49


def test_power_loss_redelivers_but_never_skips() -> None:
    for seed in range(30):
        disk, queues = SimulatedDisk(random.Random(seed)), queues_with(5)
        table, storage = loaded(disk, queues)
        acknowledged = receive(table, now_ms=1_000)[:2]
        for handle in acknowledged:
            table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_100)
        storage.persist()
        disk.crash(power_loss=True)
        table, _ = loaded(disk, queues)
        again = len(receive(table, now_ms=100_000))
        assert again in (3, 5), f"seed {seed}: {again} of 5 messages came, 2 were acknowledged"


def test_what_comes_to_stand_where_a_log_was_cut_is_delivered_though_others_were_acknowledged_there() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(5)
    table, storage = loaded(disk, queues)
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    held, *handles = receive(table, now_ms=1_000)
    for handle in handles[:3]:
        table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_500)
    storage.persist()
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 5, now_ms=1)
    # Message 0 is held, 1 to 3 are finished, 4 is held; the log is cut at 2 before the next start.
    queues.cut(TOPIC, 0, 2)
    table, storage = unloaded(disk, queues)
    asyncio.run(cut_progress(tables, storage, NO_QUEUES, queues.max_offset))
    disk.crash(power_loss=True)
    for _ in range(4):
        queues.put(TOPIC, 0)
    table, storage = loaded(disk, queues)
    assert tables.consumer_offsets.offset(GROUP, TOPIC, 0) == 2
    assert len(receive(table, now_ms=2_000)) == 4
    assert table.acknowledge(group=GROUP, topic=TOPIC, handle=held, now_ms=2_000)
    assert table.committed(GROUP, TOPIC, 0) == 2


def test_snapshot_that_cannot_be_read_is_told_as_the_error_it_is() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(3)
    _, storage = loaded(disk, queues)
    storage.close()
    with capture_logs() as lines:
        loaded(disk, queues)
    assert [(line["event"], line["log_level"]) for line in lines] == [("leases_restored", "info")]

    [snapshot] = [entry.name for entry in disk.list_folder("config") if entry.name.endswith(".snapshot")]
    disk.write_file(f"config/{snapshot}", b"what a bad disk gives")
    with capture_logs() as lines:
        loaded(disk, queues)
    assert [(line["log_level"], line["snapshot_valid"]) for line in lines] == [("error", False)]


LEASE_FAULTS = ("none", "gone", "empty", "zeros", "zeros inside", "cut", "cut inside")


@given(
    acknowledged=st.integers(0, 4),
    compactions=st.integers(0, 2),
    is_killed=st.booleans(),
    kind=st.sampled_from(("snapshot", "journal")),
    fault=st.sampled_from(LEASE_FAULTS),
    place=st.floats(0, 1),
)
@example(acknowledged=2, compactions=0, is_killed=False, kind="journal", fault="zeros inside", place=0.5)
@example(acknowledged=1, compactions=0, is_killed=True, kind="journal", fault="cut inside", place=0.5)
@example(acknowledged=2, compactions=1, is_killed=True, kind="snapshot", fault="gone", place=0)
def test_leases_that_are_gone_are_told_and_never_skip_a_message(
    acknowledged: int, compactions: int, is_killed: bool, kind: str, fault: str, place: float
) -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(8)
    table, storage = loaded(disk, queues, compaction_floor_bytes=1)
    for _ in range(compactions):
        for handle in receive(table, now_ms=1_000, batch_size=1):
            table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_100)
        storage.persist()
        asyncio.run(storage.compact_if_due())
    for handle in receive(table, now_ms=1_000, batch_size=acknowledged + 1)[:acknowledged]:
        table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_100)
        storage.persist()
    if not is_killed:
        storage.close()
    disk.crash(power_loss=False)
    (path,) = [path for path in disk.image() if path.endswith(kind)]
    data = disk.image()[path]
    at = int(place * len(data))
    image = disk.image()
    image[path] = {
        "none": data,
        "gone": b"",
        "empty": b"",
        "zeros": bytes(len(data)),
        "zeros inside": data[:at] + bytes(min(40, len(data) - at)) + data[at + 40 :],
        "cut": data[:at],
        "cut inside": data[:at] + data[at + 9 :],
    }[fault]
    is_changed = image[path] != data or fault == "gone"
    if fault == "gone":
        del image[path]
    disk.put_back(image)
    with capture_logs() as lines:
        table, storage = loaded(disk, queues)
    told = [line for line in lines if line["log_level"] != "info"]
    came = len(receive(table, now_ms=100_000, batch_size=32))
    assert came >= 8 - acknowledged - compactions, "no message is passed over"
    if not is_changed:
        assert not told
        assert came == 8 - acknowledged - compactions
    elif came > 8 - acknowledged - compactions:
        # A last frame that is shorter than it was is what a kill may leave, too.
        assert told or (fault in {"cut", "cut inside", "empty"} and kind == "journal") or not data


def test_an_operators_reset_outlives_a_loss_of_power() -> None:
    for seed in range(20):
        disk, queues = SimulatedDisk(random.Random(seed)), queues_with(5)
        table, storage = loaded(disk, queues)
        for handle in receive(table, now_ms=1_000):
            table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_100)
        storage.persist()
        table.reset(group=GROUP, topic=TOPIC, queue_id=0, offset=1)
        storage.persist_durably()
        disk.crash(power_loss=True)
        table, _ = loaded(disk, queues)
        assert len(receive(table, now_ms=100_000)) == 4


class _SlowSnapshots(SimulatedDisk):
    """Lets something happen while a snapshot is written, and then loses power."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        self.meanwhile: Callable[[], None] | None = None

    def write_file(self, path: str, data: bytes) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
            raise SimulatedCrash
        super().write_file(path, data)


def test_an_operators_reset_during_a_compaction_outlives_a_loss_of_power() -> None:
    for seed in range(20):
        disk, queues = _SlowSnapshots(seed), queues_with(5)
        table, storage = loaded(disk, queues, compaction_floor_bytes=1)
        for handle in receive(table, now_ms=1_000):
            table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_100)
            storage.persist()

        def reset(table: LeaseTable = table, storage: LeaseStorage = storage) -> None:
            table.reset(group=GROUP, topic=TOPIC, queue_id=0, offset=1)
            storage.persist_durably()

        disk.meanwhile = reset
        while not table.compaction_due:
            table.open("other", TOPIC, [0, 1, 2])
            storage.persist()
            table.forget_group("other")
            storage.persist()
        with pytest.raises(SimulatedCrash):
            asyncio.run(storage.compact_if_due())
        disk.meanwhile = None
        disk.crash(power_loss=True)
        table, _ = loaded(disk, queues)
        assert len(receive(table, now_ms=100_000)) == 4


class _TwoClocks(ManualClock):
    """A wall clock that may be wrong by `wrong_ms`, beside the time since the machine's start."""

    def __init__(self, *, up_ms: int, wrong_ms: int = 0, began_ms: int = 1_700_000_000_000) -> None:
        super().__init__(up_ms)
        self.wrong_ms = wrong_ms
        self.began_ms = began_ms

    def wall_ms(self) -> int:
        return self.began_ms + self.now_ms + self.wrong_ms


_DAY_MS = 24 * 3_600_000
_wrong_ms = st.sampled_from([-3 * _DAY_MS, -20_000, 0, 20_000, 3 * _DAY_MS])


@given(
    wrong_at_grant_ms=_wrong_ms,
    wrong_at_restart_ms=_wrong_ms,
    away_ms=st.integers(0, 60_000),
    reboots=st.booleans(),
    was_older_version=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_lease_lasts_as_long_as_it_was_given_for_whatever_the_wall_clock_says(
    *, wrong_at_grant_ms: int, wrong_at_restart_ms: int, away_ms: int, reboots: bool, was_older_version: bool
) -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(1)
    clock = _TwoClocks(up_ms=500_000, wrong_ms=wrong_at_grant_ms)
    table, storage = loaded(disk, queues, clock=clock)
    clock.wrong_ms = 0  # Jumps while it runs change nothing.
    assert receive(table, now_ms=clock.now_ms)
    if was_older_version:
        disk.remove("config/leaseClock.json")
    storage.close()
    disk.crash(power_loss=reboots)
    clock = _TwoClocks(up_ms=500_000 + away_ms, wrong_ms=wrong_at_restart_ms)
    if reboots:
        clock = _TwoClocks(up_ms=1_000, wrong_ms=wrong_at_restart_ms, began_ms=clock.began_ms + 499_000 + away_ms)
    table, _ = loaded(disk, queues, clock=clock)
    if not reboots and not was_older_version:
        assert receive(table, now_ms=500_000 + 29_999) == [] or away_ms >= 30_000
        assert receive(table, now_ms=500_000 + 30_000)
    else:
        # By the wall clock, which nothing can be held against; but never longer than it was given for.
        assert receive(table, now_ms=clock.now_ms + 30_000)
        if wrong_at_grant_ms == wrong_at_restart_ms and away_ms < 30_000:
            table, _ = loaded(disk, queues, clock=clock)
            assert receive(table, now_ms=clock.now_ms) == []


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"bootId": "other"}'])
def test_a_lease_clock_that_cannot_be_read_is_that_of_another_run(content: bytes) -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(1)
    clock = _TwoClocks(up_ms=500_000)
    table, storage = loaded(disk, queues, clock=clock)
    assert receive(table, now_ms=clock.now_ms)
    storage.persist()
    disk.write_file("config/leaseClock.json", content)
    table, _ = loaded(disk, queues, clock=clock)
    assert receive(table, now_ms=clock.now_ms + 29_999) == []
    assert receive(table, now_ms=clock.now_ms + 30_000)


def follow(copy: LeaseCopy, source: LeaseSource) -> LeaseChange:
    """One pull of a slave."""
    change = asyncio.run(source.changes_since(copy.known))
    assert change is not None
    copy.take(change, acts_count=copy.acts_count)
    return change


def test_a_copy_follows_byte_by_byte_and_a_master_with_a_new_disk_goes_on_with_it() -> None:
    disk, slave_disk, queues = SimulatedDisk(random.Random(1)), SimulatedDisk(random.Random(2)), queues_with(20)
    table, storage = loaded(disk, queues)
    copy = LeaseCopy(slave_disk)
    follow(copy, storage)
    handles = receive(table, now_ms=1_000, batch_size=5)
    storage.persist()
    first = follow(copy, storage)
    assert first.snapshot is None
    assert first.journal
    assert follow(copy, storage).is_empty
    assert table.acknowledge(group=GROUP, topic=TOPIC, handle=handles[3], now_ms=1_500)
    storage.persist()
    assert len(follow(copy, storage).journal) < len(first.journal), "what is new alone"
    slave_disk.crash(power_loss=True)

    new_disk = SimulatedDisk(random.Random(3))
    new_table, new_storage = new_master(new_disk, queues)
    assert new_storage.is_blank
    restored = LeaseCopy(slave_disk)
    assert restored.is_open
    follow(LeaseCopy(new_disk), restored)
    new_storage.load()
    assert new_table.acknowledge(group=GROUP, topic=TOPIC, handle=handles[0], now_ms=2_000), "the handle counts"
    assert not new_table.acknowledge(group=GROUP, topic=TOPIC, handle=handles[3], now_ms=2_000), "acknowledged already"
    assert new_table.committed(GROUP, TOPIC, 0) == 1
    assert len(receive(new_table, now_ms=2_000, batch_size=20)) == 15, "what is in flight or done does not come again"


def new_master(disk: Disk, queues: QueueMemory) -> tuple[LeaseTable, LeaseStorage]:
    table = LeaseTable(
        queues,
        options=DeliveryOptions(consume_from_earliest=True),
        broker_name="broker-a",
        nonce=itertools.count(1_000).__next__,
    )
    return table, LeaseStorage(disk, table, ManualClock(100_000))


@given(
    st.lists(
        st.sampled_from(
            ["receive", "finish", "persist", "compact", "restart", "copy", "slave", "push", "push", "ask", "take"]
        ),
        max_size=60,
    ),
    st.integers(0, 1_000),
)
def test_a_copy_is_always_a_state_the_master_was_in(steps: list[str], seed: int) -> None:
    """Whatever the master does between two pulls, which of them it is handed what is new, and whenever the slave is
    killed. What it said that it has it has from then on."""
    chance = random.Random(seed)
    disk, slave_disk, queues = SimulatedDisk(random.Random(1)), SimulatedDisk(random.Random(2)), queues_with(400)
    table, storage = loaded(disk, queues, compaction_floor_bytes=1)
    storage.keep_tail()
    copy, copied = LeaseCopy(slave_disk), None
    asked: tuple[LeasePosition, LeaseChange, bytes] | None = None
    states: list[list[JournalEntry]] = []
    handles: list[str] = []
    for number, step in enumerate(steps):
        now_ms = 1_000 + number
        if step == "receive":
            handles += receive(table, now_ms=now_ms, batch_size=chance.randint(1, 5))
        elif step == "finish" and handles:
            table.acknowledge(
                group=GROUP, topic=TOPIC, handle=handles.pop(chance.randrange(len(handles))), now_ms=now_ms
            )
        elif step == "compact":
            asyncio.run(storage.compact_if_due())
        elif step == "restart":
            storage.close()
            table, storage = loaded(disk, queues, compaction_floor_bytes=1)
            storage.keep_tail()
            asked = None
        elif step == "push":
            storage.persist()
            if (pushed := storage.change_after(copy.known)) is not None:
                copied = table.snapshot()
                assert storage.bytes_at(copy.append(pushed)) == storage.written_bytes
        elif step == "ask":
            # A pull whose answer comes later.
            storage.persist()
            change = asyncio.run(storage.changes_since(copy.known))
            assert change is not None
            asked = copy.known, change, table.snapshot()
        elif step == "take" and asked is not None:
            known, change, state = asked
            is_outrun = copy.known != known
            if not change.is_empty:
                copy.take(change, acts_count=copy.acts_count, asked_from=known)
                copied = copied if is_outrun else state
            asked = None
        elif step == "copy":
            storage.persist()
            follow(copy, storage)
            copied = table.snapshot()
        elif step == "slave":
            is_power_lost = chance.random() < 0.5
            slave_disk.crash(power_loss=is_power_lost)
            copy, asked = LeaseCopy(slave_disk), None
            if is_power_lost and copied is not None:
                copied = restored_from(slave_disk, queues)
                assert entries_of(copied) in states
        else:
            storage.persist()
        if copied is not None:
            states.append(entries_of(copied))
    if copied is None:
        return
    assert entries_of(restored_from(slave_disk, queues)) == entries_of(copied)


def restored_from(slave_disk: SimulatedDisk, queues: QueueMemory) -> bytes:
    """What a master begins with that takes this slave's copy."""
    master_disk = SimulatedDisk(random.Random(3))
    follow(LeaseCopy(master_disk), LeaseCopy(slave_disk))
    restored, _ = loaded(master_disk, queues)
    return restored.snapshot()


def entries_of(snapshot: bytes) -> list[JournalEntry]:
    return read_frames(snapshot)[0]


def test_a_change_that_does_not_go_on_where_the_copy_ends_is_passed_over() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(5)
    table, storage = loaded(disk, queues)
    copy = LeaseCopy(SimulatedDisk(random.Random(2)))
    follow(copy, storage)
    known = copy.known
    receive(table, now_ms=1_000, batch_size=2)
    storage.persist()
    change = asyncio.run(storage.changes_since(known))
    assert change is not None
    copy.take(change)
    copy.take(change)
    assert copy.known == change.position
    assert follow(copy, storage).is_empty


ENDS = [
    "stopped",
    "killed",
    "stopped, and its copy",
    "started and killed",
    "settled, and its copy",
    "settled, not copied",
]


@pytest.mark.parametrize("ended", ENDS)
def test_what_a_giver_gave_last_is_renewed_only_if_its_files_say_that_it_ended_in_order(ended: str) -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(5)
    table, storage = loaded(disk, queues)
    receive(table, now_ms=100_000, auto_renew=True)
    storage.persist()
    copy = LeaseCopy(SimulatedDisk(random.Random(2)))
    follow(copy, storage)
    if ended.startswith("settled"):
        # It hands over: what its clients may not have read is in doubt already.
        storage.note_end()
        if ended == "settled, and its copy":
            follow(copy, storage)
    if ended != "killed":
        storage.close()
    if ended.endswith(("its copy", "not copied")):
        # A master with a new disk begins with it: nobody told the slave how its master ended.
        copy.close()
        disk = cast(SimulatedDisk, copy.disk)
    if ended == "started and killed":
        unloaded(disk, queues)[1].load()
    table, storage = unloaded(disk, queues)
    storage.load()
    for now_ms in range(100_000, 170_000, 10_000):
        table.client_seen("client")
        table.expire(now_ms)
    assert len(receive(table, now_ms=170_000)) == (0 if ended in {"stopped", "settled, and its copy"} else 5)


def test_a_disk_on_which_nothing_happened_is_blank_also_after_a_stop_in_order() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(5)
    for _ in range(2):
        _, storage = loaded(disk, queues)
        assert storage.is_blank
        storage.close()
        assert storage.is_blank


def test_files_that_cannot_be_read_are_as_good_as_none() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(5)
    table, storage = loaded(disk, queues)
    assert storage.is_blank
    receive(table, now_ms=1_000)
    storage.persist()
    assert not storage.is_blank
    storage.close()
    disk.write_file("config/leases-0000000009.snapshot", b"no frame at all")
    assert storage.is_blank


class Slave:
    """One that keeps tables and a copy of leases, and answers a starting master with both."""

    endpoint = "slave"

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(random.Random(seed))
        self.tables = MetadataTables(self.disk, ManualClock(), topics_changed=lambda: None)
        self.leases_held = LeaseCopy(self.disk)

    async def leases(self, known: LeasePosition, *, accept_copy: bool = False) -> LeaseChange:
        assert self.leases_held.is_open
        change = await self.leases_held.changes_since(known)
        assert change is not None
        return change

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool = False
    ) -> tuple[DataVersion, str | None]:
        table = self.tables.by_file[file]
        return table.version, None if known == table.version else table.to_json()

    def pull_tables(self, master: Slave) -> None:
        """As a slave does on a change."""
        pull = MetadataPull(
            tables=self.tables.by_file,
            master=lambda: None,
            applied=self.tables.applied_from_master,
            leases=self.leases_held,
        )
        peer: Any = master
        asyncio.run(pull.pull(peer))


def test_a_starting_master_takes_a_copy_when_it_has_nothing_or_is_told_to() -> None:
    disk, slave, queues = SimulatedDisk(random.Random(1)), Slave(2), queues_with(5)
    table, storage = loaded(disk, queues)
    (handle,) = receive(table, now_ms=1_000, batch_size=1)
    storage.persist()
    follow(slave.leases_held, storage)
    new_disk = SimulatedDisk(random.Random(3))
    tables = MetadataTables(new_disk, ManualClock(), topics_changed=lambda: None)
    for replace, taken in ((False, True), (False, False), (True, True)):
        new_table, new_storage = new_master(new_disk, queues)
        assert asyncio.run(recover_leases(cast(Any, slave), tables, new_storage, replace=replace)) is taken
        new_storage.load()
        assert new_table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=2_000)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("what", ["whole", "torn", "zeros", "gone", "snapshot gone", "shorter", "damaged within"])
def test_a_master_whose_leases_lost_something_takes_in_its_slaves_copy(
    what: str, *, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight messages five are acknowledged, which the slave knows as well, and then one more, which it does not."""
    disk, slave, queues = SimulatedDisk(random.Random(1)), Slave(2), queues_with(8)
    table, storage = loaded(disk, queues)
    receive(table, now_ms=900, batch_size=1)
    storage.close()
    table, storage = loaded(disk, queues)
    handles = receive(table, now_ms=1_000)
    storage.persist()
    for handle in handles[:5]:
        table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_500)
        storage.persist()
    follow(slave.leases_held, storage)
    table.acknowledge(group=GROUP, topic=TOPIC, handle=handles[5], now_ms=1_500)
    storage.persist()
    disk.crash(power_loss=False)

    name = max(entry.name for entry in disk.list_folder("config") if entry.name.endswith(".journal"))
    path = f"config/{name}"
    journal = disk.read_file(path) or b""
    frames = [at for at in range(len(journal)) if journal[at:] and _is_frame_start(journal, at)]
    match what:
        case "torn":
            disk.write_file(path, journal + journal[: 3 + frames[1] // 2])
        case "zeros":
            disk.write_file(path, bytes(len(journal)))
        case "gone":
            disk.remove(path)
        case "snapshot gone":
            disk.remove(path.replace("journal", "snapshot"))
        case "shorter":
            disk.write_file(path, journal[: frames[2]])
        case "damaged within":
            disk.write_file(path, journal[: frames[2] + 9] + b"#" + journal[frames[2] + 10 :])

    @asynccontextmanager
    async def peer_client(_endpoint: str) -> AsyncIterator[object]:
        yield slave

    async def log() -> object:
        return SimpleNamespace(extent=SimpleNamespace(min_offset=0))

    async def leases_ahead() -> None:
        pass

    monkeypatch.setattr(group_recovery, "PeerClient", peer_client)
    monkeypatch.setattr(slave, "log", log, raising=False)
    monkeypatch.setattr(slave, "leases_ahead", leases_ahead, raising=False)
    tables = MetadataTables(SimulatedDisk(random.Random(3)), ManualClock(), topics_changed=lambda: None)
    table, storage = unloaded(disk, queues)
    fetched = fetch_metadata([MetadataSource("slave:1")], tables, storage, is_behind=False, is_whole=is_whole)
    ahead = asyncio.run(fetched)
    storage.load()
    assert merge_leases(ahead, table, now_ms=100_000) == (bool(ahead))
    again = len(receive(table, now_ms=200_000))
    if what in ("whole", "torn"):
        assert again == 2
    elif what == "shorter" and is_whole:
        assert again == 7, "nobody can know"
    else:
        assert again == 3, "the one alone that the copy has not heard of"


def _is_frame_start(journal: bytes, at: int) -> bool:
    return at == len(journal) or read_frames(journal[at:])[1] == len(journal) - at


class OperatedGroup:
    """A group that consumed five messages, all of it known to two slaves; then an operator does something, and the
    tables alone hear of it."""

    def __init__(self) -> None:
        self.queues = queues_with(5)
        self.master = Slave(1)
        self.table, self.storage = loaded(self.master.disk, self.queues)
        for handle in receive(self.table, now_ms=1_000):
            self.table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=1_500)
        self.slaves = [Slave(2), Slave(3)]
        self.storage.persist()
        self.master.tables.collect_progress(self.table)
        for slave in self.slaves:
            slave.pull_tables(self.master)
            follow(slave.leases_held, self.storage)

    def reset(self, offset: int) -> None:
        self.table.reset(group=GROUP, topic=TOPIC, queue_id=0, offset=offset)
        self.storage.persist_durably()
        self.master.tables.collect_progress(self.table)

    def received_by_a_new_master(self, slaves: Sequence[Slave], *, disk: SimulatedDisk | None = None) -> int:
        """How many messages come from a master that heard these slaves, the one with the best log first."""
        disk = disk or SimulatedDisk(random.Random(4))
        tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
        tables.load(cluster="C", broker_name="broker-a", auto_create_topic=False)
        table = LeaseTable(
            self.queues,
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="broker-a",
            nonce=itertools.count(1_000).__next__,
            stored_offset=tables.consumer_offsets.offset,
        )
        storage = LeaseStorage(disk, table, ManualClock(100_000))
        has_leases = False
        for slave in slaves:
            peer: Any = slave
            asyncio.run(recover_metadata(peer, tables, storage))
            has_leases = has_leases or asyncio.run(recover_leases(peer, tables, storage, replace=False))
        storage.load()
        return len(receive(table, now_ms=2_000))


def test_a_reset_that_a_slaves_tables_know_and_its_leases_do_not_outlives_the_masters_disk() -> None:
    group = OperatedGroup()
    assert group.received_by_a_new_master(group.slaves) == 0
    group.reset(2)
    slave = group.slaves[0]
    slave.pull_tables(group.master)
    assert group.received_by_a_new_master([slave]) == 3
    # Nor is it forgotten when the slave is killed before its tables are in their files, or after it.
    slave.disk.crash(power_loss=True)
    slave.leases_held = LeaseCopy(slave.disk)
    assert group.received_by_a_new_master([slave]) == 3
    # The copy goes on behind it.
    follow(slave.leases_held, group.storage)
    assert group.received_by_a_new_master([slave]) == 3


@pytest.mark.parametrize("told", [0, 1])
def test_a_reset_that_one_of_two_slaves_knows_is_not_forgotten_for_the_leases_of_the_other(told: int) -> None:
    group = OperatedGroup()
    group.reset(2)
    group.slaves[told].pull_tables(group.master)
    assert group.received_by_a_new_master(group.slaves) == 3


def test_a_reset_that_a_master_with_an_older_disk_hears_of_is_done_in_its_own_leases() -> None:
    group = OperatedGroup()
    group.storage.close()
    older_disk = SimulatedDisk(random.Random(5))
    for path in group.master.disk.paths():
        older_disk.write_file(path, group.master.disk.read_file(path) or b"")
    group.table, group.storage = loaded(group.master.disk, group.queues)
    group.reset(2)
    group.slaves[0].pull_tables(group.master)
    assert group.received_by_a_new_master(group.slaves, disk=older_disk) == 3


def test_a_groups_removal_that_a_slaves_tables_know_takes_its_leases_along() -> None:
    group = OperatedGroup()
    group.master.tables.remove_group(GROUP)
    group.slaves[0].pull_tables(group.master)
    assert group.received_by_a_new_master(group.slaves[:1]) == 5


def test_leases_that_were_asked_for_before_a_reset_are_passed_over() -> None:
    group = OperatedGroup()
    copy = group.slaves[0].leases_held
    asked = copy.acts_count
    for known in (LeasePosition(0, 0, 0), copy.known):
        change = asyncio.run(group.storage.changes_since(known))
        assert change is not None
        group.reset(2)
        group.slaves[0].pull_tables(group.master)
        copy.take(change, acts_count=asked)
        assert group.received_by_a_new_master(group.slaves[:1]) == 3
    follow(copy, group.storage)
    assert group.received_by_a_new_master(group.slaves[:1]) == 3


def test_a_slave_that_was_cut_gives_up_progress_beyond_its_end_until_its_master_tells_it_again() -> None:
    group = OperatedGroup()
    slave = group.slaves[0]
    asyncio.run(cut_progress(slave.tables, slave.leases_held, NO_QUEUES, lambda _topic, _queue_id: 3))
    assert slave.tables.consumer_offsets.offset(GROUP, TOPIC, 0) == 3
    assert group.received_by_a_new_master([slave]) == 2
    slave.pull_tables(group.master)
    assert follow(slave.leases_held, group.storage).snapshot is not None
    assert slave.tables.consumer_offsets.offset(GROUP, TOPIC, 0) == 5
    assert group.received_by_a_new_master([slave]) == 0


def test_nobody_is_given_a_copy_that_lacks_an_operators_act(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DiskError("refused")

    group = OperatedGroup()
    slave = group.slaves[0]
    group.reset(2)
    with monkeypatch.context() as patch:
        patch.setattr(LeaseCopy, "obey", refuse)
        slave.pull_tables(group.master)
    assert not slave.leases_held.is_open
    follow(slave.leases_held, group.storage)
    assert slave.leases_held.is_open
    assert group.received_by_a_new_master([slave]) == 3


def test_a_whole_copy_that_was_asked_for_before_the_copy_went_on_is_passed_over() -> None:
    disk, slave_disk, queues = SimulatedDisk(random.Random(1)), SimulatedDisk(random.Random(2)), queues_with(20)
    table, storage = loaded(disk, queues, compaction_floor_bytes=1)
    storage.keep_tail()
    copy = LeaseCopy(slave_disk)
    follow(copy, storage)
    known = copy.known
    receive(table, now_ms=1_000, batch_size=5)
    storage.persist()
    pushed = storage.change_after(known)
    asyncio.run(storage.compact_if_due())
    whole = asyncio.run(storage.changes_since(known))
    assert pushed is not None
    assert whole is not None
    assert whole.snapshot is not None
    copy.append(pushed)
    copy.take(whole, asked_from=known)
    assert copy.known == pushed.position


def test_a_copy_that_is_closed_takes_nothing_and_says_so() -> None:
    disk, queues = SimulatedDisk(random.Random(1)), queues_with(20)
    table, storage = loaded(disk, queues)
    storage.keep_tail()
    copy = LeaseCopy(SimulatedDisk(random.Random(2)))
    follow(copy, storage)
    known = copy.known
    receive(table, now_ms=1_000, batch_size=5)
    storage.persist()
    change = storage.change_after(known)
    assert change is not None
    copy.close()
    assert copy.append(change) == NO_LEASES
    copy.take(change)
    assert copy.known == NO_LEASES


def test_a_copy_of_another_masters_leases_takes_nothing_of_ours() -> None:
    copy = LeaseCopy(SimulatedDisk(random.Random(2)))
    _, theirs = loaded(SimulatedDisk(random.Random(3)), queues_with(20))
    follow(copy, theirs)
    before = copy.known
    table, storage = loaded(SimulatedDisk(random.Random(1)), queues_with(20))
    storage.keep_tail()
    receive(table, now_ms=1_000, batch_size=5)
    storage.persist()
    ours = storage.change_after(LeasePosition(storage._source, storage._base_generation, 0))
    assert ours is not None
    assert copy.append(ours) == before
    assert storage.bytes_at(before) is None
    assert storage.change_after(before) is None


def test_a_member_far_behind_has_to_take_more_than_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.broker.leases._TAIL_BYTES_MAX", 100)
    table, storage = loaded(SimulatedDisk(random.Random(1)), queues_with(200))
    storage.keep_tail()
    first = LeasePosition(storage._source, storage._base_generation, 0)
    for number in range(20):
        receive(table, now_ms=1_000 + number, batch_size=1)
        storage.persist()
    assert storage.change_after(first) is None
    late = dataclasses.replace(first, journal_bytes=storage.written_bytes - 100)
    change = storage.change_after(late)
    assert change is not None
    assert (change.since, len(change.journal)) == (late, 100)


def test_files_that_a_slave_worked_with_are_ahead_until_a_masters_take_their_place() -> None:
    disk, slave_disk, queues = SimulatedDisk(random.Random(1)), SimulatedDisk(random.Random(2)), queues_with(5)
    _, storage = loaded(disk, queues)
    copy = LeaseCopy(slave_disk)
    follow(copy, storage)
    assert not copy.is_ahead
    copy.lend()
    slave_table, slave_storage = loaded(slave_disk, queues)
    handles = receive(slave_table, now_ms=1_000, batch_size=2)
    assert slave_table.acknowledge(group=GROUP, topic=TOPIC, handle=handles[0], now_ms=1_500)
    slave_storage.persist()
    assert not entries_after(copy, storage), "nothing is taken meanwhile"
    # The slave is killed and comes back: it still knows better.
    slave_disk.crash(power_loss=False)
    copy = LeaseCopy(slave_disk)
    assert copy.is_ahead
    change = asyncio.run(copy.changes_since(LeasePosition(0, 0, 0)))
    assert change is not None
    replay = LeaseReplay.of_files(change.snapshot or b"", change.journal)
    ((queue,),) = [one.queues.values() for one in replay.subscriptions.values()]
    assert (queue.committed, queue.next_offset) == (1, 2)
    follow(copy, storage)
    assert not copy.is_ahead
    assert not LeaseCopy(slave_disk).is_ahead


def entries_after(copy: LeaseCopy, source: LeaseSource) -> bool:
    """Whether one more pull changed the copy."""
    known = copy.known
    follow(copy, source)
    return copy.known != known

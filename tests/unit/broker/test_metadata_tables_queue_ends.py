"""Numbers of messages go on when a queue's messages have all expired, whoever becomes master then.

A small broker group: real stores, tables and leases, the log copied by hand. Drawn: who is away, who gets a new or an
older disk, who becomes master and whom it hears. Whenever the group consumes it gets every message that the log holds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, new_store, right_time, with_options
from tandemmq.broker.leases import LeaseCopy
from tandemmq.broker.metadata_tables import MetadataTables, cut_progress
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.storage.disk import LogGap
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.core.storage.retention import RetentionFloor

GROUP, TOPIC, QUEUES = "group", "topic", (0, 1)
OPTIONS = with_options(file_reserved_hours=1)
OFFSETS = MetadataFile.CONSUMER_OFFSETS


class _Member:
    """A broker's disk, and what a process on it holds."""

    def __init__(self, clock: ManualClock, *, is_old: bool = False) -> None:
        self.clock = clock
        self.disk = SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)
        self.is_old = is_old
        """A version that knows of no queue ends."""
        self.store: MessageStore
        self.tables: MetadataTables
        self.start()

    def start(self) -> None:
        self.store = new_store(self.disk, self.clock, OPTIONS)
        self.store.load()
        self.tables = MetadataTables(self.disk, self.clock, topics_changed=lambda: None)
        self.tables.load(cluster="c", broker_name="b", auto_create_topic=False)
        self._note()

    def _note(self) -> None:
        if self.is_old:
            self.tables.consumer_offsets.forget_queue_ends(
                [(topic, queue_id) for topic, queue_id, _ in self.tables.consumer_offsets.queue_ends()], now_ms=1
            )
        else:
            self.tables.note_queue_ends(self.store)

    def restart_on(self, image: dict[str, bytes]) -> None:
        self.disk.crash(power_loss=False)
        self.disk.put_back(image)
        self.start()

    def image(self) -> dict[str, bytes]:
        self.store.write_appended()
        return self.disk.image()

    def copy_log(self, source: MessageStore) -> None:
        if self.store.end_offset < source.min_offset:
            self.store.truncate(self.store.min_offset)
        offset = max(self.store.end_offset, source.min_offset)
        while data := source.read_log(offset, source.segment_bytes):
            self.store.append_raw(offset, data)
            offset += len(data)
            self.store.dispatch()
        self.flush()

    def flush(self) -> None:
        self.clock.now_ms += 20_000
        flush_all(self.store)

    def pull_tables(self, master: _Member) -> None:
        table = master.tables.consumer_offsets
        self.tables.consumer_offsets.apply_from_master(table.to_json(), table.version)
        self.tables.applied_from_master(OFFSETS, [])
        self._note()

    def settle_as_slave(self) -> None:
        """It follows a later epoch."""
        asyncio.run(cut_progress(self.tables, LeaseCopy(self.disk), self.store.queues, self.store.queue_max_offset))

    def begin(self, heard: Collection[_Member]) -> None:
        """Becomes master, its log is whole."""
        for other in heard:
            self.tables.merge_replica(OFFSETS, other.tables.consumer_offsets.to_json())
        self._note()
        if not self.is_old:
            self.tables.empty_queues_go_on(self.store)
        self.settle_as_slave()
        self.tables.settle_cuts(self.store.queue_max_offset)
        self.store.set_writable(True)

    def expire(self) -> None:
        """All files that are complete."""
        for _ in range(48):
            self.clock.now_ms += 3_600_000
            job = self.store.expire(self.store.expiry_wish(right_time(self.clock.now_ms)), RetentionFloor())
            if job is not None:
                job.run()
        while self.store.trim_queues():
            pass
        self._note()

    def consume(self) -> list[bytes]:
        """The group, with no more than the tables know of it."""
        leases = LeaseTable(
            StoreQueueReader(self.store),
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="b",
            nonce=itertools.count(1).__next__,
            stored_offset=self.tables.consumer_offsets.offset,
        )
        bodies: list[bytes] = []
        while True:
            received = leases.receive(
                group=GROUP,
                topic=TOPIC,
                queue_ids=list(QUEUES),
                tag_filter=EVERY_TAG,
                batch_size=32,
                invisible_ms=10_000,
                now_ms=0,
                max_attempts=17,
                auto_renew=False,
                client_id="c",
            )
            for delivery in received.deliveries:
                bodies.append(bytes(delivery.record.body))
                assert leases.acknowledge(group=GROUP, topic=TOPIC, handle=delivery.handle, now_ms=0)
            if not received.deliveries and not received.more:
                self.tables.collect_progress(leases)
                return bodies


class _Group:
    """Of three members, and a group that consumes."""

    def __init__(self, old: Collection[int] = ()) -> None:
        self.clock = ManualClock()
        self.has_old = bool(old)
        self.members = [_Member(self.clock, is_old=number in old) for number in range(3)]
        self.images = [member.image() for member in self.members]
        self.master = self.members[0]
        self.sent: set[bytes] = set()
        self.delivered: set[bytes] = set()

    def send(self, queue_id: int, count: int = 30) -> None:
        for _ in range(count):
            body = b"%090d" % len(self.sent)
            assert (
                self.master.store.put(outgoing_message(topic=TOPIC, queue_id=queue_id, body=body)).status
                is PutStatus.PUT_OK
            )
            self.sent.add(body)
        self.master.flush()

    def sync(self, number: int) -> None:
        member = self.members[number]
        if member is not self.master:
            member.settle_as_slave()
            member.copy_log(self.master.store)
            member.pull_tables(self.master)

    def consume(self) -> None:
        came = self.master.consume()
        assert self.has_old or not self.delivered.intersection(came), "messages that are finished, and come again"
        self.delivered.update(came)
        assert not self.sent - self.delivered, "messages that are acknowledged, and never delivered"

    def expire(self) -> None:
        """Nobody needs the messages of queue 0 any more: those of queue 1 fill the files that are left."""
        self.send(1, 60)
        self.consume()
        self.master.expire()

    def save(self, number: int) -> None:
        self.images[number] = self.members[number].image()

    def older_disk(self, number: int) -> None:
        """The process of another member than the master starts on an older copy."""
        if self.members[number] is not self.master:
            self.members[number].restart_on(self.images[number])

    def mixed_disk(self, number: int, part: str | tuple[str, ...]) -> None:
        """The same, and only a part of it is older: what is derived from a log may tell of more than that has."""
        if self.members[number] is not self.master:
            image, older = self.members[number].image(), self.images[number]
            kept = {path: data for path, data in image.items() if not path.startswith(part)}
            mixed = kept | {path: data for path, data in older.items() if path.startswith(part)}
            try:
                self.members[number].restart_on(mixed)
            except LogGap:
                self.members[number].restart_on(older)

    def master_starts_again(self, *heard: int) -> None:
        """On its own disk, which is whole."""
        self.master.restart_on(self.master.image())
        self.master.begin([self.members[number] for number in heard if self.members[number] is not self.master])

    def new_disk(self, number: int) -> None:
        if self.members[number] is not self.master:
            self.members[number] = _Member(self.clock, is_old=self.members[number].is_old)

    def change_master(self, number: int, *, hears_third: bool) -> None:
        """To one that has fetched all of the log; the disk of the master before is heard, the third one perhaps."""
        before, member = self.master, self.members[number]
        if before is member:
            return
        before.store.set_writable(False, "another is")
        member.copy_log(before.store)
        others = [other for other in self.members if other is not member and (hears_third or other is before)]
        member.begin(others)
        assert self.has_old or not member.tables.lost_places(), "it has all that was sent"
        self.master = member


@pytest.mark.parametrize("knows", ["nothing", "older copy"])
def test_a_master_that_joined_late_goes_on_with_the_numbers(knows: str) -> None:
    group = _Group()
    group.send(0, 10)
    for number in (1, 2):
        group.sync(number)
    group.save(1)
    group.send(0, 20)
    group.consume()
    group.sync(2)  # And is away from now on, with what the group has consumed.
    group.expire()
    if knows == "nothing":
        group.new_disk(1)
    else:
        group.older_disk(1)
    group.sync(1)
    group.change_master(1, hears_third=False)
    group.send(0, 10)
    assert group.master.store.queue_max_offset(TOPIC, 0) == 40
    group.sync(2)
    group.change_master(2, hears_third=False)
    group.consume()


def test_a_consumed_offset_is_a_number_where_nothing_else_is_known() -> None:
    """The master before was of an older version, and none of those that are heard had the queue's messages."""
    group = _Group(old={0})
    group.send(0)
    group.expire()
    group.change_master(1, hears_third=False)
    group.send(0, 10)
    assert group.master.store.queue_max_offset(TOPIC, 0) == 40
    group.consume()


@pytest.mark.parametrize("was_killed", [False, True])
def test_numbers_that_an_older_version_began_again_are_not_passed_over(was_killed: bool) -> None:
    group = _Group(old={1})
    group.send(0)
    group.consume()
    group.sync(2)
    group.expire()
    group.sync(2)
    # As such a version does: it hears nobody.
    group.members[1].copy_log(group.master.store)
    group.members[1].begin([])
    group.master = group.members[1]
    group.send(0, 10)
    assert group.master.store.queue_max_offset(TOPIC, 0) == 10
    group.sync(2)
    if was_killed:
        group.members[2].restart_on(group.members[2].image())
    group.change_master(2, hears_third=False)
    group.consume()
    assert group.master.tables.consumer_offsets.queue_end(TOPIC, 0) is None, "it is found once"


@pytest.mark.parametrize("part", ["commitlog", ("commitlog", "checkpoint"), ("commitlog", "consumequeue/")])
def test_a_slave_that_lost_the_end_of_its_log_sets_nobody_back(part: str | tuple[str, ...]) -> None:
    """`consumequeue-ends` and its tables tell of a queue of which the rest of the log has nothing; nothing expired."""
    group = _Group()
    group.send(1)
    group.sync(1)
    group.save(1)
    group.send(0)
    group.consume()
    group.sync(1)
    group.mixed_disk(1, part)
    group.master_starts_again(1)
    group.consume()
    group.sync(1)
    group.change_master(1, hears_third=False)
    group.send(0, 5)
    group.consume()


MEMBERS = st.integers(0, 2)
PARTS = st.sampled_from(("commitlog", "consumequeue", "consumequeue/", "config", ("commitlog", "checkpoint")))
STEPS = st.one_of(
    st.tuples(st.just("mixed_disk"), MEMBERS, PARTS),
    st.tuples(st.just("start"), MEMBERS, MEMBERS),
    st.tuples(st.just("sync"), MEMBERS),
    st.tuples(st.just("send"), st.integers(1, 30)),
    st.tuples(st.sampled_from(("save", "older_disk", "new_disk")), MEMBERS),
    st.tuples(st.just("master"), MEMBERS, st.booleans()),
    st.sampled_from((("consume",), ("expire",))),
)
"""Whoever is not synced is away."""


def _play(group: _Group, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("send", int(count)):
                group.send(0, count)
            case ("sync", int(number)):
                group.sync(number)
            case ("save", int(number)):
                group.save(number)
            case ("older_disk", int(number)):
                group.older_disk(number)
            case ("mixed_disk", int(number), part):
                assert isinstance(part, str | tuple)
                group.mixed_disk(number, part)
            case ("start", *heard):
                group.master_starts_again(*{number for number in heard if isinstance(number, int)})
            case ("new_disk", int(number)):
                group.new_disk(number)
            case ("master", int(number), bool(hears_third)):
                group.change_master(number, hears_third=hears_third)
            case ("consume",):
                group.consume()
            case ("expire",):
                group.expire()
    group.consume()


@given(st.lists(STEPS, min_size=8, max_size=30))
def test_no_message_is_passed_over_whoever_becomes_master(steps: list[tuple[object, ...]]) -> None:
    _play(_Group(), steps)


@given(consumed=st.integers(1, 30), kept=st.integers(0, 30), comes_back=st.integers(0, 30), cuts=st.integers(1, 3))
def test_what_groups_have_got_and_no_log_has_is_told_for_a_day(
    consumed: int, kept: int, comes_back: int, cuts: int
) -> None:
    """The log ends at `kept` when progress is cut, perhaps more than once, and at `comes_back` when the master begins
    to serve."""
    clock = ManualClock()
    disk = SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)
    tables = MetadataTables(disk, clock, topics_changed=lambda: None)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, consumed, now_ms=1)
    store = new_store(disk, clock, OPTIONS)
    store.load()
    for _ in range(cuts):
        asyncio.run(cut_progress(tables, LeaseCopy(disk), store.queues, lambda _topic, _queue_id: kept))
    end = max(kept, comes_back)
    tables.settle_cuts(lambda _topic, _queue_id: end)
    lost = {(TOPIC, 0): (end, consumed)} if consumed > end else {}
    clock.now_ms += 24 * 3_600_000
    assert tables.lost_places() == lost
    clock.now_ms += 1
    assert tables.lost_places() == {}

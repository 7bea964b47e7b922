"""Who needs what of the log, and what a broker tells of old files."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import FILLING_OPTIONS, flush_all
from support.transactions import TOPIC, end, send_half
from tandemmq.broker import retention
from tandemmq.broker.peer_client import PeerUnavailable
from tandemmq.broker.retention import MasterFloor, Retention, SlaveFloor
from tandemmq.broker.slave.follower import MasterAddress
from tandemmq.core.delivery.half_messages import TransactionId
from tandemmq.core.delivery.lite_topics import lite_message, lmq_name
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.replication.log_history import LogExtent
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.retention import ExpiryWish, RetentionFloor
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SHORT = ExpiryWish(DiskUsage(90, 100), 0, 0, 0, 0, 0, is_short=True)


class Time(ManualTime):
    """With a wall clock that may be wrong."""

    wrong_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.wrong_ms


class Disk(SimulatedDisk):
    """As full as the test says."""

    used_ratio = 0.5

    def usage(self) -> DiskUsage:
        return DiskUsage(used_bytes=int(self.used_ratio * (1 << 40)), total_bytes=1 << 40)


class Master:
    """A master without tasks: a store of small files, topic T with two queues, and slaves as the test says."""

    def __init__(self, *, slave_count: int = 1) -> None:
        self.time = Time()
        self.disk = Disk(random.Random(1), wall_ms=self.time.wall_ms)
        self.options = replace(FILLING_OPTIONS, delete_when_hours=tuple(range(24)))
        self.broker = BrokerAssembly(clock=self.time, timers=self.time, disk=self.disk, store_options=self.options)
        self.broker.add_topic("T", queue_count=2)
        self.store = self.broker.store
        self.stored = ConsumerOffsetTable()
        self.slaves: list[SlaveView] = []
        self.absent: dict[int, int] = {}
        self.floor = MasterFloor(
            self.store,
            clock=self.time,
            leases=self.broker.leases,
            stored=self.stored,
            topics=self.broker.topics,
            is_system_topic=lambda name: name.startswith("SYS"),
            slaves=lambda: self.slaves,
            slave_count=slave_count,
            transactions=self.broker.api.transactions.hold,
            lite=self.broker.lite_topics,
            absent_replicas=lambda: self.absent,
        )
        self.retention = self.new_retention()

    def new_retention(self) -> Retention:
        return Retention(self.store, disk=self.disk, clock=self.time, floor=lambda: self.floor)

    def put(self, count: int = 1, *, queue_id: int = 0, topic: str = "T") -> list[int]:
        """Where the messages lie."""
        offsets = [
            self.store.put(outgoing_message(topic=topic, queue_id=queue_id, body=bytes(900))).physical_offset
            for _ in range(count)
        ]
        flush_all(self.store)
        return offsets

    def read(self, group: str = "G", *, count: int = 32, queues: int = 2, topic: str = "T") -> None:
        """Reads and acknowledges."""
        received = self.broker.leases.receive(
            group=group,
            topic=topic,
            queue_ids=range(queues),
            tag_filter=EVERY_TAG,
            batch_size=count,
            invisible_ms=30_000,
            now_ms=self.time.monotonic_ms(),
            max_attempts=16,
            auto_renew=False,
            client_id="client",
        )
        handles = [delivery.handle for delivery in received.deliveries]
        self.broker.leases.acknowledge_all(group=group, topic=topic, handles=handles, now_ms=self.time.monotonic_ms())

    async def holds(self) -> tuple[int | None, int | None, int | None]:
        """Offsets of replica, reader, unread."""
        floor = await self.floor.floor(SHORT)
        holds = (floor.replica, floor.reader, floor.unread)
        return tuple(None if hold is None else hold.offset for hold in holds)  # type: ignore[return-value]


def slave(broker_id: int | None, acked_offset: int, *, host: str = "10.0.0.2", port: int = 4_000) -> SlaveView:
    return SlaveView(1, f"{host}:{port}", broker_id, acked_offset, 0, in_sync=True, verified=broker_id is not None)


# Groups


async def test_a_topic_that_nobody_reads_is_unread_from_its_oldest_message_on() -> None:
    master = Master()
    first, *_ = master.put(3)
    assert await master.holds() == (None, None, first)


async def test_a_lite_topic_holds_the_log_from_its_first_unfinished_message_on() -> None:
    master = Master()
    master.broker.add_topic("L", queue_count=2, message_type="LITE")
    places = []
    for lite_topic in ("a", "b", "a"):
        assert master.broker.lite_topics.follow("L")
        offset = master.broker.lite_topics.next_offset("L", lite_topic)
        message = lite_message(outgoing_message(topic="L", queue_id=0, body=bytes(900)), lite_topic, offset)
        places.append(master.store.put(message).physical_offset)
    flush_all(master.store)
    assert master.broker.lite_topics.follow("L")
    assert await master.holds() == (None, None, places[0])  # Nobody reads it.
    a, b = lmq_name("L", "a"), lmq_name("L", "b")
    master.read(queues=1, count=1, topic=a)
    assert await master.holds() == (None, places[2], None)
    assert "group G in lite topic a" in await _reader(master)
    master.broker.leases.open("H", b, (0,))
    assert await master.holds() == (None, places[1], None)
    master.read("H", queues=1, topic=b)
    master.read(queues=1, topic=a)
    assert await master.holds() == (None, None, None)


async def test_the_group_that_has_read_least_holds_the_log() -> None:
    master = Master()
    offsets = master.put(6)
    master.read("G", count=5)
    assert await master.holds() == (None, offsets[5], None)
    master.read("H", count=2)
    assert await master.holds() == (None, offsets[2], None)
    assert "group H, which has not read them in queue 0 of topic T" in (await _reader(master))
    master.read("H", count=32)
    master.read("G", count=32)
    assert await master.holds() == (None, None, None)


async def test_an_undecided_transaction_holds_the_log_until_it_ends() -> None:
    master = Master()
    master.broker.add_topic(TOPIC, message_type="TRANSACTION")
    half = send_half(master.broker)
    place = TransactionId.parse(half.transaction_id).physical_offset
    master.put(3)
    master.read("G", count=2)
    assert (await master.holds())[1] == place
    assert f"an undecided transaction of topic {TOPIC}" in (await _reader(master))
    end(master.broker, half, definition.ROLLBACK)
    assert (await master.holds())[1] != place


async def test_what_is_leased_is_not_read() -> None:
    master = Master()
    offsets = master.put(3)
    master.broker.leases.receive(
        group="G",
        topic="T",
        queue_ids=[0, 1],
        tag_filter=EVERY_TAG,
        batch_size=3,
        invisible_ms=30_000,
        now_ms=0,
        max_attempts=16,
        auto_renew=False,
        client_id="client",
    )
    assert await master.holds() == (None, offsets[0], None)


async def test_progress_of_which_only_the_stored_table_knows_counts() -> None:
    master = Master()
    offsets = master.put(4)
    master.stored.commit("G", "T", 0, 1, now_ms=1)
    assert await master.holds() == (None, offsets[1], None)
    master.read("H")
    assert await master.holds() == (None, offsets[1], None)


async def test_a_queue_that_is_new_to_a_group_of_the_topic_is_held_from_its_oldest_message_on() -> None:
    master = Master()
    master.put(2)
    master.read("G", queues=1)
    added, *_ = master.put(2, queue_id=1)
    assert await master.holds() == (None, added, None)
    master.read("G", queues=2)
    assert await master.holds() == (None, None, None)


async def test_topics_that_are_deleted_or_the_systems_hold_nothing_unless_a_group_has_read_them() -> None:
    master = Master()
    master.put(topic="gone")
    master.broker.add_topic("SYS_TRACE")
    master.put(topic="SYS_TRACE")
    assert await master.holds() == (None, None, None)
    master.stored.commit("G", "gone", 0, 0, now_ms=1)
    reader = (await master.holds())[1]
    assert reader == 0


async def test_an_entry_that_cannot_be_true_holds_everything() -> None:
    master = Master()
    master.put(6)
    master.read(count=3)
    master.store.rewrite_queue("T", 0, 3, (1 << 50).to_bytes(8) + (900).to_bytes(4) + bytes(8))
    assert (await master.holds())[1] == 0


# Slaves


async def test_the_slave_that_lacks_most_holds_the_log_also_when_it_is_gone() -> None:
    master = Master(slave_count=2)
    master.slaves = [slave(1, 500), slave(2, 900, host="10.0.0.3")]
    assert (await master.holds())[0] == 500
    master.slaves = [slave(2, 900, host="10.0.0.3")]
    assert (await master.holds())[0] == 500
    master.slaves = [slave(1, 700, port=4_001), slave(2, 900, host="10.0.0.3")]
    assert (await master.holds())[0] == 700
    master.slaves = []
    master.floor.forget_replica(1)
    assert (await master.holds())[0] == 900


async def test_absent_replicas_that_are_remembered_hold_the_log_until_they_connect() -> None:
    master = Master()
    master.absent = {1: 300}
    assert (await master.holds())[0] == 300
    master.slaves = [slave(1, 800)]
    assert (await master.holds())[0] == 800
    master.slaves = []
    assert (await master.holds())[0] == 800, "what was heard of it last counts, not what was remembered before"


async def test_a_slave_without_a_name_counts_until_all_are_known_by_theirs() -> None:
    master = Master()
    master.slaves = [slave(None, 100)]
    assert (await master.holds())[0] == 100
    master.slaves = []
    assert (await master.holds())[0] == 100
    master.slaves = [slave(1, 600, host="10.0.0.9")]
    assert (await master.holds())[0] == 600
    master.slaves = [slave(1, 600, host="10.0.0.9"), slave(None, 50)]
    assert (await master.holds())[0] == 50


async def test_memory_of_slaves_without_a_name_is_bounded() -> None:
    master = Master(slave_count=2)
    for number in range(100):
        master.slaves = [slave(None, 1_000 + number, host=f"10.0.1.{number}")]
        await master.holds()
    assert (await master.holds())[0] == 1_084


# Files


async def test_expired_files_go_but_those_that_a_group_or_a_slave_needs() -> None:
    master = Master()
    offsets = master.put(30)
    master.read(count=20)
    master.slaves = [slave(1, offsets[10])]
    await master.retention.look()
    master.time.advance(80 * HOUR_MS)
    await master.retention.look()
    assert 0 < master.store.min_offset <= offsets[10]
    master.slaves = [slave(1, master.store.end_offset)]
    await master.retention.look()
    assert offsets[10] < master.store.min_offset <= offsets[20]
    assert master.retention.problems == []


async def test_a_group_that_is_gone_for_a_month_loses_what_it_did_not_read_and_that_is_told() -> None:
    master = Master()
    master.put(30)
    master.read(count=10)
    await master.retention.look()
    master.time.advance(29 * DAY_MS)
    with capture_logs() as lines:
        await master.retention.look()
        before = master.store.min_offset
        master.time.advance(2 * DAY_MS)
        await master.retention.look()
    assert before < master.store.min_offset
    assert [line["event"] for line in lines] == ["files_expired", "files_expired", "needed_files_deleted"]
    (problem,) = master.retention.problems
    assert "group G" in problem
    assert master.retention.deleted_needed_bytes > 0
    master.time.advance(DAY_MS)
    assert master.retention.problems == [problem]
    # Nobody can give back what was lost: it is told, and then it is over.
    master.time.advance(1)
    assert master.retention.problems == []


async def test_a_full_disk_refuses_sends_and_says_for_whom_it_is_full() -> None:
    master = Master()
    master.put(30)
    master.read(count=10)
    master.disk.used_ratio = 0.87
    await master.retention.look()
    assert master.store.refusal is None
    assert "group G, which has not read them" in master.retention.problems[0]
    master.disk.used_ratio = 0.95
    with capture_logs() as lines:
        await master.retention.look()
        await master.retention.look()
    assert "group G, which has not read them" in (master.store.refusal or "")
    assert [line["event"] for line in lines] == ["sends_refused"]
    master.disk.used_ratio = 0.5
    with capture_logs() as lines:
        await master.retention.look()
    assert [line["event"] for line in lines] == ["sends_taken_again"]
    assert master.retention.problems == []


# Time


async def test_a_clock_that_jumps_deletes_nothing_and_is_told_until_it_is_right() -> None:
    master = Master()
    master.put(30)
    master.read()
    await master.retention.look()
    master.time.wrong_ms = 4 * DAY_MS
    with capture_logs() as lines:
        await master.retention.look()
        await master.retention.look()
    assert [(line["event"], line["log_level"]) for line in lines] == [("clock_jumped", "error")]
    assert master.store.min_offset == 0
    assert master.retention.clock_jumped_ms == 4 * DAY_MS
    assert "clockJumpMax" in master.retention.problems[0]
    # Nor does a restart make it right.
    master.retention = master.new_retention()
    await master.retention.look()
    assert master.store.min_offset == 0
    master.time.wrong_ms = 0
    await master.retention.look()
    assert master.retention.problems == []


async def test_an_operator_may_say_that_the_clock_is_right() -> None:
    master = Master()
    master.put(30)
    master.read()
    await master.retention.look()
    master.time.wrong_ms = 4 * DAY_MS
    await master.retention.look()
    assert master.retention.problems
    master.store.change_options(replace(master.options, clock_jump_max_hours=97))
    await master.retention.look()
    assert master.retention.problems == []
    assert master.store.min_offset > 0


# Slaves' own files


class Peer:
    """The metadata plane of a master."""

    min_offset: int | None = 0

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def log(self) -> Any:
        if self.min_offset is None:
            raise PeerUnavailable.__new__(PeerUnavailable)
        self.extent = LogExtent(self.min_offset, 1 << 40)
        return self


async def test_a_slave_deletes_what_its_master_has_deleted_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PeerClient", Peer)
    address: MasterAddress | None = MasterAddress("master:10912", "master:10911")
    floor = SlaveFloor(lambda: address)

    async def hold() -> int | None:
        found = (await floor.floor(SHORT)).master
        return None if found is None else found.offset

    monkeypatch.setattr(Peer, "min_offset", 4_096)
    assert await hold() == 4_096
    monkeypatch.setattr(Peer, "min_offset", None)
    assert await hold() == 0
    address = MasterAddress("master:10912", None)  # It is ours, and not registered now.
    assert await hold() == 0
    address = None
    assert await hold() == 0


async def test_a_slave_of_a_foreign_master_deletes_what_expires_and_nothing_for_want_of_room() -> None:
    floor = await SlaveFloor(lambda: MasterAddress("java:10912", None)).floor(SHORT)
    assert (floor.master, floor.replica, floor.reader) == (None, None, None)
    assert floor.unread is not None


async def test_an_empty_wish_asks_nobody() -> None:
    empty = replace(SHORT, is_short=False)
    assert await SlaveFloor(lambda: MasterAddress("nobody:1", "nobody:2")).floor(empty) == RetentionFloor()


async def _reader(master: Master) -> str:
    hold = (await master.floor.floor(SHORT)).reader
    assert hold is not None
    return hold.holder

"""What lies far behind the log's end: who brings it, and that no receive is given anything else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.far_reads import FarReads, SlaveLogs, memory_bytes
from tandemmq.broker.queries.stored_records import LogRange as PageRange
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.message_store import MessageStore


def store_with(count: int) -> MessageStore:
    """Messages of 500 bytes in one queue; a file of the log holds 6 of them."""
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    for number in range(count):
        assert store.put(outgoing_message(body=bytes([number]) * 500)).status.stored
    return store


class Pages:
    """Of which no page is in memory until it was fetched."""

    def __init__(self) -> None:
        self.resident: set[PageRange] = set()
        self.fetched: list[PageRange] = []

    async def fetch(self, ranges: Sequence[PageRange]) -> None:
        self.fetched += ranges
        self.resident.update(ranges)

    def are_resident(self, ranges: Sequence[PageRange]) -> bool:
        return self.resident.issuperset(ranges)


class Slave:
    """Holds the same log, or another one, or fails."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.asked: list[tuple[int, LogRange]] = []
        self.failure: OSError | None = None
        self.is_connected = True
        self.flips = False
        self.is_closed = False

    async def read(self, slave_id: int, wanted: LogRange) -> bytes | None:
        self.asked.append((slave_id, wanted))
        if self.failure is not None:
            raise self.failure
        if not self.is_connected:
            return None
        data = bytearray(self.store.read_log(wanted.start_offset, wanted.end_offset - wanted.start_offset))
        if self.flips:
            data[100] ^= 1
        return bytes(data)

    async def close(self) -> None:
        self.is_closed = True


class Consumer:
    """Reads a queue as a receive does: up to what is not there yet, and again when it is told to."""

    def __init__(self, store: MessageStore, *, near_bytes: int = 0, slave: Slave | None = None) -> None:
        self.pages = Pages()
        self.now_ms = 0
        self.arrived = asyncio.Event()
        self.damaged = DamagedEntries()
        self.far = FarReads(
            store,
            cast("Any", self.pages),
            near_bytes=near_bytes,
            now_ms=lambda: self.now_ms,
            arrived=lambda _topic: self.arrived.set(),
            slaves=cast("Any", slave),
        )
        self.far.slave_id = 1
        self.reader = StoreQueueReader(store, self.damaged, far=self.far)
        self.bodies: list[bytes] = []

    def look(self, count: int) -> None:
        first = len(self.bodies)
        entries = self.reader.entries("topic", 0, first, count - first)
        found = self.reader.messages("topic", 0, range(first, first + len(entries)), entries)
        self.bodies += [bytes(message.body) for message in found if message is not None]

    async def read(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.served():
            while True:
                self.arrived.clear()
                self.look(count)
                if len(self.bodies) == count:
                    return
                await self.arrived.wait()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.far.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def all_bodies(count: int) -> list[bytes]:
    return [bytes([number]) * 500 for number in range(count)]


@given(
    near=st.integers(0, 20_000),
    has_slave=st.booleans(),
    fails=st.booleans(),
    is_connected=st.booleans(),
    flips=st.booleans(),
)
def test_every_message_comes_once_and_in_order_whoever_brings_it(
    near: int, has_slave: bool, fails: bool, is_connected: bool, flips: bool
) -> None:
    store = store_with(20)
    slave = Slave(store) if has_slave else None
    if slave is not None:
        slave.failure = ConnectionError("it went away") if fails else None
        slave.is_connected, slave.flips = is_connected, flips

    async def read() -> Consumer:
        consumer = Consumer(store, near_bytes=near, slave=slave)
        await consumer.read(20)
        return consumer

    consumer = asyncio.run(read())
    assert consumer.bodies == all_bodies(20)
    assert consumer.damaged.first() is None


async def test_nothing_far_is_touched_before_it_is_in_memory() -> None:
    consumer = Consumer(store_with(20))
    consumer.look(20)
    assert consumer.bodies == []
    await consumer.read(20)
    assert consumer.bodies == all_bodies(20)
    assert consumer.far.from_disk_bytes == sum(end - start for start, end in consumer.pages.fetched)


async def test_what_is_near_the_end_is_read_at_once() -> None:
    store = store_with(20)
    consumer = Consumer(store, near_bytes=store.end_offset)
    consumer.look(20)
    assert consumer.bodies == all_bodies(20)


async def test_a_slave_brings_it_and_the_disk_is_left_alone() -> None:
    store = store_with(20)
    slave = Slave(store)
    consumer = Consumer(store, slave=slave)
    await consumer.read(20)
    assert consumer.bodies == all_bodies(20)
    assert not consumer.pages.fetched
    assert {slave_id for slave_id, _ in slave.asked} == {1}
    assert consumer.far.from_slave_bytes >= 20 * 500
    assert slave.is_closed


async def test_a_slave_that_fails_is_asked_again_after_a_while_only() -> None:
    store = store_with(20)
    slave = Slave(store)
    slave.failure = ConnectionError("it went away")
    consumer = Consumer(store, slave=slave)
    await consumer.read(20)
    assert len(slave.asked) == 1
    consumer.bodies, slave.failure = [], None
    consumer.far.forget()
    consumer.pages.resident.clear()
    consumer.now_ms = 60_000
    await consumer.read(20)
    assert len(slave.asked) > 1
    assert consumer.far.from_slave_bytes > 0


async def test_a_group_that_wants_no_slave_gets_none() -> None:
    store = store_with(20)
    slave = Slave(store)
    consumer = Consumer(store, slave=slave)
    consumer.far.slave_id = 0
    await consumer.read(20)
    assert consumer.bodies == all_bodies(20)
    assert not slave.asked


async def test_what_was_under_way_when_the_log_was_cut_is_not_given() -> None:
    store = store_with(20)
    slave = Slave(store_with(20))
    consumer = Consumer(store, slave=slave)
    consumer.look(1)
    async with consumer.served():
        consumer.far.forget()
        async with asyncio.timeout(PATIENCE_S):
            await consumer.arrived.wait()
        consumer.look(1)
    assert consumer.bodies == []


@pytest.mark.parametrize(
    ("slave", "is_asked"),
    [
        (SlaveView(1, "10.0.0.2:1", 1, 1_000, 0, True, True), True),
        (SlaveView(1, "10.0.0.2:1", 2, 1_000, 0, True, True), True),
        (SlaveView(1, "10.0.0.2:1", 1, 999, 1, True, True), False),
        (SlaveView(1, "10.0.0.2:1", 1, 1_000, 0, True, False), False),
        (SlaveView(1, "10.0.0.2:1", None, 1_000, 0, True, True), False),
    ],
)
async def test_only_a_proven_slave_that_holds_the_range_is_asked(slave: SlaveView, is_asked: bool) -> None:
    dialled: list[int] = []

    def endpoint(broker_id: int) -> str | None:
        dialled.append(broker_id)
        return None

    logs = SlaveLogs(lambda: [slave], endpoint)
    assert await logs.read(1, LogRange(0, 1_000)) is None
    assert dialled == ([slave.broker_id] if is_asked else [])


def test_memory_is_that_of_the_machine_or_less() -> None:
    assert 0 < memory_bytes() < 1 << 50

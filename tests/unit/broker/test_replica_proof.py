"""When a member of the group has proven that its log is ours."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store, with_options
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof, find_common_end
from tandemmq.core.message.record_layout import SMALLEST_RECORD_BYTES
from tandemmq.core.replication.common_prefix import tail_range
from tandemmq.core.replication.log_history import LogExtent, LogHistory, LogRange
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.storage.dispatch import holds_record_header

if TYPE_CHECKING:
    from tandemmq.broker.peer_client import PeerClient
    from tandemmq.core.storage.message_store import MessageStore

LOG = bytes(range(100))
FIRST = 40


class _Log:
    """Bytes 40 to 140."""

    min_offset = FIRST
    end_offset = flushed_offset = FIRST + len(LOG)
    segment_bytes = 1_000

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        return memoryview(LOG)[offset - FIRST :][:max_bytes]

    def digest(self, start_offset: int, end_offset: int) -> bytes:
        return _digest(start_offset, end_offset)


def _digest(start_offset: int, end_offset: int) -> bytes:
    return hashlib.sha256(LOG[start_offset - FIRST : end_offset - FIRST]).digest()


class _Member:
    """One that asks for a proof, and what became known of it."""

    def __init__(self, *, serving: bool = True) -> None:
        self.is_serving = serving
        self.proven: list[tuple[int, int, str]] = []
        self.successors: list[str] = []
        self.left: list[int] = []
        self.stays = False
        self.disk = SimulatedDisk(random.Random(1), wall_ms=lambda: 0)
        self.master = ReplicaIdentity(self.disk, BrokerIdentity("C", "broker-a", 0), new_disk_id=lambda: "M", nonce="N")
        self.master.read()
        self.master.history = LogHistory.of([(3, 0)])
        self.proof = ReplicaProof(
            log=cast("Any", _Log()),
            replica=self.master,
            role=lambda: cast("Any", self),
        )

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        self.proven.append((broker_id, end_offset, connection))

    def superseded(self, reason: str) -> None:
        self.successors.append(reason)

    async def leave_master(self) -> None:
        if self.stays:
            raise TimeoutError
        self.left.append(self.master.greatest_epoch)

    async def verify(
        self, start: int, end: int, digest: bytes, connection: str = "10.0.0.7:4", *, epoch: int = 3
    ) -> bool:
        member = ReplicaMemory(broker_id=2, disk_id="S", epoch=epoch, end_offset=end, metadata_endpoint="slave:1")
        return await self.proof.verify(member, tail=LogRange(start, end), digest=digest, connection=connection)


async def test_an_equal_tail_is_a_proof_for_its_connection() -> None:
    member = _Member()
    assert await member.verify(60, 120, _digest(60, 120))
    assert member.proven == [(2, 120, "10.0.0.7:4")]


async def test_without_a_connection_it_is_an_answer_and_no_proof() -> None:
    member = _Member()
    assert await member.verify(60, 120, _digest(60, 120), connection="")
    assert member.proven == []


async def test_another_tail_is_none() -> None:
    member = _Member()
    assert not await member.verify(60, 120, _digest(61, 120))
    assert member.proven == []


@pytest.mark.parametrize(("start", "end"), [(39, 60), (120, 141), (141, 141), (120, 60), (0, 39)])
async def test_what_is_not_held_is_never_equal(start: int, end: int) -> None:
    member = _Member()
    assert not member.proof.holds(LogRange(start, end))
    assert not await member.verify(start, end, hashlib.sha256(b"").digest())
    assert member.proven == []


async def test_who_holds_nothing_is_known_by_its_connection() -> None:
    member = _Member()
    assert await member.verify(0, 0, b"")
    assert member.proven == [(2, 0, "10.0.0.7:4")]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (60, 120)])
async def test_nothing_is_proven_to_a_broker_that_does_not_serve(start: int, end: int) -> None:
    member = _Member(serving=False)
    assert not await member.verify(start, end, _digest(60, 120))
    assert member.proven == []


async def test_who_has_proven_itself_is_remembered_when_the_answer_leaves() -> None:
    member = _Member()
    assert await member.verify(60, 120, _digest(60, 120))
    again = ReplicaIdentity(member.disk, BrokerIdentity("C", "broker-a", 0), new_disk_id=lambda: "another", nonce="N")
    again.read()
    assert [(memory.disk_id, memory.metadata_endpoint) for memory in again.replicas] == [("S", "slave:1")]


@pytest.mark.parametrize("connection", ["10.0.0.7:4", ""])
async def test_a_member_of_a_later_epoch_tells_that_another_master_took_over(connection: str) -> None:
    member = _Member()
    assert not await member.verify(60, 120, _digest(60, 120), connection, epoch=4)
    assert len(member.successors) == 1
    assert member.proven == []


async def test_a_member_that_holds_more_of_our_epoch_tells_it_too() -> None:
    member = _Member()
    assert not await member.verify(FIRST + len(LOG) + 1, FIRST + len(LOG) + 1, b"", "")
    assert len(member.successors) == 1
    assert not await member.verify(FIRST + len(LOG) + 1, FIRST + len(LOG) + 1, b"", "", epoch=2)
    assert len(member.successors) == 1, "one of an earlier epoch is behind, however long its log is"


async def test_nothing_is_promised_while_bytes_of_the_former_master_may_come() -> None:
    member = _Member()
    member.stays = True
    assert not await member.proof.promise(5, "D1", "N")
    member.stays = False
    assert await member.proof.promise(5, "D1", "N")
    assert member.left == [5]


async def test_an_epoch_is_promised_to_one_disk_and_the_master_left_after_it_is_durable() -> None:
    member = _Member()
    assert not await member.proof.promise(3, "D1", "N"), "that epoch was followed"
    assert await member.proof.promise(5, "D1", "N")
    assert not await member.proof.promise(5, "D2", "N")
    assert not await member.proof.promise(5, "D1", "another"), "a process on a copy of that disk"
    assert not await member.proof.promise(4, "D2", "N")
    assert await member.proof.promise(5, "D1", "N"), "the answer was lost, and it asks again"
    assert await member.proof.promise(6, "D2", "N")
    assert member.left == [5, 5, 6]
    again = ReplicaIdentity(member.disk, BrokerIdentity("C", "broker-a", 0), new_disk_id=lambda: "another", nonce="N")
    again.read()
    assert again.greatest_epoch == 6


class _Peer:
    """Who holds the whole log of a store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        return [self._store.digest(*item) for item in ranges]

    async def read_log(self, wanted: LogRange) -> AsyncIterator[tuple[int, bytes]]:
        for offset in range(wanted.start_offset, wanted.end_offset, 1 << 20):
            yield offset, bytes(self._store.read_log(offset, min(1 << 20, wanted.end_offset - offset)))


@pytest.mark.parametrize("body_bytes", [100, 10 << 20])
async def test_a_damaged_record_is_known_by_the_peers_however_long_it_is(body_bytes: int) -> None:
    """It is cut and comes again; of two sound ones that differ nobody here knows which is right."""
    master, slave = (
        new_store(SimulatedDisk(random.Random(1)), options=with_options(commit_log_file_bytes=12 << 20))
        for _ in range(2)
    )
    for store in (master, slave):
        store.load()
    damaged = master.put(outgoing_message()).end_offset
    end = master.put(outgoing_message(body=bytes(body_bytes))).end_offset
    log = bytearray(master.read_log(0, end))
    log[damaged + 100] ^= 1
    slave.append_replicated(0, [memoryview(log)])
    extent = LogExtent(0, end)
    found = await find_common_end(cast("PeerClient", _Peer(master)), slave, extent)
    assert found == (damaged, True)


def _two_stores(*, file_bytes: int) -> tuple[MessageStore, MessageStore]:
    """As a master and what was one before, whose clock shows another time."""
    clocks = ManualClock(1_700_000_000_000), ManualClock(1_700_000_060_000)
    options = with_options(commit_log_file_bytes=file_bytes)
    master, other = (new_store(SimulatedDisk(random.Random(1)), clock, options=options) for clock in clocks)
    for store in (master, other):
        store.load()
    return master, other


@pytest.mark.parametrize("with_filler", [False, True])
async def test_the_body_of_a_message_that_was_sent_again_is_no_proof_however_long_it_is(*, with_filler: bool) -> None:
    """A message larger than `maxMessageSize` is now was taken by one that is master no more, and sent again."""
    master, other = _two_stores(file_bytes=30 << 20)
    for store in (master, other):
        store.put(outgoing_message())
        store.put(outgoing_message(body=random.Random(2).randbytes(12 << 20)))
        if with_filler:
            store.put(outgoing_message(body=bytes(25 << 20)))
    ours = LogExtent(0, other.end_offset)
    assert other.end_offset == master.end_offset
    tail = tail_range(ours, holds_header=partial(holds_record_header, other))
    assert other.digest(*tail) != master.digest(*tail)
    found = await find_common_end(cast("PeerClient", _Peer(master)), other, LogExtent(0, master.end_offset))
    assert found.offset == 0


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_range_holds_a_header_where_a_whole_one_lies_in_it(data: st.DataObject) -> None:
    store, _ = _two_stores(file_bytes=6 << 20)
    starts = [
        store.put(outgoing_message(body=bytes(size))).physical_offset
        for size in data.draw(st.lists(st.sampled_from([1, 3_000, 1 << 20, 2 << 20]), min_size=1, max_size=8))
    ]
    places = st.one_of(st.sampled_from(starts), st.integers(0, store.end_offset))
    start = data.draw(places) + data.draw(st.integers(-100, 100))
    end = data.draw(places) + data.draw(st.integers(-100, 100))
    start, end = max(0, min(start, end)), min(store.end_offset, max(start, end))
    due = any(start <= at <= end - SMALLEST_RECORD_BYTES for at in starts)
    assert holds_record_header(store, start, end) is due

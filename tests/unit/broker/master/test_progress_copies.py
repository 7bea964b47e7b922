"""A master hands its members what groups have finished, before it says so: with real journals, and calls in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import grpc
import pytest

from support.queue_memory import QueueMemory
from support.running_time import PATIENCE_S
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeasePosition, LeaseStorage
from tandemmq.broker.master import progress_copies
from tandemmq.broker.master.progress_copies import ProgressCopies
from tandemmq.broker.peer_client import PeerUnavailable
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.routing.values import BrokerIdentity

CALLS_MAX = 2_000


@dataclass
class Member:
    """A slave's copy, and how it behaves."""

    master: LeaseStorage
    copy: LeaseCopy = field(default_factory=lambda: LeaseCopy(SimulatedDisk(random.Random(2))))
    is_away: bool = False
    is_held_up: asyncio.Event | None = None
    """Calls wait for it."""
    calls: int = 0
    whole_copies: int = 0
    running: int = 0
    running_max: int = 0

    async def answer(self, change: LeaseChange) -> LeasePosition:
        self.calls += 1
        assert self.calls < CALLS_MAX, "it asks without end"
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            if self.is_held_up is not None:
                await self.is_held_up.wait()
            await asyncio.sleep(0)
            if self.is_away:
                headers = grpc.aio.Metadata()
                away = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, headers, headers, "it is away", None)
                raise PeerUnavailable("member", "AppendLeases", away)
            return self.copy.append(change)
        finally:
            self.running -= 1


class Peer:
    """Stands for `PeerClient`."""

    members: dict[str, Member]

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def append_leases(self, _: BrokerIdentity, change: LeaseChange) -> LeasePosition:
        return await self.members[self.endpoint].answer(change)

    async def copy_progress(self, _: BrokerIdentity) -> bool:
        member = self.members[self.endpoint]
        member.whole_copies += 1
        change = await member.master.changes_since(member.copy.known)
        assert change is not None
        member.copy.take(change)
        return True

    async def close(self) -> None:
        pass


class Master:
    """A lease table, its journal and the pump. Of its members each is called as its disk is."""

    def __init__(self) -> None:
        self.queues = QueueMemory()
        for _ in range(1_000):
            self.queues.put("T", 0)
        self.table = LeaseTable(
            self.queues,
            options=DeliveryOptions(consume_from_earliest=True, compaction_floor_bytes=1),
            broker_name="b",
            nonce=count(1).__next__,
        )
        self.storage = LeaseStorage(SimulatedDisk(random.Random(1)), self.table, ManualClock(100_000))
        self.storage.load()
        self.clock = ManualClock(0)
        self.endpoints = {"b": "b", "c": "c"}
        self.copies = ProgressCopies(
            leases=self.storage,
            clock=self.clock,
            identity=BrokerIdentity("cluster", "b", 0),
            endpoint=self.endpoints.get,
        )
        self.members = {name: Member(self.storage) for name in "bc"}
        self.answers: list[bool] = []

    def finish_one(self) -> None:
        """A consumer takes a message and acknowledges it; the answer will be in `answers`."""
        received = self.table.receive(
            group="G",
            topic="T",
            queue_ids=range(1),
            tag_filter=EVERY_TAG,
            batch_size=1,
            invisible_ms=30_000,
            now_ms=0,
            max_attempts=17,
            auto_renew=False,
            client_id="client",
        )
        [delivery] = received.deliveries
        assert self.table.acknowledge(group="G", topic="T", handle=delivery.handle, now_ms=0)
        self.storage.persist()
        self.copies.when_held(self.answers.append)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.001)

    def holds_all(self, name: str) -> bool:
        return self.storage.bytes_at(self.members[name].copy.known) == self.storage.written_bytes


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Master]:
    master = Master()
    monkeypatch.setattr(Peer, "members", master.members, raising=False)
    monkeypatch.setattr(progress_copies, "PeerClient", Peer)
    async with asyncio.TaskGroup() as tasks:
        master.copies.start(tasks)
        yield master
        master.copies.give_up()
        await master.copies.close()


async def test_a_master_alone_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset())
        master.finish_one()
        assert master.answers == [True]


async def test_answers_wait_for_every_member_and_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset("bc"))
        slow = master.members["c"]
        slow.is_held_up = asyncio.Event()
        for _ in range(50):
            master.finish_one()
            await asyncio.sleep(0)
        await master.until(lambda: master.holds_all("b"))
        assert master.answers == []
        slow.is_held_up.set()
        await master.until(lambda: len(master.answers) == 50)
        assert master.answers == [True] * 50
        assert all(master.holds_all(name) for name in "bc")
        assert [member.running_max for member in master.members.values()] == [1, 1]
        assert max(member.calls for member in master.members.values()) < 30
        assert [member.whole_copies for member in master.members.values()] == [1, 1], "what comes later goes on behind"


@pytest.mark.parametrize("change", ["compaction", "another master's copy"])
async def test_a_copy_that_does_not_go_on_where_ours_does_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset("b"))
        master.finish_one()
        await master.until(lambda: master.answers == [True])
        if change == "compaction":
            await master.storage.compact_if_due()
        else:
            master.members["b"].copy = LeaseCopy(SimulatedDisk(random.Random(3)))
        master.finish_one()
        await master.until(lambda: master.answers == [True] * 2)
        assert master.members["b"].whole_copies == 2
        assert master.holds_all("b")


async def test_a_member_that_cannot_take_it_is_told_of_and_holds_nobody_up_once_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset("bc"))
        master.members["c"].is_away = True
        master.finish_one()
        await master.until(lambda: master.copies.lacking == {"c"})
        assert master.answers == []
        master.copies.require(frozenset("b"))
        await master.until(lambda: master.answers == [True])
        # It is asked again each time, so that it can come back.
        calls = master.members["c"].calls
        await master.until(lambda: master.members["c"].running == 0)
        master.copies.require(frozenset("b"))
        await master.until(lambda: master.members["c"].calls > calls)
        master.members["c"].is_away = False

        def has_recovered() -> bool:
            master.copies.require(frozenset("b"))
            return not master.copies.lacking

        await master.until(has_recovered)


async def test_a_member_that_is_not_connected_is_none_that_cannot_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as master:
        del master.endpoints["b"]
        master.copies.require(frozenset("b"))
        master.finish_one()
        await master.until(lambda: bool(master.copies.lacking))
        master.copies.require(frozenset())
        assert not master.copies.lacking
        assert master.answers == [True]


async def test_what_nobody_confirms_in_time_is_answered_as_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_copies, "_LIMIT_MS", 5)
    async with running(monkeypatch) as master:
        master.copies = ProgressCopies(
            leases=master.storage, clock=master.clock, identity=BrokerIdentity("c", "b", 0), endpoint=lambda _: None
        )
        master.copies.require(frozenset("b"))
        master.finish_one()
        master.clock.now_ms += 5
        await master.until(lambda: master.answers == [False])


async def test_a_master_that_ends_answers_what_waits_as_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset("b"))
        master.members["b"].is_away = True
        master.finish_one()
        master.finish_one()
        master.copies.give_up()
        assert master.answers == [False, False]
        assert master.copies.waiting_count == 0


async def test_a_member_whose_role_has_ended_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as master:
        master.copies.require(frozenset("b"))
        master.finish_one()
        await master.until(lambda: master.answers == [True])
        master.members["b"].copy.close()
        assert master.members["b"].copy.known == NO_LEASES
        master.finish_one()
        await master.until(lambda: master.copies.lacking == {"b"})
        assert master.answers == [True]

"""What operators hear of a master that starts. Whom it waits for, and what it fetches, is the simulator's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final, cast

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from support.fake_brokers import rpc_error
from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store
from tandemmq.broker.master import group_recovery
from tandemmq.broker.master.group_recovery import GroupRecovery, GroupView, LeasesAhead, MetadataSource
from tandemmq.broker.peer_client import EpochPromise, PeerLog, PeerUnavailable
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import CommonEnd
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.offsets import PhysicalOffset
from tandemmq.core.replication.log_history import LogExtent, LogHistory, LogRange
from tandemmq.core.replication.master_start import Fetch, MasterStart, Relation, ReplicaAnswer
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.kept_tail import kept_tails
from tandemmq.proto.broker.v1 import replica_service_pb2 as pb


class _Start:
    """Of a master that hears everybody at once, and whose replicas give their tables after so many failures."""

    def __init__(self, failures: Sequence[str]) -> None:
        self.seen: list[str | None] = []
        self.sources: list[list[MetadataSource]] = []
        self.cuts: list[int] = []
        """How often tables had been asked for when progress was cut."""
        self.told = 0
        self._failures = iter(failures)
        self.name_server_memories: list[ReplicaMemory] = []
        self.clock, identity = ManualClock(), BrokerIdentity("C", "broker-a", 0)
        clock = self.clock
        disk = self.disk = SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)
        self.store = new_store(disk, clock)
        self.replica = ReplicaIdentity(disk, identity, new_disk_id=lambda: "M", nonce="N")
        self.store.load()
        self.replica.read()
        self.recovery = GroupRecovery(
            store=self.store,
            replica=self.replica,
            identity=identity,
            clock=clock,
            group=GroupView(
                name_servers=frozenset(), own_endpoint=str, members=list, told=self._told, forget=self._forget
            ),
            total_replicas=1,
            recovery_timeout_ms=1_000,
            accepts_loss=False,
            alone_with_store=self._alone,
            fetch_metadata=self._fetch,
            cut_progress=self._cut_progress,
            state_changed=self._state_changed,
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        yield

    async def _told(self) -> Mapping[str, Sequence[ReplicaMemory] | None]:
        return {"ns:9876": self.name_server_memories} if self.name_server_memories else {}

    async def _forget(self, disk_id: str) -> None:
        raise AssertionError(disk_id)

    async def _fetch(self, sources: Sequence[MetadataSource], is_behind: bool) -> None:
        self.sources.append(list(sources))
        waiting = self.recovery.waiting
        self.seen.append(None if waiting is None else waiting.reason)
        if (failure := next(self._failures, None)) is not None:
            error = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, failure)
            raise PeerUnavailable("slave:1", "GetMetadataTable", error)

    async def _cut_progress(self) -> None:
        self.cuts.append(len(self.seen))

    def _state_changed(self) -> None:
        self.told += 1


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_recovery, "ASK_PAUSE_S", 0.0)
    monkeypatch.setattr(group_recovery, "ROOM_PAUSE_S", 0.0)


async def test_tables_that_cannot_be_fetched_are_waited_for_in_sight_and_told_once_for_each_cause() -> None:
    start = _Start(["late"] * 20 + ["later"] * 20)
    with capture_logs() as lines:
        assert await start.recovery.run(is_whole=True)
    late, later = (
        "a replica does not give its topics, groups and offsets: "
        f"GetMetadataTable at slave:1: DEADLINE_EXCEEDED {cause}"
        for cause in ("late", "later")
    )
    assert start.seen == [None, *[late] * 20, *[later] * 20]
    # Both causes, and the end of the wait.
    assert start.told == 3
    assert [line["event"] for line in lines] == ["master_asks_its_group", "master_waits", "master_waits", "epoch_begun"]
    assert [line["reason"] for line in lines if line["event"] == "master_waits"] == [late, later]
    assert start.recovery.waiting is None


@pytest.mark.parametrize("gives", ["a replica gives it", "an operator goes on without"])
async def test_nobody_claims_a_group_with_tables_that_another_member_may_have(gives: str) -> None:
    """Alone in the in-sync set it would keep the member that has them from becoming master."""
    start, claims = _Start([]), []
    damaged = {"topics.json": "the file is empty"}

    async def claim(epoch: int, _seen: tuple[int, int]) -> int:
        claims.append(len(start.seen))
        return epoch

    async def fetch(sources: Sequence[MetadataSource], is_behind: bool) -> None:
        await _Start._fetch(start, sources, is_behind)
        assert not claims or not damaged, "it has claimed, and lacks tables"
        if len(start.seen) == 4 and gives == "a replica gives it":
            damaged.clear()
        elif len(start.seen) == 4:
            assert start.recovery.accept_loss([], ["topics.json"]) == ""

    start.recovery._claim = claim
    start.recovery._fetch_metadata = fetch
    start.recovery._damaged_tables = lambda: damaged
    start.recovery._accept_damage = damaged.clear
    assert await start.recovery.run(is_whole=True)
    assert claims == [4]


async def test_progress_beyond_the_log_is_cut_once_every_replica_told_what_it_knows() -> None:
    start = _Start(["late"] * 3)
    assert await start.recovery.run(is_whole=True)
    assert start.cuts == [4]


class _EmptyReplica:
    """A `PeerClient` of broker 2, with an empty disk, that remembers one member of its group."""

    def __init__(self, memory: ReplicaMemory) -> None:
        self._memory = memory

    def __call__(self, endpoint: str) -> _EmptyReplica:
        if endpoint != "slave-2:1":
            raise PeerUnavailable(endpoint, "GetLogExtent", rpc_error(grpc.StatusCode.UNAVAILABLE, "away"))
        return self

    async def __aenter__(self) -> _EmptyReplica:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""

    async def log(self) -> PeerLog:
        """It holds nothing, and remembers."""
        memory = self._memory
        told = pb.RememberedReplica(
            broker_id=memory.broker_id, disk_id=memory.disk_id, epoch=memory.epoch, end_offset=memory.end_offset
        )
        return PeerLog(pb.GetLogExtentResponse(broker_id=2, disk_id="T", replicas=[told]))

    async def promise_epoch(self, epoch: int, **_: object) -> EpochPromise:
        return EpochPromise(is_promised=True, epoch=epoch, end_offset=0)


@pytest.mark.parametrize("is_replica", [False, True])
@pytest.mark.parametrize(
    ("heard", "silence_ms", "serves"), [(1, 3_000, True), (1, 3_001, False), (2, 60_000, True), (3, 60_000, True)]
)
async def test_who_heard_nothing_of_the_end_of_the_log_is_no_witness(
    heard: int, silence_ms: int, serves: bool, is_replica: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NameServer or a replica heard of so many of three messages; the third came `silence_ms` after the second. The
    slave is away."""
    start, ends = _Start([]), [0]
    for pause_ms in (0, 1_500, silence_ms):
        start.clock.now_ms += pause_ms
        ends.append(start.store.put(outgoing_message()).end_offset)
    await start.replica.begin_epoch(LogHistory.of([(1, 0)]))
    await start.replica.remember(ReplicaMemory(1, "S", epoch=1, end_offset=ends[1]))
    heard_of_us = ReplicaMemory(0, "M", run=1, epoch=1, end_offset=ends[heard])
    if is_replica:
        await start.replica.remember(ReplicaMemory(2, "T", metadata_endpoint="slave-2:1"))
        monkeypatch.setattr(group_recovery, "PeerClient", _EmptyReplica(heard_of_us))
    else:
        start.name_server_memories = [heard_of_us]
    running = asyncio.create_task(start.recovery.run(is_whole=True))
    async with asyncio.timeout(PATIENCE_S):
        while not running.done() and start.recovery.waiting is None:
            await asyncio.sleep(0)
    assert running.done() == serves
    if serves:
        assert await running
    else:
        assert start.recovery.waiting is not None
        assert [each.disk_id for each in start.recovery.waiting.missing] == ["S"]
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(
    ("relation", "epochs", "parted"),
    [
        (Relation.PARTED, [(1, 0)], True),
        (Relation.WITHIN, [(1, 0)], False),
        (Relation.WITHIN, [(1, 0), (2, 50)], True),
        (Relation.WITHIN, [(1, 0), (2, 50), (3, 70)], True),
    ],
)
async def test_of_a_replica_that_followed_a_later_master_below_our_end_no_progress_is_taken(
    relation: Relation, epochs: list[tuple[int, int]], parted: bool
) -> None:
    """An operator has given up the disk of that master; what groups consumed there were other messages."""
    start = _Start([])
    store = start.store
    for _ in range(3):
        store.put(outgoing_message())
    await start.replica.begin_epoch(LogHistory.of([(1, 0)]))
    at_end = LogHistory.of([*epochs, (9, store.end_offset)])
    for history in (LogHistory.of(epochs), at_end):
        answer = ReplicaAnswer(1, "slave:1", "S", LogExtent(0, 50), history, relation)
        assert start.recovery._has_parted(answer) == parted


_LEASES: Final[Any] = SimpleNamespace(is_damaged=False)


def _peers(monkeypatch: pytest.MonkeyPatch, **questions: object) -> list[str]:
    """Peers that answer these questions alone; whoever is asked comes into the list."""
    peers = list[str]()

    async def nothing(*_: object, **__: object) -> None:
        """No tables, and nobody served reads."""

    @asynccontextmanager
    async def peer_client(endpoint: str) -> AsyncIterator[object]:
        peers.append(endpoint)
        yield object()

    answers = {"PeerClient": peer_client, "recover_metadata": nothing, "leases_ahead": nothing, **questions}
    for name, value in answers.items():
        monkeypatch.setattr(group_recovery, name, value)
    return peers


@pytest.mark.parametrize(
    ("refusals", "asked", "taken"),
    [
        ({}, ["best:1"], "best:1"),
        ({"best:1": 5}, ["best:1"] * 6, "best:1"),
        # It never opens them: ours are newer than what a replica has that was behind us.
        ({"best:1": 99}, ["best:1"] * 12 + ["behind:1"], None),
    ],
)
async def test_leases_are_taken_of_a_replica_that_is_ahead_once_it_opens_them(
    refusals: dict[str, int], asked: list[str], taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, took, left = list[str](), list[str](), dict(refusals)

    async def recover_leases(peer: object, *, tables: object, storage: object, replace: bool) -> bool:
        endpoint = peers[-1]
        calls.append(endpoint)
        if left.get(endpoint, 0):
            left[endpoint] -= 1
            raise PeerUnavailable(endpoint, "GetLeases", rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "not loaded"))
        if replace:
            took.append(endpoint)
        return replace

    peers = _peers(monkeypatch, recover_leases=recover_leases)
    sources = [MetadataSource("best:1", is_ahead=True), MetadataSource("behind:1")]
    unused: Any = None
    await group_recovery.fetch_metadata(sources, unused, _LEASES, is_behind=True)
    assert (calls, took) == (asked, [taken] if taken else [])


@pytest.mark.parametrize(("is_new", "level"), [(True, "info"), (False, "warning")])
async def test_a_replica_that_nothing_was_written_to_alarms_nobody(
    monkeypatch: pytest.MonkeyPatch, is_new: bool, level: str
) -> None:
    async def recover_leases(*_: object, **__: object) -> bool:
        raise PeerUnavailable("a:1", "GetLeases", rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "not loaded"))

    _peers(monkeypatch, recover_leases=recover_leases)
    unused: Any = None
    with structlog.testing.capture_logs() as lines:
        await group_recovery.fetch_metadata([MetadataSource("a:1", is_new=is_new)], unused, _LEASES, is_behind=False)
    assert [(line["event"], line["log_level"]) for line in lines] == [("leases_not_fetched", level)]


async def test_leases_of_who_shares_our_history_are_merged_and_replace_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced = list[bool]()
    found = LeasesAhead("best:1", "it had what this disk lacked", LeaseReplay(), PhysicalOffset(0))

    async def recover_leases(peer: object, *, tables: object, storage: object, replace: bool) -> bool:
        replaced.append(replace)
        return False

    async def copied_leases(peer: object, *, tables: object, reason: str) -> LeasesAhead:
        return found

    _peers(monkeypatch, recover_leases=recover_leases, copied_leases=copied_leases)
    sources = [MetadataSource("best:1", is_ahead=True, shares_history=True), MetadataSource("behind:1")]
    unused: Any = None
    assert await group_recovery.fetch_metadata(sources, unused, _LEASES, is_behind=True) == [found]
    assert replaced == [False, False]


@pytest.mark.parametrize(("end_before", "is_ahead"), [(0, True), (1, True), (2, False), (3, False)])
async def test_a_replica_is_ahead_that_has_what_the_disk_lacked_as_the_start_began(
    end_before: int, is_ahead: bool
) -> None:
    """The replica has two messages; another one gave the third."""
    start = _Start([])
    ends = [0, *(start.store.put(outgoing_message()).end_offset for _ in range(3))]
    history = LogHistory.of([(1, 0)])
    await start.replica.begin_epoch(history)
    recovery = start.recovery
    recovery._was_behind, recovery._first_rank = True, (1, ends[end_before])
    recovery._first_epochs = history.epochs
    other = ReplicaAnswer(2, "slave-2:1", "T", LogExtent(0, ends[2]), history, Relation.WITHIN)
    await recovery._metadata_wait(cast("MasterStart", SimpleNamespace(answers=[other])))
    assert start.sources == [[MetadataSource("slave-2:1", is_ahead=is_ahead, shares_history=True)]]


class _LongerLog:
    """A `PeerClient` whose log has five files, the oldest of which is gone."""

    def __init__(self) -> None:
        self.store = new_store(SimulatedDisk(random.Random(2)))
        self.store.load()
        while self.store.end_offset < 5 * self.store.segment_bytes:
            self.store.put(outgoing_message())
        self.extent = LogExtent(self.store.segment_bytes, self.store.end_offset)

    async def __aenter__(self) -> _LongerLog:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""

    async def read_log(self, wanted: LogRange) -> AsyncIterator[tuple[int, bytes]]:
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            piece = bytes(self.store.read_log(offset, min(1_000, wanted.end_offset - offset)))
            yield offset, piece
            offset += len(piece)


async def _fetched(start: _Start, longer: _LongerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_recovery, "PeerClient", lambda _endpoint: longer)
    answer = ReplicaAnswer(1, "slave:1", "S", longer.extent, LogHistory.of([(1, 0)]), Relation.EXTENDS)
    own = cast("MasterStart", SimpleNamespace(log_changed=lambda _own: None))
    await start.recovery._fetch(own, Fetch(answer))


async def test_a_log_that_finds_no_room_is_waited_for_in_sight_and_fetched_once_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that died of it would die of it the next time, too: nothing that is old goes before somebody waits."""
    start, longer = _Start([]), _LongerLog()
    start.disk.capacity_bytes = start.disk.usage().used_bytes + 3 * longer.store.segment_bytes
    fetching = asyncio.create_task(_fetched(start, longer, monkeypatch))
    async with asyncio.timeout(PATIENCE_S):
        while start.recovery.waiting is None and not fetching.done():
            await asyncio.sleep(0)
    assert start.recovery.waiting is not None, fetching.result()
    assert "no room for what slave:1 has more" in start.recovery.waiting.reason
    # Retention may let go of what the other log has no more.
    assert (start.told, start.recovery.gone_before) == (1, longer.extent.min_offset)
    start.disk.capacity_bytes *= 2
    await fetching
    ends = longer.extent.min_offset, longer.extent.end_offset
    assert (start.store.min_offset, start.store.end_offset) == ends
    assert start.store.digest(*ends) == longer.store.digest(*ends)


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_start_that_finds_no_room_ends_when_the_broker_does(
    is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, longer = _Start([]), _LongerLog()
    start.disk.capacity_bytes = start.disk.usage().used_bytes + longer.store.segment_bytes // 2
    start.recovery._given_up = lambda: is_over or start.recovery.waiting is not None
    await _fetched(start, longer, monkeypatch)
    assert start.store.end_offset < longer.extent.end_offset
    assert not start.recovery.is_whole


async def _cut_to(start: _Start, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes over a log of a later epoch that ours shares up to `offset`, and that ends there."""

    async def common_end(*_: object) -> CommonEnd:
        return CommonEnd(offset, ours_is_damaged=False)

    monkeypatch.setattr(group_recovery, "find_common_end", common_end)
    longer = _LongerLog()
    longer.extent = LogExtent(0, offset)
    monkeypatch.setattr(group_recovery, "PeerClient", lambda _endpoint: longer)
    history = LogHistory.of([(1, 0), (2, offset)])
    answer = ReplicaAnswer(1, "slave:1", "S", longer.extent, history, Relation.PARTED)
    own = cast("MasterStart", SimpleNamespace(log_changed=lambda _own: None, cannot_fetch=lambda *_: None))
    await start.recovery._fetch(own, Fetch(answer))


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_is_cut_off_waits_for_room_to_be_kept(is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the start ended, and so did each that followed."""
    start = _Start([])
    ends = [start.store.put(outgoing_message(body=bytes(2_000))).end_offset for _ in range(8)]
    start.store.write_appended()
    log_before = start.store.digest(0, ends[-1])
    await start.replica.begin_epoch(LogHistory.of([(1, 0)]))
    start.disk.capacity_bytes = start.disk.usage().used_bytes + 8_000
    cutting = asyncio.create_task(_cut_to(start, ends[2], monkeypatch))
    async with asyncio.timeout(PATIENCE_S):
        while start.recovery.waiting is None and not cutting.done():
            await asyncio.sleep(0)
    assert start.recovery.waiting is not None, cutting.result()
    assert "no room to keep what is cut off this log (disk full: kept-tails/" in start.recovery.waiting.reason
    assert (start.store.end_offset, start.store.digest(0, ends[-1])) == (ends[-1], log_before)
    assert start.disk.list_folder("kept-tails") == []
    if is_over:
        start.recovery._given_up = lambda: True
    else:
        start.disk.capacity_bytes *= 2
    await cutting
    assert start.store.end_offset == (ends[-1] if is_over else ends[2])
    assert [own.end_offset for own in kept_tails(start.disk)] == ([] if is_over else [ends[-1]])


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_who_has_claimed_its_group_does_not_wait_for_room(is_claimed: bool) -> None:
    """Its lease was renewed all the time, so that no other member could serve, whatever room that had."""
    start, claims = _Start([]), []
    end = start.store.put(outgoing_message()).end_offset
    record = bytes(start.store.read_log(0, end))
    start.store.append_raw(end, record[:-1])
    start.store.dispatch()
    assert start.store.dispatched_offset == end < start.store.end_offset
    start.disk.capacity_bytes = start.disk.usage().used_bytes

    async def claim(epoch: int, _seen: tuple[int, int]) -> int:
        claims.append(epoch)
        return epoch

    if is_claimed:
        start.recovery._claim = claim
    starting = asyncio.create_task(start.recovery.run(is_whole=True))
    async with asyncio.timeout(PATIENCE_S):
        while start.recovery.waiting is None and not starting.done():
            await asyncio.sleep(0)
    assert starting.done() is is_claimed
    if is_claimed:
        with pytest.raises(DiskFull, match="No space left"):
            await starting
        assert claims
        return
    start.disk.capacity_bytes += 1 << 20
    assert await starting
    assert start.store.end_offset == end

"""What a NameServer remembers of broker groups: rules one by one, then anything in any order."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.group_memory import BROKER_IDS_MAX, DISKS_MAX, GROUPS_MAX, GroupMemory, GroupMemoryDamaged
from tandemmq.core.routing.route_table import RegistrationRefused, RouteTable
from tandemmq.core.routing.values import (
    BrokerEndpoints,
    BrokerIdentity,
    Heartbeat,
    Registration,
    ReplicaMemory,
    TopicQueues,
)

GROUP = ("DefaultCluster", "broker-a")
MASTER = BrokerIdentity(*GROUP, 0)


def replica(disk_id: str = "disk-1", *, run: int = 1, epoch: int = 1, end_offset: int = 100) -> ReplicaMemory:
    return ReplicaMemory(0, disk_id, run, epoch, end_offset, "host:10911", 1_000)


def told(memory: GroupMemory, *replicas: ReplicaMemory, is_unproven: bool = False) -> None:
    for each in replicas:
        memory.told_of_itself(GROUP, replace(each, unproven=is_unproven))


def only(memory: GroupMemory) -> ReplicaMemory:
    (known,) = memory.replicas(GROUP)
    return known


# A disk's own words


def test_a_disk_stays_known_beside_its_successor() -> None:
    memory = GroupMemory()
    told(memory, replica("old", end_offset=900))
    memory.gone(MASTER, "old")
    told(memory, replica("new", end_offset=0))
    assert [(each.disk_id, each.live, each.end_offset) for each in memory.replicas(GROUP)] == [
        ("old", False, 900),
        ("new", True, 0),
    ]


def test_a_log_that_was_cut_is_known_by_its_new_end() -> None:
    memory = GroupMemory()
    told(memory, replica(end_offset=900), replica(end_offset=400))
    assert only(memory).end_offset == 400


def test_an_old_copy_of_a_disk_does_not_become_its_own_witness() -> None:
    memory = GroupMemory()
    told(memory, replica(run=5, epoch=3, end_offset=900))
    memory.gone(MASTER, "disk-1")
    for epoch, end_offset in ((2, 400), (3, 400), (2, 1_400)):
        told(memory, replica(run=6, epoch=epoch, end_offset=end_offset), is_unproven=True)
        assert (only(memory).run, only(memory).epoch, only(memory).end_offset) == (6, 3, 900)
        assert not only(memory).unproven


def test_where_nothing_was_known_an_old_copy_does_not_become_its_own_witness_either() -> None:
    memory = GroupMemory()
    told(memory, replica(epoch=2, end_offset=400), is_unproven=True)
    assert (only(memory).live, only(memory).end_offset, only(memory).unproven) == (True, 400, True)
    told(memory, replica(epoch=2, end_offset=500), is_unproven=True)
    assert (only(memory).end_offset, only(memory).unproven) == (500, True)
    told(memory, replica(epoch=2, end_offset=450))
    assert (only(memory).end_offset, only(memory).unproven) == (450, False), "it has reached its master's end"


def test_of_an_epoch_that_it_only_follows_its_words_prove_nothing() -> None:
    memory = GroupMemory()
    told(memory, replica(epoch=3, end_offset=900))
    told(memory, replica(run=2, epoch=4, end_offset=300), is_unproven=True)
    assert (only(memory).epoch, only(memory).end_offset, only(memory).unproven) == (4, 300, True)


def test_the_words_of_others_are_no_evidence() -> None:
    memory = GroupMemory()
    memory.told_of_another(GROUP, replica(end_offset=400))
    assert only(memory).unproven
    told(memory, replica(end_offset=300))
    assert not only(memory).unproven
    memory.gone(MASTER, "disk-1")
    memory.told_of_another(GROUP, replica(end_offset=350))
    assert (only(memory).end_offset, only(memory).unproven) == (350, False), "more than it said, before it was killed"
    memory.told_of_another(GROUP, replica(epoch=2, end_offset=360))
    assert (only(memory).end_offset, only(memory).unproven) == (360, True), "of an epoch of which it said nothing"


def test_a_goodbye_tells_the_exact_end_and_a_later_start_makes_it_old_news() -> None:
    memory = GroupMemory()
    told(memory, replica(run=2))
    memory.left(MASTER, "disk-1", run=2, end_offset=150)
    assert not only(memory).left, "it is still registered"
    memory.gone(MASTER, "disk-1")
    memory.left(MASTER, "disk-1", run=1, end_offset=110)
    assert not only(memory).left, "an earlier process said that"
    memory.left(MASTER, "disk-1", run=2, end_offset=150)
    assert (only(memory).left, only(memory).end_offset) == (True, 150)
    told(memory, replica(run=3))
    assert not only(memory).left


# Others' words


@pytest.mark.parametrize(
    ("heard", "run", "end_offset"),
    [
        (replica(run=3, end_offset=10), 3, 100),
        (replica(run=2, end_offset=300), 2, 300),
        (replica(run=2, end_offset=50), 2, 100),
        (replica(run=1, end_offset=900), 2, 100),
    ],
)
def test_of_two_reports_of_an_epoch_the_later_one_counts_and_the_greater_end(
    heard: ReplicaMemory, run: int, end_offset: int
) -> None:
    memory = GroupMemory()
    told(memory, replica(run=2))
    memory.gone(MASTER, "disk-1")
    memory.told_of_another(GROUP, heard)
    assert (only(memory).run, only(memory).end_offset) == (run, end_offset)


def test_a_live_broker_is_believed_and_others_only_add_its_epoch() -> None:
    memory = GroupMemory()
    told(memory, replica(run=2))
    memory.told_of_another(GROUP, replica(run=9, epoch=7, end_offset=9_000))
    assert (only(memory).live, only(memory).run, only(memory).end_offset, only(memory).epoch) == (True, 2, 100, 7)


def test_others_tell_of_a_goodbye_that_was_not_heard_here() -> None:
    memory = GroupMemory()
    told(memory, replica())
    memory.gone(MASTER, "disk-1")
    memory.told_of_another(GROUP, replace(replica(), left=True))
    assert only(memory).left


def test_the_newest_record_that_anybody_saw_is_remembered() -> None:
    memory = GroupMemory()
    told(memory, replace(replica(), record_version=(2, 7)), replace(replica(), record_version=(2, 6)))
    assert only(memory).record_version == (2, 7)
    memory.told_of_another(GROUP, replace(replica(), record_version=(3, 0)))
    assert GroupMemory.restored(memory.image().text()).replicas(GROUP)[0].record_version == (3, 0)


# Bounds


def test_what_left_longest_ago_makes_room_then_what_was_not_heard_of_then_what_lives() -> None:
    memory = GroupMemory()
    told(memory, *(replica(f"disk-{number}") for number in range(DISKS_MAX)))
    for number in range(DISKS_MAX - 1):
        memory.gone(MASTER, f"disk-{number}")
    for number in (3, 2):
        memory.left(MASTER, f"disk-{number}", run=1, end_offset=100)
    dropped: list[str] = []
    for number in range(DISKS_MAX - 1):
        before = {each.disk_id for each in memory.replicas(GROUP)}
        told(memory, replica(f"new-{number}"))
        dropped += before - {each.disk_id for each in memory.replicas(GROUP)}
    assert dropped == ["disk-2", "disk-3", "disk-0", "disk-1", "disk-4", "disk-5", "disk-6"]
    assert len(memory.replicas(GROUP)) == DISKS_MAX


def test_broker_ids_and_groups_are_bounded() -> None:
    memory = GroupMemory()
    for number in range(BROKER_IDS_MAX + 3):
        memory.told_of_another(GROUP, replace(replica(), broker_id=number))
    assert [each.broker_id for each in memory.replicas(GROUP)] == list(range(3, BROKER_IDS_MAX + 3))
    for number in range(GROUPS_MAX + 1):
        memory.told_of_another(("DefaultCluster", f"group-{number}"), replica())
    assert memory.replicas(GROUP) == memory.replicas(("DefaultCluster", "group-0")) == ()
    assert len(memory.replicas(("DefaultCluster", "group-1"))) == 1


def test_only_an_operator_makes_it_forget_and_never_who_lives() -> None:
    memory = GroupMemory()
    told(memory, replica("old"), replica("older"), replica("live"))
    memory.told_of_another(GROUP, replace(replica("slave"), broker_id=1))
    for disk_id in ("old", "older"):
        memory.gone(MASTER, disk_id)
    assert [each.disk_id for each in memory.forget(GROUP, disk_id="old")] == ["old"]
    assert [each.disk_id for each in memory.forget(GROUP, broker_id=1)] == ["slave"]
    assert [each.disk_id for each in memory.forget(GROUP)] == ["older"]
    assert [each.disk_id for each in memory.replicas(GROUP)] == ["live"]
    assert memory.forget(("Other", "broker-a")) == ()


# Its text


def test_a_text_is_the_memory_with_nobody_alive_and_no_evidence_of_who_may_have_gone_on() -> None:
    memory = GroupMemory(made_wall_ms=77)
    told(memory, replica(), replica("disk-2", run=4))
    told(memory, replica("disk-3"), is_unproven=True)
    memory.gone(MASTER, "disk-1")
    memory.left(MASTER, "disk-1", run=1, end_offset=120)
    restored = GroupMemory.restored(memory.image().text())
    assert restored.made_wall_ms == 77
    as_of_then = [replace(each, live=False, unproven=each.unproven or each.live) for each in memory.replicas(GROUP)]
    assert list(restored.replicas(GROUP)) == as_of_then
    assert [each.disk_id for each in as_of_then if not each.unproven] == ["disk-1"]
    assert (restored.changes, restored.progress) == (0, 0)


def test_a_text_of_an_earlier_version_goes_by_the_ids() -> None:
    memory = GroupMemory()
    told(memory, replica(epoch=4), replace(replica("disk-2", epoch=7), broker_id=1, master_epoch=7))
    content = json.loads(memory.image().text())["content"]
    for entry in content["replicas"]:
        del entry["masterEpoch"], entry["unproven"], entry["recordVersion"]
    crc32 = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    restored = GroupMemory.restored(json.dumps({"crc32": crc32, "content": content}))
    assert [each.master_epoch for each in restored.replicas(GROUP)] == [4, 0]


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"crc32": 0, "content": {}}', "cut", "flip", "version"])
def test_a_damaged_text_is_refused(damage: str) -> None:
    memory = GroupMemory()
    told(memory, replica())
    text = memory.image().text()
    damaged = {"cut": text[:-9], "flip": text.replace('"endOffset": 100', '"endOffset": 108')}.get(damage, damage)
    with pytest.raises(GroupMemoryDamaged):
        GroupMemory.restored(damaged)


def test_growing_logs_are_no_change() -> None:
    memory = GroupMemory()
    told(memory, replica())
    changes = memory.changes
    told(memory, replica(), replace(replica(end_offset=200), last_seen_wall_ms=2_000))
    assert (memory.changes, memory.progress) == (changes, 1)
    memory.gone(MASTER, "disk-1")
    assert memory.changes == changes + 1


# Anything in any order

DISKS = st.sampled_from(["disk-1", "disk-2", "disk-3"])
IDS = st.integers(0, 1)
ORDERS = (TopicQueues("orders", 4, 4, 6),)


class Cluster(RuleBasedStateMachine):
    """Brokers with disks of their own come, go, restart, and are replaced, under one NameServer that restarts as well.

    Wall clocks jump: each start has any incarnation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ms = 0
        self.ever_told: set[tuple[int, str]] = set()
        self.epochs: dict[tuple[int, str], int] = {}
        self.runs: dict[tuple[int, str], int] = {}
        # Who is registered, as the brokers see it.
        self.live: dict[int, Registration] = {}

    @rule(
        broker_id=IDS,
        disk_id=DISKS,
        run=st.integers(1, 4),
        epoch=st.integers(0, 4),
        end_offset=st.integers(0, 9),
        incarnation=st.integers(1, 4),
        host=st.sampled_from(["host-1", "host-2"]),
        recovering=st.sampled_from(["", "", "waits for its slave"]),
        unproven=st.booleans(),
        known=st.lists(st.tuples(IDS, DISKS, st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=2),
    )
    def register(
        self,
        broker_id: int,
        disk_id: str,
        run: int,
        epoch: int,
        end_offset: int,
        incarnation: int,
        host: str,
        recovering: str,
        unproven: bool,
        known: list[tuple[int, str, int, int, bool]],
    ) -> None:
        identity = BrokerIdentity(*GROUP, broker_id)
        before = self.live.get(broker_id)
        greatest = max((epoch for (id_, disk), epoch in self.epochs.items() if id_ == 0 and disk != disk_id), default=0)
        registration = Registration(
            identity,
            BrokerEndpoints(f"{host}-{broker_id}:8081", f"{host}:10911", f"{host}:10912"),
            incarnation,
            10,
            DataVersion(0, 0, 1),
            ORDERS,
            disk_id,
            run,
            epoch,
            end_offset,
            tuple(ReplicaMemory(id_, disk, 1, epoch, end, left=left) for id_, disk, epoch, end, left in known),
            recovering,
            unproven=unproven,
        )
        memory = self.table.memory.replica(identity, disk_id)
        answer = self.table.register(registration, now_ms=self.now_ms)
        # Who only waits keeps nobody out who serves.
        takes_over = before is not None and bool(before.recovering) and not recovering
        if broker_id == 0 and not recovering and epoch < greatest:
            assert isinstance(answer, RegistrationRefused)
            assert answer.is_superseded
        elif before is not None and before.disk_id != disk_id and not takes_over:
            assert isinstance(answer, RegistrationRefused), "a live broker was pushed out by another disk"
            assert not answer.is_superseded
        if isinstance(answer, RegistrationRefused):
            return
        if before is not None and before.incarnation != incarnation and not takes_over:
            assert run > before.run or before.endpoints.client == registration.endpoints.client
        self.live[broker_id] = registration
        # What it says of its own disk it says in its own name.
        others = [
            (id_, disk, known_epoch) for id_, disk, known_epoch, _, _ in known if (id_, disk) != (broker_id, disk_id)
        ]
        for id_, disk, known_epoch in [(broker_id, disk_id, epoch), *others]:
            self.ever_told.add((id_, disk))
            self.epochs[id_, disk] = max(known_epoch, self.epochs.get((id_, disk), 0))
        if unproven or recovering:
            self.says_no_less(identity, disk_id, memory)

    def says_no_less(self, identity: BrokerIdentity, disk_id: str, before: ReplicaMemory | None) -> None:
        """What a process said that may run on an older copy: it neither takes away what was known, nor is evidence."""
        now = self.table.memory.replica(identity, disk_id)
        assert now is not None
        if before is None:
            assert now.unproven
        elif now.epoch == before.epoch:
            assert now.end_offset >= before.end_offset
            assert now.unproven == before.unproven
        else:
            assert now.unproven

    @rule(broker_id=IDS, epoch=st.integers(0, 5), end_offset=st.integers(0, 9), unproven=st.booleans())
    def beat(self, broker_id: int, epoch: int, end_offset: int, unproven: bool) -> None:
        member = self.live.get(broker_id)
        before = None if member is None else self.table.memory.replica(member.identity, member.disk_id)
        incarnation = member.incarnation if member is not None else 1
        identity = BrokerIdentity(*GROUP, broker_id)
        beat = Heartbeat(identity, incarnation, DataVersion(0, 0, 1), epoch, end_offset, unproven)
        self.table.heartbeat(beat, connection=broker_id, now_ms=self.now_ms)
        if member is not None:
            key = (broker_id, member.disk_id)
            self.epochs[key] = max(epoch, self.epochs[key])
            if unproven or member.recovering:
                self.says_no_less(member.identity, member.disk_id, before)

    @rule(broker_id=IDS, end_offset=st.one_of(st.none(), st.integers(0, 9)))
    def leave(self, broker_id: int, end_offset: int | None) -> None:
        member = self.live.pop(broker_id, None)
        if member is None:
            return
        self.table.unregister(
            member.identity,
            incarnation=member.incarnation,
            disk_id=member.disk_id,
            run=member.run,
            end_offset=end_offset,
        )
        known = self.table.memory.replica(member.identity, member.disk_id)
        assert known is not None
        if end_offset is not None and known.run == member.run:
            assert (known.left, known.end_offset, known.unproven) == (True, end_offset, False)

    @rule(broker_id=IDS)
    def lose_connection(self, broker_id: int) -> None:
        for broker in self.table.connection_lost(broker_id):
            del self.live[broker.identity.broker_id]

    @rule(passed_ms=st.integers(1, 12))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for broker in self.table.expire(now_ms=self.now_ms):
            del self.live[broker.identity.broker_id]

    @rule()
    def restart_name_server(self) -> None:
        self.table = RouteTable(GroupMemory.restored(self.table.memory.image().text()))
        self.live.clear()

    @invariant()
    def nothing_is_forgotten_and_no_epoch_goes_back(self) -> None:
        known = {(each.broker_id, each.disk_id): each for each in self.table.memory.replicas(GROUP)}
        assert known.keys() == self.ever_told
        assert {key: each.epoch for key, each in known.items()} == self.epochs
        for key, each in known.items():
            assert each.run >= self.runs.get(key, 0)
            self.runs[key] = each.run

    @invariant()
    def who_is_live_is_remembered_as_live(self) -> None:
        live = {(broker.identity.broker_id, broker.disk_id) for broker in self.table.brokers()}
        assert live == {(broker_id, each.disk_id) for broker_id, each in self.live.items()}
        assert live == {(each.broker_id, each.disk_id) for each in self.table.memory.replicas(GROUP) if each.live}

    @invariant()
    def routes_name_who_serves(self) -> None:
        serving = sorted(broker_id for broker_id, each in self.live.items() if not each.recovering)
        route = self.table.route("orders")
        assert (list(route.brokers[0].endpoints) if route is not None else []) == serving
        assert self.table.snapshot().routes.get("orders") == route
        assert self.table.topic_count == len(self.table.snapshot().routes)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase

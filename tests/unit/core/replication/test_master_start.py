"""Whether a starting master may serve, must fetch, or has to wait: named cases, then whole groups drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.log_history import LogExtent, LogHistory
from tandemmq.core.replication.master_start import (
    Fetch,
    MasterStart,
    OwnReplica,
    Relation,
    ReplicaAnswer,
    Serve,
    StartStep,
    Wait,
)
from tandemmq.core.routing.values import ReplicaMemory

NAME_SERVER = "ns:9876"
HISTORY = LogHistory.of([(1, 0), (2, 100)])
SLAVE = ReplicaMemory(broker_id=1, disk_id="S", run=1, epoch=2, end_offset=500, metadata_endpoint="slave:10911")
OTHER = replace(SLAVE, broker_id=2, disk_id="S2", metadata_endpoint="slave-2:10911")
US = ReplicaMemory(broker_id=0, disk_id="M", run=1, epoch=2, end_offset=500)


def _own(end: int = 500, *, whole: bool = True, history: LogHistory = HISTORY, disk: str = "M") -> OwnReplica:
    return OwnReplica(broker_id=0, disk_id=disk, extent=LogExtent(0, end), history=history, is_whole=whole)


def _answer(
    end: int = 500,
    relation: Relation = Relation.WITHIN,
    *,
    disk: str = "S",
    broker_id: int = 1,
    history: LogHistory = HISTORY,
    serving: bool = True,
    remembers: tuple[ReplicaMemory, ...] = (),
) -> ReplicaAnswer:
    return ReplicaAnswer(
        broker_id=broker_id,
        endpoint=f"{disk}:10911",
        disk_id=disk,
        extent=LogExtent(0, end),
        history=history,
        relation=relation,
        serving=serving,
        remembers=remembers,
    )


def _step(
    own: OwnReplica,
    *answers: ReplicaAnswer,
    told: tuple[ReplicaMemory, ...] | None = (),
    remembered: tuple[ReplicaMemory, ...] = (),
    total: int = 2,
    now_ms: int = 0,
    accepts_loss: bool = False,
    in_sync_epoch: int = 0,
    rivals: dict[str, str] | None = None,
    copies: tuple[str, ...] = (),
) -> StartStep:
    """`told` None: the NameServer is silent."""
    start = MasterStart(
        own=own,
        total_replicas=total,
        name_servers=frozenset({NAME_SERVER}),
        recovery_timeout_ms=60_000,
        started_ms=0,
        remembered=remembered,
        accepts_loss=accepts_loss,
        in_sync_epoch=in_sync_epoch,
    )
    if told is not None:
        start.name_server_told(NAME_SERVER, told, now_ms=0)
    for answer in answers:
        start.replica_answered(answer)
    start.rivals_are(rivals or {}, copies=copies)
    return start.next_step(now_ms=now_ms)


def _waits(step: StartStep) -> Wait:
    assert isinstance(step, Wait), step
    return step


EMPTY = LogHistory()


class TestWhoFollowedAnother:
    """A group that failed over, and has fixed roles now: the home master was a slave when it was stopped."""

    OWN = replace(_own(), is_follower=True, promised_epoch=2)
    MASTER = replace(SLAVE, master_epoch=2, unproven=True)
    """Live when the NameServer ended, which heard no more of it than we have."""

    def test_the_master_of_its_last_epoch_may_have_gone_on(self) -> None:
        told = (replace(US, left=True), self.MASTER)
        wait = _waits(_step(self.OWN, told=told, remembered=(SLAVE,)))
        assert [memory.disk_id for memory in wait.missing] == ["S"]

    def test_that_master_is_not_waited_for_once_it_has_said_where_it_ended(self) -> None:
        left = replace(self.MASTER, left=True, unproven=False)
        step = _step(self.OWN, told=(replace(US, left=True), left), remembered=(SLAVE,), now_ms=10_000)
        assert isinstance(step, Serve)

    def test_it_serves_once_it_has_heard_it(self) -> None:
        step = _step(self.OWN, _answer(), told=(replace(US, left=True), self.MASTER))
        assert isinstance(step, Serve)

    def test_an_epoch_that_it_promised_to_another_is_not_its_own(self) -> None:
        step = _step(replace(self.OWN, promised_epoch=7), _answer(), told=(US, self.MASTER))
        assert isinstance(step, Serve)
        assert step.epoch == 8


class TestNobodyEverHeardOfTheGroup:
    def test_all_members_answered_with_nothing(self) -> None:
        step = _step(_own(0, history=EMPTY), _answer(0, history=EMPTY))
        assert isinstance(step, Serve)
        assert step.epoch == 1

    def test_an_announced_member_is_looked_for_a_while(self) -> None:
        own = _own(0, history=EMPTY)
        assert not _waits(_step(own, now_ms=9_999)).missing
        assert isinstance(_step(own, now_ms=10_000), Serve)

    def test_without_other_members_it_serves_at_once(self) -> None:
        assert isinstance(_step(_own(0, history=EMPTY), total=1), Serve)

    @pytest.mark.parametrize("total", [1, 2])
    def test_a_silent_name_server_may_know_it(self, total: int) -> None:
        step = _step(_own(0, history=EMPTY), told=None, total=total, now_ms=3_600_000)
        assert "ns:9876" in _waits(step).reason


class TestAnEmptyDisk:
    @pytest.mark.parametrize("total", [1, 2, 3])
    @pytest.mark.parametrize("now_ms", [0, 3_600_000])
    def test_waits_for_a_slave_that_a_name_server_remembers(self, total: int, now_ms: int) -> None:
        step = _waits(_step(_own(0, history=EMPTY, disk="new"), told=(US, SLAVE), total=total, now_ms=now_ms))
        assert SLAVE in step.missing
        assert step.lost_bytes == 500

    def test_fetches_from_the_slave(self) -> None:
        answer = _answer(500, Relation.EXTENDS)
        assert _step(_own(0, history=EMPTY, disk="new"), answer, told=(US, SLAVE)) == Fetch(answer)

    def test_the_old_disk_held_more_than_the_slave(self) -> None:
        """An ASYNC_MASTER's disk is gone with what the slave never got: told in numbers, an operator decides."""
        own, answer = _own(400, history=HISTORY, disk="new", whole=False), _answer(400)
        step = _waits(_step(own, answer, told=(US, replace(SLAVE, end_offset=400))))
        assert step.missing == (US,)
        assert step.lost_bytes == 100
        serve = _step(own, answer, told=(US, SLAVE), accepts_loss=True)
        assert isinstance(serve, Serve)
        assert serve.given_up == (US,)
        assert serve.epoch == 3

    def test_alone_in_its_group_it_waits_for_the_old_disk(self) -> None:
        assert _waits(_step(_own(0, history=EMPTY, disk="new"), told=(US,), total=1)).missing == (US,)


class TestAnOlderCopyOfTheDisk:
    @pytest.mark.parametrize(
        "newer", [replace(US, end_offset=501), replace(US, epoch=3), replace(US, epoch=3, end_offset=600)]
    )
    def test_is_known_by_what_others_remember(self, newer: ReplicaMemory) -> None:
        step = _waits(_step(_own(), told=(newer, SLAVE), remembered=(SLAVE,)))
        assert SLAVE in step.missing

    def test_fetches_what_the_slave_has_more(self) -> None:
        answer = _answer(700, Relation.EXTENDS, history=LogHistory.of([(1, 0), (2, 100), (3, 500)]))
        assert _step(_own(), answer, told=(replace(US, epoch=3, end_offset=700), SLAVE)) == Fetch(answer)

    @pytest.mark.parametrize("whole", [True, False])
    def test_of_an_epoch_that_it_has_not_heard_of_more_was_on_it_also_after_a_loss_of_power(self, whole: bool) -> None:
        newer = replace(US, epoch=3, end_offset=400)
        assert _waits(_step(_own(whole=whole), _answer(), told=(newer, SLAVE))).missing == (newer,)

    def test_the_slave_was_away_when_the_newer_copy_ran(self) -> None:
        step = _waits(_step(_own(), _answer(500), told=(replace(US, epoch=3, end_offset=700), SLAVE)))
        assert step.lost_bytes == 200


class TestAWholeLog:
    def test_needs_nobody_when_a_name_server_remembers_it_so(self) -> None:
        assert isinstance(_step(_own(), told=(US, SLAVE), remembered=(SLAVE,)), Serve)

    def test_needs_nobody_when_a_slave_remembers_it_so(self) -> None:
        other = replace(SLAVE, broker_id=2, disk_id="S2")
        step = _step(_own(), _answer(remembers=(US,)), told=(), remembered=(SLAVE, other), total=3)
        assert isinstance(step, Serve)

    def test_waits_without_a_witness(self) -> None:
        assert _waits(_step(_own(), told=(), remembered=(SLAVE,))).missing == (SLAVE,)
        assert _waits(_step(_own(), told=None, remembered=(SLAVE,), now_ms=3_600_000)).missing == (SLAVE,)

    def test_a_name_server_that_knows_only_that_the_disk_is_there_is_no_witness(self) -> None:
        """It has lost its memory, and heard of this very start."""
        echo = replace(US, end_offset=0, live=True)
        assert _waits(_step(_own(), told=(echo, SLAVE), remembered=(SLAVE,))).missing == (SLAVE,)
        assert _waits(_step(_own(), told=(echo,), remembered=(SLAVE,), in_sync_epoch=2)).missing == (SLAVE,)

    def test_waits_when_recovery_cut_something(self) -> None:
        assert _waits(_step(_own(whole=False), told=(US, SLAVE), remembered=(SLAVE,))).missing == (SLAVE,)

    def test_a_slave_is_remembered_with_more_than_we_have(self) -> None:
        """A gap at the end of our log looks like its end; the slave's last heartbeat came after our own."""
        before = replace(US, end_offset=400)
        assert _waits(_step(_own(400), told=(before, SLAVE))).missing == (SLAVE,)
        assert _waits(_step(_own(400), told=(before,), remembered=(SLAVE,))).missing == (SLAVE,)
        other = _answer(400, disk="S2", broker_id=2, remembers=(before, SLAVE))
        assert _waits(_step(_own(400), other, told=(), total=3)).missing == (SLAVE,)

    def test_a_slave_is_remembered_with_more_of_an_earlier_epoch(self) -> None:
        longer = replace(SLAVE, epoch=1, end_offset=600)
        assert isinstance(_step(_own(), told=(US, longer)), Serve)

    def test_somebody_served_after_us(self) -> None:
        later = ReplicaMemory(broker_id=0, disk_id="M2", epoch=3, end_offset=100)
        assert _waits(_step(_own(), told=(US, later, SLAVE), remembered=(SLAVE,))).missing

    def test_in_the_in_sync_set_it_needs_nobody_though_a_later_epoch_was_promised(self) -> None:
        promised = replace(_answer(400), promised_epoch=3)
        for in_sync_epoch, step in ((0, Wait), (2, Serve)):
            assert isinstance(
                _step(_own(), promised, told=(US, OTHER), remembered=(SLAVE, OTHER), in_sync_epoch=in_sync_epoch), step
            )

    def test_in_the_in_sync_set_others_with_more_show_that_it_may_be_an_older_copy(self) -> None:
        longer = replace(SLAVE, end_offset=600)
        assert _waits(_step(_own(), told=(US, longer), in_sync_epoch=2)).missing == (longer,)
        proven = replace(_own(), is_proven=True)
        assert isinstance(_step(proven, told=(longer,), in_sync_epoch=2), Serve), "its process knows that it is none"
        assert _waits(_step(proven, told=(US, longer))).missing == (longer,)

    def test_a_log_of_a_later_epoch_than_the_record_shows_that_the_authority_was_put_back(self) -> None:
        later = replace(SLAVE, epoch=3, end_offset=400)
        for told, remembered in (((US, later), ()), ((US,), (later,))):
            assert _waits(_step(_own(), told=told, remembered=remembered, in_sync_epoch=2)).missing == (later,)
        here = _own(history=LogHistory.of([(1, 0), (2, 100), (3, 450)]))
        assert isinstance(_step(here, told=(replace(US, epoch=3), later), in_sync_epoch=3), Serve)

    def test_in_a_set_of_an_epoch_that_it_never_heard_of_it_is_an_older_copy(self) -> None:
        assert _waits(_step(_own(), told=(US, SLAVE), remembered=(SLAVE,), in_sync_epoch=3)).missing == (SLAVE,)

    def test_what_this_start_said_of_itself_witnesses_nothing(self) -> None:
        echo = replace(US, live=True, unproven=True)
        for in_sync_epoch in (0, 2):
            step = _step(_own(), told=(echo, SLAVE), remembered=(SLAVE,), in_sync_epoch=in_sync_epoch)
            assert _waits(step).missing == (SLAVE,)


class TestTwoSlaves:
    @pytest.mark.parametrize("total", [2, 3])
    def test_the_shorter_one_is_not_enough(self, total: int) -> None:
        step = _step(_own(300, whole=False), _answer(400, Relation.EXTENDS), remembered=(SLAVE, OTHER), total=total)
        assert _waits(step).missing == (OTHER,)

    def test_the_longer_one_is_fetched(self) -> None:
        longer = _answer(500, Relation.EXTENDS, disk="S2", broker_id=2)
        step = _step(_own(300, whole=False), _answer(400, Relation.EXTENDS), longer, remembered=(SLAVE, OTHER), total=3)
        assert step == Fetch(longer)

    def test_a_byte_of_a_later_epoch_counts_more_than_length(self) -> None:
        later = _answer(450, Relation.PARTED, disk="S2", broker_id=2, history=LogHistory.of([(1, 0), (3, 400)]))
        step = _step(_own(300, whole=False), _answer(500, Relation.EXTENDS), later, total=3)
        assert step == Fetch(later)

    def test_an_epoch_that_was_only_heard_of_counts_nothing(self) -> None:
        """One slave follows the new master from far behind; the other has more of the old one's log."""
        behind = _answer(
            200, Relation.WITHIN, disk="S2", broker_id=2, history=LogHistory.of([(1, 0), (2, 100), (3, 600)])
        )
        longer = _answer(500, Relation.EXTENDS)
        assert _step(_own(300, whole=False), behind, longer, total=3) == Fetch(longer)

    def test_more_log_of_a_master_that_had_been_replaced_brings_no_newer_leases(self) -> None:
        """We were master after it, took no message, and answered acknowledgements."""
        own = _own(300, history=LogHistory.of([(1, 0), (2, 100), (3, 300)]))
        replaced = _answer(500, Relation.EXTENDS, serving=False)
        assert _step(own, replaced) == Fetch(replaced, is_newer=False)

    def test_a_replica_without_a_history_is_taken_for_newer(self) -> None:
        unversioned = _answer(500, Relation.EXTENDS, history=LogHistory())
        assert _step(_own(0, history=LogHistory.of([(3, 0)])), unversioned) == Fetch(unversioned, is_newer=True)


class TestAnswersGrowOld:
    def test_who_answered_once_and_is_away_is_waited_for(self) -> None:
        start = MasterStart(
            own=_own(whole=False),
            total_replicas=2,
            name_servers=frozenset({NAME_SERVER}),
            recovery_timeout_ms=60_000,
            started_ms=0,
        )
        start.name_server_told(NAME_SERVER, (SLAVE,), now_ms=0)
        start.replica_answered(_answer())
        assert isinstance(start.next_step(now_ms=0), Serve)
        start.hear_anew()
        assert _waits(start.next_step(now_ms=3_600_000)).missing == (SLAVE,)


class TestTwoProcessesWithOneId:
    def test_the_second_waits_while_the_first_serves(self) -> None:
        rival = _answer(500, disk="M1", broker_id=0)
        step = _step(_own(0, history=EMPTY, disk="M2"), rival, rivals={"M1": "m1:10911"}, accepts_loss=True)
        assert "brokerId" in _waits(step).reason

    def test_the_second_waits_while_the_first_does_not_answer(self) -> None:
        assert "brokerId" in _waits(_step(_own(0, disk="M2"), rivals={"M1": "m1:10911"}, now_ms=3_600_000)).reason

    def test_one_on_a_copy_of_the_disk_waits_as_well(self) -> None:
        step = _step(_own(), _answer(), told=(US,), copies=("m1:10911",), accepts_loss=True)
        assert "copy of this very disk, at m1:10911" in _waits(step).reason

    def test_of_two_that_start_the_one_with_the_better_log_goes_on(self) -> None:
        rival = _answer(300, disk="M1", broker_id=0, serving=False)
        slave = _answer(500)
        assert isinstance(_step(_own(500), rival, slave, rivals={"M1": "m1:10911"}), Serve)
        worse = replace(rival, extent=LogExtent(0, 600), relation=Relation.EXTENDS)
        assert "brokerId" in _waits(_step(_own(500), worse, slave, rivals={"M1": "m1:10911"})).reason


def test_a_better_log_that_cannot_be_taken_over_is_waited_for() -> None:
    answer = _answer(700, Relation.PARTED)
    start = MasterStart(
        own=_own(500), total_replicas=2, name_servers=frozenset(), recovery_timeout_ms=60_000, started_ms=0
    )
    start.replica_answered(answer)
    assert start.next_step(now_ms=0) == Fetch(answer)
    start.cannot_fetch(answer, "differs from 300 on")
    assert "differs from 300 on" in _waits(start.next_step(now_ms=0)).reason


class TestWhatIsKnownToBeLost:
    """`SLAVE` is waited for; what anybody else is remembered with counts as well."""

    AWAY = replace(SLAVE, end_offset=300)

    def test_of_a_group_rolled_back_as_a_whole_the_name_servers_know_it(self) -> None:
        """Both disks answer, with less than they had; only the third member, which had less, is away."""
        own, answer = _own(400, whole=False), _answer(400, disk="S1", broker_id=2)
        told = (replace(US, end_offset=900), replace(SLAVE, broker_id=2, disk_id="S1", end_offset=700), self.AWAY)
        step = _waits(_step(own, answer, told=told, total=3))
        assert step.missing == (self.AWAY,)
        assert step.lost_bytes == 500
        assert [(one.source, one.memory.disk_id, one.lost_bytes) for one in step.witnesses] == [
            ("NameServer ns:9876", "M", 500),
            ("NameServer ns:9876", "S1", 300),
        ]
        serve = _step(own, answer, told=told, total=3, accepts_loss=True)
        assert isinstance(serve, Serve)
        assert serve.lost_bytes == 500

    def test_an_epoch_that_nobody_in_reach_has_heard_of_is_told_without_an_amount(self) -> None:
        step = _waits(_step(_own(), _answer(), told=(replace(US, epoch=3), SLAVE)))
        assert step.lost_bytes == 0
        assert [(one.memory.epoch, one.lost_bytes) for one in step.witnesses] == [(3, 0)]

    def test_each_source_is_named_and_the_greatest_counts(self) -> None:
        other = _answer(400, disk="S2", broker_id=2, remembers=(replace(SLAVE, end_offset=600),))
        step = _waits(_step(_own(400, whole=False), other, told=(SLAVE,), remembered=(SLAVE,), total=3))
        assert [(one.source, one.lost_bytes) for one in step.witnesses] == [
            ("replica S2:10911", 200),
            ("NameServer ns:9876", 100),
            ("this disk", 100),
        ]
        assert step.lost_bytes == 200

    def test_more_of_an_earlier_epoch_is_no_loss_unless_it_is_waited_for(self) -> None:
        replaced = replace(SLAVE, broker_id=2, disk_id="S1", epoch=1, end_offset=900)
        answer = _answer(400, disk="S3", broker_id=2)
        step = _waits(_step(_own(400, whole=False), answer, told=(US, replaced, self.AWAY), total=3))
        assert "S1" not in {one.memory.disk_id for one in step.witnesses}
        assert step.lost_bytes == 100

    def test_what_is_in_reach_is_not_lost(self) -> None:
        """The slave has heard of epoch 3 and holds more of epoch 2 than we do; what was served since is ours."""
        own = _own(450, whole=False, history=LogHistory.of([(1, 0), (3, 400)]))
        slave = _answer(500, Relation.PARTED, history=LogHistory.of([(1, 0), (2, 100), (3, 600)]))
        away = replace(SLAVE, broker_id=2, disk_id="S2", epoch=3, end_offset=450)
        step = _waits(_step(own, slave, told=(replace(SLAVE, epoch=3, end_offset=500), away), total=3))
        assert (step.missing, step.lost_bytes, step.witnesses) == ((away,), 0, ())

    def test_a_log_that_cannot_be_taken_over_is_lost_from_the_end_of_ours(self) -> None:
        answer = _answer(700, Relation.PARTED)
        start = MasterStart(
            own=_own(500), total_replicas=2, name_servers=frozenset(), recovery_timeout_ms=60_000, started_ms=0
        )
        start.replica_answered(answer)
        start.cannot_fetch(answer, "differs from 300 on")
        step = _waits(start.next_step(now_ms=0))
        assert (step.end_offset, step.lost_bytes) == (500, 200)
        assert [one.source for one in step.witnesses] == ["replica S:10911"]


def test_only_the_disks_that_an_operator_named_are_given_up() -> None:
    other = ReplicaMemory(broker_id=2, disk_id="S2", run=1, epoch=2, end_offset=600)
    start = MasterStart(
        own=_own(400, whole=False),
        total_replicas=3,
        name_servers=frozenset(),
        recovery_timeout_ms=60_000,
        started_ms=0,
        remembered=(SLAVE,),
        given_up=frozenset({"S"}),
    )
    step = start.next_step(now_ms=0)
    assert isinstance(step, Serve)
    assert (step.given_up, step.lost_bytes) == ((SLAVE,), 100)
    start.name_server_told(NAME_SERVER, (other,), now_ms=1)
    assert _waits(start.next_step(now_ms=1)).missing == (other,), "nobody was asked about that one"


def test_a_better_log_that_cannot_be_taken_over_can_be_given_up_by_its_name() -> None:
    answer = _answer(700, Relation.PARTED)
    start = MasterStart(
        own=_own(500), total_replicas=2, name_servers=frozenset(), recovery_timeout_ms=60_000, started_ms=0
    )
    start.replica_answered(answer)
    start.cannot_fetch(answer, "differs from 300 on")
    assert [memory.disk_id for memory in _waits(start.next_step(now_ms=0)).missing] == ["S"]
    start.given_up = frozenset({"S"})
    assert isinstance(start.next_step(now_ms=0), Serve)


def test_a_lost_disk_that_held_nothing_is_not_waited_for() -> None:
    started = ReplicaMemory(broker_id=0, disk_id="M0", run=1, epoch=7, end_offset=0)
    step = _step(_own(), _answer(500), told=(US, started))
    assert isinstance(step, Serve)
    assert step.epoch == 8


# Whole groups. Three disks at most, a line of masters' epochs, and every byte known by who wrote it.


@dataclass
class _Disk:
    broker_id: int
    disk_id: str
    log: list[tuple[int, int]] = field(default_factory=list)
    history: LogHistory = field(default_factory=LogHistory)
    is_whole: bool = True
    knows: dict[int, ReplicaMemory] = field(default_factory=dict)

    def copy(self) -> _Disk:
        return _Disk(self.broker_id, self.disk_id, list(self.log), self.history, self.is_whole, dict(self.knows))

    def memory(self) -> ReplicaMemory:
        return ReplicaMemory(
            broker_id=self.broker_id, disk_id=self.disk_id, epoch=self.history.last_epoch, end_offset=len(self.log)
        )


class _Group:
    """Sync replication with one NameServer whose memory is never behind; `acked` is what producers were promised."""

    def __init__(self, slave_count: int) -> None:
        self.disks = [_Disk(number, f"disk-{number}") for number in range(slave_count + 1)]
        self.acked: list[tuple[int, int]] = []
        self.memory: dict[str, ReplicaMemory] = {}
        self.disk_count = 0

    def note(self, disk: _Disk) -> None:
        self.memory[disk.disk_id] = disk.memory()

    def start(self, reachable: set[int], *, total_replicas: int) -> bool:
        """True when the master serves; fetches on its way."""
        master = self.disks[0]
        start = MasterStart(
            own=self._own(),
            total_replicas=total_replicas,
            name_servers=frozenset({NAME_SERVER}),
            recovery_timeout_ms=60_000,
            started_ms=0,
            remembered=tuple(master.knows.values()),
        )
        for _ in range(8):
            start.name_server_told(NAME_SERVER, self.memory.values(), now_ms=0)
            for number in sorted(reachable - {0}):
                start.replica_answered(self._answer(self.disks[number]))
            step = start.next_step(now_ms=100_000)
            if isinstance(step, Serve):
                master.history = master.history.begun(step.epoch, len(master.log))
                master.is_whole = True
                self.note(master)
                return True
            if isinstance(step, Wait):
                return False
            better = next(disk for disk in self.disks if disk.disk_id == step.answer.disk_id)
            master.log, master.history, master.is_whole = list(better.log), better.history, False
            start.log_changed(self._own())
        raise AssertionError("it fetches without an end")

    def serve(self, following: set[int], writes: int, acknowledged: int) -> None:
        """The slaves in `following` get everything; the last `writes` - `acknowledged` bytes reach nobody."""
        master = self.disks[0]
        for number in following:
            slave = self.disks[number]
            slave.history, slave.log, slave.is_whole = master.history, list(master.log), True
            slave.knows[0], master.knows[number] = master.memory(), slave.memory()
        for count in range(writes):
            master.log.append((master.history.last_epoch, len(master.log)))
            if count < acknowledged and following:
                for number in following:
                    self.disks[number].log.append(master.log[-1])
                self.acked = master.log[:]
        for number in {0, *following}:
            self.note(self.disks[number])

    def _own(self) -> OwnReplica:
        master = self.disks[0]
        return OwnReplica(0, master.disk_id, LogExtent(0, len(master.log)), master.history, master.is_whole)

    def _answer(self, disk: _Disk) -> ReplicaAnswer:
        ours, theirs = self.disks[0].log, disk.log
        shorter = min(len(ours), len(theirs))
        relation = Relation.WITHIN if len(theirs) <= len(ours) else Relation.EXTENDS
        if ours[:shorter] != theirs[:shorter]:
            relation = Relation.PARTED
        return ReplicaAnswer(
            broker_id=disk.broker_id,
            endpoint=disk.disk_id,
            disk_id=disk.disk_id,
            extent=LogExtent(0, len(theirs)),
            history=disk.history,
            relation=relation,
            remembers=tuple(disk.knows.values()),
        )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nothing_acknowledged_is_lost_and_all_members_together_always_suffice(data: st.DataObject) -> None:
    """Disks replaced, rolled back, without power; one fault at a time between two starts, in any order."""
    slave_count = data.draw(st.integers(1, 2))
    group = _Group(slave_count)
    everybody = set(range(slave_count + 1))
    total = data.draw(st.integers(2, slave_count + 1))
    old = [disk.copy() for disk in group.disks]
    for _ in range(data.draw(st.integers(1, 8))):
        reachable = data.draw(st.sets(st.sampled_from(sorted(everybody)))) | {0}
        if not group.start(reachable, total_replicas=total):
            if not group.start(everybody, total_replicas=total):
                # Only what a disk held alone is worth waiting for, and nobody was promised that.
                held = max(len(disk.log) for disk in group.disks)
                assert held >= len(group.acked)
                return
            reachable = everybody
        assert group.disks[0].log[: len(group.acked)] == group.acked
        writes = data.draw(st.integers(0, 5))
        following = reachable - {0} if slave_count == 1 or data.draw(st.booleans()) else reachable - {0, 2}
        group.serve(following, writes, data.draw(st.integers(0, writes)))
        victim = data.draw(st.sampled_from(sorted(following | {0})))
        fault = data.draw(st.sampled_from(["kill", "new disk", "old disk", "power", "copy"]))
        disk = group.disks[victim]
        safe = [other for other in group.disks if other is not disk and len(other.log) >= len(group.acked)]
        if not safe:
            fault = "kill"
        if fault == "copy":
            old = [each.copy() for each in group.disks]
        elif fault == "new disk":
            group.disk_count += 1
            group.disks[victim] = _Disk(victim, f"new-{group.disk_count}")
        elif fault == "old disk":
            if old[victim].disk_id == disk.disk_id:
                group.disks[victim] = old[victim].copy()
        elif fault == "power":
            lost = data.draw(st.integers(0, 3))
            disk.log, disk.is_whole = disk.log[: max(0, len(disk.log) - lost)], False
            group.note(disk) if victim else None
        if victim and fault in ("new disk", "old disk"):
            group.note(group.disks[victim])

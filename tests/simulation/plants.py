"""Bugs planted on purpose, by exchanging a function or two of the product: proof that the checkers bite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from enum import Enum
from typing import Any
from unittest import mock

from simulation.checkers import last_boundary
from simulation.member import Member
from simulation.run_settings import RunSettings
from simulation.sim_broker import SimBroker
from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.master.group_recovery import GroupRecovery
from tandemmq.broker.master.role import MasterRole
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.core.delivery.queue_progress import QueueProgress
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.log_history import LogHistory, LogRange
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.master_start import Fetch, MasterStart, Serve, StartStep
from tandemmq.core.replication.mastership import FailoverStep, GroupRecord, Mastership, Replica, StepDown, Write
from tandemmq.core.replication.slave_catch_up import CatchUpStep
from tandemmq.core.routing.values import ReplicaMemory
from tandemmq.core.storage.commit_log import CommitLog
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.flush_jobs import LogFlushJob
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.core.storage.put_result import PutStatus


class Plant(Enum):
    """A planted bug; the value is its name on the command line."""

    ACK_BEFORE_REPORT = "ack-before-report"
    """A master that answers PUT_OK before any slave has reported the message."""
    SKIP_SYNC = "skip-sync"
    """A store that calls the log flushed without having synced it."""
    CUT_NOT_DURABLE = "cut-not-durable"
    """A store that cuts its log without syncing the cut."""
    FOLLOW_UNPROVEN = "follow-unproven"
    """A slave that connects without having compared its log with the master's, as RocketMQ's does."""
    SERVE_AT_ONCE = "serve-at-once"
    """A master that serves without having asked its group, as RocketMQ's does."""
    SERVE_WITH_LESS = "serve-with-less"
    """A master that serves although a replica that answered has a better log."""
    WITNESS_ALWAYS_BELIEVED = "witness-always-believed"
    """A master that takes its disk for the newest copy of itself without a witness."""
    CUT_FOR_ANY_MASTER = "cut-for-any-master"
    """A slave that follows, and cuts its log for, a master without a newer history; and such a master."""
    EPOCH_NOT_DURABLE = "epoch-not-durable"
    """A replica that keeps the history of its log in memory."""
    HALF_RECORD_KEPT = "half-record-kept-after-fetch"
    """A master that goes on behind a part of a record that it fetched."""
    METADATA_NOT_FETCHED = "metadata-not-fetched"
    """A master that fetches a log and no tables."""
    EMPTY_TABLE_TAKEN = "empty-table-taken"
    """The same, and its slaves take what it has."""
    FENCE_IGNORED = "fence-ignored"
    """A master that goes on although it learned of a later one."""
    COMMITTED_TOO_FAR = "committed+1"
    """A lease table that commits one message too many."""

    # Of groups that fail over.
    RECORD_OVERWRITTEN = "record-overwritten"
    """A master that renews over whatever record is there."""
    EPOCH_NOT_RAISED = "epoch-not-raised"
    """A claim that goes on in its predecessor's epoch."""
    ACK_BY_NEW_SET = "ack-by-new-set"
    """A master that acknowledges by the set that it has only asked for."""
    OLD_RECORD_BELIEVED = "old-record-believed"
    """A member that takes a record that was put back for the newest."""
    REPORT_UNPROVEN = "report-unproven"
    """A master that counts a slave's reports without having compared its log."""
    NEXT_MASTER_IGNORED = "next-master-ignored"
    """A master that goes on although the record names a later one."""
    UNKNOWN_SWAP_FORGOTTEN = "unknown-swap-forgotten"
    """A master that takes a swap without an answer for one that was not applied."""
    CONNECTED_ONLY = "connected-only"
    """A master that acknowledges without members of the set that are away."""
    GROWS_AT_ONCE = "grows-at-once"
    """A set that takes every slave in as soon as it is connected."""
    CLAIM_BY_ANYBODY = "claim-by-anybody"
    """A claim by a member that is not in the in-sync set."""
    CLAIM_AFTER_START = "claim-after-start"
    """A claim by a process that has not heard its group, nor followed its master to the end."""
    SERVE_WITHOUT_HEARING = "serve-without-hearing"
    """A master that was started again, and asks nobody what it may have lost."""
    CUT_AT_BEGIN = "cut-at-begin"
    """A master that begins its epoch with what is on its disk, and cuts the rest."""
    JOINS_UNCUT = "joins-uncut"
    """A former master that follows without having compared its log."""
    LEASE_IGNORED = "lease-ignored"
    """A master that goes on when its lease is over."""
    PROMISE_BROKEN = "promise-broken"
    """A member that promises not to claim, and claims."""
    CLAIM_LATE = "claim-late"
    """A member that lets a group be without a master for some leases."""
    SHOWN_UNCONFIRMED = "shown-unconfirmed"
    """A master that shows consumers what no other member of the in-sync set holds."""
    SETTLED_BEFORE_COPIED = "settled-before-copied"
    """A master that answers acknowledgements which no other member of the in-sync set knows of."""
    OLD_COPY_BELIEVED = "old-copy-believed"
    """A NameServer that takes what a starting process says of its disk for what the disk held."""
    ACTS_WITHOUT_ITS_SLAVE = "acts-without-its-slave"
    """A master that acts for its whole lease although a member of the set that has left may claim sooner."""
    FIRST_SETTINGS_KEPT = "first-settings-kept"
    """A disk on which brokers go on with the `inSyncReplicas` of their first start."""
    NEWCOMER_LEFT_OUT = "newcomer-left-out"
    """An in-sync set that takes in those alone that a group of three begins with."""
    FAILED_SYNC_REPEATED = "failed-sync-repeated"
    """A store that syncs again after a failed sync, and takes that for all."""
    COPY_ELECTABLE = "copy-electable"
    """A slave that goes on beside another process on a copy of its disk: what its master counts for one the other may
    lack."""
    VERSIONS_NOT_ASKED = "versions-not-asked"
    """A member that claims when a lease is over, and asks nobody whether they have seen a later record."""


def steered(settings: RunSettings, plant: Plant | None) -> RunSettings:
    """The settings of a run that comes to the place of a planted bug; without the bug it has to keep every promise."""
    if plant is None:
        return settings
    if plant in FAILOVER_PLANTS:
        settings = settings.with_failover()
    elif settings.failover:
        settings = settings.without_failover()
    return settings if plant not in _STEERING else replace(settings, **_STEERING[plant])


@contextmanager
def planted(plant: Plant | None) -> Iterator[None]:
    """The product with one bug more, or as it is."""
    with ExitStack() as stack:
        for target, replacement in () if plant is None else _CHANGES[plant]:
            stack.enter_context(mock.patch(target, replacement))
        yield


def _submit_at_once(self: MasterReplica, put: object, now_ms: int) -> PutStatus:
    return PutStatus.PUT_OK


def _no_sync(self: LogFlushJob) -> None:
    pass


_set_end = CommitLog.set_end


def _set_end_without_sync(self: CommitLog, end_offset: int) -> int:
    with mock.patch("support.simulated_disk.SimulatedDisk.sync_file"):
        return _set_end(self, end_offset)


def _always_connect(**circumstances: object) -> CatchUpStep:
    return CatchUpStep.CONNECT


def _serve_at_once(self: MasterStart, *, now_ms: int) -> StartStep:
    return Serve(epoch=1 + self._greatest_epoch(), reason="planted")


_next_step = MasterStart.next_step


def _serve_with_less(self: MasterStart, *, now_ms: int) -> StartStep:
    step = _next_step(self, now_ms=now_ms)
    return _serve_at_once(self, now_ms=now_ms) if isinstance(step, Fetch) else step


def _is_whole(self: MasterStart) -> bool:
    return self.own.is_whole


def _own_epoch_only(self: MasterStart) -> int:
    return self.own.history.last_epoch


def _no_objection(*extents: object, **circumstances: object) -> str:
    return ""


async def _history_in_memory(self: ReplicaIdentity, history: LogHistory) -> None:
    self.history = history


async def _nothing(*arguments: object, **circumstances: object) -> None:
    pass


async def _as_if_done(*_: object) -> bool:
    return True


def _take_all(self: TopicTable, text: str, version: DataVersion) -> list[str]:
    self.load_json(text)
    return []


def _ignore(*arguments: object) -> None:
    pass


_settle = QueueProgress._settle


def _settle_too_far(self: QueueProgress) -> None:
    _settle(self)
    if self.committed < self.next_offset:
        self.committed += 1


# Of groups that fail over.


async def _write_over(self: Failover, record: GroupRecord) -> None:
    sent_ms = self._now_ms()
    self._member.sent(record, now_ms=sent_ms)
    self._host.role.require()
    self._held = await self._authority.swap(await self._authority.read(), record)
    self._member.written(record, self._held.version, sent_ms=sent_ms, now_ms=self._now_ms())
    self._host.role.require()
    self._arm_fence()


_claim = Mastership.claim


def _claim_same_epoch(self: Mastership, reason: str, *, epoch: int) -> GroupRecord:
    record = _claim(self, reason, epoch=epoch)
    return record if self.record is None else replace(record, epoch=self.record.epoch)


_member_step = Mastership.next_step


def _step_as_member(self: Mastership, *, now_ms: int, is_electable: bool) -> FailoverStep:
    record = self.record
    if record is not None:
        self.record = replace(record, in_sync=record.in_sync | {self.me})
    try:
        return _member_step(self, now_ms=now_ms, is_electable=is_electable)
    finally:
        self.record = record


def _claim_always(self: Mastership, *, now_ms: int, is_electable: bool) -> FailoverStep:
    return _member_step(self, now_ms=now_ms, is_electable=True)


def _newest_set(self: Mastership) -> frozenset[Replica]:
    sets = [self.record.in_sync if self.record is not None else frozenset(), *(sent.in_sync for sent, _ in self._open)]
    return sets[-1] - {self.me}


def _known_set(self: Mastership) -> frozenset[Replica]:
    return frozenset() if self.record is None else self.record.in_sync - {self.me}


async def _take_at_its_word(
    self: ReplicaProof, member: ReplicaMemory, *, tail: LogRange, digest: bytes, connection: str
) -> bool:
    role = self._role()
    if not role.is_serving or member.epoch > self._replica.history.last_epoch:
        return False
    await self._replica.remember(member)
    role.verified(member.broker_id, member.disk_id, tail.end_offset, connection)
    return True


_next_write = Mastership.next_write


def _write_on(self: Mastership, *, now_ms: int, end_offset: int, acked: Mapping[Replica, int]) -> FailoverStep | None:
    step = _next_write(self, now_ms=now_ms, end_offset=end_offset, acked=acked)
    if not isinstance(step, StepDown) or self.record is None:
        return step
    return Write(replace(self.record, renewals=self.record.renewals + 1))


_require = MasterReplica.require


def _require_connected(self: MasterReplica, disk_ids: frozenset[str]) -> None:
    _require(self, disk_ids & {session.disk_id for session in self._started})


_next_set = Mastership._next_set


def _grown_set(
    self: Mastership, record: GroupRecord, acked: Mapping[Replica, int], *, now_ms: int
) -> frozenset[Replica]:
    return _next_set(self, record, acked, now_ms=now_ms) | acked.keys()


_begin_claimed = GroupRecovery.begin_claimed


async def _begin_cut(self: GroupRecovery, epoch: int) -> None:
    async with self._alone_with_store():
        self._store.truncate(last_boundary(self._store, self._store.flushed_offset), reason="planted")
    await _begin_claimed(self, epoch)


_promise = Mastership.promise


def _promise_for_nothing(self: Mastership, epoch: int, duration_ms: int, *, now_ms: int) -> bool:
    is_promised = _promise(self, epoch, duration_ms, now_ms=now_ms)
    self._claims_after_ms = 0
    return is_promised


class _FirstSettings(SimBroker):
    """A broker as the shell of the product would make it, had it its settings from its disk."""

    def __init__(self, *, member: Member, settings: RunSettings, **parts: Any) -> None:
        asked = settings.in_sync_replicas
        first = member.disk.__dict__.setdefault("first_in_sync_replicas", asked)
        super().__init__(member=member, settings=replace(settings, in_sync_replicas=first), **parts)
        self.needed_copies = asked


def _set_of_three(
    self: Mastership, record: GroupRecord, acked: Mapping[Replica, int], *, now_ms: int
) -> frozenset[Replica]:
    return frozenset(each for each in _next_set(self, record, acked, now_ms=now_ms) if each.broker_id < 3)


_sync = LogFlushJob._sync


def _sync_again(self: LogFlushJob) -> None:
    try:
        _sync(self)
    except DiskError:
        for segment in self.segments:
            with suppress(DiskError):
                segment.sync()


def _everything(self: MasterReplica) -> int:
    return 1 << 62


def _held_at_once(self: MasterRole, done: Callable[[bool], object]) -> None:
    done(True)


def _ignore_slave(self: Mastership, replica: Replica, *, now_ms: int) -> None:
    """It is as if it were there."""


_START = "tandemmq.core.replication.master_start.MasterStart"
# What is remembered of the others would keep it from serving, whatever it lacks.
_OTHERS_MORE_IGNORED = (f"{_START}._knew_more", lambda self, memory, best_rank: False)
# Nor would it claim, as long as it has not all that its master had.
_DOUBT_IGNORED = ("tandemmq.broker.slave.role.SlaveRole._doubt_until_caught_up", _nothing)
_TABLE_NOT_FETCHED = ("tandemmq.broker.master.group_recovery.recover_metadata", _nothing)

_MASTERSHIP = "tandemmq.core.replication.mastership.Mastership"
_FAILOVER = "tandemmq.broker.failover.controller.Failover"

_CHANGES: dict[Plant, tuple[tuple[str, Any], ...]] = {
    Plant.ACK_BEFORE_REPORT: (("tandemmq.core.replication.master_replica.MasterReplica.submit", _submit_at_once),),
    Plant.SKIP_SYNC: (("tandemmq.core.storage.flush_jobs.LogFlushJob._sync", _no_sync),),
    Plant.CUT_NOT_DURABLE: (("tandemmq.core.storage.commit_log.CommitLog.set_end", _set_end_without_sync),),
    Plant.FOLLOW_UNPROVEN: (("tandemmq.broker.slave.follower.catch_up_step", _always_connect),),
    Plant.SERVE_AT_ONCE: ((f"{_START}.next_step", _serve_at_once),),
    Plant.SERVE_WITH_LESS: ((f"{_START}.next_step", _serve_with_less),),
    Plant.WITNESS_ALWAYS_BELIEVED: ((f"{_START}._is_proven", _is_whole),),
    Plant.CUT_FOR_ANY_MASTER: (
        (f"{_START}.next_step", _serve_at_once),
        (f"{_START}._greatest_epoch", _own_epoch_only),
        ("tandemmq.core.replication.slave_catch_up.stale_reason", _no_objection),
        ("tandemmq.broker.slave.follower.cut_refusal", _no_objection),
    ),
    Plant.EPOCH_NOT_DURABLE: (("tandemmq.broker.replica_identity.ReplicaIdentity._write_history", _history_in_memory),),
    Plant.HALF_RECORD_KEPT: (("tandemmq.broker.master.group_recovery.GroupRecovery._cut_half_record", _as_if_done),),
    Plant.METADATA_NOT_FETCHED: (_TABLE_NOT_FETCHED,),
    Plant.EMPTY_TABLE_TAKEN: (
        _TABLE_NOT_FETCHED,
        ("tandemmq.core.metadata.topic_table.TopicTable.apply_from_master", _take_all),
    ),
    Plant.FENCE_IGNORED: (("simulation.sim_master.SimMaster.superseded", _ignore),),
    Plant.COMMITTED_TOO_FAR: (("tandemmq.core.delivery.queue_progress.QueueProgress._settle", _settle_too_far),),
    Plant.RECORD_OVERWRITTEN: ((f"{_FAILOVER}._write", _write_over),),
    Plant.EPOCH_NOT_RAISED: ((f"{_MASTERSHIP}.claim", _claim_same_epoch),),
    Plant.ACK_BY_NEW_SET: ((f"{_MASTERSHIP}.others", property(_newest_set)),),
    Plant.OLD_RECORD_BELIEVED: ((f"{_MASTERSHIP}._went_back", lambda self, record: False),),
    Plant.REPORT_UNPROVEN: (("tandemmq.broker.replica_proof.ReplicaProof.verify", _take_at_its_word),),
    Plant.NEXT_MASTER_IGNORED: ((f"{_MASTERSHIP}.next_write", _write_on),),
    Plant.UNKNOWN_SWAP_FORGOTTEN: ((f"{_MASTERSHIP}.others", property(_known_set)),),
    Plant.CONNECTED_ONLY: (("tandemmq.core.replication.master_replica.MasterReplica.require", _require_connected),),
    Plant.GROWS_AT_ONCE: (
        (f"{_MASTERSHIP}._next_set", _grown_set),
        _OTHERS_MORE_IGNORED,
        _DOUBT_IGNORED,
    ),
    Plant.CLAIM_BY_ANYBODY: (
        (f"{_MASTERSHIP}.next_step", _step_as_member),
        (f"{_MASTERSHIP}.may_claim", lambda self: self._is_heard),
    ),
    Plant.CLAIM_AFTER_START: ((f"{_MASTERSHIP}.next_step", _claim_always),),
    Plant.SERVE_WITHOUT_HEARING: ((f"{_START}.next_step", _serve_at_once),),
    Plant.CUT_AT_BEGIN: (("tandemmq.broker.master.group_recovery.GroupRecovery.begin_claimed", _begin_cut),),
    Plant.JOINS_UNCUT: (("tandemmq.broker.slave.follower.catch_up_step", _always_connect),),
    Plant.LEASE_IGNORED: ((f"{_FAILOVER}._refuse", _ignore),),
    Plant.PROMISE_BROKEN: ((f"{_MASTERSHIP}.promise", _promise_for_nothing),),
    Plant.CLAIM_LATE: ((f"{_MASTERSHIP}._rank", lambda self, record: 40),),
    Plant.SHOWN_UNCONFIRMED: (
        ("tandemmq.core.replication.master_replica.MasterReplica.confirmed_offset", property(_everything)),
    ),
    Plant.OLD_COPY_BELIEVED: (
        (
            "tandemmq.core.routing.group_memory.GroupMemory._unless_older",
            staticmethod(lambda known, told: replace(told, unproven=False)),
        ),
        _OTHERS_MORE_IGNORED,
    ),
    Plant.SETTLED_BEFORE_COPIED: (("tandemmq.broker.master.role.MasterRole.when_progress_held", _held_at_once),),
    Plant.ACTS_WITHOUT_ITS_SLAVE: ((f"{_MASTERSHIP}.slave_left", _ignore_slave),),
    Plant.FIRST_SETTINGS_KEPT: (("simulation.cluster.SimBroker", _FirstSettings),),
    Plant.NEWCOMER_LEFT_OUT: ((f"{_MASTERSHIP}._next_set", _set_of_three),),
    Plant.FAILED_SYNC_REPEATED: (("tandemmq.core.storage.flush_jobs.LogFlushJob._sync", _sync_again),),
    Plant.VERSIONS_NOT_ASKED: ((f"{_FAILOVER}._hear_versions", _nothing),),
    Plant.COPY_ELECTABLE: (
        ("tandemmq.broker.group_members.GroupMembers.other_process", lambda self, disk_id, *, run, incarnation: None),
    ),
}

# What the drawn settings seldom come to.
_STEERING: dict[Plant, dict[str, Any]] = {
    Plant.CUT_NOT_DURABLE: {
        "in_sync_replicas": 1,
        "fault_time_ms": 60_000,
        "fault_pause_ms": 6_000,
        "pause_ms_max": 500,
        "name_server_late_ms": 0,
        "slaves_late_ms": 0,
        "fault_weights": (("give_up_slaves", 20), ("lose_power_after_cut", 40)),
    },
    Plant.FOLLOW_UNPROVEN: {
        "fault_time_ms": 60_000,
        "fault_pause_ms": 6_000,
        "pause_ms_max": 500,
        "name_server_late_ms": 0,
        "slaves_late_ms": 0,
        "fault_weights": (("give_up_slaves", 30),),
    },
    Plant.FENCE_IGNORED: {
        "fault_time_ms": 60_000,
        "fault_pause_ms": 12_000,
        "pause_ms_max": 500,
        "name_server_late_ms": 0,
        "slaves_late_ms": 0,
        "fault_weights": (("replace_silent_master", 60),),
    },
    Plant.HALF_RECORD_KEPT: {
        "transfer_batch_bytes": 500,
        "body_bytes_max": 1_200,
        "equal_messages": False,
        "pause_ms_max": 200,
        "fault_time_ms": 30_000,
        "fault_weights": (("lose_master_disk_within_record", 40), ("slow_network", 20)),
    },
    Plant.ACK_BY_NEW_SET: {"fault_pause_ms": 6_000, "fault_weights": (("isolate_master", 60),)},
    Plant.CONNECTED_ONLY: {
        "in_sync_replicas": 1,
        "pause_ms_max": 200,
        "fault_pause_ms": 12_000,
        "fault_weights": (("isolate_master", 200),),
    },
    Plant.GROWS_AT_ONCE: {
        # Another slave would be heard by the one that lacks something.
        "slave_count": 1,
        "in_sync_replicas": 1,
        "slaves_late_ms": 0,
        "fault_time_ms": 90_000,
        "fault_pause_ms": 16_000,
        "fault_weights": (("isolate_after_growth", 300),),
    },
    Plant.CLAIM_BY_ANYBODY: {
        "in_sync_replicas": 1,
        "fault_pause_ms": 8_000,
        "fault_weights": (("lose_lonely_master", 60),),
    },
    Plant.RECORD_OVERWRITTEN: {
        "in_sync_replicas": 1,
        "pause_ms_max": 200,
        "fault_pause_ms": 12_000,
        "fault_weights": (("isolate_master", 100), ("pause_master", 100)),
    },
    Plant.OLD_RECORD_BELIEVED: {
        "in_sync_replicas": 1,
        "fault_pause_ms": 12_000,
        "fault_weights": (("put_back_authority_of_lonely_master", 100),),
    },
    Plant.UNKNOWN_SWAP_FORGOTTEN: {"fault_pause_ms": 6_000, "fault_weights": (("isolate_after_growth", 100),)},
    Plant.CLAIM_AFTER_START: {
        "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
        "fault_pause_ms": 8_000,
        "fault_weights": (("lose_master_beside_forgetful_slave", 60),),
    },
    Plant.SERVE_WITHOUT_HEARING: {
        "fault_pause_ms": 6_000,
        "fault_weights": (("put_back_master_disk", 60), ("lose_more_power", 20)),
    },
    Plant.CUT_AT_BEGIN: {
        "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
        "fault_pause_ms": 6_000,
        "fault_weights": (("hand_over", 60),),
    },
    Plant.OLD_COPY_BELIEVED: {
        "fault_pause_ms": 8_000,
        "fault_weights": (("put_back_slave_disk_alone", 60),),
        "name_server_remembers": True,
    },
    Plant.CLAIM_LATE: {"fault_pause_ms": 12_000, "fault_weights": (("isolate_master", 60), ("kill_master", 60))},
    Plant.LEASE_IGNORED: {"fault_pause_ms": 6_000, "fault_weights": (("isolate_master", 60),)},
    Plant.PROMISE_BROKEN: {"fault_pause_ms": 6_000, "fault_weights": (("cut_master_from_authority", 60),)},
    Plant.ACTS_WITHOUT_ITS_SLAVE: {"fault_pause_ms": 8_000, "fault_weights": (("forge_end_of_master", 60),)},
    Plant.FIRST_SETTINGS_KEPT: {
        "in_sync_replicas": 1,
        "fault_pause_ms": 6_000,
        "fault_weights": (("change_settings", 60), ("isolate_master", 20)),
    },
    Plant.NEWCOMER_LEFT_OUT: {"slave_count": 2, "fault_pause_ms": 6_000, "fault_weights": (("exchange_member", 60),)},
    Plant.FAILED_SYNC_REPEATED: {"fault_pause_ms": 6_000, "fault_weights": (("fail_sync", 60), ("lose_power", 30))},
    Plant.VERSIONS_NOT_ASKED: {
        "slave_count": 2,
        "in_sync_replicas": 1,
        "pause_ms_max": 200,
        "fault_pause_ms": 12_000,
        "fault_weights": (("put_back_authority_in_hand_over", 200),),
    },
    Plant.COPY_ELECTABLE: {
        "pause_ms_max": 200,
        "fault_pause_ms": 12_000,
        # Another one would find a group in which somebody's mistake counts as a member.
        "fault_weights": (("start_copy_of_slave", 100), ("others", 0)),
    },
}

FAILOVER_PLANTS = tuple(Plant)[tuple(Plant).index(Plant.RECORD_OVERWRITTEN) :]
"""Those in what only groups that fail over have."""
STEERED_PLANTS = tuple({str((plant in FAILOVER_PLANTS, _STEERING[plant])): plant for plant in _STEERING}.values())
"""Those whose runs are steered; of two whose runs are the same, one."""

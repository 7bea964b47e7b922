"""Bugs planted on purpose, by exchanging a function or two of the product: proof that the checkers bite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any
from unittest import mock

from simulation.run_settings import RunSettings
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.core.delivery.queue_progress import QueueProgress
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.log_history import LogHistory
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.master_start import Fetch, MasterStart, Serve, StartStep
from tandemmq.core.replication.slave_catch_up import CatchUpStep
from tandemmq.core.storage.commit_log import CommitLog
from tandemmq.core.storage.flush_jobs import LogFlushJob
from tandemmq.core.storage.put_result import PutStatus

__all__ = ["STEERED_PLANTS", "Plant", "planted", "steered"]


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


def steered(settings: RunSettings, plant: Plant | None) -> RunSettings:
    """The settings of a run that comes to the place of a planted bug; without the bug it has to keep every promise."""
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


_START = "tandemmq.core.replication.master_start.MasterStart"
_TABLE_NOT_FETCHED = ("tandemmq.broker.master.group_recovery.recover_metadata", _nothing)

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
    Plant.HALF_RECORD_KEPT: (("tandemmq.broker.master.group_recovery.GroupRecovery._cut_half_record", _nothing),),
    Plant.METADATA_NOT_FETCHED: (_TABLE_NOT_FETCHED,),
    Plant.EMPTY_TABLE_TAKEN: (
        _TABLE_NOT_FETCHED,
        ("tandemmq.core.metadata.topic_table.TopicTable.apply_from_master", _take_all),
    ),
    Plant.FENCE_IGNORED: (("simulation.sim_master.SimMaster.superseded", _ignore),),
    Plant.COMMITTED_TOO_FAR: (("tandemmq.core.delivery.queue_progress.QueueProgress._settle", _settle_too_far),),
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
}

STEERED_PLANTS = tuple(_STEERING)
"""Those whose runs are steered."""

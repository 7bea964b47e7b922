"""Replication and sync double write as state machines without I/O."""

from __future__ import annotations

from mqcore.replication.common_prefix import TAIL_BYTES, CommonPrefixSearch, tail_range
from mqcore.replication.dispatch_pace import DispatchPace
from mqcore.replication.errors import LocalProtocolError, RemoteProtocolError, ReplicationError
from mqcore.replication.events import (
    AppendBytes,
    LinkClosed,
    MasterEvent,
    MasterHeartbeat,
    ReportRefused,
    SlaveEvent,
    SlaveFellBehind,
    SlaveInSync,
    SlaveStarted,
)
from mqcore.replication.frames import Transfer
from mqcore.replication.log_extent import LogExtent, LogRange, ReplicatedLog
from mqcore.replication.log_history import EPOCH_FILE, Epoch, HistoryCorrupt, LogHistory
from mqcore.replication.master_replica import MasterReplica, SlaveView
from mqcore.replication.master_session import MasterSession
from mqcore.replication.master_start import (
    Fetch,
    MasterStart,
    OwnReplica,
    Relation,
    ReplicaAnswer,
    Serve,
    StartStep,
    Wait,
    memory_of,
)
from mqcore.replication.options import MasterOptions, SlaveOptions
from mqcore.replication.put_gate import ProvenAck, PutGate, WaitingPut
from mqcore.replication.replica_record import REPLICA_FILE, RecordDamaged, ReplicaRecord
from mqcore.replication.slave_catch_up import CatchUpStep, catch_up_step, cut_refusal, stale_reason
from mqcore.replication.slave_session import SlaveSession

__all__ = [
    "EPOCH_FILE",
    "REPLICA_FILE",
    "TAIL_BYTES",
    "AppendBytes",
    "CatchUpStep",
    "CommonPrefixSearch",
    "DispatchPace",
    "Epoch",
    "Fetch",
    "HistoryCorrupt",
    "LinkClosed",
    "LocalProtocolError",
    "LogExtent",
    "LogHistory",
    "LogRange",
    "MasterEvent",
    "MasterHeartbeat",
    "MasterOptions",
    "MasterReplica",
    "MasterSession",
    "MasterStart",
    "OwnReplica",
    "ProvenAck",
    "PutGate",
    "RecordDamaged",
    "Relation",
    "RemoteProtocolError",
    "ReplicaAnswer",
    "ReplicaRecord",
    "ReplicatedLog",
    "ReplicationError",
    "ReportRefused",
    "Serve",
    "SlaveEvent",
    "SlaveFellBehind",
    "SlaveInSync",
    "SlaveOptions",
    "SlaveSession",
    "SlaveStarted",
    "SlaveView",
    "StartStep",
    "Transfer",
    "Wait",
    "WaitingPut",
    "catch_up_step",
    "cut_refusal",
    "memory_of",
    "stale_reason",
    "tail_range",
]

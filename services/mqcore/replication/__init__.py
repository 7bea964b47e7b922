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
from mqcore.replication.master_replica import MasterReplica, SlaveView
from mqcore.replication.master_session import MasterSession
from mqcore.replication.master_start import SlaveCopy, best_copy, recovery_wait_ms
from mqcore.replication.options import MasterOptions, SlaveOptions
from mqcore.replication.put_gate import ProvenAck, PutGate, WaitingPut
from mqcore.replication.slave_catch_up import CatchUpStep, catch_up_step
from mqcore.replication.slave_session import SlaveSession

__all__ = [
    "TAIL_BYTES",
    "AppendBytes",
    "CatchUpStep",
    "CommonPrefixSearch",
    "DispatchPace",
    "LinkClosed",
    "LocalProtocolError",
    "LogExtent",
    "LogRange",
    "MasterEvent",
    "MasterHeartbeat",
    "MasterOptions",
    "MasterReplica",
    "MasterSession",
    "ProvenAck",
    "PutGate",
    "RemoteProtocolError",
    "ReplicatedLog",
    "ReplicationError",
    "ReportRefused",
    "SlaveCopy",
    "SlaveEvent",
    "SlaveFellBehind",
    "SlaveInSync",
    "SlaveOptions",
    "SlaveSession",
    "SlaveStarted",
    "SlaveView",
    "Transfer",
    "WaitingPut",
    "best_copy",
    "catch_up_step",
    "recovery_wait_ms",
    "tail_range",
]

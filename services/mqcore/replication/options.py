"""What replication needs to know of the settings."""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.replication.frames import BODY_BYTES_MAX

__all__ = ["MasterOptions", "SlaveOptions"]


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """A master's timers and limits. The defaults are RocketMQ's where it has the key."""

    needed_slaves: int = 0
    """Slaves that must hold a record before its send is acknowledged: `inSyncReplicas` - 1."""
    slave_timeout_ms: int = 3_000
    """`slaveTimeout`: a send waits this long for slaves."""
    sync_flush_timeout_ms: int = 5_000
    """`syncFlushTimeout`: a send waits this long for the disk."""
    heartbeat_interval_ms: int = 5_000
    """`haSendHeartbeatInterval`: idle time after which an empty frame is sent; strictly greater."""
    housekeeping_interval_ms: int = 20_000
    """`haHousekeepingInterval`: silence after which a link is closed."""
    transfer_batch_bytes: int = 32_768
    """`haTransferBatchSize`: largest body of a frame; a Java slave cannot parse more than 4 MiB - 12."""
    max_gap_not_in_sync_bytes: int = 256 << 20
    """`haMaxGapNotInSync`: a slave that lags this much or more is not in sync."""
    sync_from_last_file: bool = False
    """`syncFromLastFile`: give a fresh slave the last CommitLog file only, as RocketMQ does."""
    proof_lifetime_ms: int = 30_000
    """How long a proven end waits for the connection that reports it."""

    def __post_init__(self) -> None:
        assert self.needed_slaves >= 0, "needed_slaves counts slaves"
        assert 0 < self.transfer_batch_bytes <= BODY_BYTES_MAX, "a slave could never take such a frame"


@dataclass(frozen=True, slots=True)
class SlaveOptions:
    """A slave's timers."""

    heartbeat_interval_ms: int = 5_000
    """`haSendHeartbeatInterval`: a report is repeated after more than this without one."""
    housekeeping_interval_ms: int = 20_000
    """`haHousekeepingInterval`: silence of the master after which the link is given up."""

"""What the two ends of a replication connection exchange: the bytes of the raw plane, events, options and errors.

The layout of the bytes is here and nowhere else. Big-endian, signed; mirrors DefaultHAConnection and DefaultHAClient of
RocketMQ 5.5.

Slave to master, a report, 8 bytes:

| offset | size | name | meaning |
|---|---|---|---|
| 0 | 8 | reported_offset | end of the slave's CommitLog; request, acknowledgement and heartbeat in one |

Master to slave, a transfer, 12 + size bytes:

| offset | size | name | meaning |
|---|---|---|---|
| 0 | 8 | start_offset | absolute position of the body's first byte; of the next byte in a heartbeat |
| 8 | 4 | body_bytes | 0 = heartbeat |
| 12 | body_bytes | body | CommitLog bytes of one file; may begin and end inside a record |
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from tandemmq.core.replication.put_gate import WaitingPut
from tandemmq.core.routing.values import host_of


class ReplicationError(Exception):
    """Root of this package's errors."""


class LocalProtocolError(ReplicationError):
    """The session was misused: a bug in the caller."""


class RemoteProtocolError(ReplicationError):
    """The peer broke the rules of the wire. The caller closes the connection, counts `counter` and logs the text."""

    def __init__(self, counter: str, reason: str) -> None:
        super().__init__(reason)
        self.counter = counter


# The wire, as the head has it.

REPORT: Final = Struct(">q")
REPORT_BYTES: Final = REPORT.size
TRANSFER_HEADER: Final = Struct(">qi")
TRANSFER_HEADER_BYTES: Final = TRANSFER_HEADER.size

# A Java slave parses frames out of a buffer of 4 MiB: a larger one could never be complete.
BODY_BYTES_MAX: Final = (4 << 20) - TRANSFER_HEADER_BYTES


class Transfer(NamedTuple):
    """One frame to send: `header`, then CommitLog bytes [start_offset, start_offset + length). Length 0: heartbeat."""

    header: bytes
    start_offset: int
    length: int


# What replication tells its shell: the shell acts, logs and counts; the core does none of it.


@dataclass(frozen=True, slots=True)
class SlaveStarted:
    """A slave made its first report; transfer starts at `start_offset`. `broker_id` is known of a verified slave."""

    link: int
    peer: str
    start_offset: int
    broker_id: int | None


@dataclass(frozen=True, slots=True)
class SlaveInSync:
    """A slave's lag fell below the limit."""

    link: int


@dataclass(frozen=True, slots=True)
class SlaveFellBehind:
    """A slave's lag reached the limit."""

    link: int


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """A slave reported an offset that cannot be true; a LinkClosed follows."""

    link: int
    peer: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The shell has to close the link's connection. `counter` names the statistic that counts it."""

    link: int
    reason: str
    counter: str


MasterEvent: TypeAlias = WaitingPut | SlaveStarted | SlaveInSync | SlaveFellBehind | ReportRefused | LinkClosed


class AppendBytes(NamedTuple):
    """CommitLog bytes to append at `start_offset`, the end of the local log. `data` is valid until the next read."""

    start_offset: int
    # A string, as mypyc looks for the class among the module's own names and does not find it.
    data: "memoryview"  # noqa: UP037


class MasterHeartbeat(NamedTuple):
    """The master has nothing to send; `offset` is where it would go on."""

    offset: int


SlaveEvent: TypeAlias = AppendBytes | MasterHeartbeat


# What replication needs to know of the settings.


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
    proof_needed: bool = False
    """A first report that nobody proved is refused: who reports is known by a certificate, or does not count."""
    unproven_peers: tuple[IPv4Network | IPv6Network, ...] = ()
    """`haPlaintextPeers`: from there a report counts without a proof, as stock Java slaves' do."""

    def takes_unproven(self, peer: str) -> bool:
        """Whether a slave at `peer`, host:port, needs no proof."""
        return not self.proof_needed or self.is_stock(peer)

    def is_stock(self, peer: str) -> bool:
        """Whether `haPlaintextPeers` names the host of `peer`, host:port."""
        try:
            address = ip_address(host_of(peer))
        except ValueError:
            return False  # A name: in tests.
        return any(address in network for network in self.unproven_peers)

    def __post_init__(self) -> None:
        assert self.needed_slaves >= 0, "needed_slaves counts slaves"
        assert 0 < self.transfer_batch_bytes <= BODY_BYTES_MAX, "a slave could never take such a frame"


@dataclass(frozen=True, slots=True)
class SlaveOptions:
    heartbeat_interval_ms: int = 5_000
    """`haSendHeartbeatInterval`: a report is repeated after more than this without one."""
    housekeeping_interval_ms: int = 20_000
    """`haHousekeepingInterval`: silence of the master after which the link is given up."""

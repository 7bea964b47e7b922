"""What `tandemmq doctor` has seen, and what it says of it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from admin.cluster_state import BrokerState, ClusterState

__all__ = ["BrokerLook", "Check", "ClusterLook", "Dial", "DiskLook", "Memory", "PeerLook", "Verdict", "is_bad", "worst"]


class Verdict(StrEnum):
    """How much a check matters, mildest first."""

    OK = "ok"
    # Worth knowing, or not to be seen from here.
    NOTE = "note"
    # Works, but will not for long or not always.
    WARNING = "warning"
    # Does not work.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    # dns, ports, peers, clock, disk, settings, kubernetes, …: what kind of thing.
    area: str
    # Who: broker-a:1, NameServer mq-nameserver-0:9876, pod mq-broker-a-slave-1.
    subject: str
    verdict: Verdict
    fact: str
    # What to do; empty only for OK.
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Dial:
    """One address as dialled from where the doctor runs."""

    # nameserver, client, metadata or ha.
    plane: str
    # host:port as advertised.
    address: str
    # All addresses the name stands for, ordered; empty if it does not resolve.
    resolved_ips: tuple[str, ...]
    # Empty if a connection was established.
    error: str
    # True when somebody answered with a refusal: the host is there and nobody listens.
    refused: bool = False


@dataclass(frozen=True, slots=True)
class PeerLook:
    """One address as dialled by a broker."""

    # broker-a:1, or a NameServer's address.
    peer: str
    # nameserver, metadata, ha or client.
    plane: str
    address: str
    resolved_ip: str
    connect_ms: int
    # Empty if it was reached.
    error: str


@dataclass(frozen=True, slots=True)
class DiskLook:
    """Room on the disk of a broker's store."""

    path: str
    total_bytes: int
    free_bytes: int
    # 0 to 1, as the broker judges it; above `warning_ratio` it refuses sends.
    used_ratio: float
    warning_ratio: float


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """One broker: what is known of it, and what it sees itself."""

    broker: BrokerState
    # Empty when dialling from here means nothing.
    dials: tuple[Dial, ...]
    # None when it did not tell; then `probe_error` says why.
    peers: tuple[PeerLook, ...] | None
    probe_error: str = ""
    # Its wall clock less ours, in ms; None if unknown.
    clock_offset_ms: int | None = None
    disk: DiskLook | None = None
    # In its own words.
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a NameServer remembers of a disk."""

    name_server: str
    broker_name: str
    broker_id: int
    disk_id: str
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """A whole cluster."""

    state: ClusterState
    name_server_dials: tuple[Dial, ...]
    brokers: tuple[BrokerLook, ...]
    # Older than `state`, so that a log that grows is not ahead of itself.
    memories: tuple[Memory, ...] = ()


def is_bad(check: Check) -> bool:
    """True for what makes `tandemmq doctor` fail."""
    return check.verdict is Verdict.PROBLEM


def worst(checks: list[Check]) -> Verdict:
    """The worst verdict; OK without any."""
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.OK)

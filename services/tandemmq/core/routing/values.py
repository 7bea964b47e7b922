"""What routes are made of. Fields are those of RocketMQ's TopicRouteData, QueueData and BrokerData."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandemmq.core.metadata.metadata_store import DataVersion

# The broker id of a group's master for clients, which send to no other; and of one whose version does not tell roles.
MASTER_ID: Final = 0

# Bits of a queue's permission (RocketMQ's PermName).
PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2


@dataclass(frozen=True, slots=True, order=True)
class BrokerIdentity:
    """Who a broker is. The order is that of lists shown to operators."""

    cluster: str
    # Name of the broker group: a master and its slaves.
    broker_name: str
    # Its own for good; the role changes.
    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerEndpoints:
    """Where a broker's planes are reached, each as host:port; empty where a plane is not offered."""

    # RocketMQ client API (gRPC).
    client: str
    # Metadata and admin plane (gRPC).
    metadata: str = ""
    # Raw replication; only a master's is used.
    ha: str = ""
    # The client API for clients outside the cluster's network.
    client_external: str = ""
    # While it is not the master its client plane passes calls on to who is.
    forwards: bool = False
    # The client API of whoever is the group's master: an address that stays. Empty: clients are told the member's own.
    client_group: str = ""
    # It is a slave that gives messages, since its group has no master.
    reads: bool = False


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The part of a topic's configuration that routes are made of."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    # Bits: 4 read, 2 write, 1 inherit.
    permission: int
    topic_system_flag: int = 0
    # RocketMQ's message.type attribute: NORMAL, FIFO, DELAY, TRANSACTION or MIXED; empty counts as NORMAL.
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """A replica of a broker group, live or not: what was last heard of one disk."""

    broker_id: int
    # A broker id has as many entries as it had disks.
    disk_id: str
    # Greatest number of starts of the disk, and greatest epoch, heard of.
    run: int = 0
    epoch: int = 0
    # End of its log; exact when it left in order, else as of its last sign of life.
    end_offset: int = 0
    # host:port, empty if never told.
    metadata_endpoint: str = ""
    # By the wall clock of who heard it.
    last_seen_wall_ms: int = 0
    # It said goodbye with the exact end of its log, and was not heard of since.
    left: bool = False
    # Registered now with the NameServer that tells this.
    live: bool = False
    # Greatest epoch in which it was, or wanted to be, its group's master; 0: never. Below 0: not told, goes by its id.
    master_epoch: int = -1
    # Where its log ends was heard of nobody but a process that has not served nor reached its master's end since it
    # started, or of others: it may be an older copy's, so it is no evidence that the disk is no older copy.
    unproven: bool = False
    # Epoch and renewals of the newest record of the group that it has seen; (0, 0): none was told.
    record_version: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.master_epoch < 0:
            object.__setattr__(self, "master_epoch", self.epoch if self.broker_id == MASTER_ID else 0)


@dataclass(frozen=True, slots=True)
class GroupMemoryAnswer:
    """What one NameServer remembers of a broker group."""

    replicas: tuple[ReplicaMemory, ...]
    # How far back the memory reaches.
    memory_age_ms: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's announcement of itself and of its whole topic table."""

    identity: BrokerIdentity
    endpoints: BrokerEndpoints
    # Wall clock of the process start in ms: tells two processes with one identity apart, and which is the later.
    incarnation: int
    # How long it lives without a sign of life.
    liveness_timeout_ms: int
    data_version: DataVersion
    topics: tuple[TopicQueues, ...]
    # Empty from a broker of an older version; nothing is remembered of such a broker.
    disk_id: str = ""
    # Starts of this disk, this one included.
    run: int = 0
    # Greatest epoch of its history.
    epoch: int = 0
    end_offset: int = 0
    # Replicas of its group that it knows of.
    known_replicas: tuple[ReplicaMemory, ...] = ()
    # What it waits for before it serves; empty when it serves.
    recovering: str = ""
    # It is its group's master, or recovers to be it. None: not told, goes by its id.
    is_master: bool = None  # type: ignore[assignment]  # a bool from here on
    # Since its process started it has not served, nor reached its master's end: its disk may be an older copy.
    unproven: bool = False
    # Epoch and renewals of the newest record of its group that its disk has seen.
    record_version: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.is_master is None:
            object.__setattr__(self, "is_master", self.identity.broker_id == MASTER_ID)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker's sign of life, with what changes between two registrations; fields as Registration has them."""

    identity: BrokerIdentity
    incarnation: int
    data_version: DataVersion
    epoch: int = 0
    # None: not told.
    end_offset: int | None = None
    unproven: bool = False
    record_version: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A live broker as others see it."""

    identity: BrokerIdentity
    endpoints: BrokerEndpoints
    incarnation: int
    data_version: DataVersion
    disk_id: str = ""
    run: int = 0
    epoch: int = 0
    # The log's end at the last sign of life. It may grow; the broker stays the same.
    end_offset: int = field(default=0, compare=False)
    # What it waits for before it serves; it is in no route until then.
    recovering: str = ""
    # It registered as its group's master, and no newer master did. None: not told, goes by its id.
    is_master: bool = None  # type: ignore[assignment]  # a bool from here on
    # The epoch in which it registered. `epoch` moves on: a former master that follows already is in its successor's
    # before it has registered as a slave. Below 0: not told, is `epoch`.
    role_epoch: int = -1

    def __post_init__(self) -> None:
        if self.is_master is None:
            object.__setattr__(self, "is_master", self.identity.broker_id == MASTER_ID)
        if self.role_epoch < 0:
            object.__setattr__(self, "role_epoch", self.epoch)

    def is_later_than(self, other: RegisteredBroker) -> bool | None:
        """Whether this is the later of two processes with one identity; None if that cannot be told, or is one process.

        Runs of one disk and epochs of one group count; the wall clock only where one of them knows no disk.
        """
        if self.disk_id and other.disk_id:
            is_same_disk = self.disk_id == other.disk_id
            mine, theirs = (self.run, other.run) if is_same_disk else (self.epoch, other.epoch)
        else:
            mine, theirs = self.incarnation, other.incarnation
        return mine > theirs if mine != theirs else None


@dataclass(frozen=True, slots=True)
class QueueData:
    """Queues of one topic on one broker group."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    topic_system_flag: int = 0
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker group with its live members by broker id, in ascending order."""

    cluster: str
    broker_name: str
    endpoints: Mapping[int, BrokerEndpoints]
    # The master among them; None: there is none. Below 0: not told, goes by the ids.
    master_id: int | None = -1
    # The master's; 0 without one.
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.master_id is not None and self.master_id < 0:
            object.__setattr__(self, "master_id", MASTER_ID if MASTER_ID in self.endpoints else None)

    @property
    def master(self) -> BrokerEndpoints | None:
        """Where the master is; None: there is none."""
        return self.endpoints.get(self.master_id) if self.master_id is not None else None

    @property
    def reader(self) -> BrokerEndpoints | None:
        """Where messages are given while there is no master; None: there is one, or nowhere."""
        if self.master_id is not None:
            return None
        return next((endpoints for _, endpoints in sorted(self.endpoints.items()) if endpoints.reads), None)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic's queues are: rows and groups ordered by broker name, so that equal routes compare equal."""

    topic: str
    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    # "broker-a:4;broker-b:4" from the ORDER_TOPIC_CONFIG namespace; empty without one.
    order_topic_conf: str = ""


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """Everything one NameServer knew at one revision."""

    # Grows with every change of that NameServer's table; not comparable between NameServers.
    revision: int
    # All topics with a live broker, by name.
    routes: Mapping[str, TopicRoute]
    # All live brokers, ordered by identity.
    brokers: tuple[RegisteredBroker, ...]


# Network addresses as routes carry them: host:port, and how a client is to read the host.


class AddressScheme(Enum):
    IPV4 = "ipv4"
    IPV6 = "ipv6"
    DOMAIN_NAME = "domain name"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    scheme: AddressScheme


def parse_address(text: str) -> Address | None:
    """`host:port` with a name, an IPv4 address or an IPv6 address in brackets; None if it is none of these."""
    host, colon, port_text = text.rpartition(":")
    if not colon or not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text) < 65_536:
        return None
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    scheme = _scheme(host)
    if not host or is_bracketed != (scheme is AddressScheme.IPV6) or any(c.isspace() or c in "/;," for c in host):
        return None
    return Address(host, int(port_text), scheme)


def host_port(host: str, port: int) -> str:
    """What `parse_address` reads: an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_of(text: str) -> str:
    """The host of `host:port`, whatever it is; an IPv6 address without its brackets, which gRPC writes %5B and %5D."""
    return text.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")


def peer_host(peer: str) -> str:
    """The address of a gRPC peer, `ipv4:10.0.0.1:5000` or `ipv6:[::1]:5000`; empty for any other transport."""
    scheme, _, address = peer.partition(":")
    return host_of(address) if scheme in ("ipv4", "ipv6") else ""


def connection_end(host: str, port: int) -> str:
    """One end of a connection, from what a socket says of it: the same text on both machines.

    An IPv4 address that an IPv6 socket shows is written as such, and a zone, a name of one machine alone, is left out.
    """
    host = host.partition("%")[0]
    try:
        mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    except ValueError:
        mapped = None  # A name: in tests.
    return host_port(host if mapped is None else str(mapped), port)


def _scheme(host: str) -> AddressScheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPV4 if version == 4 else AddressScheme.IPV6

"""Where the other members of this broker's group are, as the NameServers last told it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.slave.follower import MasterAddress
from tandemmq.core.clock import Clock
from tandemmq.core.routing.values import BrokerIdentity, RegisteredBroker, parse_address
from tandemmq.service.name_server_link import ClusterView


class GroupMembers:
    """Looks the group of `identity` up in the newest `view`. A `stated_master` (haMasterAddress) goes before what
    the NameServers say of the master's HA plane; empty: none is stated."""

    def __init__(self, identity: BrokerIdentity, *, view: Callable[[], ClusterView], stated_master: str) -> None:
        self._identity = identity
        self._view = view
        self._stated_master = stated_master

    def master_address(self) -> MasterAddress | None:
        """Where the master is followed; None while nobody says."""
        registered = self._master()
        metadata = registered.endpoints.metadata or None if registered is not None else None
        ha = self._stated_master or (registered.endpoints.ha if registered is not None else "")
        disk_id = registered.disk_id if registered is not None else ""
        return MasterAddress(ha=ha, metadata=metadata, disk_id=disk_id) if ha else None

    def _master(self) -> RegisteredBroker | None:
        """Whoever registered as master, and never ourselves; one that serves before one that recovers."""
        return _newest_master([member for member in self.registered() if member.identity != self._identity])

    def other_process(self, disk_id: str, *, run: int, incarnation: int) -> str | None:
        """Where another process is registered with our broker id and our very disk: one of the two has a copy of it.
        None: nobody is, or one of an earlier start, whose place is ours as soon as we register."""
        for member in self.registered():
            if (member.identity, member.disk_id) != (self._identity, disk_id) or not disk_id:
                continue
            if member.run > run or (member.run == run and member.incarnation != incarnation):
                return member.endpoints.metadata or member.endpoints.client
        return None

    def server_client(self) -> str | None:
        """The client plane of another member that is the master, or serves reads without one; None: there is none, or
        it is ourselves."""
        return _serving([member for member in self.registered() if member.identity != self._identity])

    def client_of_group(self, broker_name: str) -> str | None:
        """The same of another broker group of the cluster."""
        group = (self._identity.cluster, broker_name)
        return _serving([broker for broker in self._view().brokers if _group_of(broker) == group])

    def serving_groups(self) -> set[str]:
        """The cluster's broker groups of which a member serves."""
        cluster = self._identity.cluster
        return {
            broker.identity.broker_name
            for broker in self._view().brokers
            if broker.identity.cluster == cluster and not broker.recovering
        }

    def master_metadata(self) -> str | None:
        address = self.master_address()
        return address.metadata if address is not None else None

    def member_metadata(self, broker_id: int) -> str | None:
        """A member's metadata plane; None if it is not registered."""
        member = self._by_id().get(broker_id)
        return member.endpoints.metadata or None if member is not None else None

    def other_endpoints(self) -> list[str]:
        """The metadata planes of all members but ourselves."""
        return [
            member.endpoints.metadata
            for broker_id, member in self._by_id().items()
            if broker_id != self._identity.broker_id and member.endpoints.metadata
        ]

    def registered(self) -> list[RegisteredBroker]:
        group = (self._identity.cluster, self._identity.broker_name)
        return [broker for broker in self._view().brokers if _group_of(broker) == group]

    def _by_id(self) -> dict[int, RegisteredBroker]:
        return {broker.identity.broker_id: broker for broker in self.registered()}


def _group_of(broker: RegisteredBroker) -> tuple[str, str]:
    return broker.identity.cluster, broker.identity.broker_name


def _newest_master(members: Sequence[RegisteredBroker]) -> RegisteredBroker | None:
    masters = [member for member in members if member.is_master]
    return max(masters, key=lambda member: (not member.recovering, member.role_epoch), default=None)


def _serving(members: Sequence[RegisteredBroker]) -> str | None:
    """The client plane of the one that serves clients."""
    master = _newest_master(members)
    if master is not None and not master.recovering:
        return master.endpoints.client or None
    return next((member.endpoints.client for member in members if member.endpoints.reads), None)


# Dials what this broker must reach: its NameServers and the members of its group.
#
# For `tandemmq doctor`, which cannot see a network from where it does not stand. Nobody can name an address: those
# probed are the broker's own configuration and its own group's registrations, so the call opens no door into the
# network.

DIAL_LIMIT_S: Final = 2.0
# A group has a handful of members; more than this is a mistake and not to be dialled.
TARGETS_MAX: Final = 64
# Several who ask at once, or one who asks without pause, share one look.
_FRESH_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """One address to dial."""

    # Who should answer: broker-a:1, or the NameServer's address.
    peer: str
    # nameserver, metadata or ha.
    plane: str
    address: str


@dataclass(frozen=True, slots=True)
class PeerProbe:
    target: ProbeTarget
    # Empty if the name could not be resolved.
    resolved_ip: str
    # Resolving and connecting together.
    connect_ms: int
    # Empty if a connection was established.
    error: str


def probe_targets(
    identity: BrokerIdentity, *, name_servers: Sequence[str], brokers: Sequence[RegisteredBroker]
) -> list[ProbeTarget]:
    """NameServers, the other members' metadata plane, and for a slave its master's HA plane; by peer and plane."""
    targets = [ProbeTarget(address, "nameserver", address) for address in name_servers]
    for broker in brokers:
        member = broker.identity
        if (member.cluster, member.broker_name) != (identity.cluster, identity.broker_name) or member == identity:
            continue
        peer = f"{member.broker_name}:{member.broker_id}"
        if broker.is_master and broker.endpoints.ha:
            targets.append(ProbeTarget(peer, "ha", broker.endpoints.ha))
        if broker.endpoints.metadata:
            targets.append(ProbeTarget(peer, "metadata", broker.endpoints.metadata))
    return sorted(targets, key=lambda target: (target.peer, target.plane))[:TARGETS_MAX]


class PeerProbes:
    """Probes `targets()`, all at once. Event loop only."""

    def __init__(
        self,
        *,
        clock: Clock,
        targets: Callable[[], list[ProbeTarget]],
        dial: Callable[[ProbeTarget, Clock], Awaitable[PeerProbe]] | None = None,
    ) -> None:
        self._clock = clock
        self._targets = targets
        self._dial = dial or dialled
        self._turn = asyncio.Lock()
        self._latest: list[PeerProbe] = []
        self._latest_ms: int | None = None

    async def run(self) -> list[PeerProbe]:
        """The probes in the order of the targets, at most a second old; takes a few seconds at most."""
        # Held over a wait on the network on purpose: who comes meanwhile wants the same answer.
        async with self._turn:
            if self._latest_ms is None or self._clock.monotonic_ms() - self._latest_ms >= _FRESH_MS:
                async with asyncio.TaskGroup() as tasks:
                    dials = [tasks.create_task(self._one(target)) for target in self._targets()]
                self._latest = [dial.result() for dial in dials]
                self._latest_ms = self._clock.monotonic_ms()
            return self._latest

    async def _one(self, target: ProbeTarget) -> PeerProbe:
        return await self._dial(target, self._clock)


async def dialled(target: ProbeTarget, clock: Clock) -> PeerProbe:
    """Resolves the name anew and connects, as the broker itself does; closes the connection at once."""
    started_ms = clock.monotonic_ms()
    resolved_ip = ""

    def probe(error: str) -> PeerProbe:
        return PeerProbe(target, resolved_ip, clock.monotonic_ms() - started_ms, error)

    address = parse_address(target.address)
    if address is None:
        return probe("this is no host:port")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DIAL_LIMIT_S):
            infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, where = infos[0]
            resolved_ip = str(where[0])
            with socket.socket(family, kind, protocol) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, where)
    except TimeoutError:
        step = "connect" if resolved_ip else "resolve"
        return probe(f"no answer within {DIAL_LIMIT_S:g} s ({step})")
    except socket.gaierror as error:
        return probe(f"the name does not resolve: {error.strerror}")
    except OSError as error:
        return probe(error.strerror or str(error))
    return probe("")

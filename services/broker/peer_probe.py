"""Dials what this broker must reach: its NameServers and the members of its group.

For `tandemmq doctor`, which cannot see a network from where it does not stand. Nobody can name an address: those probed
are the broker's own configuration and its own group's registrations, so the call opens no door into the network.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mqcore.clock import Clock
from mqcore.routing.values import MASTER_ID, BrokerIdentity, RegisteredBroker, parse_address

__all__ = ["PeerProbe", "PeerProbes", "ProbeTarget", "probe_targets"]

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
    """What became of it."""

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
        if member.broker_id == MASTER_ID and broker.endpoints.ha:
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

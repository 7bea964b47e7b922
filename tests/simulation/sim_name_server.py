"""The NameServer: a `RouteTable` under the simulated network, and the broker's side of registration."""

from __future__ import annotations

import asyncio
import itertools
import struct
from dataclasses import dataclass, field
from typing import Final, Protocol

from mqcore.metadata.data_version import DataVersion
from mqcore.routing import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerEndpoints,
    BrokerIdentity,
    HeartbeatStatus,
    Registration,
    RegistrationRefused,
    RouteTable,
    TopicQueues,
)
from simulation.network import Connection, Network, PeerUnavailable, ServiceKey
from simulation.process import Process
from simulation.run_settings import BROKER_NAME, CLUSTER_NAME, NAME_SERVER, TOPIC
from simulation.sim_producer import ROUTES

__all__ = ["NAME_SERVER_PLANE", "BrokerRegistration", "NameServerService", "SimNameServer"]

HEARTBEAT_PORT: Final = 9_876
HEARTBEAT_INTERVAL_MS: Final = 1_000
LIVENESS_TIMEOUT_MS: Final = 10_000
SCAN_INTERVAL_MS: Final = 5_000
CALL_TIMEOUT_MS: Final = 3_000
RETRY_PAUSE_MS: Final = 500

# One sign of life: broker_id i32 | incarnation i64. The answer is one byte, see HEARD and REGISTER_AGAIN.
HEARTBEAT: Final = struct.Struct(">iq")
HEARD: Final = b"\x00"
REGISTER_AGAIN: Final = b"\x01"


class NameServerService(Protocol):
    """`NameServerService` of the NameServer plane."""

    async def register(self, registration: Registration) -> None:
        """RegisterBroker; PeerUnavailable when refused."""

    async def broker_hosts(self) -> dict[int, str]:
        """ListBrokers of the one group: broker id to host."""


NAME_SERVER_PLANE: Final = ServiceKey[NameServerService]("name server")


class SimNameServer:
    """One run of a NameServer; knows nothing at its start."""

    def __init__(self, process: Process, network: Network) -> None:
        self._process = process
        self._network = network
        self._table = RouteTable()
        self._connection_numbers = itertools.count(1)

    def start(self) -> None:
        """Serves all planes and scans for the silent."""
        self._network.serve(self._process, NAME_SERVER_PLANE, self)
        self._network.serve(self._process, ROUTES, self)
        self._network.listen(self._process, HEARTBEAT_PORT, self._accept)
        self._process.loop.spawn(self._scan(), name="scan")

    async def register(self, registration: Registration) -> None:
        answer = self._table.register(registration, now_ms=self._process.clock.monotonic_ms())
        if isinstance(answer, RegistrationRefused):
            raise PeerUnavailable(answer.reason)

    async def broker_hosts(self) -> dict[int, str]:
        return {broker.identity.broker_id: broker.endpoints.client for broker in self._table.brokers()}

    async def master_of(self, topic: str) -> str | None:
        """The client's route query, cut down to the only master there can be."""
        route = self._table.route(topic)
        if route is None:
            return None
        endpoints = route.brokers[0].endpoints.get(MASTER_ID)
        return None if endpoints is None else endpoints.client

    def routed_broker_ids(self, topic: str) -> list[int]:
        """Whom the route names, for the checkers."""
        route = self._table.route(topic)
        return [] if route is None else [broker_id for group in route.brokers for broker_id in group.endpoints]

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_INTERVAL_MS / 1000)
            self._table.expire(now_ms=self._process.clock.monotonic_ms())

    def _accept(self, connection: Connection) -> None:
        number = next(self._connection_numbers)
        unread = bytearray()

        def readable() -> None:
            unread.extend(connection.receive(1_024))
            while len(unread) >= HEARTBEAT.size:
                broker_id, incarnation = HEARTBEAT.unpack_from(unread)
                del unread[: HEARTBEAT.size]
                answer = self._table.heartbeat(
                    BrokerIdentity(CLUSTER_NAME, BROKER_NAME, broker_id),
                    incarnation=incarnation,
                    data_version=TABLE_VERSION,
                    connection=number,
                    now_ms=self._process.clock.monotonic_ms(),
                )
                connection.send(HEARD if answer.status is HeartbeatStatus.ACCEPTED else REGISTER_AGAIN)

        def lost(reason: str) -> None:
            self._table.connection_lost(number)

        connection.on_readable = readable
        connection.on_lost = lost


TABLE_VERSION: Final = DataVersion(counter=1)


@dataclass(slots=True)
class BrokerRegistration:
    """A broker's link to the NameServer: learns who is there and, once `announced`, keeps the broker registered."""

    process: Process
    network: Network
    broker_id: int
    queue_count: int
    hosts: dict[int, str] = field(default_factory=dict)
    """The group's live members by broker id, as the NameServer last said."""
    announced: bool = False
    """Set once the broker's role has begun."""

    async def run(self) -> None:
        """Works until the process ends."""
        while True:
            try:
                if self.announced:
                    await self._register()
                    await self._beat()
                else:
                    await self._look()
            except (PeerUnavailable, OSError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_PAUSE_MS / 1000)

    async def _look(self) -> None:
        self.hosts = await self.network.call(
            self.process,
            NAME_SERVER,
            NAME_SERVER_PLANE,
            lambda plane: plane.broker_hosts(),
            timeout_ms=CALL_TIMEOUT_MS,
        )

    async def _register(self) -> None:
        registration = Registration(
            identity=BrokerIdentity(CLUSTER_NAME, BROKER_NAME, self.broker_id),
            endpoints=BrokerEndpoints(client=self.process.host),
            incarnation=self.process.started_wall_ms,
            liveness_timeout_ms=LIVENESS_TIMEOUT_MS,
            data_version=TABLE_VERSION,
            topics=(TopicQueues(TOPIC, self.queue_count, self.queue_count, PERMISSION_READ | PERMISSION_WRITE),),
        )
        await self.network.call(
            self.process,
            NAME_SERVER,
            NAME_SERVER_PLANE,
            lambda plane: plane.register(registration),
            timeout_ms=CALL_TIMEOUT_MS,
        )

    async def _beat(self) -> None:
        """Returns when the NameServer asks for another registration, is silent, or is gone."""
        connection = await self.network.connect(self.process, NAME_SERVER, HEARTBEAT_PORT)
        ended: asyncio.Future[None] = self.process.loop.create_future()
        heard_ms = self.process.clock.monotonic_ms()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def readable() -> None:
            nonlocal heard_ms
            heard_ms = self.process.clock.monotonic_ms()
            if REGISTER_AGAIN in connection.receive(1_024):
                end()

        connection.on_readable = readable
        connection.on_lost = lambda reason: end()
        try:
            while not ended.done() and self.process.clock.monotonic_ms() - heard_ms < LIVENESS_TIMEOUT_MS:
                connection.send(HEARTBEAT.pack(self.broker_id, self.process.started_wall_ms))
                await self._look()
                await asyncio.wait((ended,), timeout=HEARTBEAT_INTERVAL_MS / 1000)
        finally:
            connection.close()

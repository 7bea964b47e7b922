"""The NameServer: a `RouteTable` under the simulated network, and the broker's side of registration."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from simulation.network import Connection, Network, PeerUnavailable, ServiceKey
from simulation.process import Process
from simulation.run_settings import BROKER_NAME, CLUSTER_NAME, HA_PORT, METADATA_PORT, NAME_SERVER
from simulation.sim_producer import ROUTES
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.group_memory import GroupMemory
from tandemmq.core.routing.route_table import HeartbeatStatus, RegistrationRefused, RouteTable
from tandemmq.core.routing.values import (
    BrokerEndpoints,
    BrokerIdentity,
    Heartbeat,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    TopicQueues,
)
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.service.name_server_link import ClusterView

AnswerT = TypeVar("AnswerT")

MEMORY_FILE: Final = "groupMemory.json"
HEARTBEAT_PORT: Final = 9_876
HEARTBEAT_INTERVAL_MS: Final = 1_000
LIVENESS_TIMEOUT_MS: Final = 10_000
SCAN_INTERVAL_MS: Final = 5_000
CALL_TIMEOUT_MS: Final = 3_000
RETRY_PAUSE_MS: Final = 500

# One sign of life: broker_id i32 | unproven u8 | incarnation, epoch, end of the log, epoch and renewals of the record,
# the topic table's state version, time and counter: i64 each. The answer is one byte.
HEARTBEAT: Final = struct.Struct(">iBqqqqqqqq")
HEARD: Final = b"\x00"
REGISTER_AGAIN: Final = b"\x01"
SUPERSEDED: Final = b"\x02"
MEMORY_WRITE_MS: Final = 1_000
"""How often a NameServer with a folder writes what it remembers; see `tandemmq.nameserver.route_registry`."""


class NameServerService(Protocol):
    """`NameServerService` of the NameServer plane."""

    async def register(self, registration: Registration) -> None:
        """RegisterBroker; PeerUnavailable when refused."""

    async def unregister(
        self, broker_id: int, incarnation: int, disk_id: str, run: int, end_offset: int | None
    ) -> None:
        """UnregisterBroker."""

    async def brokers(self) -> list[RegisteredBroker]:
        """ListBrokers."""

    async def group_memory(self) -> tuple[ReplicaMemory, ...]:
        """GetGroupMemory."""

    async def forget_replica(self, disk_id: str) -> None:
        """ForgetReplicas."""


NAME_SERVER_PLANE: Final = ServiceKey[NameServerService]("name server")


class SimNameServer:
    """One run of a NameServer. It knows nobody at its start, but for what an earlier run wrote to its `folder`."""

    def __init__(self, process: Process, network: Network, *, folder: dict[str, str] | None) -> None:
        """`folder` holds its file; None: it has none."""
        self._process = process
        self._network = network
        self._folder = folder
        text = None if folder is None else folder.get(MEMORY_FILE)
        self._table = RouteTable(None if text is None else GroupMemory.restored(text))
        self._connection_numbers = itertools.count(1)

    def start(self) -> None:
        """Serves all planes and scans for the silent."""
        self._network.serve(self._process, NAME_SERVER_PLANE, self)
        self._network.serve(self._process, ROUTES, self)
        self._network.listen(self._process, HEARTBEAT_PORT, self._accept)
        self._process.loop.spawn(self._scan(), name="scan")
        if self._folder is not None:
            self._process.loop.spawn(self._keep_memory(self._folder), name="memory")

    async def register(self, registration: Registration) -> None:
        answer = self._table.register(
            registration, now_ms=self._process.clock.monotonic_ms(), wall_ms=self._process.clock.wall_ms()
        )
        if isinstance(answer, RegistrationRefused):
            raise RegisteredSuperseded(answer.reason) if answer.is_superseded else PeerUnavailable(answer.reason)

    async def unregister(
        self, broker_id: int, incarnation: int, disk_id: str, run: int, end_offset: int | None
    ) -> None:
        identity = BrokerIdentity(CLUSTER_NAME, BROKER_NAME, broker_id)
        self._table.unregister(identity, incarnation=incarnation, disk_id=disk_id, run=run, end_offset=end_offset)

    async def brokers(self) -> list[RegisteredBroker]:
        return self._table.brokers()

    async def group_memory(self) -> tuple[ReplicaMemory, ...]:
        return self._table.memory.replicas((CLUSTER_NAME, BROKER_NAME))

    async def forget_replica(self, disk_id: str) -> None:
        self._table.memory.forget((CLUSTER_NAME, BROKER_NAME), disk_id=disk_id)

    async def master_of(self, topic: str) -> str | None:
        """The client's route query, cut down to the only master there can be."""
        route = self._table.route(topic)
        if route is None:
            return None
        endpoints = route.brokers[0].master
        return None if endpoints is None else endpoints.client

    def routed_hosts(self, topic: str) -> list[str]:
        """Whom the route names, for the checkers."""
        route = self._table.route(topic)
        endpoints = [] if route is None else [ends for group in route.brokers for ends in group.endpoints.values()]
        return [end.client for end in endpoints]

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_INTERVAL_MS / 1000)
            self._table.expire(now_ms=self._process.clock.monotonic_ms())

    async def _keep_memory(self, folder: dict[str, str]) -> None:
        while True:
            folder[MEMORY_FILE] = self._table.memory.image().text()
            await asyncio.sleep(MEMORY_WRITE_MS / 1000)

    def _accept(self, connection: Connection) -> None:
        number = next(self._connection_numbers)
        unread = bytearray()

        def readable() -> None:
            unread.extend(connection.receive(1_024))
            while len(unread) >= HEARTBEAT.size:
                broker_id, unproven, incarnation, epoch, end_offset, seen_epoch, renewals, *version = (
                    HEARTBEAT.unpack_from(unread)
                )
                del unread[: HEARTBEAT.size]
                beat = Heartbeat(
                    BrokerIdentity(CLUSTER_NAME, BROKER_NAME, broker_id),
                    incarnation,
                    DataVersion(*version),
                    epoch,
                    end_offset,
                    bool(unproven),
                    (seen_epoch, renewals),
                )
                clock = self._process.clock
                answer = self._table.heartbeat(
                    beat, connection=number, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms()
                )
                if answer.superseded:
                    connection.send(SUPERSEDED)
                else:
                    connection.send(HEARD if answer.status is HeartbeatStatus.ACCEPTED else REGISTER_AGAIN)

        def lost(reason: str) -> None:
            self._table.connection_lost(number)

        connection.on_readable = readable
        connection.on_lost = lost


class RegisteredSuperseded(PeerUnavailable):
    """The NameServer knows a later master on another disk."""


@dataclass(slots=True)
class BrokerRegistration:
    """A broker's link to the NameServer: learns who is there and, once `announced`, keeps the broker registered.

    See `tandemmq.service.name_server_link.NameServerLinks`.
    """

    process: Process
    network: Network
    identity: BrokerIdentity
    tables: MetadataTables
    replica: ReplicaIdentity
    store: MessageStore
    recovering: Callable[[], str]
    superseded: Callable[[str], None]
    is_master: Callable[[], bool]
    is_listening: Callable[[], bool]
    """Slaves may follow."""
    members: tuple[RegisteredBroker, ...] = ()
    """The live brokers, as the NameServer last said."""
    announced: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def view(self) -> ClusterView:
        """As `NameServerLinks` gives it."""
        return ClusterView(0, self.members)

    @property
    def metadata_endpoint(self) -> str:
        """Where this broker is asked."""
        return f"{self.process.host}:{METADATA_PORT}"

    def announce(self) -> None:
        """Registers from now on."""
        self.announced = True

    def changed(self) -> None:
        """What is registered changed: the NameServer is told at once."""
        self._changed.set()

    async def group_memory(self) -> dict[str, Sequence[ReplicaMemory] | None]:
        """What each NameServer remembers; None of one that does not answer."""
        try:
            return {NAME_SERVER: await self._ask(lambda plane: plane.group_memory())}
        except PeerUnavailable:
            return {NAME_SERVER: None}

    async def forget_replica(self, disk_id: str) -> None:
        """By an operator's word."""
        try:
            await self._ask(lambda plane: plane.forget_replica(disk_id))
        except PeerUnavailable:
            pass

    async def unregister(self, *, is_log_closed: bool = False) -> None:
        """Leaves the routes. The broker that stops does not wait for a NameServer that is away."""
        self.announced = False
        self._changed.set()
        replica, end_offset = self.replica, self.store.dispatched_offset
        has_last_words = is_log_closed and replica.is_proven
        last_words = (replica.disk_id, replica.run, end_offset) if has_last_words else ("", 0, None)
        try:
            await self._ask(
                lambda plane: plane.unregister(self.identity.broker_id, self.process.started_wall_ms, *last_words)
            )
        except PeerUnavailable:
            pass

    async def run(self) -> None:
        """Works until the process ends."""
        while True:
            try:
                if self.announced:
                    await self._register()
                    await self._beat()
                else:
                    await self._look()
            except RegisteredSuperseded as error:
                self.superseded(str(error))
            except (PeerUnavailable, OSError, TimeoutError):
                # Who is refused sees the others all the same.
                with suppress(PeerUnavailable):
                    await self._look()
            await asyncio.sleep(RETRY_PAUSE_MS / 1000)

    async def _ask(self, ask: Callable[[NameServerService], Awaitable[AnswerT]]) -> AnswerT:
        return await self.network.call(self.process, NAME_SERVER, NAME_SERVER_PLANE, ask, timeout_ms=CALL_TIMEOUT_MS)

    async def _look(self) -> None:
        self.members = tuple(await self._ask(lambda plane: plane.brokers()))

    async def _register(self) -> None:
        self._changed.clear()
        host, topics = self.process.host, self.tables.topics
        registration = Registration(
            identity=self.identity,
            endpoints=BrokerEndpoints(
                client="" if self.recovering() else host,
                metadata=self.metadata_endpoint,
                ha=f"{host}:{HA_PORT}" if self.is_listening() else "",
            ),
            incarnation=self.process.started_wall_ms,
            liveness_timeout_ms=LIVENESS_TIMEOUT_MS,
            data_version=topics.version,
            topics=tuple(
                TopicQueues(
                    topic=topic.topic_name,
                    read_queue_count=topic.read_queue_count,
                    write_queue_count=topic.write_queue_count,
                    permission=topic.perm,
                )
                for topic in topics
            ),
            disk_id=self.replica.disk_id,
            run=self.replica.run,
            epoch=self.replica.history.last_epoch,
            end_offset=self.store.dispatched_offset,
            known_replicas=self.replica.replicas,
            recovering=self.recovering(),
            is_master=self.is_master(),
            unproven=not self.replica.is_proven,
            record_version=self.replica.record_version,
        )
        await self._ask(lambda plane: plane.register(registration))

    async def _beat(self) -> None:
        """Returns when another registration is due, when the NameServer is silent, or is gone."""
        connection = await self.network.connect(self.process, NAME_SERVER, HEARTBEAT_PORT)
        ended: asyncio.Future[None] = self.process.loop.create_future()
        heard_ms = self.process.clock.monotonic_ms()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def readable() -> None:
            nonlocal heard_ms
            heard_ms = self.process.clock.monotonic_ms()
            answers = connection.receive(1_024)
            if SUPERSEDED in answers:
                self.superseded("the NameServer knows a later master")
            if REGISTER_AGAIN in answers:
                end()

        connection.on_readable = readable
        connection.on_lost = lambda reason: end()
        try:
            while not ended.done() and self.process.clock.monotonic_ms() - heard_ms < LIVENESS_TIMEOUT_MS:
                version = self.tables.topics.version
                connection.send(
                    HEARTBEAT.pack(
                        self.identity.broker_id,
                        not self.replica.is_proven,
                        self.process.started_wall_ms,
                        self.replica.history.last_epoch,
                        self.store.dispatched_offset,
                        *self.replica.record_version,
                        version.state_version,
                        version.timestamp_ms,
                        version.counter,
                    )
                )
                await self._look()
                changed = self.process.loop.create_task(self._changed.wait())
                await asyncio.wait(
                    (ended, changed), timeout=HEARTBEAT_INTERVAL_MS / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
                if self._changed.is_set():
                    if not self.announced:
                        return
                    await self._register()
        finally:
            connection.close()

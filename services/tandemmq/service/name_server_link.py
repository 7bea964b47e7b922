"""One process's dealings with all NameServers: staying registered with each, and one view of the routes out of all.

NameServers never talk to each other, so each is served by two loops of its own that know nothing of the rest: one keeps
the registration alive (register, then a heartbeat stream), the other follows the routes. A loop that fails waits and
starts again; its channel resolves the NameServer's name anew when it reconnects: a pod may return at another address.

    presence:  register --> heartbeat every interval --(table unknown | table changed)--> register
                   ^                   |
                   '---- backoff <-----'  stream broken, NOT_FOUND, no answer in time
    routes:    watch --> snapshot --> merge --> callbacks        (backoff when the stream breaks)

A snapshot of 20,000 topics takes half a second or more to turn into values, which a broker's event loop cannot spare
and mostly does not need: who is alive is read at once, a topic's route when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from tandemmq.core.clock import Clock
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.route_table import merge_snapshots
from tandemmq.core.routing.values import (
    BrokerIdentity,
    GroupMemoryAnswer,
    RegisteredBroker,
    Registration,
    RouteSnapshot,
    TopicRoute,
)
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.service.route_messages import (
    broker_value,
    identity_message,
    memory_value,
    registration_message,
    route_value,
    superseded_reason,
    version_message,
)
from tandemmq.service.rpc import MESSAGE_BYTES_MAX, cancellation_wins
from tandemmq.service.service_channels import LONG_LIVED_CHANNEL, aio_channel, connection_of

# Deadlines of the contract (proto/tandemmq/nameserver/v1).
_REGISTER_TIMEOUT_S: Final = 6.0
_UNREGISTER_TIMEOUT_S: Final = 3.0
_MEMORY_TIMEOUT_S: Final = 3.0
# A heartbeat is answered at once; a NameServer that needs longer is as good as gone.
_HEARTBEAT_TIMEOUT_S: Final = 3.0

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 3.0

_CHANNEL_OPTIONS: Final = (
    *LONG_LIVED_CHANNEL,
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Registrant(Protocol):
    """The broker that is to be registered. Its values may change at any time; see `registration_changed`."""

    @property
    def identity(self) -> BrokerIdentity: ...

    @property
    def incarnation(self) -> int:
        """Wall clock of the process start in ms."""

    @property
    def data_version(self) -> DataVersion:
        """Version of the topic table it holds now."""

    @property
    def epoch(self) -> int:
        """Greatest epoch of its history; 0 without one."""

    @property
    def end_offset(self) -> int: ...

    @property
    def unproven(self) -> bool: ...

    @property
    def record_version(self) -> tuple[int, int]: ...

    def registration(self) -> Registration:
        """All of it, with the topic table."""


class RegistrationSuperseded(Exception):
    """A NameServer knows a master of a greater epoch on another disk: the registrant must take no more messages."""


@dataclass(frozen=True, slots=True)
class LinkView:
    """One NameServer as seen from here, for status pages and logs."""

    address: str
    # It accepted our registration and answered the last heartbeat.
    is_registered: bool
    # Its route stream is up.
    is_watching: bool
    # Why the last attempt failed; empty while all is well.
    error: str
    # Since it last told something, be it that our heartbeat arrived: how old its routes may be.
    silent_ms: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Who is alive according to the reachable NameServers together."""

    # Counts the snapshots that made it.
    revision: int
    # Ordered by identity.
    brokers: tuple[RegisteredBroker, ...]


class NameServerLinks:
    """Keeps a process in touch with every NameServer. `run` it in a task group; all methods on its event loop.

    Routes are followed from the start; the registrant is registered between `announce` and `unregister`. While its
    registration says that it recovers, others see it and nobody is sent to it; when it serves, call
    `registration_changed`.

    Callbacks are called on the event loop: `on_routes_changed()` after news from a NameServer, `on_superseded(reason)`
    once, when a NameServer knows a later master on another disk. While no NameServer can be reached the last view
    stays. A NameServer that restarted alone knows nobody for a moment: a master that is in no view is no reason to drop
    a connection to it that works.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        chance: random.Random,
        registrant: Registrant | None = None,
        heartbeat_interval_ms: int = 1_000,
        on_routes_changed: Callable[[], None] | None = None,
        on_superseded: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._registrant = registrant
        self._heartbeat_interval_s = heartbeat_interval_ms / 1_000
        self._on_routes_changed = on_routes_changed
        self._on_superseded = on_superseded
        self._links = [
            _Link(address, log.bind(name_server=address), now_ms=clock.monotonic_ms()) for address in addresses
        ]
        # Links whose snapshots make the view, the freshest last.
        self._current: list[_Link] = []
        self.view = ClusterView(0, ())
        # Routes asked for since the last news.
        self._routes: dict[str, TopicRoute] = {}
        self._arrivals = 0
        self._announced = asyncio.Event()
        self._is_leaving = False

    # What callers ask

    def route(self, topic: str) -> TopicRoute | None:
        """A topic's route, merged from all reachable NameServers; None when none of them has it."""
        route = self._routes.get(topic)
        if route is None:
            snapshots = [link.snapshot_of(topic) for link in self._current]
            route = merge_snapshots(snapshots, revision=0).routes.get(topic)
            if route is not None:
                self._routes[topic] = route
        return route

    @property
    def links(self) -> list[LinkView]:
        """Each NameServer, in the order given."""
        now_ms = self._clock.monotonic_ms()
        return [
            LinkView(link.address, link.is_registered, link.is_watching, link.error, now_ms - link.heard_ms)
            for link in self._links
        ]

    async def group_memory(self, *, limit_s: float = _MEMORY_TIMEOUT_S) -> dict[str, GroupMemoryAnswer | None]:
        """What each NameServer remembers of the registrant's group, asked now; None of one that did not answer.

        Needs neither `announce` nor an answer to anything before. A NameServer of an older version remembers nothing.
        """
        assert self._registrant is not None, "no group to ask for"
        identity = self._registrant.identity
        request = pb.GetGroupMemoryRequest(cluster=identity.cluster, broker_name=identity.broker_name)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(link.group_memory(request, limit_s=limit_s)) for link in self._links]
        return {link.address: task.result() for link, task in zip(self._links, asked, strict=True)}

    async def forget_replica(self, disk_id: str) -> None:
        """Has each NameServer forget a disk of the registrant's group, by an operator's word. One that does not answer
        may tell of the disk once more."""
        assert self._registrant is not None, "no group to forget a disk of"
        identity = self._registrant.identity
        request = pb.ForgetReplicasRequest(cluster=identity.cluster, broker_name=identity.broker_name, disk_id=disk_id)
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.forget_replica(request))

    def announce(self) -> None:
        """Registers the registrant, and keeps it registered until `unregister`."""
        self._announced.set()

    def registration_changed(self) -> None:
        """The registrant's topics, address or role changed: tells all NameServers now, not at the next heartbeat."""
        for link in self._links:
            link.wakeup.set()

    # Life

    async def run(self) -> None:
        """Serves all links until cancelled, then closes their channels."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for link in self._links:
                    tasks.create_task(self._repeat(link, self._follow_routes), name=f"routes of {link.address}")
                    if self._registrant is not None:
                        tasks.create_task(self._repeat(link, self._stay_registered), name=f"presence at {link.address}")
        finally:
            for link in self._links:
                await link.close()

    async def unregister(self, *, is_log_closed: bool = False) -> None:
        """Says goodbye to all NameServers and registers no more. Call it while `run` still runs; takes 3 s at most.

        A NameServer that cannot be reached will notice by itself. Call it again when the log is closed: the end that
        the registrant then has is remembered as exact.
        """
        self._is_leaving = True
        assert self._registrant is not None, "nothing to unregister"
        identity = self._registrant.identity
        request = pb.UnregisterBrokerRequest(
            identity=identity_message(identity), incarnation=self._registrant.incarnation
        )
        if is_log_closed:
            registration = self._registrant.registration()
            request.disk_id, request.run = registration.disk_id, registration.run
            if not registration.unproven:
                request.end_offset = registration.end_offset
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(self._leave(link, request))

    # Loops of one link

    async def _repeat(self, link: _Link, attempt: Callable[[_Link], Awaitable[None]]) -> None:
        """Attempts again and again, with growing pauses until an attempt got somewhere."""
        while not self._is_leaving:
            started_ms = self._clock.monotonic_ms()
            try:
                with cancellation_wins():
                    await attempt(link)
                error = "the NameServer ended the stream"
            except grpc.aio.AioRpcError as failure:
                error = f"{failure.code().name}: {failure.details()}"
            except TimeoutError:
                error = f"no answer within {_HEARTBEAT_TIMEOUT_S:.0f} s"
            except RegistrationSuperseded as refusal:
                error = f"superseded: {refusal}"
                self._superseded(str(refusal))
            if self._is_leaving:
                return
            link.failed(error)
            # What only this NameServer knew is not believed any longer.
            self._merge()
            # An attempt that lasted was a success that broke.
            if self._clock.monotonic_ms() - started_ms > _BACKOFF_MAX_S * 1_000:
                link.attempts = 0
            await asyncio.sleep(self._backoff_s(link))

    def _backoff_s(self, link: _Link) -> float:
        link.attempts += 1
        longest: float = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(link.attempts, 16))
        # Spread, so that a restarted NameServer is not met by all brokers in the same millisecond.
        return longest * self._chance.uniform(0.5, 1.0)

    async def _stay_registered(self, link: _Link) -> None:
        """Registers and gives signs of life; returns or raises when the stream has ended."""
        registrant = self._registrant
        assert registrant is not None, "nothing to register"
        await self._announced.wait()
        try:
            await self._register(link, registrant)
            made_on, heartbeats = link.connection, link.heartbeats()
            former = None
            try:
                while not self._is_leaving:
                    if link.connection is not made_on:
                        # Beats on the new one before the old one ends, which would be taken for our end.
                        former, made_on, heartbeats = heartbeats, link.connection, link.heartbeats()
                    async with asyncio.timeout(_HEARTBEAT_TIMEOUT_S):
                        answer = await _beat(heartbeats, registrant)
                    if former is not None:
                        former.cancel()
                        former = None
                    if answer is None:
                        return
                    # Not before: from the first heartbeat on, our end would be noticed at once.
                    link.registered(now_ms=self._clock.monotonic_ms())
                    if answer.superseded:
                        self._superseded(answer.superseded)
                    is_due = answer.registration_needed or await link.woken_within(self._heartbeat_interval_s)
                    if is_due and not self._is_leaving and not heartbeats.done():
                        await self._register(link, registrant)
            finally:
                heartbeats.cancel()
                if former is not None:
                    former.cancel()
        finally:
            link.is_registered = False

    async def _register(self, link: _Link, registrant: Registrant) -> None:
        # Before the registration is read: a change from here on is another wakeup.
        link.wakeup.clear()
        message = registration_message(registrant.registration())
        try:
            await link.stub.RegisterBroker(message, timeout=_REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            reason = superseded_reason(failure.details())
            if reason is None:
                raise
            raise RegistrationSuperseded(reason) from failure

    def _superseded(self, reason: str) -> None:
        """Tells the registrant, once: by one NameServer or by several, in a refusal or in an answer."""
        callback, self._on_superseded = self._on_superseded, None
        if callback is not None:
            callback(reason)

    async def _follow_routes(self, link: _Link) -> None:
        """Takes snapshots until the stream ends. A vanished machine ends it through the channel's pings."""
        try:
            async for message in link.stub.WatchRoutes(pb.WatchRoutesRequest()):
                self._arrivals += 1
                link.watching(message, arrival=self._arrivals, now_ms=self._clock.monotonic_ms())
                self._merge()
        finally:
            link.is_watching = False

    async def _leave(self, link: _Link, request: pb.UnregisterBrokerRequest) -> None:
        try:
            with cancellation_wins():
                await link.stub.UnregisterBroker(request, timeout=_UNREGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            link.log.info("name_server_not_told", error=f"{failure.code().name}: {failure.details()}")
        link.wakeup.set()

    # The view

    def _merge(self) -> None:
        """Merges what the connected NameServers said last; without any, the view stays."""
        current = sorted((link for link in self._links if link.is_watching), key=lambda link: link.arrival)
        if not current:
            return
        self._current = current
        self._routes.clear()
        merged = merge_snapshots([link.snapshot_of(None) for link in current], revision=self.view.revision + 1)
        self.view = ClusterView(merged.revision, merged.brokers)
        if self._on_routes_changed is not None:
            self._on_routes_changed()


class _Link:
    """One NameServer: its channel and what is known of it."""

    def __init__(self, address: str, log: FilteringBoundLogger, *, now_ms: int) -> None:
        self.address = address
        self.log = log
        self.heard_ms = now_ms
        self.is_registered = False
        self.is_watching = False
        self.error = ""
        self.attempts = 0
        self._brokers: tuple[RegisteredBroker, ...] = ()
        self._routes: Mapping[str, pb.TopicRoute] = {}
        # Number of this snapshot among those of all links: a higher one is fresher.
        self.arrival = 0
        # Set to register now instead of at the next heartbeat.
        self.wakeup = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None
        self._stub: name_server_service_pb2_grpc.NameServerServiceStub | None = None

    @property
    def stub(self) -> name_server_service_pb2_grpc.NameServerServiceStub:
        """Its calls. The channel is made when it is first used, and connects then."""
        if self._stub is None:
            self._channel = aio_channel(self.address, _CHANNEL_OPTIONS)
            self._stub = name_server_service_pb2_grpc.NameServerServiceStub(self._channel)
        return self._stub

    @property
    def connection(self) -> object:
        """What calls are made on now; another one when the certificate was renewed."""
        return connection_of(self._channel)

    def heartbeats(self) -> grpc.aio.StreamStreamCall[pb.HeartbeatRequest, pb.HeartbeatResponse]:
        """A new stream of them. A broken one is noticed when it breaks, not at the next heartbeat."""
        stream: grpc.aio.StreamStreamCall[pb.HeartbeatRequest, pb.HeartbeatResponse] = self.stub.Heartbeat()
        stream.add_done_callback(lambda _: self.wakeup.set())
        return stream

    async def close(self) -> None:
        """Breaks off what is in progress."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close(grace=None)

    async def group_memory(self, request: pb.GetGroupMemoryRequest, *, limit_s: float) -> GroupMemoryAnswer | None:
        """What the NameServer remembers of a group; None if it does not answer in time."""
        try:
            with cancellation_wins():
                return memory_value(await self.stub.GetGroupMemory(request, timeout=limit_s))
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                return GroupMemoryAnswer((), 0)
            self.log.info("group_memory_not_told", error=f"{failure.code().name}: {failure.details()}")
            return None

    async def forget_replica(self, request: pb.ForgetReplicasRequest) -> None:
        """Has the NameServer forget a disk."""
        try:
            with cancellation_wins():
                await self.stub.ForgetReplicas(request, timeout=_MEMORY_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            self.log.warning("replica_not_forgotten", error=f"{failure.code().name}: {failure.details()}")

    def registered(self, *, now_ms: int) -> None:
        """The NameServer accepted us, or answered a heartbeat."""
        if not self.is_registered:
            self.log.info("name_server_registered")
        self.is_registered = True
        self._succeeded(now_ms)

    def watching(self, snapshot: pb.WatchRoutesResponse, *, arrival: int, now_ms: int) -> None:
        """The NameServer told its routes."""
        self.is_watching = True
        self._brokers = tuple(broker_value(broker) for broker in snapshot.brokers)
        self._routes = {route.topic: route for route in snapshot.routes}
        self.arrival = arrival
        self._succeeded(now_ms)

    def snapshot_of(self, topic: str | None) -> RouteSnapshot:
        """What the NameServer said of the brokers and of one topic."""
        route = self._routes.get(topic) if topic is not None else None
        return RouteSnapshot(0, {route.topic: route_value(route)} if route is not None else {}, self._brokers)

    def failed(self, error: str) -> None:
        """An attempt ended; logged once for each cause, not for each attempt."""
        if error != self.error:
            self.log.warning("name_server_unreachable", error=error)
        self.error = error

    async def woken_within(self, limit_s: float) -> bool:
        """True if `wakeup` was set before the time was over."""
        try:
            async with asyncio.timeout(limit_s):
                await self.wakeup.wait()
        except TimeoutError:
            return False
        return True

    def _succeeded(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        self.error = ""
        self.attempts = 0


async def _beat(
    heartbeats: grpc.aio.StreamStreamCall[pb.HeartbeatRequest, pb.HeartbeatResponse], registrant: Registrant
) -> pb.HeartbeatResponse | None:
    """One sign of life and its answer; None when the NameServer ended the stream without an error."""
    # Writing to a stream that has ended is a usage error of its own; reading from it tells why it ended.
    if not heartbeats.done():
        await heartbeats.write(
            pb.HeartbeatRequest(
                identity=identity_message(registrant.identity),
                incarnation=registrant.incarnation,
                data_version=version_message(registrant.data_version),
                epoch=registrant.epoch,
                end_offset=registrant.end_offset,
                unproven=registrant.unproven,
                record_epoch=registrant.record_version[0],
                record_renewals=registrant.record_version[1],
            )
        )
    answer = await heartbeats.read()
    return answer if isinstance(answer, pb.HeartbeatResponse) else None

"""What brokers know of one client, kept alive: its id, its settings on a Telemetry stream, its heartbeats, its goodbye.
And what the client knows of the cluster: its routes.

One task per broker holds the stream and reopens it; one task beats for all of them. Both end with the session's block.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc.aio

from tandemmq.client.connection import ClientOptions, ConnectionPool
from tandemmq.client.messages import ClientError, TopicNotFound
from tandemmq.core.clock import Clock
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import cancellation_wins

# Which brokers serve a topic, remembered for a while.
#
# An old route is used until a new one is had: when no NameServer or broker answers, clients go on with what they know.


_READABLE: Final = (definition.READ, definition.READ_WRITE)
_WRITABLE: Final = (definition.WRITE, definition.READ_WRITE)


@dataclass(frozen=True, slots=True)
class RouteBroker:
    """The leader of one broker group, as a route names it."""

    name: str
    # gRPC target.
    endpoint: str


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """The broker groups that serve a topic, each once, in the order of the answer.

    Queues do not matter to this client: the broker chooses the queue of a send and serves all of them to a receive.
    """

    topic: str
    readable: tuple[RouteBroker, ...]
    writable: tuple[RouteBroker, ...]
    asked_at_ms: int

    @property
    def endpoints(self) -> frozenset[str]:
        """All targets named."""
        return frozenset(broker.endpoint for broker in (*self.readable, *self.writable))


class RouteCache:
    """Routes by topic. Event loop only; concurrent questions about one topic become one request."""

    def __init__(
        self, connections: ConnectionPool, access_points: tuple[str, ...], clock: Clock, *, refresh_interval_ms: int
    ) -> None:
        self._connections = connections
        self._access_points = access_points
        self._clock = clock
        self._refresh_interval_ms = refresh_interval_ms
        self._routes: dict[str, KnownRoute] = {}
        self._asking: dict[str, asyncio.Future[KnownRoute | None]] = {}
        self._stale: set[str] = set()

    async def route(self, topic: str) -> KnownRoute:
        """The topic's route. TopicNotFound, or EndpointUnreachable when no access point answers and none is known."""
        while True:
            known = self._routes.get(topic)
            if known is not None and not self._is_due(known):
                return known
            asked = self._asking.get(topic)
            if asked is None:
                return await self._ask_for_all(topic)
            if known is not None:
                return known
            # A shared answer; None when whoever asked was cancelled, then one of those who waited asks again.
            answer = await asyncio.shield(asked)
            if answer is not None:
                return answer

    def mark_stale(self, topic: str) -> None:
        """A broker of this route failed: the next use asks again."""
        self._stale.add(topic)

    @property
    def endpoints(self) -> frozenset[str]:
        """Targets of all known routes."""
        return frozenset().union(*(route.endpoints for route in self._routes.values()))

    def _is_due(self, route: KnownRoute) -> bool:
        return route.topic in self._stale or self._clock.monotonic_ms() - route.asked_at_ms >= self._refresh_interval_ms

    async def _ask_for_all(self, topic: str) -> KnownRoute:
        shared: asyncio.Future[KnownRoute | None] = asyncio.get_running_loop().create_future()
        self._asking[topic] = shared
        try:
            route = await self._ask(topic)
        except ClientError as error:
            known = self._routes.get(topic)
            if known is None or isinstance(error, TopicNotFound):
                self._routes.pop(topic, None)
                shared.set_exception(error)
                shared.exception()  # perhaps nobody waits; then the error is reported by the raise alone
                raise
            route = known
        finally:
            del self._asking[topic]
            if not shared.done():
                shared.set_result(None)
        self._routes[topic] = route
        return route

    async def _ask(self, topic: str) -> KnownRoute:
        """Asks one access point after the other until one knows."""
        failures: list[ClientError] = []
        for access_point in self._access_points:
            request = pb.QueryRouteRequest(topic=definition.Resource(name=topic))
            request.endpoints.CopyFrom(_endpoints(access_point))
            try:
                answer = await self._connections.get(access_point).query_route(request)
            except ClientError as error:
                failures.append(error)
                continue
            self._stale.discard(topic)
            return _known_route(topic, answer, self._clock.monotonic_ms())
        # "Not found" is an answer and says more than another address's silence.
        raise next((error for error in failures if isinstance(error, TopicNotFound)), failures[0])


def grpc_target(endpoints: definition.Endpoints) -> str:
    """An `Endpoints` value as gRPC names it."""
    first = endpoints.addresses[0]
    if endpoints.scheme == definition.DOMAIN_NAME:
        return f"{first.host}:{first.port}"
    if endpoints.scheme == definition.IPv6:
        return "ipv6:" + ",".join(f"[{address.host}]:{address.port}" for address in endpoints.addresses)
    return "ipv4:" + ",".join(f"{address.host}:{address.port}" for address in endpoints.addresses)


def _endpoints(access_point: str) -> definition.Endpoints:
    host, _, port = access_point.rpartition(":")
    host = host.strip("[]")
    if ":" in host:
        scheme = definition.IPv6
    elif host.replace(".", "").isdigit():
        scheme = definition.IPv4
    else:
        scheme = definition.DOMAIN_NAME
    return definition.Endpoints(scheme=scheme, addresses=[definition.Address(host=host, port=int(port))])


def _known_route(topic: str, answer: pb.QueryRouteResponse, now_ms: int) -> KnownRoute:
    readable: dict[RouteBroker, None] = {}
    writable: dict[RouteBroker, None] = {}
    for queue in answer.message_queues:
        broker = RouteBroker(queue.broker.name, grpc_target(queue.broker.endpoints))
        if queue.permission in _READABLE:
            readable[broker] = None
        if queue.permission in _WRITABLE:
            writable[broker] = None
    return KnownRoute(topic, tuple(readable), tuple(writable), now_ms)


_VERSION: Final = "0.1.0"
_REOPEN_PAUSE_S: Final = 1.0
# The goodbye is a courtesy: a broker that does not answer forgets us after 120 s anyway.
_GOODBYE_TIMEOUT_S: Final = 1.0

_instances = itertools.count()


class ClientSession:
    """The shared part of producer and consumer. An async context manager; event loop only.

    `settings` makes the Settings a broker is told, with the client's role and topics as they are now.
    """

    def __init__(
        self, options: ClientOptions, clock: Clock, *, settings: Callable[[], definition.Settings], group: str | None
    ) -> None:
        self.client_id = f"{socket.gethostname()}@{os.getpid()}@{next(_instances)}@{clock.wall_ms():x}"
        self.connections = ConnectionPool(self._metadata, options.request_timeout_ms, options.dial)
        self.routes = RouteCache(
            self.connections, options.access_points, clock, refresh_interval_ms=options.route_refresh_interval_ms
        )
        self._options = options
        self._settings = settings
        self._group = group
        self._headers: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", _VERSION),
        )
        self._clock = clock
        self._signed_second = -1
        self._signed_headers: tuple[tuple[str, str], ...] = self._headers
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self.connections.close)
        await self._stack.enter_async_context(self._tasks)
        beating = self._tasks.create_task(self._beat(), name="mqclient-heartbeat")
        self._stack.push_async_callback(self._end, beating)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def route(self, topic: str) -> KnownRoute:
        """The topic's route; its brokers are introduced to this client."""
        route = await self.routes.route(topic)
        for endpoint in route.endpoints:
            if endpoint not in self._kept:
                self._kept[endpoint] = self._tasks.create_task(
                    self._keep_settings(endpoint), name=f"mqclient-telemetry-{endpoint}"
                )
        return route

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        credentials = self._options.credentials
        if credentials is None:
            return self._headers
        second = self._clock.wall_ms() // 1_000
        if second != self._signed_second:
            # A date has whole seconds: what is sent in one of them has one signature.
            self._signed_second = second
            self._signed_headers = (*self._headers, *credentials.headers(wall_ms=second * 1_000))
        return self._signed_headers

    async def _keep_settings(self, endpoint: str) -> None:
        connection = self.connections.get(endpoint)
        while True:
            stream = connection.telemetry()
            try:
                with cancellation_wins():
                    await stream.write(pb.TelemetryCommand(settings=self._settings()))
                    # Commands of the broker are requests for a diagnosis or an early reconnect, none of them needed for
                    # correctness; the stream is read so that its end is noticed.
                    async for _ in stream:
                        pass
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            finally:
                stream.cancel()
            await asyncio.sleep(_REOPEN_PAUSE_S)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_interval_ms / 1_000)
            request = pb.HeartbeatRequest(client_type=self._settings().client_type)
            if self._group is not None:
                request.group.name = self._group
            for endpoint in tuple(self._kept):
                try:
                    await self.connections.get(endpoint).heartbeat(request)
                except ClientError:
                    # A broker that misses beats forgets us, and learns of us again with the next one it hears.
                    continue

    async def _end(self, beating: asyncio.Task[None]) -> None:
        beating.cancel()
        request = pb.NotifyClientTerminationRequest()
        if self._group is not None:
            request.group.name = self._group
        try:
            async with asyncio.timeout(_GOODBYE_TIMEOUT_S):
                for endpoint in self._kept:
                    await self._say_goodbye(endpoint, request)
        except TimeoutError:
            pass
        for task in self._kept.values():
            task.cancel()

    async def _say_goodbye(self, endpoint: str, request: pb.NotifyClientTerminationRequest) -> None:
        try:
            await self.connections.get(endpoint).terminate(request)
        except ClientError:
            return

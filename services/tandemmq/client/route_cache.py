"""Which brokers serve a topic, remembered for a while.

An old route is used until a new one is had: when no NameServer or broker answers, clients go on with what they know.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tandemmq.client.connection import ConnectionPool
from tandemmq.client.messages import ClientError, TopicNotFound
from tandemmq.core.clock import Clock
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

__all__ = ["KnownRoute", "RouteBroker", "RouteCache", "grpc_target"]

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

"""What brokers know of one client, kept alive: its id, its settings on a Telemetry stream, its heartbeats, its goodbye.

One task per broker holds the stream and reopens it; one task beats for all of them. Both end with the session's block.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import grpc.aio

from tandemmq.client.connection import ClientOptions, ConnectionPool
from tandemmq.client.messages import ClientError
from tandemmq.client.route_cache import KnownRoute, RouteCache
from tandemmq.core.clock import Clock
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import cancellation_wins

__all__ = ["ClientSession"]

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

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

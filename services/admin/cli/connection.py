"""One command's connection to the cluster it talks to: channels, a reading of the cluster, and its operations."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from admin.cli.cluster_address import ClusterAddress, ClusterTarget
from admin.cli.failure import CommandError
from admin.cli.release_way import ReleaseWay, way_to_place
from admin.cluster_reader import ClusterReader
from admin.cluster_state import ClusterState
from admin.operations.cluster_operations import ClusterOperations
from admin.operations.interface import Operations
from admin.rpc import Channels
from mqclient import ClientOptions, Producer
from mqservice.loop_meter import SystemClock

__all__ = ["ClusterConnection", "connection_on", "open_connection"]


class ClusterConnection(Protocol):
    """What a command has of a cluster for as long as it runs."""

    @property
    def address(self) -> ClusterAddress:
        """The NameServers."""
        ...

    @property
    def channels(self) -> Channels:
        """Channels that reach the addresses the members advertise."""
        ...

    @property
    def dial(self) -> Callable[[str], str] | None:
        """Where an address the members advertise is dialled from here; None: itself."""
        ...

    async def read_state(self) -> ClusterState:
        """The cluster now; what does not answer is part of it."""
        ...

    async def operations(self) -> Operations:
        """What can be asked of it and done to it. CommandError when nobody answers who knows the cluster."""
        ...


@contextlib.asynccontextmanager
async def open_connection(target: ClusterTarget) -> AsyncIterator[ClusterConnection]:
    """A connection that ends with the block. CommandError when a release in Kubernetes cannot be reached."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target.where, ClusterAddress):
            way = ReleaseWay(target.where)
        else:
            way = await stack.enter_async_context(way_to_place(target.where))
        yield await stack.enter_async_context(connection_on(way))


@contextlib.asynccontextmanager
async def connection_on(way: ReleaseWay) -> AsyncIterator[ClusterConnection]:
    """A connection on this way; its channels are closed with the block."""
    channels = Channels(way.dial)
    try:
        yield _Connection(way, channels)
    finally:
        await channels.close()


class _Connection:
    """The real one. Its operations know the cluster as `read_state` saw it last."""

    def __init__(self, way: ReleaseWay, channels: Channels) -> None:
        self._way = way
        self._channels = channels
        self._state: ClusterState | None = None
        self._operations = ClusterOperations(
            channels, members=lambda: self._state, send_client=self._producer, clock=SystemClock()
        )

    @property
    def address(self) -> ClusterAddress:
        return self._way.address

    @property
    def channels(self) -> Channels:
        return self._channels

    @property
    def dial(self) -> Callable[[str], str] | None:
        return self._way.dial

    async def read_state(self) -> ClusterState:
        address = self._way.address
        self._state = await ClusterReader(self._channels, address.name_servers, address.expected).read()
        return self._state

    async def operations(self) -> Operations:
        _refuse_blindness(self._state or await self.read_state())
        return self._operations

    def _producer(self, access_points: tuple[str, ...]) -> Producer:
        return Producer(ClientOptions(access_points=access_points, dial=self._way.dial), SystemClock())


def _refuse_blindness(state: ClusterState) -> None:
    """No NameServer answers and no broker is known from elsewhere: there is nobody to ask."""
    if state.brokers or any(server.error is None for server in state.name_servers):
        return
    raise CommandError(
        "no NameServer answers",
        cause="\n".join(f"{server.address}: {server.error}" for server in state.name_servers),
        remedy="start a cluster with `tandemmq up`, or name one with --namesrv host:port or --context",
    )

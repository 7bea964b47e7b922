"""Where a port of a pod is dialled: at the pod itself from inside the cluster, else through the API server."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Protocol, Self

from admin.cli.failure import CommandError
from admin.kubernetes_cluster import KubernetesUnavailable, PodState, PodStream

__all__ = [
    "CLIENT_PORT_NAME",
    "METADATA_PORT_NAME",
    "NAME_SERVER_PORT_NAMES",
    "PodAddresses",
    "PodNetwork",
    "address_of",
]

# As the chart names the container ports.
CLIENT_PORT_NAME: Final = "grpc-client"
METADATA_PORT_NAME: Final = "grpc-metadata"
NAME_SERVER_PORT_NAMES: Final = ("grpc", "grpc-nameserver", "nameserver")
_CHUNK_BYTES: Final = 64 << 10


def address_of(pod: PodState, port_name: str) -> str:
    """`ip:port` of a pod. CommandError when the pod has no such port."""
    return f"[{pod.ip}]:{_port(pod, port_name)}" if ":" in pod.ip else f"{pod.ip}:{_port(pod, port_name)}"


class PodNetwork(Protocol):
    """The way to pods: `ApiServerCluster` has it."""

    @property
    def is_inside(self) -> bool:
        """True where addresses of pods can be dialled."""
        ...

    async def open_stream(self, pod: str, port: int) -> PodStream:
        """A connection through the API server. Raises KubernetesUnavailable."""
        ...


class PodAddresses:
    """Finds addresses to dial. An async context manager: tunnels through the API server end with its block.

    By address and not by name: a pod that was made anew has another one at once, while names are cached on the way.
    """

    def __init__(self, cluster: PodNetwork) -> None:
        self._cluster = cluster
        self._tunnels: dict[tuple[str, int], str] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def find(self, pod: PodState, port_name: str) -> str:
        """host:port for this port of the pod; a tunnel's end on loopback when we are outside."""
        if self._cluster.is_inside:
            return address_of(pod, port_name)
        key = (pod.name, _port(pod, port_name))
        if key not in self._tunnels:
            self._tunnels[key] = await self._listen(*key)
        return self._tunnels[key]

    async def _listen(self, pod: str, port: int) -> str:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._relay(pod, port, reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        self._stack.callback(server.close)
        host, local_port = server.sockets[0].getsockname()[:2]
        return f"{host}:{local_port}"

    async def _relay(self, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await self._cluster.open_stream(pod, port)
        except KubernetesUnavailable:
            # Whoever dialled sees a closed connection, which is what an unreachable broker looks like.
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(sock=stream.dup())
            try:
                async with asyncio.TaskGroup() as tasks:
                    there = tasks.create_task(_copy(reader, far_writer))
                    back = tasks.create_task(_copy(far_reader, writer))
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
            finally:
                far_writer.close()
        finally:
            stream.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _port(pod: PodState, name: str) -> int:
    port = pod.ports.get(name)
    if port is None:
        raise CommandError(
            f"pod {pod.name} has no port named {name}",
            cause=f"it has {', '.join(sorted(pod.ports)) or 'none'}",
            remedy="is it a pod of this chart? See --release",
        )
    return port

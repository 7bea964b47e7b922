"""The client API's ports: one for clients inside, and, where settings name one, a second for clients elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter

from broker.api.client_api import ClientApi
from broker.client_server import ClientServer, client_server_of
from broker.settings import BrokerSettings
from mqcore.clock import Clock
from mqservice.loop_turns import LoopTurns

__all__ = ["ClientPlane"]


class ClientPlane:
    """The same handlers on each port; only the routes of the second name other addresses."""

    def __init__(
        self, settings: BrokerSettings, api: ClientApi, *, clock: Clock, turns: LoopTurns | None = None
    ) -> None:
        """OSError or ssl.SSLError if TLS files cannot be used."""
        inside = client_server_of(settings, clock=clock, port=settings.grpc_server_port, turns=turns)
        inside.add(api.method_table())
        # By the setting that names the port.
        self._servers: dict[str, ClientServer] = {"grpcServerPort": inside}
        if settings.external_listen_port:
            outside = client_server_of(settings, clock=clock, port=settings.external_listen_port, turns=turns)
            outside.add(api.external_method_table())
            self._servers["externalListenPort"] = outside
        # Called for every report of a slave: with one port there is no step in between.
        self.flush = inside.flush if len(self._servers) == 1 else self._flush_all

    async def start(self) -> dict[str, int]:
        """Listens; ports by setting. Raises ListenError."""
        return {key: await server.start() for key, server in self._servers.items()}

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        for server in self._servers.values():
            await server.set_serving(is_serving)

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls, gives those in progress `limit_ms`, then cancels them."""
        async with asyncio.TaskGroup() as stops:
            for server in self._servers.values():
                stops.create_task(server.stop(limit_ms=limit_ms))

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return sum(server.connection_count for server in self._servers.values())

    @property
    def counters(self) -> dict[str, int]:
        """Connections accepted, and what limits refused, by name."""
        added: Counter[str] = Counter()
        for server in self._servers.values():
            added.update(server.counters)
        return dict(added)

    def _flush_all(self) -> None:
        """Writes all answers given so far."""
        for server in self._servers.values():
            server.flush()

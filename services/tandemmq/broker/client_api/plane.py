"""The client API's ports: one for clients inside, and, where settings name one, a second for clients elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.far_reads import memory_bytes
from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.clock import Clock
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.http2.server import ConnectionGate
from tandemmq.service.certificates import TlsFiles
from tandemmq.service.event_loop import LoopTurns
from tandemmq.service.http2_call import Forwarder
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.settings import connections_within_files

if TYPE_CHECKING:
    from tandemmq.broker.client_api.client_api import ClientApi

log = structlog.get_logger(__name__)

_BUFFER_BYTES_MIN: Final = 256 << 20
"""Of strangers' unfinished requests and unread answers: one request may have 130 MiB."""
_STREAMS_MIN: Final = 20_000
_STREAM_BYTES: Final = 2_500
"""A call that has begun, with headers of a kilobyte; measured."""


def _front_of(
    settings: BrokerSettings,
    *,
    clock: Clock,
    port: int,
    turns: LoopTurns | None = None,
    gate: ConnectionGate | None = None,
) -> Http2Front:
    """OSError or ssl.SSLError if TLS files cannot be used."""
    return Http2Front(
        settings.bind_address,
        port,
        clock=clock,
        limits=_limits(settings),
        tls=_tls_files(settings, clock).context if settings.tls_mode is not TlsMode.DISABLED else None,
        tls_mode=settings.tls_mode,
        turns=turns,
        gate=gate,
    )


def _limits(settings: BrokerSettings) -> Limits:
    """Strangers' connections leave files for the store, whatever the settings say."""
    limits, ports = settings.client_limits(), 2 if settings.external_listen_port else 1
    room = connections_within_files(ports * limits.connections) // ports
    if room < limits.connections:
        # Most machines allow fewer files than the default would take.
        tell = log.warning if "client_connections_max" in settings.model_fields_set else log.info
        tell(
            "client_connections_bounded",
            clientConnectionsMax=limits.connections,
            connections=room,
            remedy="let this process open more files (ulimit -n, LimitNOFILE), or lower clientConnectionsMax",
        )
    # There may be two ports, and each takes twice as much, if very many addresses ask: three quarters of the memory.
    memory = memory_bytes()
    return replace(
        limits,
        connections=room,
        server_buffer_bytes=min(limits.server_buffer_bytes, max(_BUFFER_BYTES_MIN, memory // 8)),
        server_streams=min(limits.server_streams, max(_STREAMS_MIN, memory // 16 // _STREAM_BYTES)),
    )


def _tls_files(settings: BrokerSettings, clock: Clock) -> TlsFiles:
    return TlsFiles(settings.tls_cert_path, settings.tls_key_path, protocols=("h2",), clock=clock)


class ClientPlane:
    """The same handlers on each port; only the routes of the second name other addresses."""

    def __init__(
        self, settings: BrokerSettings, api: ClientApi, *, clock: Clock, turns: LoopTurns | None = None
    ) -> None:
        """OSError or ssl.SSLError if TLS files cannot be used."""
        self._quotas = api.quotas
        gate = api.quotas
        inside = _front_of(settings, clock=clock, port=settings.grpc_server_port, turns=turns, gate=gate)
        inside.add(api.method_table())
        # By the setting that names the port.
        self._servers: dict[str, Http2Front] = {"grpcServerPort": inside}
        if settings.external_listen_port:
            outside = _front_of(settings, clock=clock, port=settings.external_listen_port, turns=turns, gate=gate)
            outside.add(api.external_method_table())
            self._servers["externalListenPort"] = outside
        # Called for every report of a slave: with one port there is no step in between.
        self.flush = inside.flush if len(self._servers) == 1 else self._flush_all

    async def start(self) -> dict[str, int]:
        """Listens; ports by setting. Raises ListenError."""
        return {key: await server.start() for key, server in self._servers.items()}

    def forward(self, forwarder: Forwarder | None) -> None:
        """Has calls answered by another broker; None: by this one again."""
        for server in self._servers.values():
            server.forward(forwarder)

    def turn_away(self, *, is_on: bool) -> None:
        """While it is on, clients are sent to another address."""
        for server in self._servers.values():
            server.turn_away(is_on=is_on)

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        for server in self._servers.values():
            await server.set_serving(is_serving)

    async def settle(self, *, limit_ms: int) -> None:
        """Waits until callers have read their answers, and tells at the limit who may not have."""
        async with asyncio.TaskGroup() as settling:
            for server in self._servers.values():
                settling.create_task(server.settle(limit_ms=limit_ms))

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls, gives those in progress `limit_ms`, then cancels them."""
        async with asyncio.TaskGroup() as stops:
            for server in self._servers.values():
                stops.create_task(server.stop(limit_ms=limit_ms))

    @property
    def connection_count(self) -> int:
        return sum(server.connection_count for server in self._servers.values())

    @property
    def counters(self) -> dict[str, int]:
        """Connections accepted, and what limits and quotas refused, by name."""
        added: Counter[str] = Counter(self._quotas.refused)
        for server in self._servers.values():
            added.update(server.counters)
        return dict(added)

    def _flush_all(self) -> None:
        """Writes all answers given so far."""
        for server in self._servers.values():
            server.flush()

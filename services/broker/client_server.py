"""Which server answers clients, by the settings; both run the same handlers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Protocol

from broker.settings import BrokerSettings, ClientFront
from mqcore.clock import Clock
from mqgrpc.server import TlsMode
from mqservice.grpc_server import GrpcServer
from mqservice.http2_front import Http2Front
from mqservice.loop_turns import LoopTurns
from mqservice.rpc import MethodTable

__all__ = ["ClientServer", "check_tls_files", "client_server_of"]


class ClientServer(Protocol):
    """What the broker needs of the client plane."""

    @property
    def connection_count(self) -> int:
        """Connections open now; 0 where that is not known."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What limits refused, by limit."""

    def add(self, table: MethodTable) -> None:
        """Serves the table's methods. Before `start`."""

    async def start(self) -> int:
        """Listens and returns the port. Raises ListenError."""

    async def set_serving(self, is_serving: bool, /) -> None:
        """Readiness, as probes and clients see it."""

    def flush(self) -> None:
        """Writes all answers given so far."""

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls, gives those in progress `limit_ms`, then cancels them."""


def client_server_of(
    settings: BrokerSettings, *, clock: Clock, port: int, turns: LoopTurns | None = None
) -> ClientServer:
    """The server `clientFront` names, for `port`. OSError or ssl.SSLError if TLS files cannot be used."""
    if settings.client_front is ClientFront.GRPCIO:
        return GrpcServer(settings.bind_address, port, clock=clock)
    return Http2Front(
        settings.bind_address,
        port,
        clock=clock,
        limits=settings.client_limits(),
        tls=_tls_context(settings) if settings.tls_mode is not TlsMode.DISABLED else None,
        tls_mode=settings.tls_mode,
        turns=turns,
    )


def check_tls_files(settings: BrokerSettings) -> list[str]:
    """What is wrong with the certificate or its key, for people to read."""
    if settings.tls_mode is TlsMode.DISABLED:
        return []
    try:
        _tls_context(settings)
    except (OSError, ssl.SSLError) as error:
        return [f"tlsCertPath, tlsKeyPath: {error.strerror or error}; name a PEM certificate and its unencrypted key"]
    return []


def _tls_context(settings: BrokerSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # An encrypted key would ask for its password on the terminal.
    context.load_cert_chain(settings.tls_cert_path, settings.tls_key_path, password="")
    return context

"""One port for people and programs: HTTP/1.1 (page, JSON, metrics) and gRPC, told apart by their first bytes.

A gRPC client begins with HTTP/2's preface, `PRI * HTTP/2.0`, and no HTTP/1.1 request begins with `PRI `: so the first
bytes decide, a connection belongs to one of the two for good, and `kubectl port-forward` needs one port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tandemmq.admin.api.access import Access
from tandemmq.admin.api.cluster_grpc import ClusterServicer, ConsistencyServicer, guarded
from tandemmq.admin.api.operations_grpc import OperationsServicer
from tandemmq.admin.operations.operations import OperationsDesk
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.http2.errors import Limits
from tandemmq.service.http2_front import Http2Front, reflection_table
from tandemmq.service.rpc import ListenError

# The gRPC half of the admin's port, on connections that `shared_port` accepts.

# The longest request is a test message of 4 MiB; answers are a cluster's state or pages of messages.
_LIMITS: Final = Limits(
    message_bytes=5 << 20,
    concurrent_streams=32,
    server_streams=1_000,
    stream_window_bytes=64 << 10,
    connection_window_bytes=256 << 10,
    connection_buffer_bytes=16 << 20,
    server_buffer_bytes=128 << 20,
    idle_burst=200,
    idle_per_s=50,
)


class GrpcSide:
    """Our services, health and reflection, on a front that never listens: it is given connections."""

    def __init__(
        self,
        servicer: ClusterServicer,
        consistency: ConsistencyServicer,
        *,
        access: Access,
        clock: Clock,
        desk: OperationsDesk,
    ) -> None:
        self._servicer = servicer
        self._operations = OperationsServicer(desk, access=access)
        self._front = Http2Front("", 0, clock=clock, limits=_LIMITS)
        tables = [servicer.method_table(), consistency.method_table()]
        for table in tables:
            self._front.add(guarded(table, access))
        # It finds out itself who calls.
        operations = self._operations.method_table()
        self._front.add(operations)
        names = [*(table.service_name for table in (*tables, operations)), "grpc.health.v1.Health"]
        self._front.add(guarded(reflection_table(names), access))

    @property
    def connection_count(self) -> int:
        return self._front.connection_count

    def adopted(self) -> list[asyncio.Transport]:
        """Of its connections."""
        return self._front.adopted()

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serves a connection, of which `received` was read already."""
        self._front.adopt(transport, received)

    async def set_serving(self, is_serving: bool) -> None:
        """What grpc.health.v1 answers."""
        await self._front.set_serving(is_serving)

    async def stop(self, *, limit_ms: int) -> None:
        """Ends watches, tells callers to go elsewhere, and cuts off who has not gone within `limit_ms`."""
        self._servicer.end_watches()
        await self._operations.stop()
        await self._front.stop(limit_ms=limit_ms)


_PREFACE: Final = b"PRI * HTTP/2.0\r\n"
# Longest wait for the first bytes, for the rest of a request that has begun, and for room for its answer.
_REQUEST_TIMEOUT_S: Final = 10.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_WRITE_TIMEOUT_S: Final = 30.0
_KEEP_ALIVE_S: Final = 30
_REQUEST_HEAD_BYTES_MAX: Final = 16 << 10
_BACKLOG: Final = 128

ALPN: Final = ("http/1.1", "h2")
"""Browsers offer both, and are served the first; gRPC's clients offer the second alone."""

_App = Callable[..., Any]


class SharedPort:
    """Serves an ASGI application and a `GrpcSide` on one port, with `tls` by TLS alone: the context of a new
    connection."""

    def __init__(
        self,
        app: _App,
        grpc_side: GrpcSide,
        *,
        bind_address: str,
        port: int,
        max_connections: int,
        stop_limit_ms: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.tls: Final = tls
        self._grpc_side = grpc_side
        self._bind_address = bind_address
        self._port = port
        self._max_connections = max_connections
        self._stop_limit_ms = stop_limit_ms
        self._undecided: set[_FirstBytes] = set()
        # uvicorn would tell every start and stop in its own words.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=self._new_protocol,  # type: ignore[arg-type]  # anything that makes a protocol does
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=_REQUEST_HEAD_BYTES_MAX,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, stop_limit_ms // 1_000),
                backlog=_BACKLOG,
            )
        )
        self._socket: socket.socket | None = None

    def listen(self) -> int:
        """Takes the port and returns it, which differs from the one asked for when that was 0. Raises ListenError."""
        family = socket.AF_INET6 if ":" in self._bind_address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and self._bind_address == "::":
                # Every address of the machine, IPv4's too.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setblocking(False)
            listener.bind((self._bind_address, self._port))
            # Whoever comes before `serve` waits rather than being refused.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ListenError(self._bind_address, self._port, error.strerror or str(error)) from error
        self._socket = listener
        return int(listener.getsockname()[1])

    async def serve(self) -> None:
        """Answers until `stop`, then lets what is in progress end. After `listen`."""
        assert self._socket is not None, "listen comes first"
        async with asyncio.TaskGroup() as tasks:
            http = tasks.create_task(self._server.serve(sockets=[self._socket]))
            await self._server.stop_asked.wait()
            self._server.should_exit = True
            for undecided in list(self._undecided):
                undecided.abort()
            await self._grpc_side.stop(limit_ms=self._stop_limit_ms)
            await http

    def stop(self) -> None:
        """Makes `serve` end."""
        self._server.stop_asked.set()

    def _new_protocol(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> _FirstBytes:
        return _FirstBytes(self, lambda: _HttpConnection(config, server_state, app_state, _loop))

    # What connections ask for

    @property
    def connection_count(self) -> int:
        return len(self._undecided) + len(self._server.server_state.connections) + self._grpc_side.connection_count

    def admit(self, connection: _FirstBytes) -> bool:
        """False when there are too many."""
        if self._server.stop_asked.is_set():
            return False
        if self.connection_count >= self._max_connections and not self._makes_room(_host_of(connection.transport)):
            return False
        self._undecided.add(connection)
        return True

    def _makes_room(self, host: str) -> bool:
        """Ends a connection of the host that has most of them, for one that has fewer: whoever opens them all keeps out
        neither operators nor monitoring."""
        held: dict[str, list[asyncio.Transport]] = {}
        transports = [undecided.transport for undecided in self._undecided]
        transports += [each.transport for each in self._server.server_state.connections]
        for transport in (*transports, *self._grpc_side.adopted()):
            if not transport.is_closing():
                held.setdefault(_host_of(transport), []).append(transport)
        most = max(held.values(), key=len, default=[])
        if len(most) <= len(held.get(host, ())) + 1:
            return False
        most[0].abort()
        return True

    def decided(self, connection: _FirstBytes) -> None:
        """It is one or the other, or gone."""
        self._undecided.discard(connection)

    def adopt_grpc(self, transport: asyncio.Transport, received: bytes) -> None:
        """A connection turned out to be gRPC."""
        self._grpc_side.adopt(transport, received)


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers: the process has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop_asked = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _host_of(transport: asyncio.Transport) -> str:
    return counted_host(str((transport.get_extra_info("peername") or ("",))[0]))


class _FirstBytes(asyncio.Protocol):
    """A connection until its first bytes have told what it is."""

    def __init__(self, port: SharedPort, new_http: Callable[[], _HttpConnection]) -> None:
        self._port = port
        self._new_http = new_http
        self._received = b""
        self.transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._port.admit(self):
            transport.abort()
            return
        if self._port.tls is None:
            self._timer = asyncio.get_running_loop().call_later(_REQUEST_TIMEOUT_S, self.abort)
        else:
            # Here, and not where connections are accepted: those that do not end their handshake are counted, too.
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(self._port.tls()))

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        loop, plain = asyncio.get_running_loop(), self.transport
        try:
            transport = await loop.start_tls(
                plain, self, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S
            )
        except OSError:
            # Whoever speaks no TLS, believes another CA or goes away, is nobody's failure.
            plain.abort()
            self._settle()
            return
        self._handshake = None
        if transport is None or transport.is_closing():
            self._settle()
            return
        self.transport = transport
        self._timer = loop.call_later(_REQUEST_TIMEOUT_S, self.abort)
        if self._received:
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._handshake is not None:
            return  # What came with its end.
        if self._received.startswith(_PREFACE):
            self._settle()
            self._port.adopt_grpc(self.transport, self._received)
        elif not _PREFACE.startswith(self._received):
            self._settle()
            http = self._new_http()
            http.connection_made(self.transport)
            self.transport.set_protocol(http)
            http.data_received(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()

    def abort(self) -> None:
        self.transport.abort()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._port.decided(self)


class _HttpConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which waits for ever for a request's rest and an answer's reader; here both have limits."""

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waits_for_rest = self.cycle is None or self.cycle.response_complete
        if not waits_for_rest:
            self._stop_timer()
        elif self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(_REQUEST_TIMEOUT_S, self.transport.abort)

    def on_response_complete(self) -> None:
        self._stop_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

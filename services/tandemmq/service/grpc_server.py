"""One listening gRPC port with health and reflection, and the transport limits the official clients need."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import inspect
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.http2 import server as http2
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.service.http2_call import MethodIndex
from tandemmq.service.newcomers import Newcomers
from tandemmq.service.rpc import MESSAGE_BYTES_MAX, Call, ListenError, Method, MethodTable, UnaryMethod, undecoded
from tandemmq.service.service_tls import PermissionInterceptor, ServerTls
from tandemmq.service.settings import service_connections_max

# Names under which an orchestrator asks the health service. They mean different things, so that a slow recovery is not
# killed and a broker whose peer is missing is not restarted.
PROBE_STARTED: Final = "tandemmq.probe.started"
PROBE_LIVE: Final = "tandemmq.probe.live"
PROBE_READY: Final = "tandemmq.probe.ready"

# Each name's condition, asked at every check: nothing has to remember to announce a change.
Probes: TypeAlias = Mapping[str, Callable[[], bool]]

ServicerT = TypeVar("ServicerT")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
RpcMethodHandler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_WATCH_INTERVAL_S: Final = 1.0

_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # The C++ client pings every 60 s, the Java client every 300 s, both also when idle. Without these three the pings
    # would count as abuse and earn a GOAWAY.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A peer whose machine vanished closes no connection. Pinging finds out, so that a dead broker's heartbeat stream
    # ends and a dead client's leases return.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Whoever connects and says nothing, or not all of a handshake, would be kept for two minutes; each costs a
    # descriptor and memory, before anybody knows who it is.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Nobody of ours compresses. A hundred kilobytes would be unpacked to the largest message there may be.
    ("grpc.compression_enabled_algorithms_bitset", 1 << grpc.Compression.NoCompression),
    # Otherwise a second process could bind the same port and get half of the connections without an error.
    ("grpc.so_reuseport", 0),
)

_HEALTH_SERVICE: Final = health.SERVICE_NAME


def _open_limits(connections: int) -> Limits:
    """Of a port on which anybody may ask: names of a topic and a group, or of a probe."""
    return Limits(
        message_bytes=64 << 10,
        concurrent_streams=100,
        connections=connections,
        connection_buffer_bytes=1 << 20,
        server_buffer_bytes=32 << 20,
    )


class GrpcServer:
    """A `grpc.aio` server on one port. Add services, `start`, declare it `serving`, `stop`.

    Health: the empty service name and each service's own name answer NOT_SERVING until `set_serving(True)`; names in
    `probes` answer by their condition.

    With `tls` each caller is judged by its certificate, see `tandemmq.service.service_tls`; with `records_changes` each
    call that changes something leaves a line in any case. On `open_port`, unless that is 0, anybody is told of the
    health, and served what was added for anybody. That port is our own front's: who is in no way known must not keep
    out those who are, and the library has no share of an address.
    """

    def __init__(
        self,
        bind_address: str,
        port: int,
        *,
        clock: Clock,
        probes: Probes = MappingProxyType({}),
        tls: ServerTls | None = None,
        open_port: int = 0,
        records_changes: bool = False,
        connections_max: int = 0,
    ) -> None:
        """`connections_max` of each port; 0: as many as a port between services takes."""
        self._bind_address = bind_address
        self._port = port
        self._clock = clock
        self._tls = tls
        self._front: TlsFront | None = None
        permissions = PermissionInterceptor(tls, clock=clock) if tls is not None or records_changes else None
        interceptors = () if permissions is None else (permissions,)
        self._permissions = permissions
        self._watch: asyncio.Task[None] | None = None
        self.refused: Final[Counter[str]] = Counter() if permissions is None else permissions.refused
        """Calls that the table of permissions refused, by reason; `PermissionInterceptor.refused`."""
        # Whoever connects costs a descriptor and memory before anybody knows who it is.
        bound = self._connections_max = connections_max or service_connections_max()
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", bound))
        self._server = grpc.aio.server(options=options, interceptors=interceptors)
        self._open_port = open_port
        self._open_methods = MethodIndex(clock)
        self._open_server = http2.Server(self._open_methods, limits=_open_limits(bound))
        self._health = _Health(probes)
        self._service_names: list[str] = []
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._open_methods.add(self._health.method_table())

    @property
    def aio_server(self) -> grpc.aio.Server:
        """For the `add_...Servicer_to_server` functions of generated code; name those services to `start`."""
        return self._server

    def add(self, table: MethodTable, *, for_anybody: bool = False) -> None:
        """Serves the table's methods, each of which has one response, given in place. Before `start`."""
        handlers = TableHandler(table, lambda method: _answered_in_place(method, self._clock))
        self._server.add_generic_rpc_handlers((handlers,))
        if for_anybody:
            self._open_methods.add(table)
        self._service_names.append(table.service_name)

    async def start(self, *, service_names: Sequence[str] = ()) -> int:
        """Listens and returns the port, which differs from the one asked for when that was 0.

        `service_names` are the full names of services that were added through `aio_server`. Raises ListenError.
        """
        self._service_names += service_names
        await self.set_serving(False)
        reflection.enable_server_reflection(
            (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        if self._open_port:
            try:
                self._open_server.listen(self._bind_address, self._open_port)
            except OSError as error:
                raise ListenError(self._bind_address, self._open_port, _reason(_text_of(error))) from error
        if self._tls is not None and self._tls.mode is TlsMode.PERMISSIVE:
            return await self._start_permissive(self._tls)
        port = self._bind(self._server, self._port, None if self._tls is None else self._tls.credentials())
        if self._tls is not None and self._permissions is not None:
            newcomers = Newcomers(port, self._connections_max, clock=self._clock)
            self._permissions.came_in = newcomers.came_in
            self._watch = asyncio.get_running_loop().create_task(newcomers.watch())
        await self._server.start()
        return port

    def _bind(self, server: grpc.aio.Server, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        host = f"[{self._bind_address}]" if ":" in self._bind_address else self._bind_address
        address = f"{host}:{port}"
        try:
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ListenError(self._bind_address, port, _reason(str(error))) from error

    async def _start_permissive(self, tls: ServerTls) -> int:
        """The library cannot tell TLS from plain on one port: a front does, and hands connections on."""
        self._front = front = TlsFront()
        if self._permissions is not None:
            self._permissions.came_in = front.came_in
        self._server.add_insecure_port(f"unix:{front.plain_path}")
        self._server.add_secure_port(f"unix:{front.tls_path}", tls.credentials())
        await self._server.start()
        try:
            return await front.start(self._bind_address, self._port)
        except OSError as error:
            raise ListenError(self._bind_address, self._port, _reason(_text_of(error))) from error

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._service_names):
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls at once, gives those in progress `limit_ms`, then cancels them."""
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        if self._front is not None:
            self._front.stop_listening()
        await self._server.stop(limit_ms / 1_000)
        # Last: probes are judged to the end.
        await self._open_server.stop(limit_s=0)
        if self._front is not None:
            await self._front.close()


class _Health(health.aio.HealthServicer):  # type: ignore[name-defined,misc]  # grpc-stubs lacks it
    """gRPC's health service, and the probes beside it. Probes go on being judged while the server stops."""

    def __init__(self, probes: Probes) -> None:
        super().__init__()
        self._probes = probes
        # What was set, for those who may ask and not watch.
        self._status: dict[str, int] = {}

    def method_table(self) -> MethodTable:
        """Check alone, for a port on which anybody may ask: a watch would be a call without end."""
        return MethodTable(_HEALTH_SERVICE, {"Check": UnaryMethod(self._answer, health_pb2.HealthCheckRequest)})

    def _answer(self, request: health_pb2.HealthCheckRequest, call: Call) -> None:
        probe = self._probes.get(request.service)
        status = self._status.get(request.service)
        if probe is not None:
            call.send(_answer(probe()))
        elif status is not None:
            call.send(health_pb2.HealthCheckResponse(status=status))
        else:
            call.finish(grpc.StatusCode.NOT_FOUND)
        call.finish()

    async def set(self, service: str, status: int) -> None:
        self._status[service] = status
        await super().set(service, status)

    async def enter_graceful_shutdown(self) -> None:
        self._status = dict.fromkeys(self._status, health_pb2.HealthCheckResponse.NOT_SERVING)
        await super().enter_graceful_shutdown()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        probe = self._probes.get(request.service)
        if probe is None:
            answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
            return answer
        return _answer(probe())

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        probe = self._probes.get(request.service)
        if probe is None:
            await super().Watch(request, context)
            return
        told: bool | None = None
        while True:
            is_so = probe()
            if is_so != told:
                told = is_so
                await context.write(_answer(is_so))
            await asyncio.sleep(_WATCH_INTERVAL_S)


def _answer(is_serving: bool) -> health_pb2.HealthCheckResponse:
    status = health_pb2.HealthCheckResponse
    return status(status=status.SERVING if is_serving else status.NOT_SERVING)


def _text_of(error: OSError) -> str:
    return error.strerror or str(error)


def _reason(detail: str) -> str:
    # gRPC tells only in words, and not always in the same ones.
    if "in use" in detail or errno.errorcode[errno.EADDRINUSE] in detail:
        return "another process has the port; stop it or choose another port"
    return f"{detail}; is it an address of this machine, and the port free?"


# Methods of a `MethodTable` beside those of generated servicers.


class TableHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Finds the method of a path; other methods of the same service get the table's own UNIMPLEMENTED."""

    def __init__(self, table: MethodTable, handler_of: Callable[[Method], RpcMethodHandler]) -> None:
        self._prefix = f"/{table.service_name}/"
        self._handlers = {self._prefix + name: handler_of(method) for name, method in table.methods.items()}
        self._otherwise = _refusal(table.otherwise) if table.otherwise else None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> RpcMethodHandler | None:
        """See `grpc.GenericRpcHandler`; None leaves the path to other handlers."""
        path = handler_call_details.method
        return self._handlers.get(path, self._otherwise) if path.startswith(self._prefix) else None


def _refusal(detail: str) -> RpcMethodHandler:
    # Stream in, stream out accepts what any kind of method sends.
    async def refuse(_requests: object, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, detail)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _answered_in_place(method: Method, clock: Clock) -> RpcMethodHandler:
    assert isinstance(method, UnaryMethod), "what has more than one response is a generated servicer's"

    async def answer(data: bytes, context: Context) -> bytes:
        try:
            request = method.request_type.FromString(data)
        except DecodeError as error:
            await context.abort(*undecoded(error))
        call = _CallInPlace(context, clock, data)
        method.handler(request, call)
        if call.status is None:
            raise RuntimeError("the handler returned without an answer")
        if call.status[0] is not grpc.StatusCode.OK:
            await context.abort(*call.status)
        [response] = call.responses
        return response

    return grpc.unary_unary_rpc_method_handler(answer)


class _CallInPlace:
    """`tandemmq.service.rpc.Call` of a handler that answers before it returns: nothing can happen to it meanwhile."""

    is_crowded_out = False

    def __init__(self, context: Context, clock: Clock, request_data: bytes) -> None:
        pairs = context.invocation_metadata() or ()
        left_s = context.time_remaining()
        self.metadata = {name: value for name, value in pairs if isinstance(value, str)}
        self.peer: str = context.peer()
        self.deadline_ms = None if left_s is None else clock.monotonic_ms() + int(left_s * 1_000)
        self.received_ns = clock.monotonic_ns()
        """When the library gave us the call: it does not tell when it read it."""
        self.request_data = request_data
        self.responses: list[bytes] = []
        self.status: tuple[grpc.StatusCode, str] | None = None

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    def keep_request(self) -> None: ...

    def send(self, message: Message) -> None:
        self.send_encoded(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        if self.status is None:
            self.responses.append(data)

    def send_all_encoded(self, messages: list[bytes]) -> None:
        for data in messages:
            self.send_encoded(data)

    def respond(self, data: bytes) -> None:
        self.send_encoded(data)
        self.finish()

    def finish(self, code: grpc.StatusCode = grpc.StatusCode.OK, detail: str = "") -> None:
        self.status = self.status or (code, detail)

    def on_cancel(self, callback: Callable[[], None]) -> None: ...

    def on_undelivered(self, callback: Callable[[], None]) -> None: ...

    def on_unread(self, callback: Callable[[], None]) -> None: ...


# One port for callers with and without TLS: the first byte tells, and the connection goes on to one of two sockets of
# this machine.
#
# For the step between an open cluster and a closed one only (`serviceTlsMode=permissive`): each byte is copied twice
# more on its way. 0x16 begins a TLS handshake (RFC 8446, 5.1), 0x50, the P of HTTP/2's preface, anything else here.

_TLS_HANDSHAKE: Final = 0x16
_FIRST_BYTE_LIMIT_S: Final = 10.0
_CONNECTIONS_MAX: Final = 1_000
_PIECE_BYTES: Final = 256 << 10


class TlsFront:
    """`plain_path` and `tls_path` name the Unix sockets that a server is to listen on before `start`."""

    def __init__(self) -> None:
        # Readable by this user only: who reaches the sockets is taken for one who came through the front.
        self._folder = Path(tempfile.mkdtemp(prefix="tandemmq-"))
        self.plain_path = str(self._folder / "plain")
        self.tls_path = str(self._folder / "tls")
        self._server: asyncio.Server | None = None
        # Each is three descriptors.
        self._connections_max = min(_CONNECTIONS_MAX, service_connections_max())
        # With the address each is counted by.
        self._connections: dict[asyncio.Task[None], str] = {}
        # Those of which no call with a certificate has come, by the caller's end, the oldest first.
        self._newcomers: dict[str, asyncio.Task[None]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listens; the port. OSError when it is taken."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=_PIECE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def came_in(self, peer: str) -> None:
        """A call with a certificate that counts has come from there: that connection gives way to nobody."""
        self._newcomers.pop(peer, None)

    def stop_listening(self) -> None:
        """Connections that are open stay so."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        self.stop_listening()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = writer.get_extra_info("peername")
        address, peer = (counted_host(str(caller[0])), _peer_text(caller)) if caller else ("", "")
        if len(self._connections) >= self._connections_max and not self._makes_room(address):
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = address
        self._newcomers[peer] = task

        def ended(_: object) -> None:
            self._connections.pop(task, None)
            if self._newcomers.get(peer) is task:
                del self._newcomers[peer]
            writer.close()  # Of one that gave way before it began, too.

        task.add_done_callback(ended)

    def _makes_room(self, address: str) -> bool:
        """Ends the oldest newcomer of the address with most, for one of an address that has less than its share of what
        those who have shown a certificate leave."""
        counts = Counter(self._connections[task] for task in self._newcomers.values())
        room = self._connections_max - (len(self._connections) - len(self._newcomers))
        share = room // (len(counts) + 1)
        greedy, its_count = max(counts.items(), key=itemgetter(1), default=("", 0))
        if counts[address] >= share or its_count <= share:
            return False
        peer, oldest = next(item for item in self._newcomers.items() if self._connections[item[1]] == greedy)
        del self._connections[oldest], self._newcomers[peer]
        oldest.cancel()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner: asyncio.StreamWriter | None = None
        # A caller that says nothing, or goes away, is nobody's failure.
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(_FIRST_BYTE_LIMIT_S):
                    first = await reader.readexactly(1)
                path = self.tls_path if first[0] == _TLS_HANDSHAKE else self.plain_path
                inner_reader, inner = await self._connected(path, writer.get_extra_info("peername"))
                inner.write(first)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(reader, inner))
                    tasks.create_task(_copy(inner_reader, writer))
            except* OSError:
                pass
            finally:
                for each in (writer, inner):
                    if each is not None:
                        each.close()

    async def _connected(
        self, path: str, caller: tuple[Any, ...] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the two sockets, whose own end is named after the caller: the library knows no other
        way to tell a method who is at the other end (`peer_of`)."""
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            name = Path(path).with_name(_peer_text(caller)) if caller else None
            if name is not None:
                with contextlib.suppress(OSError):  # too long: then nobody knows
                    inner.bind(str(name))
                    # Its name stays with the connection.
                    name.unlink()
            await asyncio.get_running_loop().sock_connect(inner, path)
            return await asyncio.open_unix_connection(sock=inner, limit=_PIECE_BYTES)
        except BaseException:
            inner.close()
            raise


def _peer_text(caller: tuple[Any, ...]) -> str:
    """A socket's address as gRPC writes it."""
    host = str(caller[0])
    return f"ipv6:[{host}]:{caller[1]}" if ":" in host else f"ipv4:{host}:{caller[1]}"


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until the source ends; the target is told of the end."""
    while data := await source.read(_PIECE_BYTES):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


# How a method of a servicer refuses: it raises, and one table a service says which status that is.


class Refused(Exception):
    """Ends a call of a `refusing` servicer with this status."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Invalid(Refused):
    """The caller's mistake; `detail` names the field."""

    def __init__(self, detail: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, detail)


StatusOf: TypeAlias = Callable[[Exception], tuple[grpc.StatusCode, str] | None]
"""None: it is no refusal but a defect."""


def by_kind(*codes: tuple[type[Exception], grpc.StatusCode]) -> StatusOf:
    """The code of the first kind that an error is of."""
    return lambda error: next(((code, str(error)) for kind, code in codes if isinstance(error, kind)), None)


def refusing(status_of: StatusOf) -> Callable[[type[ServicerT]], type[ServicerT]]:
    """A servicer whose methods end a call by raising `Refused`, or an error for which `status_of` has a status."""

    async def end(error: Exception, context: Context) -> None:
        status = (error.code, str(error)) if isinstance(error, Refused) else status_of(error)
        if status is None:
            raise error
        await context.abort(*status)

    def unary(method: Callable[[Any, Any, Context], Awaitable[Any]]) -> Any:
        @functools.wraps(method)
        async def answer(servicer: Any, request: Any, context: Context) -> Any:
            try:
                return await method(servicer, request, context)
            except Exception as error:
                await end(error, context)

        return answer

    def stream(method: Callable[[Any, Any, Context], AsyncGenerator[Any, None]]) -> Any:
        @functools.wraps(method)
        async def answers(servicer: Any, request: Any, context: Context) -> AsyncGenerator[Any, None]:
            try:
                async with contextlib.aclosing(method(servicer, request, context)) as found:
                    async for one in found:
                        yield one
            except Exception as error:
                await end(error, context)

        return answers

    def refuse(servicer_type: type[ServicerT]) -> type[ServicerT]:
        for name, method in list(vars(servicer_type).items()):
            if name[0].isupper():
                setattr(servicer_type, name, (stream if inspect.isasyncgenfunction(method) else unary)(method))
        return servicer_type

    return refuse

"""Runs `tandemmq.service.rpc` handlers on `tandemmq.http2`: the client API's front, made for many small calls.

A port tells of itself its health and its services, as any gRPC server does.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tandemmq.core.clock import Clock
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.http2.server import ConnectionGate, Server
from tandemmq.service.event_loop import LoopTurns
from tandemmq.service.http2_call import Forwarder, MethodIndex
from tandemmq.service.rpc import (
    MESSAGE_BYTES_MAX,
    BidiMethod,
    Call,
    ListenError,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    UnaryMethod,
)

_HEALTH: Final = "grpc.health.v1.Health"
_WATCHES_MAX: Final = 1_000


class HealthService:
    """The empty name and each added service answer NOT_SERVING until `set_serving(True)`."""

    def __init__(self) -> None:
        self._names: set[str] = {""}
        self._status = pb.HealthCheckResponse.NOT_SERVING
        self._watches: dict[Call, str] = {}

    def method_table(self) -> MethodTable:
        """Check and Watch."""
        return MethodTable(
            _HEALTH,
            {
                "Check": UnaryMethod(self._check, pb.HealthCheckRequest),
                "Watch": ServerStreamMethod(self._watch, pb.HealthCheckRequest),
            },
        )

    def add(self, service_name: str) -> None:
        """Another service whose health may be asked for."""
        self._names.add(service_name)

    def set_serving(self, is_serving: bool) -> None:
        """Readiness; watchers are told when it changes."""
        status = pb.HealthCheckResponse.SERVING if is_serving else pb.HealthCheckResponse.NOT_SERVING
        if status == self._status:
            return
        self._status = status
        for call, name in list(self._watches.items()):
            if name in self._names:
                call.send(pb.HealthCheckResponse(status=status))

    def end_watches(self) -> None:
        """Ends every watch: the server stops."""
        watches, self._watches = self._watches, {}
        for call in watches:
            call.finish(StatusCode.UNAVAILABLE, "the server is stopping")

    def _check(self, request: pb.HealthCheckRequest, call: Call) -> None:
        if request.service not in self._names:
            call.finish(StatusCode.NOT_FOUND, f"no service {request.service!r} here")
            return
        call.send(pb.HealthCheckResponse(status=self._status))
        call.finish()

    def _watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        if len(self._watches) >= _WATCHES_MAX:
            call.finish(StatusCode.RESOURCE_EXHAUSTED, f"more than {_WATCHES_MAX} watches")
            return
        known = request.service in self._names
        self._watches[call] = request.service
        call.on_cancel(lambda: self._forget(call))
        call.send(pb.HealthCheckResponse(status=self._status if known else pb.HealthCheckResponse.SERVICE_UNKNOWN))

    def _forget(self, call: Call) -> None:
        self._watches.pop(call, None)


# gRPC server reflection (v1alpha): grpcio's own answers.


def reflection_table(service_names: Sequence[str]) -> MethodTable:
    """Describes the services to tools such as grpcurl and ghz."""
    servicer = reflection.ReflectionServicer([*service_names, reflection.SERVICE_NAME])
    return MethodTable(
        reflection.SERVICE_NAME,
        {
            "ServerReflectionInfo": BidiMethod(
                lambda call: _Reflection(servicer, call), reflection_pb2.ServerReflectionRequest
            )
        },
    )


class _Reflection:
    """One stream of questions; each is answered at once."""

    def __init__(self, servicer: Any, call: Call) -> None:
        self._servicer = servicer
        self._call = call

    def message(self, message: reflection_pb2.ServerReflectionRequest, /) -> None:
        for answer in self._servicer.ServerReflectionInfo(iter((message,)), None):
            self._call.send(answer)

    def half_closed(self) -> None:
        self._call.finish()

    def cancelled(self) -> None: ...


class Http2Front:
    """One port served by `tandemmq.http2`, with health and reflection. Add tables, `start`, declare it serving,
    `stop`."""

    def __init__(
        self,
        bind_address: str,
        port: int,
        *,
        clock: Clock,
        limits: Limits | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        turns: LoopTurns | None = None,
        gate: ConnectionGate | None = None,
    ) -> None:
        """`turns` are the loop's it will run on: answers are written at their ends."""
        self._bind_address = bind_address
        self._port = port
        turns = turns or LoopTurns()
        self._index = MethodIndex(clock)
        self._health = HealthService()
        self.new_call: Final = self._index
        """What makes the calls of a connection: the `new_stream` of `tandemmq.http2.Connection`."""
        self._server = Server(
            self.new_call,
            limits=limits or Limits(message_bytes=MESSAGE_BYTES_MAX),
            tls=tls,
            tls_mode=tls_mode,
            write_soon=turns.write_soon,
            read_last=turns.read_last,
            gate=gate,
        )
        self._index.add(self._health.method_table())

    @property
    def counters(self) -> Mapping[str, int]:
        """What limits refused, by the names in `tandemmq.http2.Limits`, and "connections_accepted"."""
        return self._server.counters

    @property
    def connection_count(self) -> int:
        return self._server.connection_count

    def add(self, table: MethodTable) -> None:
        """Serves the table's methods. Before `start`."""
        self._index.add(table)
        self._health.add(table.service_name)

    async def start(self) -> int:
        """Listens and returns the port, which differs from the one asked for when that was 0. Raises ListenError."""
        names = sorted({path[1:].rpartition("/")[0] for path in self._index.by_path})
        self._index.add(reflection_table(names))
        try:
            return self._server.listen(self._bind_address, self._port)
        except OSError as error:
            raise ListenError(self._bind_address, self._port, _reason(error)) from error

    def forward(self, forwarder: Forwarder | None) -> None:
        """From now on `forwarder` is asked before each call; None: nobody is. Not for this port's own services."""
        self._index.forwarder = forwarder

    def turn_away(self, *, is_on: bool) -> None:
        self._server.turn_away(is_on=is_on)

    def adopted(self) -> list[asyncio.Transport]:
        """Transports of what `adopt` was given and is open."""
        return self._server.adopted()

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serves a connection that was accepted elsewhere, and of which `received` was read already."""
        self._server.adopt(transport, received)

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        self._health.set_serving(is_serving)

    def flush(self) -> None:
        """Writes all answers given so far, rather than at the end of this turn of the loop."""
        self._server.flush()

    async def settle(self, *, limit_ms: int) -> None:
        """Waits until callers have read what `Call.on_unread` was asked for, and at the limit tells of the rest."""
        await self._server.settle(limit_s=limit_ms / 1_000)

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls at once, gives those in progress `limit_ms`, then cancels them."""
        self._health.set_serving(False)
        self._health.end_watches()
        await self._server.stop(limit_s=limit_ms / 1_000)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has the port; stop it or choose another port"
    return f"{error.strerror or error}; is it an address of this machine?"

"""Runs `mqservice.rpc` handlers on `mqgrpc`: the client API's front, made for many small calls.

A call is one object, made from its headers and dropped with its last byte; no task and no future belongs to it. The
handlers are the ones `grpc_front` runs, and one conformance suite holds for both.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError, Message

from mqcore.clock import Clock
from mqgrpc import Limits, Server, Stream, TlsMode
from mqservice.grpc_front import OUTBOX_BYTES_MAX
from mqservice.grpc_server import MESSAGE_BYTES_MAX, ListenError
from mqservice.health import HealthService
from mqservice.reflection import reflection_table
from mqservice.rpc import BidiMethod, Method, MethodTable, ServerStreamMethod, StatusCode, StreamHandler, UnaryMethod

__all__ = ["Http2Front"]

log = structlog.get_logger(__name__)

_NOT_A_MESSAGE: Final = "the request is no valid protobuf message of its type"
_HANDLER_FAILED: Final = "the handler failed; the server's log has the cause"


class Http2Call(Stream):
    """`mqservice.rpc.Call` over one HTTP/2 stream."""

    _front: Http2Front
    _method: Method | None = None
    _handler: StreamHandler[Any] | None = None
    _request: bytes | None = None
    _response: bytes | None = None
    _on_cancel: Callable[[], None] | None = None
    _on_undelivered: Callable[[], None] | None = None
    _metadata: Mapping[str, str] | None = None
    _is_gone = False

    # mqservice.rpc.Call

    @property
    def metadata(self) -> Mapping[str, str]:
        """Request headers. HTTP/2's own, which start with a colon, are among them."""
        if self._metadata is None:
            self._metadata = self.headers
        return self._metadata

    @property
    def deadline_ms(self) -> int | None:
        """Deadline on the monotonic clock in ms."""
        if self.deadline == inf:
            return None
        return self._front.clock.monotonic_ms() + int((self.deadline - self.connection.now) * 1_000)

    def send(self, message: Message) -> None:  # type: ignore[override]  # takes the message, not its bytes
        """See `Call.send`."""
        if not self.is_finished:
            self.send_encoded(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        """See `Call.send_encoded`."""
        if self.is_finished:
            return
        if self._method is not None and type(self._method) is UnaryMethod:
            # Goes out with its status in one piece.
            self._response = data
            return
        if self.queued_bytes and self.queued_bytes + len(data) > OUTBOX_BYTES_MAX:
            self._refuse_slow_reader()
            return
        super().send(data)

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:  # type: ignore[override]
        """See `Call.finish`."""
        if self.is_finished:
            return
        self._on_cancel = None
        if code is StatusCode.OK and self._response is not None:
            self.respond(self._response)
            self._response = None
        elif code is StatusCode.OK and type(self._method) is UnaryMethod:
            raise RuntimeError("a unary handler finished without a response")
        else:
            super().finish(code.value[0], detail)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See `Call.on_cancel`."""
        if not self.is_finished:
            self._on_cancel = callback
        elif self._is_gone:
            callback()

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        """See `Call.on_undelivered`."""
        if self._is_gone:
            callback()
        else:
            self.confirms = True
            self._on_undelivered = callback

    # mqgrpc.Stream's hooks

    def opened(self) -> None:
        """Finds the method; starts a bidirectional one."""
        found = self._front.find(self.path)
        if isinstance(found, str):
            super().finish(StatusCode.UNIMPLEMENTED.value[0], found)
            return
        self._method = found
        if isinstance(found, BidiMethod):
            try:
                self._handler = found.handler(self)
            except Exception:
                self._handler_failed()

    def message(self, data: bytes, /) -> None:
        """Passes one of many on; keeps a single one until the end of the caller's side."""
        method = self._method
        if type(method) is BidiMethod:
            self._pass_on(method, data)
        elif self._request is None:
            self._request = data
        else:
            super().finish(StatusCode.UNIMPLEMENTED.value[0], "more than one request for a method that takes one")

    def half_closed(self) -> None:
        """Runs the handler of a single request."""
        if self._handler is not None:
            try:
                self._handler.half_closed()
            except Exception:
                self._handler_failed()
        elif self._request is None:
            super().finish(StatusCode.UNIMPLEMENTED.value[0], "the request has no message")
        else:
            data, self._request = self._request, None
            self._run(data)

    def request(self, data: bytes, /) -> None:
        """Runs the handler of the usual request, which came in one piece."""
        if self._handler is None and self._request is None:
            self._run(data)
        else:
            super().request(data)

    def _run(self, data: bytes) -> None:
        method = self._method
        assert isinstance(method, (UnaryMethod, ServerStreamMethod)), "a bidirectional call has a handler"
        try:
            request = method.request_type.FromString(data)
        except DecodeError:
            super().finish(StatusCode.INVALID_ARGUMENT.value[0], _NOT_A_MESSAGE)
            return
        try:
            method.handler(request, self)
        except Exception:
            self._handler_failed()

    def cancelled(self) -> None:
        """Tells the handler."""
        self._is_gone = True
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            callback()
        if self._handler is not None:
            self._handler.cancelled()
        self._tell_undelivered()

    def undelivered(self) -> None:
        """Tells the handler."""
        self._is_gone = True
        self._tell_undelivered()

    def _pass_on(self, method: BidiMethod[Any], data: bytes) -> None:
        handler = self._handler
        if handler is None:
            return
        try:
            request = method.request_type.FromString(data)
        except DecodeError:
            super().finish(StatusCode.INVALID_ARGUMENT.value[0], _NOT_A_MESSAGE)
            self._is_gone = True
            handler.cancelled()
            return
        try:
            handler.message(request)
        except Exception:
            self._handler_failed()

    def _refuse_slow_reader(self) -> None:
        callback, self._on_cancel = self._on_cancel, None
        self.finish(StatusCode.RESOURCE_EXHAUSTED, "the caller reads more slowly than messages arrive")
        self._is_gone = True
        if callback is not None:
            callback()
        if self._handler is not None:
            self._handler.cancelled()
        self._tell_undelivered()

    def _tell_undelivered(self) -> None:
        callback, self._on_undelivered = self._on_undelivered, None
        if callback is not None:
            callback()

    def _handler_failed(self) -> None:
        """As in gRPC's own servers, a handler that raises costs its caller the call and nobody else anything."""
        log.exception("handler_failed", path=self.path)
        self._on_cancel = None
        if not self.is_finished:
            super().finish(StatusCode.UNKNOWN.value[0], _HANDLER_FAILED)


class Http2Front:
    """One port served by `mqgrpc`, with health and reflection. Add tables, `start`, declare it serving, `stop`."""

    def __init__(
        self,
        bind_address: str,
        port: int,
        *,
        clock: Clock,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
    ) -> None:
        self.clock: Final = clock
        self._bind_address = bind_address
        self._port = port
        self._methods: dict[str, Method] = {}
        self._otherwise: dict[str, str] = {}
        self._health = HealthService()
        # Makes calls that know their front without an argument for each.
        self.call_type: Final = type("Http2Call", (Http2Call,), {"_front": self, "__doc__": Http2Call.__doc__})
        self._server = Server(
            self.call_type, limits=limits or Limits(message_bytes=MESSAGE_BYTES_MAX), tls=tls, tls_mode=tls_mode
        )
        self._add(self._health.method_table())

    @property
    def counters(self) -> Mapping[str, int]:
        """What limits refused, by the names in `mqgrpc.Limits`, and "connections_accepted"."""
        return self._server.counters

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return self._server.connection_count

    def find(self, path: str) -> Method | str:
        """The method of a path, or why there is none."""
        method = self._methods.get(path)
        if method is not None:
            return method
        service, _, name = path[1:].rpartition("/")
        return self._otherwise.get(service) or f"this port does not serve {service or path}, method {name}"

    def add(self, table: MethodTable) -> None:
        """Serves the table's methods. Before `start`."""
        self._add(table)
        self._health.add(table.service_name)

    def _add(self, table: MethodTable) -> None:
        for name, method in table.methods.items():
            self._methods[f"/{table.service_name}/{name}"] = method
        if table.otherwise:
            self._otherwise[table.service_name] = table.otherwise

    async def start(self) -> int:
        """Listens and returns the port, which differs from the one asked for when that was 0. Raises ListenError."""
        names = sorted({path[1:].rpartition("/")[0] for path in self._methods})
        self._add(reflection_table(names))
        try:
            return self._server.listen(self._bind_address, self._port)
        except OSError as error:
            raise ListenError(self._bind_address, self._port, _reason(error)) from error

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        self._health.set_serving(is_serving)

    def flush(self) -> None:
        """Writes all answers given so far, rather than at the end of this turn of the loop."""
        self._server.flush()

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls at once, gives those in progress `limit_ms`, then cancels them."""
        self._health.set_serving(False)
        self._health.end_watches()
        await self._server.stop(limit_s=limit_ms / 1_000)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has the port; stop it or choose another port"
    return f"{error.strerror or error}; is it an address of this machine?"

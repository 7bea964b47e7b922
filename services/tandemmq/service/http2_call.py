"""One call of the HTTP/2 front: `tandemmq.service.rpc.Call` on top of `tandemmq.http2.Stream`.

A call is one object, made from its headers and dropped with its last byte; no task and no future belongs to it. One
conformance suite holds for it and for the gRPC library's server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from google.protobuf.message import DecodeError, Message

from tandemmq.core.clock import Clock
from tandemmq.http2.frames import RequestShape
from tandemmq.http2.hpack import Header
from tandemmq.http2.stream import Stream, StreamMaker
from tandemmq.service.rpc import (
    RECEIVE_HEADER,
    BidiMethod,
    Call,
    Method,
    MethodTable,
    StatusCode,
    StreamHandler,
    UnaryMethod,
    undecoded,
)

if TYPE_CHECKING:
    from tandemmq.http2.connection import Connection

log = structlog.get_logger(__name__)

# A stream whose reader lags by more than this is ended rather than kept in memory. One receive may carry 32 messages of
# 4 MiB, which has to fit.
OUTBOX_BYTES_MAX: Final = 160 << 20
_NS_PER_S: Final = 1e9
_HANDLER_FAILED: Final = "the handler failed; the server's log has the cause"


_OK: Final = StatusCode.OK


class _Route:
    """A method, looked up once: what its calls need is here."""

    def __init__(self, method: Method) -> None:
        self.parse: Final[Callable[[bytes], Any]] = method.request_type.FromString
        self.is_unary: Final = isinstance(method, UnaryMethod)
        # One of the two.
        self.bidi: BidiMethod[Any] | None = None
        self.handler: Callable[[Any, Call], None] | None = None
        if isinstance(method, BidiMethod):
            self.bidi = method
        else:
            self.handler = method.handler


class Forwarder(Protocol):
    """Somebody else who may answer a call."""

    def takes(self, path: str, call: Call, data: bytes, again: Callable[[bytes], None]) -> bool:
        """Answers it later, or has it taken anew by `again`, with its data. False: the front's own handler does."""

    def opened(self, path: str, call: Call) -> StreamHandler[Any] | None:
        """The handler of a bidirectional call, to be given bytes; None: the front's own."""


class MethodIndex(StreamMaker):
    """The methods of a front, by the path they are called with, and what its calls share."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Final = clock
        self.forwarder: Forwarder | None = None
        """Asked before the front's own handlers; None: nobody is."""
        self.by_path: Final[dict[str, _Route]] = {}
        self._otherwise: dict[str, str] = {}

    def add(self, table: MethodTable) -> None:
        for name, method in table.methods.items():
            self.by_path[f"/{table.service_name}/{name}"] = _Route(method)
        if table.otherwise:
            self._otherwise[table.service_name] = table.otherwise

    def new_stream(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        return Http2Call(self, connection, stream_id, headers, shape)

    def missing(self, path: str) -> str:
        """Why there is no method of this path."""
        service, _, name = path[1:].rpartition("/")
        return self._otherwise.get(service) or f"this port does not serve {service or path}, method {name}"


class Http2Call(Stream):
    """`tandemmq.service.rpc.Call` over one HTTP/2 stream."""

    _route: _Route | None = None
    _handler: StreamHandler[Any] | None = None
    _request: bytes | None = None
    _response: bytes | None = None
    _on_cancel: Callable[[], None] | None = None
    _on_undelivered: Callable[[], None] | None = None
    _metadata: Mapping[str, str] | None = None
    _is_gone = False
    _is_forwarded = False
    # Of a request that is kept: when it was read.
    _kept_ns = 0
    # Of a request that is whole, and whose end has not come.
    _counted_bytes = 0

    def __init__(
        self, index: MethodIndex, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape
    ) -> None:
        super().__init__(connection, stream_id, headers, shape)
        self._index = index

    # tandemmq.service.rpc.Call

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
        return self._index.clock.monotonic_ms() + int((self.deadline - self.connection.now) * 1_000)

    @property
    def received_ns(self) -> int:
        """When the last bytes of the request were read."""
        return self._kept_ns or int(self.connection.now * _NS_PER_S)

    @property
    def request_data(self) -> bytes:
        return self._request or b""

    def keep_request(self) -> None:
        self._kept_ns = self.received_ns

    def send(self, message: Message) -> None:
        if not self.is_finished:
            self.send_encoded(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        if self.is_finished:
            return
        if self._route is not None and self._route.is_unary:
            # Goes out with its status in one piece.
            self._response = data
            return
        if self.queued_bytes and self.queued_bytes + len(data) > OUTBOX_BYTES_MAX:
            self._refuse_slow_reader()
            return
        self.send_bytes(data)

    def send_all_encoded(self, messages: list[bytes]) -> None:
        if self.queued_bytes + sum([len(data) for data in messages]) > OUTBOX_BYTES_MAX:
            for data in messages:
                self.send_encoded(data)
        else:
            self.send_all_bytes(messages)

    def respond(self, data: bytes) -> None:
        self._on_cancel = None
        super().respond(data)

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        if self.is_finished:
            return
        self._on_cancel = None
        if code is _OK and self._response is not None:
            self.respond(self._response)
            self._response = None
        elif code is _OK and self._route is not None and self._route.is_unary:
            raise RuntimeError("a unary handler finished without a response")
        else:
            self.end(code.value[0], detail)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        if not self.is_finished:
            self._on_cancel = callback
        elif self._is_gone:
            callback()

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        if self._is_gone:
            callback()
        else:
            self.confirms = True
            self._on_undelivered = callback

    def on_unread(self, callback: Callable[[], None]) -> None:
        self.unread = callback
        self.is_passed_on = bool(self.header(RECEIVE_HEADER))

    # tandemmq.http2.Stream's hooks

    def opened(self) -> None:
        """Finds the method; starts a bidirectional one."""
        path = self.path
        found = self._index.by_path.get(path)
        if found is None:
            self.end(StatusCode.UNIMPLEMENTED.value[0], self._index.missing(path))
            return
        self._route = found
        if found.bidi is not None:
            forwarder = self._index.forwarder
            if forwarder is not None and (handler := forwarder.opened(path, self)) is not None:
                self._handler, self._is_forwarded = handler, True
                return
            try:
                self._handler = found.bidi.handler(self)
            except Exception:
                self._handler_failed()

    def message(self, data: bytes, /) -> None:
        """Passes one of many on; keeps a single one until the end of the caller's side."""
        route = self._route
        if route is not None and route.bidi is not None:
            self._pass_on(route, data)
        elif self._request is None:
            self._request = data
            if not self.remote_closed:
                self._counted_bytes = len(data)
                self.connection.keep(self, len(data))
        else:
            self.end(StatusCode.UNIMPLEMENTED.value[0], "more than one request for a method that takes one")

    def half_closed(self) -> None:
        """Runs the handler of a single request."""
        if self._handler is not None:
            try:
                self._handler.half_closed()
            except Exception:
                self._handler_failed()
        elif self._request is None:
            self.end(StatusCode.UNIMPLEMENTED.value[0], "the request has no message")
        else:
            data, self._request = self._request, None
            if self._counted_bytes:
                self.connection.keep(self, -self._counted_bytes)
                self._counted_bytes = 0
            self._run(data)

    def request(self, data: bytes, /) -> None:
        """Runs the handler of the usual request, which came in one piece."""
        if self._handler is None and self._request is None:
            self._run(data)
        else:
            super().request(data)

    def _run(self, data: bytes) -> None:
        route = self._route
        assert route is not None, "a call without a method has ended"
        forwarder = self._index.forwarder
        if forwarder is not None and forwarder.takes(self.path, self, data, self._run):
            return
        handler = route.handler
        assert handler is not None, "a bidirectional call has a handler"
        try:
            request = route.parse(data)
        except DecodeError as error:
            self._end_undecoded(error)
            return
        try:
            self._request = data
            handler(request, self)
            if not self._kept_ns:
                self._request = None
        except Exception:
            self._handler_failed()

    def cancelled(self) -> None:
        self._is_gone = True
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            callback()
        if self._handler is not None:
            self._handler.cancelled()
        self._tell_undelivered()

    def undelivered(self) -> None:
        self._is_gone = True
        self._tell_undelivered()

    def _pass_on(self, route: _Route, data: bytes) -> None:
        handler = self._handler
        if handler is None:
            return
        try:
            request = data if self._is_forwarded else route.parse(data)
        except DecodeError as error:
            self._end_undecoded(error)
            self._is_gone = True
            handler.cancelled()
            return
        try:
            handler.message(request)
        except Exception:
            self._handler_failed()

    def _end_undecoded(self, error: DecodeError) -> None:
        code, detail = undecoded(error)
        self.end(code.value[0], detail)

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
            self.end(StatusCode.UNKNOWN.value[0], _HANDLER_FAILED)

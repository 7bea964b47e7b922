"""Runs `tandemmq.service.rpc` handlers on a `grpc.aio` server.

grpc.aio gives every RPC a task of its own. The task here calls the handler, then only moves encoded messages from the
call's outbox to the wire until the handler has finished the call. Cancellation, disconnection and an expired deadline
all arrive as `CancelledError` in that task and become the handler's `on_cancel` callback.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from tandemmq.core.clock import Clock
from tandemmq.service.rpc import (
    BidiMethod,
    Method,
    MethodTable,
    RequestDecoder,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    UnaryMethod,
    undecoded,
)

# A stream whose reader lags by more than this is ended rather than kept in memory. One receive may carry 32 messages of
# 4 MiB, which has to fit; small ones are bounded by their number.
OUTBOX_BYTES_MAX: Final = 160 << 20
OUTBOX_MESSAGES_MAX: Final = 4_096


RequestT = TypeVar("RequestT", bound=Message)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, bytes]"  # reads bytes or grpc.aio.EOF
_RpcMethodHandler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class GrpcCall:
    """`tandemmq.service.rpc.Call` over one grpc.aio RPC. Used on the event loop's thread only."""

    is_crowded_out = False  # Each call has an outbox of its own.

    def __init__(self, context: _Context, clock: Clock, request_data: bytes = b"") -> None:
        self._context = context
        self.request_data = request_data
        self._clock = clock
        self.received_ns = clock.monotonic_ns()
        """When the library gave us the call: it does not tell when it read it."""
        # Asked for now: once the call has ended, asking the library is asking freed memory.
        self.peer: str = context.peer()
        self._metadata: dict[str, str] | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        # Status to end with; None while the call is in progress.
        self._code: StatusCode | None = None
        self._detail = ""
        # True once the caller is gone or the status was sent: nothing more can reach it.
        self._over = False
        self._callback: Callable[[], None] | None = None
        self._undelivered: Callable[[], None] | None = None
        self._wakeup: asyncio.Future[None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        """Request headers; built at first use, as most handlers read two of a dozen."""
        if self._metadata is None:
            pairs = self._context.invocation_metadata() or ()
            self._metadata = {name: value for name, value in pairs if isinstance(value, str)}
        return self._metadata

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    @property
    def deadline_ms(self) -> int | None:
        """Deadline on the monotonic clock in ms."""
        remaining_s = self._context.time_remaining()
        return None if remaining_s is None else self._clock.monotonic_ms() + int(remaining_s * 1_000)

    def keep_request(self) -> None: ...

    def send(self, message: Message) -> None:
        """Queues one response; past the outbox limits the call ends with RESOURCE_EXHAUSTED instead."""
        if not self.is_over:
            self.send_encoded(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        if self.is_over:
            return
        is_full = len(self._outbox) >= OUTBOX_MESSAGES_MAX or self._outbox_bytes + len(data) > OUTBOX_BYTES_MAX
        # One message alone always passes: the server's own message limit judges that.
        if self._outbox and is_full:
            self._refuse_slow_reader()
            return
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._wake()

    def send_all_encoded(self, messages: list[bytes]) -> None:
        for data in messages:
            self.send_encoded(data)

    def respond(self, data: bytes) -> None:
        self.send_encoded(data)
        self.finish()

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        """Ends the call once the outbox is written."""
        if self._code is None:
            self._code = code
            self._detail = detail
            self._callback = None
            self._wake()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        if self._over and self._code is None:
            callback()
        elif self._code is None:
            self._callback = callback

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        if self._over:
            callback()
        else:
            self._undelivered = callback

    def on_unread(self, callback: Callable[[], None]) -> None:
        """The library tells nothing of a call that has ended."""

    def cancelled(self) -> None:
        """The caller is gone. Tells the handler, unless it has finished and all is written."""
        self._over = True
        self._outbox.clear()
        self._outbox_bytes = 0
        if self._code is None and self._callback is not None:
            callback, self._callback = self._callback, None
            callback()
        self._tell_undelivered()

    @property
    def is_over(self) -> bool:
        """True once the handler has finished or the caller is gone."""
        return self._over or self._code is not None

    async def write_out(self) -> None:
        """Writes messages as the handler queues them; returns when it has finished and all are written."""
        while True:
            while self._outbox:
                data = self._outbox.popleft()
                self._outbox_bytes -= len(data)
                try:
                    await self._context.write(data)
                except grpc.aio.InternalError as error:
                    # The transport knows that the caller is gone before the cancellation gets here.
                    raise asyncio.CancelledError from error
            if self._code is not None:
                return
            await self._activity()

    async def single_response(self) -> bytes:
        """The one response of a unary call. An error status ends the call instead."""
        while self._code is None:
            await self._activity()
        await self.end()
        if len(self._outbox) != 1:
            raise RuntimeError(f"a unary handler sent {len(self._outbox)} responses instead of one")
        return self._outbox.popleft()

    async def end(self) -> None:
        """Sends an error status, raising grpc.aio's own exception; OK is sent when the task returns."""
        assert self._code is not None, "the call is still in progress"
        self._over = True
        self._undelivered = None
        if self._code is not StatusCode.OK:
            await self._context.abort(self._code, self._detail)

    async def _activity(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _refuse_slow_reader(self) -> None:
        callback = self._callback
        self._outbox.clear()
        self._outbox_bytes = 0
        self.finish(StatusCode.RESOURCE_EXHAUSTED, "the caller reads more slowly than messages arrive")
        if callback is not None:
            callback()
        self._tell_undelivered()

    def _tell_undelivered(self) -> None:
        if self._undelivered is not None:
            callback, self._undelivered = self._undelivered, None
            callback()


def generic_handler(table: MethodTable, clock: Clock) -> grpc.GenericRpcHandler[bytes, bytes]:
    """The table as what `grpc.aio.Server.add_generic_rpc_handlers` takes."""
    return _TableHandler(table, clock)


class _TableHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Finds the method of a path; other methods of the same service get the table's own UNIMPLEMENTED."""

    def __init__(self, table: MethodTable, clock: Clock) -> None:
        self._prefix = f"/{table.service_name}/"
        self._handlers = {self._prefix + name: _method_handler(method, clock) for name, method in table.methods.items()}
        self._otherwise = _refusal(table.otherwise) if table.otherwise else None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _RpcMethodHandler | None:
        """See `grpc.GenericRpcHandler`; None leaves the path to other handlers."""
        path = handler_call_details.method
        if not path.startswith(self._prefix):
            return None
        return self._handlers.get(path, self._otherwise)


def _method_handler(method: Method, clock: Clock) -> _RpcMethodHandler:
    if isinstance(method, UnaryMethod):
        return grpc.unary_unary_rpc_method_handler(_unary(method, clock))
    if isinstance(method, ServerStreamMethod):
        return grpc.unary_stream_rpc_method_handler(_server_stream(method, clock))
    return grpc.stream_stream_rpc_method_handler(_bidi(method, clock))


def _refusal(detail: str) -> _RpcMethodHandler:
    # Stream in, stream out accepts what any kind of method sends.
    async def refuse(_requests: object, context: _Context) -> NoReturn:
        await context.abort(StatusCode.UNIMPLEMENTED, detail)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _unary(method: UnaryMethod[RequestT], clock: Clock) -> Callable[[bytes, _Context], Awaitable[bytes]]:
    async def serve(data: bytes, context: _Context) -> bytes:
        request = await _decoded(method.request_type, data, context)
        call = GrpcCall(context, clock, data)
        try:
            method.handler(request, call)
            return await call.single_response()
        except asyncio.CancelledError:
            call.cancelled()
            raise

    return serve


def _server_stream(method: ServerStreamMethod[RequestT], clock: Clock) -> Callable[[bytes, _Context], Awaitable[None]]:
    async def serve(data: bytes, context: _Context) -> None:
        request = await _decoded(method.request_type, data, context)
        call = GrpcCall(context, clock, data)
        try:
            method.handler(request, call)
            await call.write_out()
        except asyncio.CancelledError:
            call.cancelled()
            raise
        await call.end()

    return serve


def _bidi(method: BidiMethod[RequestT], clock: Clock) -> Callable[[object, _Context], Awaitable[None]]:
    async def serve(_requests: object, context: _Context) -> None:
        call = GrpcCall(context, clock)
        stream = method.handler(call)
        call.on_cancel(stream.cancelled)
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(_read_requests(stream, method.request_type, call, context))
                await call.write_out()
                reader.cancel()
        except asyncio.CancelledError:
            call.cancelled()
            raise
        await call.end()

    return serve


async def _read_requests(
    stream: StreamHandler[RequestT], request_type: RequestDecoder[RequestT], call: GrpcCall, context: _Context
) -> None:
    while not call.is_over:
        data = await context.read()
        if call.is_over:
            return
        if data is grpc.aio.EOF:  # type: ignore[attr-defined]  # grpc-stubs lacks it
            stream.half_closed()
            return
        try:
            request = request_type.FromString(data)
        except DecodeError as error:
            call.finish(*undecoded(error))
            stream.cancelled()
            return
        stream.message(request)


async def _decoded(request_type: RequestDecoder[RequestT], data: bytes, context: _Context) -> RequestT:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        await context.abort(*undecoded(error))

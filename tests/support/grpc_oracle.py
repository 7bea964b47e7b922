"""The gRPC library's server as the oracle of `tandemmq.http2`: it runs the same handlers, of every kind.

grpc.aio gives every RPC a task of its own. The task here calls the handler, then only moves encoded messages from the
call's outbox to the wire until the handler has finished the call. Cancellation, disconnection and an expired deadline
all arrive as `CancelledError` in that task and become the handler's `on_cancel` callback.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from support.fake_call import FakeCall
from tandemmq.core.clock import Clock
from tandemmq.service.grpc_server import GrpcServer, RpcMethodHandler, TableHandler
from tandemmq.service.http2_call import OUTBOX_BYTES_MAX
from tandemmq.service.rpc import (
    BidiMethod,
    Method,
    MethodTable,
    RequestDecoder,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    undecoded,
)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, bytes]"  # reads bytes or grpc.aio.EOF


class GrpcOracle(GrpcServer):
    """Serves methods of every kind, which may answer later."""

    def __init__(self, bind_address: str, port: int, *, clock: Clock) -> None:
        super().__init__(bind_address, port, clock=clock)
        self._oracle_clock = clock
        self._names: list[str] = []

    def add(self, table: MethodTable, *, for_anybody: bool = False) -> None:
        """Not for anybody."""
        handlers = TableHandler(table, lambda method: _handler_of(method, self._oracle_clock))
        self.aio_server.add_generic_rpc_handlers((handlers,))
        self._names.append(table.service_name)

    async def start(self, *, service_names: Sequence[str] = ()) -> int:
        return await super().start(service_names=(*service_names, *self._names))


class _Call(FakeCall):
    """One RPC of the library."""

    def __init__(self, context: _Context, clock: Clock, request_data: bytes = b"") -> None:
        pairs = context.invocation_metadata() or ()
        left_s = context.time_remaining()
        super().__init__(
            metadata={name: value for name, value in pairs if isinstance(value, str)},
            # Asked for now: once the call has ended, asking the library is asking freed memory.
            peer=context.peer(),
            deadline_ms=None if left_s is None else clock.monotonic_ms() + int(left_s * 1_000),
            received_ns=clock.monotonic_ns(),
            request_data=request_data,
        )
        self._context = context
        self._outbox: deque[bytes] = deque()
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The handler has finished or the caller is gone."""
        return self.code is not None or self.is_gone

    def send(self, message: Message) -> None:
        self.send_encoded(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._outbox and sum(map(len, self._outbox)) + len(data) > OUTBOX_BYTES_MAX:
            self._outbox.clear()
            self.finish(StatusCode.RESOURCE_EXHAUSTED, "the caller reads more slowly than messages arrive")
            if self._cancelled is not None:
                self._cancelled()
            self.cancel()
            return
        self._outbox.append(data)
        self._changed.set()

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        super().finish(code, detail)
        self._changed.set()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        super().on_cancel(callback)
        if self.is_gone and self.code is None:
            callback()

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        if self.is_gone:
            callback()
        else:
            super().on_undelivered(callback)

    def cancel(self) -> None:
        super().cancel()
        self._undelivered = None

    @contextmanager
    def heeds_its_caller(self) -> Iterator[None]:
        """Tells the handler of a caller that is gone."""
        try:
            yield
        except asyncio.CancelledError:
            self._outbox.clear()
            self.cancel()
            raise

    async def only_response(self) -> bytes:
        """The one of a unary call. An error status ends the call instead."""
        while self.code is None:
            await self._next_change()
        await self.end()
        [response] = self._outbox
        return response

    async def write_out(self) -> None:
        """Writes messages as the handler sends them, until it has finished and all are written."""
        while self._outbox or self.code is None:
            if not self._outbox:
                await self._next_change()
                continue
            try:
                await self._context.write(self._outbox.popleft())
            except grpc.aio.InternalError as error:
                # The transport knows that the caller is gone before the cancellation gets here.
                raise asyncio.CancelledError from error

    async def end(self) -> None:
        """Sends an error status; OK is sent when the task returns."""
        assert self.code is not None, "the call is still in progress"
        self._undelivered = None
        if self.code is not StatusCode.OK:
            await self._context.abort(self.code, self.detail)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _handler_of(method: Method, clock: Clock) -> RpcMethodHandler:
    async def answer(data: bytes, context: _Context) -> bytes:
        call = await called(data, context)
        with call.heeds_its_caller():
            return await call.only_response()

    async def answers(data: bytes, context: _Context) -> None:
        call = await called(data, context)
        with call.heeds_its_caller():
            await call.write_out()
        await call.end()

    async def called(data: bytes, context: _Context) -> _Call:
        assert not isinstance(method, BidiMethod)
        try:
            request = method.request_type.FromString(data)
        except DecodeError as error:
            await context.abort(*undecoded(error))
        call = _Call(context, clock, data)
        method.handler(request, call)
        return call

    async def converse(_requests: object, context: _Context) -> None:
        assert isinstance(method, BidiMethod)
        call = _Call(context, clock)
        stream = method.handler(call)
        call.on_cancel(stream.cancelled)
        with call.heeds_its_caller():
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(_read_requests(stream, method.request_type, call, context))
                await call.write_out()
                reader.cancel()
        await call.end()

    if isinstance(method, BidiMethod):
        return grpc.stream_stream_rpc_method_handler(converse)
    if isinstance(method, ServerStreamMethod):
        return grpc.unary_stream_rpc_method_handler(answers)
    return grpc.unary_unary_rpc_method_handler(answer)


async def _read_requests(
    stream: StreamHandler[Any], request_type: RequestDecoder[Any], call: _Call, context: _Context
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

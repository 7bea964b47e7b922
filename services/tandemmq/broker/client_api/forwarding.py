"""Passes clients' calls on to the group's master, as bytes: of a member that is not master.

In a group that fails over all of them. Where roles are fixed only how deliveries end: consumers may have got them from
this slave, while there was no master.

Official clients ask for routes each 30 s. Until then they call a broker that was master; it forwards, one hop, with the
deadline that is left. Where no master is known, or the call was forwarded before, the member answers itself: it refuses
at once. What tells where masters are (QueryRoute, QueryAssignment) it answers itself, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import structlog

from tandemmq.service.rpc import Call, StreamHandler

__all__ = ["SETTLING", "CallForwarder"]

log = structlog.get_logger(__name__)

FORWARDED_HEADER: Final = "x-tandemmq-forwarded"
# The connection's own, or made anew.
_OWN_HEADERS: Final = frozenset({"te", "content-type", "user-agent", "host"})
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_ANSWERED_HERE: Final = frozenset({"QueryRoute", "QueryAssignment"})
SETTLING: Final = frozenset({"AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"})
_STREAMED: Final = frozenset({"ReceiveMessage", "PullMessage"})
_IN_FLIGHT_MAX: Final = 2_048
_UNREAD_MAX: Final = 64
_LIMIT_S: Final = 30.0
_MESSAGE_BYTES_MAX: Final = 64 << 20


class CallForwarder:
    """`master` names the client plane of the master, host:port; None: there is none, or it is this broker. `names` are
    the methods that it passes on; None: all.

    Event loop only.
    """

    def __init__(
        self, master: Callable[[], str | None], *, now_ms: Callable[[], int], names: frozenset[str] | None = None
    ) -> None:
        self._master = master
        self._names = names
        self._now_ms = now_ms
        self._endpoint = ""
        self._channel: grpc.aio.Channel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_count = 0

    def takes(self, path: str, call: Call, data: bytes) -> bool:
        """Answers the call later, by the master's answer. False: it is this broker's to answer."""
        channel = self._channel_for(path, call)
        if channel is None:
            return False
        is_streamed = path.removeprefix(_SERVICE) in _STREAMED
        self._spawn(self._pass_on(channel, path, call, data, is_streamed=is_streamed), call)
        return True

    def opened(self, path: str, call: Call) -> StreamHandler[Any] | None:
        """The handler of a stream that goes to the master, to be given bytes; None: it is this broker's own."""
        channel = self._channel_for(path, call)
        return None if channel is None else _ForwardedStream(self, channel, path, call)

    async def close(self) -> None:
        """Ends all that is under way: this broker is the master now, or stops."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        channel, self._channel, self._endpoint = self._channel, None, ""
        if channel is not None:
            await channel.close(grace=None)

    # Inside

    def _channel_for(self, path: str, call: Call) -> grpc.aio.Channel | None:
        name = path.removeprefix(_SERVICE)
        if name == path or name in _ANSWERED_HERE:
            return None  # Health and reflection are each broker's own.
        if self._names is not None and name not in self._names:
            return None
        if len(self._tasks) >= _IN_FLIGHT_MAX or call.header(FORWARDED_HEADER):
            return None
        endpoint = self._master()
        if not endpoint:
            return None
        if endpoint != self._endpoint:
            if self._channel is not None:
                self._spawn(_closed(self._channel), None)
            options = [
                ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1_000),
                ("grpc.enable_retries", 0),
            ]
            self._channel, self._endpoint = grpc.aio.insecure_channel(endpoint, options=options), endpoint
        return self._channel

    def _spawn(self, work: Any, call: Call | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if call is not None:
            self.forwarded_count += 1
            call.on_cancel(lambda: _cancel(task))

    def limit_s(self, call: Call) -> float:
        """What is left of the call's deadline."""
        deadline_ms = call.deadline_ms
        return _LIMIT_S if deadline_ms is None else max(0.001, (deadline_ms - self._now_ms()) / 1_000)

    async def _pass_on(
        self, channel: grpc.aio.Channel, path: str, call: Call, data: bytes, *, is_streamed: bool
    ) -> None:
        limit_s, metadata = self.limit_s(call), metadata_of(call)
        try:
            if is_streamed:
                async for answer in channel.unary_stream(path, None, None)(data, timeout=limit_s, metadata=metadata):
                    call.send_encoded(answer)
            else:
                call.send_encoded(await channel.unary_unary(path, None, None)(data, timeout=limit_s, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            call.finish(error.code(), f"the group's master did not answer: {error.details() or error.code().name}")
        except asyncio.CancelledError:
            call.finish(grpc.StatusCode.UNAVAILABLE, "the group's master has changed; try again")
            raise
        else:
            call.finish()


class _ForwardedStream:
    """One bidirectional call. Implements `StreamHandler[bytes]`."""

    def __init__(self, forwarder: CallForwarder, channel: grpc.aio.Channel, path: str, call: Call) -> None:
        self._call = call
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue(_UNREAD_MAX)
        self._stream = channel.stream_stream(path, None, None)(None, metadata=metadata_of(call))
        forwarder._spawn(self._read(), call)
        forwarder._spawn(self._write(), None)

    def message(self, message: bytes, /) -> None:
        """Passes a request on; a client that sends faster than the master reads is refused."""
        try:
            self._requests.put_nowait(message)
        except asyncio.QueueFull:
            self._call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "the group's master does not read so fast")
            self.cancelled()

    def half_closed(self) -> None:
        """Passes it on."""
        self._end_requests()

    def cancelled(self) -> None:
        """Ends the call to the master."""
        self._stream.cancel()
        self._end_requests()

    def _end_requests(self) -> None:
        if not self._requests.full():
            self._requests.put_nowait(None)

    async def _write(self) -> None:
        try:
            while (message := await self._requests.get()) is not None:
                await self._stream.write(message)
            await self._stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            self._stream.cancel()

    async def _read(self) -> None:
        try:
            async for answer in self._stream:
                self._call.send_encoded(answer)
        except grpc.aio.AioRpcError as error:
            self._call.finish(error.code(), f"the group's master ended the call: {error.details()}")
        except asyncio.CancelledError:
            self._stream.cancel()
            self._call.finish(grpc.StatusCode.UNAVAILABLE, "the group's master has changed; try again")
            raise
        else:
            self._call.finish()
        finally:
            self._end_requests()


def metadata_of(call: Call) -> list[tuple[str, str]]:
    """What the master has to know of the caller, and that it comes from here."""
    passed = [
        (name, value)
        for name, value in call.metadata.items()
        if not name.startswith((":", "grpc-")) and name not in _OWN_HEADERS
    ]
    return [*passed, (FORWARDED_HEADER, "1")]


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _closed(channel: grpc.aio.Channel) -> None:
    await channel.close(grace=_LIMIT_S)

"""The small interface RPC handlers are written against, so that they know nothing of the server that runs them.

A handler is a plain function on the event loop: it is given one request and the `Call` it came with, and answers now or
later. Nothing here is a coroutine, so answering in place costs no task, and a handler runs the same under our HTTP/2
front (`http2_front`), under `grpc.aio` (`grpc_server`), or in a unit test with a fake `Call`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode as StatusCode

# RocketMQ's proxy takes 130 MiB: a batch of 32 messages of 4 MiB with their headers.
MESSAGE_BYTES_MAX: Final = 130 << 20

CLIENT_ID_HEADER: Final = "x-mq-client-id"
"""In which RocketMQ's clients say who they are."""
CLIENT_ID_CHARACTERS_MAX: Final = 1_024
"""Official clients' have about 60. A broker remembers 100,000 of them."""
FORWARDED_HEADER: Final = "x-tandemmq-forwarded"
"""Other brokers passed the call on, and say here by which steps."""
CALLER_HEADER: Final = "x-tandemmq-caller"
"""Address of the caller of a call that was passed on, when that was, and the mark of who says so."""
RECEIVE_HEADER: Final = "x-tandemmq-receive"
"""The name of a receive that another broker passed on; behind UNREAD, that its caller may not have read the answer. It
is the nonce of the leases as well, which every later master knows by it."""
UNREAD: Final = "unread "
_NAME: Final = re.compile(r"[0-9a-f]{16}")


def new_receive_name() -> str:
    return secrets.token_hex(8)


def passed_on_nonce(name: str) -> int | None:
    """What the leases of a receive of that name are known by; None: nobody passed it on."""
    return int(name, 16) if name and _NAME.fullmatch(name) else None


RequestT = TypeVar("RequestT")
DecodedT = TypeVar("DecodedT", covariant=True)
StreamedT = TypeVar("StreamedT", bound=Message)
ReadT = TypeVar("ReadT", bound=Message, contravariant=True)


class Call(Protocol):
    """One RPC in progress. All methods are called on the event loop; all return at once."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Request headers, names in lower case. Binary headers (`-bin`) are left out."""

    def header(self, name: str) -> str:
        """One of `metadata`, "" if it is not there. Cheaper than making the map for the sake of one."""

    @property
    def peer(self) -> str:
        """Address of the caller, for example `ipv4:10.0.0.7:51234`."""

    @property
    def deadline_ms(self) -> int | None:
        """When the caller stops waiting, on the monotonic clock in ms; None: it waits for ever."""

    @property
    def received_ns(self) -> int:
        """When the request was read, on the monotonic clock in ns; for a handler to ask before it returns."""

    @property
    def request_data(self) -> bytes:
        """The one request as its caller encoded it; for a handler that passes it on to ask before it returns."""

    @property
    def is_crowded_out(self) -> bool:
        """For whoever hears that the answer was undelivered: there was no memory for it beside those of others, which
        is no fault of the caller's."""

    def keep_request(self) -> None:
        """The handler will go on after it returned: `received_ns` and `request_data` stay what they are now."""

    def send(self, message: Message) -> None:
        """Queues one response message; a stream sends several, a unary call exactly one.

        The message is encoded before this returns, so the caller may change or drop it. After the call has ended this
        does nothing: an answer that comes too late is nobody's mistake.
        """

    def send_encoded(self, data: bytes) -> None:
        """Like `send`, for a response its handler has encoded already: its protobuf bytes."""

    def send_all_encoded(self, messages: list[bytes]) -> None:
        """`send_encoded` for each response message of a stream, which may then travel together."""

    def respond(self, data: bytes) -> None:
        """`send_encoded` and `finish` in one step: the one response of a unary call that ends well."""

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        """Ends the call after what was sent. Only the first one counts."""

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Asks for a notice when the caller cancelled, disconnected or ran into its deadline before `finish`.

        Called at most once, never after `finish`; at once if it has happened already.
        """

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        """Asks for a notice when the caller is gone before all that was sent could be written, also after `finish`.

        Called at most once; at once if it has happened already. For answers that give something away, so that it can
        be taken back. What was written may still be lost: only the caller's own acknowledgement tells.
        """

    def on_unread(self, callback: Callable[[], None]) -> None:
        """Asks for a notice when what was sent was written, and the caller may not have read it: soon afterwards the
        connection broke, or the caller took the call back, or, when the front was to settle, did not say in time that
        it has read it. It may have read it all the same.

        Called at most once, instead of or after the notice of `on_undelivered`; ask for both, before `finish`.
        """


class StreamHandler(Protocol[ReadT]):
    """What a bidirectional call does with its requests. No method is called after `cancelled` or `Call.finish`."""

    def message(self, message: ReadT, /) -> None: ...

    def half_closed(self) -> None:
        """The caller sends no more; the handler still has to finish the call.

        A broken connection may look like this first, with `cancelled` following at once: gRPC reports the end of the
        requests before it reports the end of the call.
        """

    def cancelled(self) -> None: ...


class RequestDecoder(Protocol[DecodedT]):
    """What makes a request of its bytes: any class of protobuf messages, or what a handler would rather be given."""

    def FromString(self, data: bytes, /) -> DecodedT:  # noqa: N802 - protobuf's name
        """The request. Raises protobuf's DecodeError if the bytes are none."""


class RequestTooLong(DecodeError):
    """More bytes than the method takes."""


@dataclass(frozen=True, slots=True)
class ShortRequests(Generic[DecodedT]):
    """Decodes requests of `bytes_max` at most. A field takes two bytes: what is made of a long request may hold up
    everybody else for seconds, and nobody has looked at who sent it."""

    decoder: RequestDecoder[DecodedT]
    bytes_max: int

    def FromString(self, data: bytes, /) -> DecodedT:  # noqa: N802 - protobuf's name
        if len(data) > self.bytes_max:
            raise RequestTooLong(f"the request has {len(data):,} bytes; this method takes {self.bytes_max:,}")
        return self.decoder.FromString(data)


def undecoded(error: DecodeError) -> tuple[StatusCode, str]:
    """How a call ends whose request could not be decoded."""
    if isinstance(error, RequestTooLong):
        return StatusCode.RESOURCE_EXHAUSTED, str(error)
    return StatusCode.INVALID_ARGUMENT, "the request is no valid protobuf message of its type"


# Answers through the call, at once or later. Serves unary and server-streaming methods.
UnaryHandler: TypeAlias = Callable[[RequestT, Call], None]


@dataclass(frozen=True, slots=True)
class UnaryMethod(Generic[RequestT]):
    handler: UnaryHandler[RequestT]
    request_type: RequestDecoder[RequestT]


@dataclass(frozen=True, slots=True)
class ServerStreamMethod(Generic[RequestT]):
    """One request, any number of responses."""

    handler: UnaryHandler[RequestT]
    request_type: RequestDecoder[RequestT]


@dataclass(frozen=True, slots=True)
class BidiMethod(Generic[StreamedT]):
    """Requests and responses in any order. `handler` is called when the stream opens."""

    handler: Callable[[Call], StreamHandler[StreamedT]]
    request_type: RequestDecoder[StreamedT]


# A table holds methods of many request types; each entry was checked against its own where it was made.
Method: TypeAlias = UnaryMethod[Any] | ServerStreamMethod[Any] | BidiMethod[Any]


@dataclass(frozen=True, slots=True)
class MethodTable:
    """What one process serves of one gRPC service."""

    # Full name, for example "apache.rocketmq.v2.MessagingService".
    service_name: str
    # Method name to its handler.
    methods: Mapping[str, Method] = field(default_factory=dict)
    # Detail of the UNIMPLEMENTED answer to any other method of the service: tells where to go instead.
    otherwise: str = ""


# Cancellation that a gRPC call cannot swallow. A cancellation reaches a task through what the task waits for. A call of
# grpc.aio that is just failing takes it for the end of the call and raises `AioRpcError` instead. The task then
# survives and tries again, and whoever waits for its end waits for ever.


@contextmanager
def cancellation_wins() -> Iterator[None]:
    """Around gRPC calls of the current task whose failure is caught: a cancellation that came meanwhile is raised
    instead of the failure. One from before is not: who cleans up after it still wants to know what failed."""
    task = asyncio.current_task()
    assert task is not None, "only tasks are cancelled"
    cancelled_before = task.cancelling()
    try:
        yield
    except Exception as failure:
        if task.cancelling() > cancelled_before:
            raise asyncio.CancelledError from failure
        raise


class ListenError(Exception):
    """The address cannot be listened on: taken, or not this machine's. The operator has to change one of the two."""

    def __init__(self, bind_address: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {bind_address}:{port}: {reason}")
        self.bind_address = bind_address
        self.port = port
